"""What the audit says: a row for each kernel, setting and chip."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from conformance.audit.bounds import Bounds
from conformance.audit.measure import Measures
from conformance.lanes.ascend import compiler
from conformance.lanes.ascend.ir import Line
from conformance.subjects.entry import EntryPoint

# Besides those of a compilation.
FRONT_END = "refused by the front end"
NOT_LAUNCHED = "not launched"
NO_COMPILER = "no compiler"
WORKER_DIED = "the audit's own process died"

OTHER_VERSION = "another version of the compiler"
"""How ``not_measured`` begins where it is not the program that is unknown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One compilation, or why there is none.

    ``status``: COMPILED, another of :mod:`conformance.lanes.ascend.compiler`, or one of this module's; ``message`` and
    ``line`` say more where it is not COMPILED. ``measures`` is None where the figures are not known; ``not_measured``
    says why. ``ub``: bytes used and available, also for programs of which nothing else is known. Seconds: of
    triton-ascend's front end, which all chips share, and of the back end.
    """

    entry: EntryPoint
    function: str
    settings: Mapping[str, object]
    target: str
    status: str
    message: str = ""
    line: Line | None = None
    notes: tuple[str, ...] = ()
    measures: Measures | None = None
    not_measured: str = ""
    ub: tuple[int, int] | None = None
    bounds: Bounds | None = None
    front_end_seconds: float = 0.0
    compile_seconds: float = 0.0
    every_step: tuple[str, ...] = ()

    @property
    def compiled(self) -> bool:
        return self.status == compiler.COMPILED

    @property
    def setting(self) -> str:
        """The settings in one line."""
        return " ".join(f"{name}={value}" for name, value in self.settings.items())

    def to_json(self) -> dict[str, object]:
        return {
            "entry_point": self.entry.id,
            "version": self.entry.version,
            "function": self.function,
            "settings": dict(self.settings),
            "target": self.target,
            "status": self.status,
            "message": self.message,
            "line": _place(self.line),
            "notes": list(self.notes),
            "not_measured": self.not_measured or None,
            "ub_bytes": None if self.ub is None else {"used": self.ub[0], "available": self.ub[1]},
            **_figures(self.measures),
            "largest_position": None if self.bounds is None else self.bounds.position,
            "largest_block": None if self.bounds is None else self.bounds.block,
            "seconds": {"front_end": round(self.front_end_seconds, 3), "compile": round(self.compile_seconds, 3)},
        }


def _figures(m: Measures | None) -> dict[str, object]:
    """None each where nothing was measured."""
    if m is None:
        return dict.fromkeys(("vector_operations", "transfers", "per_tile", "scalar_loops", "float32"))
    return {
        "vector_operations": dict(m.vector),
        "transfers": dict(m.movement),
        "per_tile": {
            "vector": m.vector_per_tile,
            "movement": m.movement_per_tile,
            "scalar": m.scalar_per_tile,
            "bytes_read": m.read_per_tile,
            "bytes_written": m.written_per_tile,
        },
        "scalar_loops": [
            {"line": _place(each.line), "operation": each.operation, "trips": each.trips} for each in m.scalar_loops
        ],
        "float32": [
            {"kind": each.kind, "line": _place(each.line), "operation": each.operation, "divisor": each.divisor}
            for each in m.float32
        ],
    }


def _place(line: Line | None) -> dict[str, object] | None:
    return None if line is None else {"file": line.file, "line": line.line}
