"""Lane ``interpreter``: Triton's own interpreter, one NumPy operation a tensor operation. Slow, and independent of
every compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from conformance.execution.buffer import Buffer
from conformance.lanes.base import INTERPRET, Lane
from conformance.lanes.environment import installed

if TYPE_CHECKING:
    import torch


class InterpreterLane(Lane):
    """Needs the package ``triton``: the interpreter that triton-ascend 3.2.0 brings cannot run ``tl.gather``."""

    name = "interpreter"
    compile_seconds = 0.0
    programs_take_long = True
    case_timeout = 60.0  # a grid of some hundred programs takes seconds, and far more on a busy machine
    # Each operation costs as much for one token as for thousands: 2^20 positions take two seconds in tiles of 2^14, and
    # from eight seconds to over a minute in those that host functions choose, 1024 tokens at most.
    swept = 1 << 20
    sweep_tile = 1 << 14
    swept_by_hosts = 1 << 12

    def unavailable(self) -> str | None:
        if installed("triton-ascend"):
            return "triton-ascend is installed, whose interpreter cannot run tl.gather: use an environment with triton"
        return None if installed("triton") else "the package triton is not installed"

    def environment(self) -> Mapping[str, str]:
        return {INTERPRET: "1"}

    def enter(self, cache: str) -> None:
        """Nothing to do: the environment variable has switched Triton over."""

    def pointer(self, buffer: Buffer) -> torch.Tensor:
        return buffer.tensor()
