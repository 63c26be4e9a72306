"""A lane that compiles with triton-ascend and runs native code in this process: what is said of it, and asked of its
launcher.
"""

from __future__ import annotations

import platform
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conformance.execution.buffer import Buffer
from conformance.lanes.base import Lane
from conformance.lanes.environment import installed

if TYPE_CHECKING:  # needs Triton, which not every process has
    from conformance.lanes.ascend.launcher import NativeLauncher

_PACKAGES = ("triton-ascend", "ascendnpu-ir", "llvmlite", "pybind11")

_VERSIONS = ((3, 10), (3, 11))
"""Of CPython, for which triton-ascend has wheels."""


class NativeLane(Lane):
    """Needs triton-ascend, ascendnpu-ir and llvmlite; no NPU, no CANN."""

    @abstractmethod
    def launcher(self, cache: Path) -> NativeLauncher:
        """What launches kernels in this process, with its code in the folder ``cache``."""

    def unavailable(self) -> str | None:
        missing = [package for package in _PACKAGES if not installed(package)]
        if not missing:
            return None
        if sys.version_info[:2] in _VERSIONS and sys.platform == "linux":
            return f"{', '.join(missing)} not installed here: use the Python of .venv, which make creates"
        here = f"CPython {sys.version_info[0]}.{sys.version_info[1]} on {sys.platform} {platform.machine()}"
        wheels = "triton-ascend has wheels for CPython 3.10 and 3.11 on Linux"
        return f"{', '.join(missing)} not installed ({wheels}; this is {here})"

    def enter(self, cache: str) -> None:
        self._launcher = self.launcher(Path(cache) / self.name)
        self._launcher.install()

    def pointer(self, buffer: Buffer) -> Buffer:
        return buffer

    def precompile(self, kernel: Any, arguments: Mapping[str, Any]) -> bool:
        return self._launcher.precompile(kernel, arguments)

    def specializations(self) -> int:
        return self._launcher.specializations

    def order(self, *, backwards: bool) -> None:
        self._launcher.backwards = backwards

    def on_compile(self, announce: Callable[[str], None]) -> None:
        self._launcher.announce = announce
