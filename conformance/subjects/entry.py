"""An entry point: what the suite knows of one function of a subject, and the function itself in the process that
loaded it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.lanes.base import Lane
from conformance.subjects.allocated import allocated_rows
from conformance.subjects.promises import far
from reference.case import Case, Launch
from strategies.declaration import Declaration

TESTABLE = "testable"


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """``name`` is the suite's word for it (``v1``, ``dcp``, ...), ``function`` the code's own.

    ``family`` names the table that binds its parameters (:mod:`conformance.subjects.binding`). ``constants`` are the
    compile-time parameters among ``parameters``. ``status`` is "testable" or the reason why it is not. ``conditional``
    are (clause, parameter): a clause beyond those of ``declaration`` in launches that give the parameter nothing.
    ``expected``: this version is known to have it. ``prepares``: it computes no slots but compiles what the entry point
    of that name will launch. ``sparse``: clauses of ``declaration`` that consecutive positions need not keep.
    """

    subject: str
    version: str
    name: str
    function: str
    family: str
    file: str
    line: int
    parameters: tuple[str, ...]
    constants: tuple[str, ...]
    declaration: Declaration
    status: str = TESTABLE
    conditional: tuple[tuple[str, str], ...] = ()
    expected: bool = False
    prepares: str = ""
    sparse: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.subject}.{self.name}"

    def describe(self) -> str:
        """One line: who, where, and whether it can be tested."""
        where = f"{self.file}:{self.line} {self.function}" if self.file else self.function
        return f"{self.id} {self.version}: {self.status} ({where})"

    @property
    def package(self) -> Path | None:
        """The folder of the package that the code under test is in; None for an entry point that was not found."""
        if not self.file:
            return None
        file, name = Path(self.file), self.subject.replace("-", "_")
        return next((folder for folder in file.parents if folder.name == name), file.parent)

    @property
    def writes_tail(self) -> bool:
        """Whether [num_tokens, max_num_tokens) becomes PAD; the torch and NumPy paths leave it as it was."""
        return "tail" in self.declaration.features

    @property
    def launches_kernels(self) -> bool:
        """Whether it launches kernels, which run on a lane; else it is plain torch, or what stands around it."""
        return self.name not in ("dcp", "draft")

    @property
    def allocates(self) -> bool:
        """Whether rows are filled with allocated blocks, and split into kernel blocks by the code under test."""
        return self.family.startswith("allocating")

    def cannot_take(self, case: Case, launch: Launch) -> str | None:
        """Why this case is not for this entry point, or None."""
        missing = features_of(case, launch) - self.declaration.features
        if missing:
            return f"{self.id} does not have {', '.join(sorted(missing))}"
        if "replay" in self.declaration.features and case.replay is None:
            return f"{self.id} takes slots back, and nothing in the case is replayed"
        if self.allocates and None in map(allocated_rows, case.groups):
            return f"{self.id} fills its rows with allocated blocks, which those of the case are not made of"
        return None

    def needing(self, clauses: frozenset[str]) -> EntryPoint:
        """The same entry point where more than its own ``clauses`` are needed: by the lane that it runs on.

        What it promises of consecutive positions on every lane holds on that one.
        """
        own = self.declaration.clauses
        sparse = sorted((clauses - own) & far(self.subject))
        return replace(self, declaration=replace(self.declaration, clauses=own | clauses), sparse=tuple(sparse))

    def to_json(self) -> dict[str, object]:
        answer = asdict(self)
        answer["declaration"] = {
            "clauses": sorted(self.declaration.clauses),
            "features": sorted(self.declaration.features),
        }
        return answer

    @classmethod
    def from_json(cls, item: dict[str, Any]) -> EntryPoint:
        declaration = Declaration(**{key: frozenset(value) for key, value in item["declaration"].items()})
        lists = {key: tuple(item[key]) for key in ("parameters", "constants", "sparse")}
        conditional = tuple((clause, parameter) for clause, parameter in item["conditional"])
        return cls(**{**item, **lists, "declaration": declaration, "conditional": conditional})


def features_of(case: Case, launch: Launch) -> frozenset[str]:
    """What an entry point must be able to do for this launch."""
    groups = case.groups
    found = {
        "circular": any(group.kind == "circular" for group in groups),
        "cp": case.cp.size > 1,
        "hybrid": any(group.blocks_per_kv_block > 1 for group in groups),
        "groups": len(groups) != 1,
        "sharded": case.cp.size > 1 and not all(group.sharded for group in groups),
        "enabled": not all(group.enabled for group in groups),
        "row_stride": any(group.stride != group.row_width for group in groups),
        "idx_mapping": case.idx_mapping is not None,
        "replay": case.replay is not None,
        "pad_id": case.pad_id != -1,
        "int64": launch.output_dtype == "int64",
    }
    return frozenset(name for name, there in found.items() if there)


@dataclass(frozen=True, slots=True)
class LoadedEntry:
    """An entry point in the process that imported it. ``kernel`` is a ``@triton.jit`` function, else ``call`` is an
    ordinary one.
    """

    description: EntryPoint
    kernel: Any = None
    call: Callable[..., object] | None = field(default=None, repr=False)

    @property
    def is_kernel(self) -> bool:
        return self.kernel is not None

    def invoke(self, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> None:
        if self.kernel is not None:
            self.kernel[grid](**arguments)
        elif self.call is not None:
            self.call(**arguments)

    def precompile(self, lane: Lane, arguments: Mapping[str, Any]) -> bool:
        return bool(lane.precompile(self.kernel, arguments))


def location(function: Any) -> tuple[str, int]:
    """File and line where a plain or ``@triton.jit`` function is defined."""
    plain = getattr(function, "fn", function)
    return inspect.getsourcefile(plain) or "", plain.__code__.co_firstlineno


def parameters(function: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Parameter names, and which of them are ``tl.constexpr``."""
    names = tuple(inspect.signature(getattr(function, "fn", function)).parameters)
    annotations = getattr(getattr(function, "fn", function), "__annotations__", {})
    return names, tuple(name for name in names if "constexpr" in str(annotations.get(name, "")))
