"""Lane ``hivm``: the Ascend compiler's last program before code generation, executed here. What a kernel does on the
chip's vector cores, with their float32 division and with every buffer at its planned address.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.lanes.ascend.lane import NativeLane

if TYPE_CHECKING:
    from conformance.lanes.hivm.launcher import Launcher

VDIV = ("exact", "low", "high")
"""Where quotients of float32 vectors land: as IEEE 754 rounds, or on the number below or above."""

_VARIABLE = "SLOT_MAPPING_VDIV"


class HivmLane(NativeLane):
    """Needs what every lane does that compiles with triton-ascend. ``vdiv`` is one of ``VDIV``."""

    name = "hivm"
    clauses = frozenset({"pos-f32"})  # vectors of integers are divided in float32

    def __init__(self, vdiv: str = VDIV[0]) -> None:
        self.vdiv = vdiv

    def options(self) -> tuple[str, ...]:
        return () if self.vdiv == VDIV[0] else ("--vdiv", self.vdiv)

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), _VARIABLE: self.vdiv}

    def launcher(self, cache: Path) -> Launcher:
        from conformance.lanes.hivm.functions import Rounding
        from conformance.lanes.hivm.launcher import Launcher

        return Launcher(cache, Rounding(os.environ.get(_VARIABLE, VDIV[0])))
