"""A case is one launch, completely described: batch, groups, context parallelism, sizes.

Equal cases are equal JSON (schema 1). Reading is strict: a field that is missing, unknown or of another type, and
shapes that do not belong together, raise ``CaseError`` with the JSON path. What a readable case may hold is the
contract's business.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from reference.fields import (
    INT64_MAX,
    INT64_MIN,
    boolean,
    choice,
    fields,
    integer,
    integers,
    items,
    joined,
    printable,
    read_json,
    shown,
)
from reference.fields import CaseError as CaseError

SCHEMA = 1
KINDS = ("paged", "circular")
OUTPUT_DTYPES = ("int32", "int64")
FENCES = ("after", "before", "open")

MAX_TOKENS = 1 << 24
"""Most elements of an output, or of a row's stride, that a file may ask for: one digit too many must not fill RAM."""


@dataclass(frozen=True, slots=True)
class ContextParallel:
    """W ranks share each sequence; ``interleave`` (I) consecutive tokens stay on one rank. W == 1: no sharing."""

    size: int = 1
    rank: int = 0
    interleave: int = 1

    def to_json(self) -> dict[str, object]:
        return {"size": self.size, "rank": self.rank, "interleave": self.interleave}

    @classmethod
    def from_json(cls, value: object, where: str = "cp") -> ContextParallel:
        found = fields(value, where, ("size", "rank", "interleave"))
        return cls(
            size=integer(found["size"], f"{where}.size", 1),
            rank=integer(found["rank"], f"{where}.rank"),
            interleave=integer(found["interleave"], f"{where}.interleave", 1),
        )


@dataclass(frozen=True, slots=True)
class Group:
    """One KV-cache group: its block table [rows][width] and what its slots mean. Sizes are at least 1.

    ``block_size`` (b) counts the tokens of one kernel block, ``kv_cache_block_size`` (B) those of one allocated block,
    B = k*b. ``row_stride`` is the distance between rows in elements; None means the row width. Cells between width and
    stride belong to nobody.
    """

    block_table: tuple[tuple[int, ...], ...]
    block_size: int
    kv_cache_block_size: int
    kind: str = "paged"
    sharded: bool = True
    enabled: bool = True
    row_stride: int | None = None

    @property
    def blocks_per_kv_block(self) -> int:
        """k: kernel blocks in one allocated block. Above 1 the group is called hybrid."""
        return self.kv_cache_block_size // self.block_size

    @property
    def row_width(self) -> int:
        return len(self.block_table[0]) if self.block_table else 0

    @property
    def stride(self) -> int:
        return self.row_width if self.row_stride is None else self.row_stride

    def to_json(self) -> dict[str, object]:
        stride = {} if self.row_stride is None else {"row_stride": self.row_stride}
        return {
            "block_table": [list(row) for row in self.block_table],
            "block_size": self.block_size,
            "kv_cache_block_size": self.kv_cache_block_size,
            "kind": self.kind,
            "sharded": self.sharded,
            "enabled": self.enabled,
            **stride,
        }

    @classmethod
    def from_json(cls, value: object, where: str = "group") -> Group:
        required = ("block_table", "block_size", "kv_cache_block_size", "kind", "sharded", "enabled")
        found = fields(value, where, required, ("row_stride",))
        table = _table(found["block_table"], f"{where}.block_table")
        width = len(table[0]) if table else 0
        stride = None
        if "row_stride" in found:
            stride = integer(found["row_stride"], f"{where}.row_stride", 0, MAX_TOKENS)
            if stride < width:
                raise CaseError(f"{where}.row_stride: expected at least the row width {width}, got {stride}")
        return cls(
            block_table=table,
            block_size=integer(found["block_size"], f"{where}.block_size", 1),
            kv_cache_block_size=integer(found["kv_cache_block_size"], f"{where}.kv_cache_block_size", 1),
            kind=choice(found["kind"], f"{where}.kind", KINDS),
            sharded=boolean(found["sharded"], f"{where}.sharded"),
            enabled=boolean(found["enabled"], f"{where}.enabled"),
            row_stride=stride,
        )


def _table(value: object, where: str) -> tuple[tuple[int, ...], ...]:
    table = tuple(integers(row, f"{where}[{index}]") for index, row in enumerate(items(value, where)))
    for index, row in enumerate(table):
        if len(row) != len(table[0]):
            raise CaseError(f"{where}[{index}]: expected {len(table[0])} blocks as in row 0, got {len(row)}")
    return table


