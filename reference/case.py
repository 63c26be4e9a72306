"""A case is one launch, completely described: batch, groups, context parallelism, sizes. Equal cases are equal JSON (schema 1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SCHEMA = 1
KINDS = ("paged", "circular")
OUTPUT_DTYPES = ("int32", "int64")
FENCES = ("after", "before")
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
INT64_MIN, INT64_MAX = -(1 << 63), (1 << 63) - 1


class CaseError(ValueError):
    """A case that cannot be read. The message is one line, ``where: what``."""


@dataclass(frozen=True, slots=True)
class ContextParallel:
    """W ranks share each sequence; ``interleave`` (I) consecutive tokens stay on one rank. W == 1: no context parallelism."""

    size: int = 1
    rank: int = 0
    interleave: int = 1


@dataclass(frozen=True, slots=True)
class Group:
    """One KV-cache group: its block table [rows][width] and what its slots mean.

    ``block_size`` (b) counts the tokens of one kernel block, ``kv_cache_block_size`` (B) those of one allocated block, B = k*b.
    ``row_stride`` is the distance between rows in elements; None means the row width. Cells between width and stride
    belong to nobody.
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


@dataclass(frozen=True, slots=True)
class Replay:
    """Tokens recomputed after a prefix-cache hit: their slots in the cacheable groups become PAD."""

    starts: tuple[int, ...]
    window: int
    cacheable_groups: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """One launch. ``query_start_loc`` [num_reqs+1], ``positions`` [>= num_tokens], one entry of ``groups`` a KV-cache group."""

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


@dataclass(frozen=True, slots=True)
class Launch:
    """What a case does not say about a launch: the output buffer, the compile-time constants, and where its fence stands.

    ``output_length`` counts elements (None: ``max_num_tokens``). ``fence`` says on which side of every buffer memory ends:
    "after" its last element or "before" its first one.
    """

    output_dtype: str = "int32"
    output_length: int | None = None
    fence: str = "after"
    constants: Mapping[str, int | bool] = field(default_factory=dict)
