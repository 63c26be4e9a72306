"""Arguments by parameter name: one readable table a family, from every known name to its value for a case.

Published versions of a kernel disagree in names, order and number of parameters, so nothing is ever bound by
position. A parameter that no table knows is an error that says where it stands and how to add it; it is never
guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from conformance.execution.arena import INPUT_POISON, Array
from conformance.execution.session import Argument, Invocation
from conformance.subjects.entry import EntryPoint
from reference.case import Case, Group, Launch

PRODUCTION_TILE = 1024
_POISON_CELL = int.from_bytes(bytes([INPUT_POISON]) * 4, "little")

OUTPUT = "slot_mapping"
_HERE = "conformance/subjects/binding.py"


class BindingError(TypeError):
    """A parameter of an entry point that cannot be given a value."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The compile-time choices that are no part of a case: tokens in a tile, and block-table cells in a window (None:
    the published rule, ``next_power_of_2(cdiv(tile, block_size) + 1)``).
    """

    tile: int = PRODUCTION_TILE
    window: int | None = None


class Launching:
    """One launch about to be bound: the case, its output, its settings. Arrays are made once, however many names want
    them.
    """

    def __init__(self, case: Case, launch: Launch, settings: Settings) -> None:
        self.case, self.launch, self.settings = case, launch, settings

    @property
    def group(self) -> Group:
        return self.case.groups[0]

    @cached_property
    def query_start_loc(self) -> Array:
        return _ints("query_start_loc", "int32", self.case.query_start_loc)

    @cached_property
    def positions(self) -> Array:
        return _ints("positions", "int64", self.case.positions)

    @cached_property
    def token_positions(self) -> Array:
        return _ints("positions", "int64", self.case.positions[: self.case.num_tokens])

    @cached_property
    def req_indices(self) -> Array:
        bounds = np.array(self.case.query_start_loc, dtype=np.int64)
        data = np.repeat(np.arange(self.case.num_reqs, dtype=np.int32), bounds[1:] - bounds[:-1])
        return Array("req_indices", "int32", data.shape, data)

    @cached_property
    def block_table(self) -> Array:
        group = self.group
        rows, width, stride = len(group.block_table), group.row_width, group.stride
        data = np.full((rows, stride), _POISON_CELL, dtype=np.int32)
        if rows and width:
            data[:, :width] = group.block_table
        return Array("block_table", "int32", (rows, width), data, None if stride == width else (stride, 1))

    @cached_property
    def slot_mapping(self) -> Array:
        return Array(OUTPUT, self.launch.output_dtype, (output_length(self.case, self.launch),), None)

    @property
    def window(self) -> int:
        if self.settings.window is not None:
            return self.settings.window
        blocks = -(-self.settings.tile // self.group.block_size) + 1
        return 1 << (blocks - 1).bit_length()


def output_length(case: Case, launch: Launch) -> int:
    return case.max_num_tokens if launch.output_length is None else launch.output_length


def _ints(name: str, dtype: str, values: tuple[int, ...]) -> Array:
    data = np.array(values, dtype=dtype)
    return Array(name, dtype, data.shape, data)


Value = Callable[[Launching], Argument]

_TILE: Value = lambda c: c.settings.tile  # noqa: E731
_WINDOW: Value = lambda c: c.window  # noqa: E731

# Kernels that take one group, one program a request and one for the padding.
V1: Mapping[str, Value] = {
    "num_tokens": lambda c: c.case.num_tokens,
    "max_num_tokens": lambda c: c.case.max_num_tokens,
    "query_start_loc_ptr": lambda c: c.query_start_loc,
    "positions_ptr": lambda c: c.positions,
    "block_table_ptr": lambda c: c.block_table,
    "block_table_stride": lambda c: c.group.stride,
    "block_size": lambda c: c.group.block_size,
    "slot_mapping_ptr": lambda c: c.slot_mapping,
    "KV_CACHE_BLOCK_SIZE": lambda c: c.group.kv_cache_block_size,
    "BLOCKS_PER_KV_BLOCK": lambda c: c.group.blocks_per_kv_block,
    "TOTAL_CP_WORLD_SIZE": lambda c: c.case.cp.size,
    "TOTAL_CP_RANK": lambda c: c.case.cp.rank,
    "CP_KV_CACHE_INTERLEAVE_SIZE": lambda c: c.case.cp.interleave,
    "PAD_ID": lambda c: c.case.pad_id,
    "TILE_BLOCK_SIZE": _TILE,
    "BLOCK_TABLE_WINDOW_SIZE": _WINDOW,
    "IS_CIRCULAR": lambda c: c.group.kind == "circular",
}

# This project's torch path: one element a token, no padding.
DCP: Mapping[str, Value] = {
    "req_indices": lambda c: c.req_indices,
    "positions": lambda c: c.token_positions,
    "block_table": lambda c: c.block_table,
    "slot_mapping": lambda c: c.slot_mapping,
    "block_size": lambda c: c.group.block_size,
    "kv_cache_block_size": lambda c: c.group.kv_cache_block_size,
    "cp_size": lambda c: c.case.cp.size,
    "cp_rank": lambda c: c.case.cp.rank,
    "cp_interleave": lambda c: c.case.cp.interleave,
    "pad_id": lambda c: c.case.pad_id,
}

# vllm-ascend's BlockTable: its constructor's parameters, the buffers it would have made itself, and the method's own.
# Here ``block_size`` means the allocated block, and the width counts allocated blocks.
BLOCK_TABLE: Mapping[str, Value] = {
    "block_size": lambda c: c.group.kv_cache_block_size,
    "max_num_reqs": lambda c: len(c.group.block_table),
    "max_num_blocks_per_req": lambda c: c.group.row_width // c.group.blocks_per_kv_block,
    "max_num_batched_tokens": lambda c: c.case.max_num_tokens,
    "pin_memory": lambda c: False,
    "device": lambda c: "cpu",
    "kernel_size": lambda c: c.group.block_size,
    "cp_kv_cache_interleave_size": lambda c: c.case.cp.interleave,
    "num_speculative_tokens": lambda c: 0,
    "kv_cache_group": lambda c: None,
    "is_circular": lambda c: False,
    "cp_world_size": lambda c: c.case.cp.size,
    "cp_rank": lambda c: c.case.cp.rank,
    "block_table": lambda c: c.block_table,
    "slot_mapping": lambda c: c.slot_mapping,
    "req_indices": lambda c: c.req_indices,
    "positions": lambda c: c.token_positions,
}

FAMILIES: Mapping[str, Mapping[str, Value]] = {"v1": V1, "dcp": DCP, "block-table": BLOCK_TABLE}
GRIDS: Mapping[str, Callable[[Launching], tuple[int, ...]]] = {
    "v1": lambda c: (c.case.num_reqs + 1,),
    "dcp": lambda c: (),
    "block-table": lambda c: (),
}


def check(entry: EntryPoint) -> None:
    """Raise BindingError unless every parameter of ``entry`` is known: a run says so before it compiles anything."""
    for parameter in entry.parameters:
        if parameter not in FAMILIES[entry.family]:
            raise BindingError(
                f"{entry.function} has a parameter {parameter!r} that the suite does not know"
                f" ({entry.file}:{entry.line}): add it to the table of family {entry.family!r} in {_HERE}"
            )


def bind(entry: EntryPoint, case: Case, launch: Launch, settings: Settings) -> tuple[Invocation, Launch]:
    """Every parameter of ``entry`` with its value, and ``launch`` with the compile-time ones as ``constants``.

    Raises BindingError naming function, parameter, file and line.
    """
    check(entry)
    table = FAMILIES[entry.family]
    launching = Launching(case, launch, settings)
    arguments = {parameter: table[parameter](launching) for parameter in entry.parameters}
    constants = {name: bound for name in entry.constants if isinstance(bound := arguments[name], int)}
    return Invocation(entry.name, GRIDS[entry.family](launching), arguments), replace(launch, constants=constants)


def settings_of(entry: EntryPoint, launch: Launch) -> Settings:
    """The settings that a saved launch was bound with; production's where it names none."""
    table = FAMILIES[entry.family]
    chosen = {_TILE: "tile", _WINDOW: "window"}
    saved = {chosen[table[name]]: value for name, value in launch.constants.items() if table.get(name) in chosen}
    return Settings(**saved)
