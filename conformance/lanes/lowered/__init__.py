"""Lane ``lowered``: triton-ascend's front end down to linalg, upstream MLIR and LLVM from there, native code on this
machine.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from conformance.lanes.ascend.lane import NativeLane

if TYPE_CHECKING:
    from conformance.lanes.lowered.launcher import Launcher


class LoweredLane(NativeLane):
    """Needs what every lane does that compiles with triton-ascend."""

    name = "lowered"

    def launcher(self, cache: Path) -> Launcher:
        from conformance.lanes.lowered.launcher import Launcher

        return Launcher(cache)
