"""Where a Triton kernel runs. A lane is one small object; everything else of the suite is the same on all of them.

A lane works by making ``kernel[grid](...)`` run its own way inside the process that holds the subject, so that host
functions which launch kernels themselves need nothing special.
"""

from __future__ import annotations

from conformance.lanes.base import Lane
from conformance.lanes.device import CudaLane, NpuLane
from conformance.lanes.hivm import HivmLane
from conformance.lanes.interpreter import InterpreterLane
from conformance.lanes.lowered import LoweredLane

__all__ = ["Lane", "LaneUnavailable", "automatic", "by_name", "names"]

_LANES: dict[str, type[Lane]] = {
    "npu": NpuLane,
    "cuda": CudaLane,
    "lowered": LoweredLane,
    "hivm": HivmLane,
    "interpreter": InterpreterLane,
}


class LaneUnavailable(RuntimeError):
    """No lane, or not the one asked for, can run here."""


def names() -> list[str]:
    """Every lane this suite knows, best first."""
    return list(_LANES)


def by_name(name: str) -> Lane:
    if name not in _LANES:
        raise LaneUnavailable(f"unknown lane {name!r}: choose one of {', '.join(['auto', *_LANES])}")
    return _LANES[name]()


def automatic() -> Lane:
    """The first lane that can run in this environment."""
    reasons = []
    for make in _LANES.values():
        lane = make()
        reason = lane.unavailable()
        if reason is None:
            return lane
        reasons.append(f"{lane.name}: {reason}")
    raise LaneUnavailable("no lane can run here (" + "; ".join(reasons) + ")")