@dataclass(frozen=True, slots=True)
class Replay:
    """Tokens recomputed after a prefix-cache hit: their slots in the cacheable groups become PAD.

    ``starts`` [num_reqs] int32: the first replayed position of each request, 0 where nothing is replayed; ``window``
    counts tokens. Circular groups are never cacheable.
    """

    starts: tuple[int, ...]
    window: int
    cacheable_groups: tuple[int, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "starts": list(self.starts),
            "window": self.window,
            "cacheable_groups": list(self.cacheable_groups),
        }

    @classmethod
    def from_json(cls, value: object, where: str = "replay") -> Replay:
        found = fields(value, where, ("starts", "window", "cacheable_groups"))
        return cls(
            starts=integers(found["starts"], f"{where}.starts", 0),
            window=integer(found["window"], f"{where}.window", 0),
            cacheable_groups=integers(found["cacheable_groups"], f"{where}.cacheable_groups", 0),
        )


@dataclass(frozen=True, slots=True)
class Case:
    """One launch.

    ``query_start_loc`` [num_reqs+1] int32; ``positions`` [>= num_tokens] int64; ``idx_mapping`` [num_reqs] int32 or
    None; one entry of ``groups`` a KV-cache group; ``max_num_tokens`` counts the elements that a launch writes.
    """

    query_start_loc: tuple[int, ...]
    positions: tuple[int, ...]
    num_tokens: int
    max_num_tokens: int
    groups: tuple[Group, ...]
    cp: ContextParallel = ContextParallel()
    pad_id: int = -1
    idx_mapping: tuple[int, ...] | None = None
    replay: Replay | None = None

    @property
    def num_reqs(self) -> int:
        return len(self.query_start_loc) - 1

    def row_of(self, request: int) -> int:
        """The block-table row of ``request``."""
        return request if self.idx_mapping is None else self.idx_mapping[request]

    def to_json(self) -> dict[str, object]:
        """The case as JSON, schema 1."""
        return {
            "schema": SCHEMA,
            "query_start_loc": list(self.query_start_loc),
            "positions": list(self.positions),
            "num_tokens": self.num_tokens,
            "max_num_tokens": self.max_num_tokens,
            "pad_id": self.pad_id,
            "idx_mapping": None if self.idx_mapping is None else list(self.idx_mapping),
            "cp": self.cp.to_json(),
            "groups": [group.to_json() for group in self.groups],
            "replay": None if self.replay is None else self.replay.to_json(),
        }

    @classmethod
    def from_json(cls, value: object, where: str = "") -> Case:
        """The case in a parsed JSON object of schema 1; ``where`` is the path to it. Raises CaseError."""
        if isinstance(value, dict) and value.get("schema", SCHEMA) != SCHEMA:
            raise CaseError(f"{joined(where, 'schema')}: expected {SCHEMA}, got {shown(value['schema'])}")
        required = (
            "schema",
            "query_start_loc",
            "positions",
            "num_tokens",
            "max_num_tokens",
            "pad_id",
            "idx_mapping",
            "cp",
            "groups",
            "replay",
        )
        found = fields(value, where, required)
        at = {name: joined(where, name) for name in required}
        integer(found["schema"], at["schema"])
        groups = tuple(
            Group.from_json(group, f"{at['groups']}[{index}]")
            for index, group in enumerate(items(found["groups"], at["groups"]))
        )
        if not groups:
            raise CaseError(f"{at['groups']}: expected at least one group, got none")
        starts = integers(found["query_start_loc"], at["query_start_loc"])
        if not starts:
            raise CaseError(f"{at['query_start_loc']}: expected at least one element, got none")
        case = cls(
            query_start_loc=starts,
            positions=integers(found["positions"], at["positions"], INT64_MIN, INT64_MAX),
            num_tokens=integer(found["num_tokens"], at["num_tokens"], 0, MAX_TOKENS),
            max_num_tokens=integer(found["max_num_tokens"], at["max_num_tokens"], 0, MAX_TOKENS),
            groups=groups,
            cp=ContextParallel.from_json(found["cp"], at["cp"]),
            pad_id=integer(found["pad_id"], at["pad_id"]),
            idx_mapping=None if found["idx_mapping"] is None else integers(found["idx_mapping"], at["idx_mapping"]),
            replay=None if found["replay"] is None else Replay.from_json(found["replay"], at["replay"]),
        )
        _check_shapes(case, at)
        return case


