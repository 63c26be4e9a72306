"""Lane ``hivm``: the Ascend compiler's last program before code generation, executed here. What a kernel does on the
chip's vector cores, with their float32 division and with every buffer at its planned address.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conformance.execution.buffer import Buffer
from conformance.lanes.base import Lane
from conformance.lanes.lowered import LoweredLane

VDIV = ("exact", "low", "high")
"""Where quotients of float32 vectors land: as IEEE 754 rounds, or on the number below or above."""

_VARIABLE = "SLOT_MAPPING_VDIV"


class HivmLane(Lane):
    """Needs what lane ``lowered`` needs. ``vdiv`` is one of ``VDIV``."""

    name = "hivm"
    clauses = frozenset({"pos-f32"})  # vectors of integers are divided in float32

    def __init__(self, vdiv: str = VDIV[0]) -> None:
        self.vdiv = vdiv

    def unavailable(self) -> str | None:
        return LoweredLane().unavailable()

    def options(self) -> tuple[str, ...]:
        return () if self.vdiv == VDIV[0] else ("--vdiv", self.vdiv)

    def environment(self) -> Mapping[str, str]:
        return {_VARIABLE: self.vdiv}

    def enter(self, cache: str) -> None:
        from conformance.lanes.hivm.functions import Rounding
        from conformance.lanes.hivm.launcher import Launcher

        self._launcher = Launcher(Path(cache) / "hivm", Rounding(os.environ.get(_VARIABLE, VDIV[0])))
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
