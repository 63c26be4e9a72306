"""Where a package is: a checkout, an unpacked wheel or an installed package, and which version of it."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from conformance.lanes.environment import installed

UNKNOWN = "unknown"


def find_package(name: str, source: str | None) -> Path:
    """The folder of package ``name``. Raises FileNotFoundError, one line, when it is not there."""
    if source is None:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            raise FileNotFoundError(f"{name} is not installed: give a checkout or an unpacked wheel with --source PATH")
        return Path(next(iter(spec.submodule_search_locations)))
    given = Path(source).resolve()
    for folder in (given / name, given):  # in this order: a checkout of vLLM is often called as its package is
        if folder.name == name and folder.is_dir():
            return folder
    raise FileNotFoundError(f"{source} holds no folder {name}")


def version_of(package: Path) -> str:
    """From the wheel's metadata beside the package, else a version file in it, else the installed distribution's."""
    for metadata in sorted(package.parent.glob(f"{package.name}-*.dist-info/METADATA")):
        found = re.search(r"^Version: (.+)$", metadata.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if found:
            return found[1].strip()
    for file in (package / "_version.py", package / "version.py"):
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")
            found = re.search(r"^(?:__version__|version)\s*(?:=\s*version\s*)?=\s*['\"]([^'\"]+)", text, re.MULTILINE)
            if found:
                return found[1]
    spec = importlib.util.find_spec(package.name)
    if spec is not None and package in map(Path, spec.submodule_search_locations or ()):
        return installed(package.name.replace("_", "-")) or UNKNOWN
    return UNKNOWN
