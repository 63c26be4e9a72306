"""What a run ran on, as far as it can change the result: Python, the platform, the packages that compile or draw."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from importlib import metadata

PACKAGES = ("torch", "torch-npu", "triton", "triton-ascend", "llvmlite", "numpy", "hypothesis", "vllm", "vllm-ascend")


def environment(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions by name; a package that is not installed is left out."""
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
    }
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
