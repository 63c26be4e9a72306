"""Which packages are here. ``triton`` and ``triton-ascend`` both install a package named ``triton``; only one can be
present.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def installed(package: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
