"""What a run ran on, as far as it can change the result: Python, the platform, the packages that compile or draw."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "torch-npu", "triton", "triton-ascend", "llvmlite", "numpy", "hypothesis", "vllm", "vllm-ascend")


def environment(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Versions by name, and the processor; a package that is not installed is left out."""
    found = {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": platform.platform(),
    }
    processor = _processor()
    if processor:
        found["processor"] = processor
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor(file: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's own name, "" where the system does not say it."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    name = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.machine()
