"""What the parameters of an entry point can be given for one case: its buffers and figures, each under its own name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from zlib import crc32

import numpy as np

from conformance.execution.array import Array, of_addresses, of_values
from conformance.execution.memory import INPUT_POISON
from conformance.expected import expected_output
from reference.case import Case, ContextParallel, Group, Launch
from reference.fields import INT32_MAX, INT32_MIN

PRODUCTION_TILE = 1024
# What vllm-ascend 0.18 to 0.26 stage of a row at once in v2.
PRODUCTION_ROW = 4096
OUTPUT = "slot_mapping"
# No row, no offset, no start of a replay; each alone would do harm in another way.
_STALE = (INT32_MAX, 1, INT32_MIN, -1, 1 << 24)
_POISON_CELL = int.from_bytes(bytes([INPUT_POISON]) * 4, "little")


@dataclass(frozen=True, slots=True)
class Settings:
    """The compile-time choices that are no part of a case: tokens in a tile, and block-table cells in a window (None:
    the published rule, ``next_power_of_2(cdiv(tile, block_size) + 1)``).
    """

    tile: int = PRODUCTION_TILE
    window: int | None = None


def has_flags(settings: Settings, block_size: int, cp: ContextParallel, pad_id: int) -> bool:
    """Whether launches of this specialization give per-group flags (enabled, sharded, circular) although all groups
    have the default.

    Absent and present pointers are compiled apart. To compile each specialization once, one half of them always gives
    flags and the other never has a group that needs them. ``block_size``: the smallest of the launch.
    """
    return _checksum(settings.tile, block_size, cp, pad_id) & 1 == 0


def has_narrow_strides(settings: Settings, block_size: int, cp: ContextParallel, pad_id: int) -> bool:
    """Whether launches of this specialization give row strides as int32 where the entry point takes either: one half of
    them, again because the two are compiled apart.
    """
    return _checksum(settings.tile, block_size, cp, pad_id) & 2 == 0


@lru_cache(maxsize=1024)
def _checksum(*compiled: object) -> int:
    """The same in every process, unlike hash()."""
    return crc32(repr(compiled).encode())


class Launching:
    """One launch about to be bound. ``parameters`` are the entry point's, for names whose meaning depends on their
    neighbours, ``features`` what it declares. A buffer is made once, however many parameters want it.

    Where a case has positions behind its last token, the batch stands in serving's own buffers: those of one element a
    request are longer too, by as much, and hold what no batch could have meant.
    """

    def __init__(
        self,
        case: Case,
        launch: Launch,
        settings: Settings,
        parameters: Sequence[str],
        features: frozenset[str] = frozenset(),
    ) -> None:
        self.case, self.launch, self.settings, self.parameters = case, launch, settings, parameters
        self.features = features

    @property
    def _compiled(self) -> tuple[Settings, int, ContextParallel, int]:
        return self.settings, self.min_block_size, self.case.cp, self.case.pad_id

    @property
    def has_flags(self) -> bool:
        return has_flags(*self._compiled)

    # One group.

    @property
    def group(self) -> Group:
        return self.case.groups[0]

    @property
    def block_table(self) -> Array:
        return self.block_tables[0]

    @cached_property
    def slot_mapping(self) -> Array:
        return Array(OUTPUT, self.launch.output_dtype, (self.output_length,), writable=True)

    @property
    def window(self) -> int:
        if self.settings.window is not None:
            return self.settings.window
        blocks = -(-self.settings.tile // self.min_block_size) + 1
        return 1 << (blocks - 1).bit_length()

    # The batch.

    @property
    def output_length(self) -> int:
        return output_length(self.case, self.launch)

    @cached_property
    def query_start_loc(self) -> Array:
        return of_values("query_start_loc", "int32", (*self.case.query_start_loc, *self._stale))

    @cached_property
    def positions(self) -> Array:
        return of_values("positions", "int64", self.case.positions)

    @cached_property
    def token_positions(self) -> Array:
        return of_values("positions", "int64", self.case.positions[: self.case.num_tokens])

    @cached_property
    def req_indices(self) -> Array:
        """int64 in serving's own buffers, as NumPy makes them, else int32."""
        dtype = "int64" if self._stale else "int32"
        bounds = np.array(self.case.query_start_loc, dtype=np.int64)
        data = np.repeat(np.arange(self.case.num_reqs, dtype=dtype), bounds[1:] - bounds[:-1])
        return Array("req_indices", dtype, data.shape, data)

    @cached_property
    def idx_mapping(self) -> Array:
        rows = map(self.case.row_of, range(self.case.num_reqs))
        return of_values("idx_mapping", "int32", (*rows, *self._stale))

    @cached_property
    def replay_start(self) -> Array:
        starts = self.case.replay.starts if self.case.replay else ()
        return of_values("replay_start", "int32", (*starts, *self._stale))

    @property
    def _stale(self) -> Sequence[int]:
        """What is behind the last request."""
        count = len(self.case.positions) - self.case.num_tokens
        return [_STALE[index % len(_STALE)] for index in range(count)]

    # All groups, one element a group.

    @cached_property
    def block_tables(self) -> list[Array]:
        one = len(self.case.groups) == 1
        return [
            _block_table("block_table" if one else f"block_table[{index}]", group)
            for index, group in enumerate(self.case.groups)
        ]

    @cached_property
    def block_table_addresses(self) -> Array:
        return of_addresses("block_table_addresses", self.block_tables)

    @property
    def block_table_strides(self) -> Array:
        narrow = "stride32" in self.features and has_narrow_strides(*self._compiled)
        return self.each_group("block_table_strides", "int32" if narrow else "int64", lambda group: group.stride)

    @property
    def min_block_size(self) -> int:
        return min(group.block_size for group in self.case.groups)

    @cached_property
    def slot_mappings(self) -> Array:
        """One output of two dimensions, a row a group; what is left of a row behind ``output_length`` is nobody's."""
        shape = (len(self.case.groups), self.slot_mappings_stride)
        return Array(OUTPUT, self.launch.output_dtype, shape, writable=True)

    @property
    def slot_mappings_stride(self) -> int:
        """Elements from row to row: a multiple of 16 in one half of the specializations, none in the other.

        Compilers tell the two apart, so one specialization must not have both: each would be compiled twice.
        """
        return -(-self.output_length // 16) * 16 + (0 if self.has_flags else 1)

    @cached_property
    def slot_mapping_addresses(self) -> Array:
        """An output of its own a group."""
        return of_addresses("slot_mapping_addresses", self._outputs([None] * len(self.case.groups)))

    @cached_property
    def replayed_slot_mapping_addresses(self) -> Array:
        """The same, already holding the slots as they are before replayed tokens lose theirs."""
        case = replace(self.case, replay=None)
        return of_addresses("slot_mapping_addresses", self._outputs(expected_output(case, self.output_length)))

    def _outputs(self, contents: Sequence[Sequence[int] | None]) -> list[Array]:
        dtype = self.launch.output_dtype
        return [
            Array(
                output_name(self.case, index),
                dtype,
                (self.output_length,),
                None if values is None else np.array(values, dtype=dtype),
                writable=True,
            )
            for index, values in enumerate(contents)
        ]

    def each_group(self, name: str, dtype: str, value: Callable[[Group], int]) -> Array:
        return of_values(name, dtype, map(value, self.case.groups))


def output_length(case: Case, launch: Launch) -> int:
    """Elements of each group's output."""
    return case.max_num_tokens if launch.output_length is None else launch.output_length


def output_name(case: Case, group: int) -> str:
    """The name of the buffer that holds the slots of ``group``, where each group has one of its own."""
    return OUTPUT if len(case.groups) == 1 else f"{OUTPUT}[{group}]"


def _block_table(name: str, group: Group) -> Array:
    """Rows ``row_stride`` apart; what lies between them is poison."""
    rows, width, stride = len(group.block_table), group.row_width, group.stride
    data = np.full((rows, stride), _POISON_CELL, dtype=np.int32)
    if rows and width:
        data[:, :width] = group.block_table
    return Array(name, "int32", (rows, width), data, None if stride == width else (stride, 1))