def _check_shapes(case: Case, at: Mapping[str, str]) -> None:
    """What the parts of a case must agree on before anything can be asked about it."""
    if case.idx_mapping is not None and len(case.idx_mapping) != case.num_reqs:
        expected = f"expected {case.num_reqs} entries, one a request"
        raise CaseError(f"{at['idx_mapping']}: {expected}, got {len(case.idx_mapping)}")
    if case.replay is None:
        return
    if len(case.replay.starts) != case.num_reqs:
        expected = f"expected {case.num_reqs} entries, one a request"
        raise CaseError(f"{at['replay']}.starts: {expected}, got {len(case.replay.starts)}")
    cacheable = case.replay.cacheable_groups
    for index, group in enumerate(cacheable):
        where = f"{at['replay']}.cacheable_groups[{index}]"
        if group >= len(case.groups):
            raise CaseError(f"{where}: expected a group below {len(case.groups)}, got {group}")
        if group in cacheable[:index]:
            raise CaseError(f"{where}: group {group} is listed twice")
        if case.groups[group].kind == "circular":
            raise CaseError(f"{where}: group {group} is circular, circular groups are never cacheable")


@dataclass(frozen=True, slots=True)
class Launch:
    """What a case does not say about a launch: the output buffer, the compile-time constants, where its fence stands.

    ``output_length`` counts elements (None: ``max_num_tokens``). ``fence`` says on which side of every buffer memory
    ends: "after" its last element or "before" its first one; "open": on neither, what is around it can be read and is
    poison. That holds for ``open_buffers`` alone as well, names without their group: an access that is explained does
    no harm there, and the fence of the others stands. ``constants`` are the constants of one specialization, by their
    parameter names.
    """

    output_dtype: str = "int32"
    output_length: int | None = None
    fence: str = "after"
    constants: Mapping[str, int | bool] = field(default_factory=dict)
    open_buffers: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        opened = {"open_buffers": list(self.open_buffers)} if self.open_buffers else {}
        return {
            "output_dtype": self.output_dtype,
            "output_length": self.output_length,
            "fence": self.fence,
            **opened,
            "constants": dict(self.constants),
        }

    @classmethod
    def from_json(cls, value: object, where: str = "launch") -> Launch:
        """The launch in a parsed JSON object; a field that is not there has its default. Raises CaseError."""
        found = fields(value, where, (), ("output_dtype", "output_length", "fence", "open_buffers", "constants"))
        opened = items(found.get("open_buffers", []), f"{where}.open_buffers")
        length = found.get("output_length")
        constants = found.get("constants", {})
        if not isinstance(constants, dict):
            raise CaseError(f"{where}.constants: expected an object, got {shown(constants)}")
        return cls(
            output_dtype=choice(found.get("output_dtype", "int32"), f"{where}.output_dtype", OUTPUT_DTYPES),
            output_length=None if length is None else integer(length, f"{where}.output_length", 0, MAX_TOKENS),
            fence=choice(found.get("fence", "after"), f"{where}.fence", FENCES),
            constants={name: _constant(value, joined(f"{where}.constants", name)) for name, value in constants.items()},
            open_buffers=tuple(_name(name, f"{where}.open_buffers[{index}]") for index, name in enumerate(opened)),
        )


def _name(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise CaseError(f"{where}: expected the name of a buffer, got {shown(value)}")
    return value


def _constant(value: object, where: str) -> int | bool:
    return value if isinstance(value, bool) else integer(value, where, INT64_MIN, INT64_MAX)


def from_document(value: object) -> tuple[Case, Launch]:
    """The case and the launch in a parsed file: a bare case, or an object that holds ``case`` and perhaps ``launch``.

    What else such an object holds (the verdict of a failure report, the expected values of a field case) is not looked
    at. A bare case is launched with the defaults. Raises CaseError.
    """
    if not isinstance(value, dict) or "case" not in value:
        return Case.from_json(value), Launch()
    launch = Launch() if value.get("launch") is None else Launch.from_json(value["launch"], "launch")
    return Case.from_json(value["case"], "case"), launch


def load(path: str | os.PathLike[str]) -> tuple[Case, Launch]:
    """The case and the launch in a file (see ``from_document``). CaseError names the file, then the place in it."""
    value = read_json(path)
    try:
        return from_document(value)
    except CaseError as error:
        raise CaseError(f"{printable(path)}: {error}") from None
