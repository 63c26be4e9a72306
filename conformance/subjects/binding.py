"""Arguments by parameter name: one readable table a family, from every known name to its value for a case.

Published versions of a kernel disagree in names, order and number of parameters, so nothing is ever bound by
position. A parameter that no table knows is an error that says where it stands and how to add it; it is never
guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from conformance.execution.array import THE_DEVICE, of_values
from conformance.execution.session import Argument, Invocation
from conformance.subjects.entry import EntryPoint
from conformance.subjects.host_binding import ALLOCATING, ALLOCATING_DRAFT, GROUPS_HOST, TILED_HOST, V1_HOST
from conformance.subjects.launching import PRODUCTION_ROW, Launching, Settings
from reference.case import Case, Launch
from reference.contract import ANSWER_CLAUSES, Violation, violations
from strategies.geometry import divides_distances

_HERE = "conformance/subjects/binding.py"


class BindingError(TypeError):
    """A parameter of an entry point that cannot be given a value."""


Value = Callable[[Launching], Argument]

_TILE: Value = lambda c: c.settings.tile  # noqa: E731
_WINDOW: Value = lambda c: c.window  # noqa: E731

# Kernels that take one group, one program a request and one for the padding (one a tile of padding in the versions
# that take ``num_reqs``). Upstream calls the tile BLOCK_SIZE.
V1: Mapping[str, Value] = {
    "num_reqs": lambda c: c.case.num_reqs,
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
    "BLOCK_SIZE": _TILE,
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
    "validate": lambda c: c.launch.fence == "before",
}

# vllm-ascend's BlockTable: its constructor's parameters, the buffers it would have made itself, and the method's own.
# Here ``block_size`` means the allocated block, and the width counts allocated blocks.
BLOCK_TABLE: Mapping[str, Value] = {
    "block_size": lambda c: c.group.kv_cache_block_size,
    "max_num_reqs": lambda c: len(c.group.block_table),
    "max_num_blocks_per_req": lambda c: c.group.row_width // c.group.blocks_per_kv_block,
    "max_num_batched_tokens": lambda c: c.case.max_num_tokens,
    "pin_memory": lambda c: False,
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

# Kernels that take all groups at once, one program a group and request. ``block_sizes`` means the kernel block where
# the version has no ``kernel_block_sizes``, else the allocated one.
V2: Mapping[str, Value] = {
    "num_tokens": lambda c: c.case.num_tokens,
    "max_num_tokens": lambda c: c.case.max_num_tokens,
    "idx_mapping": lambda c: c.idx_mapping,
    "query_start_loc": lambda c: c.query_start_loc,
    "pos": lambda c: c.positions,
    "block_table_ptrs": lambda c: c.block_table_addresses,
    "block_table_strides": lambda c: c.block_table_strides,
    "block_sizes": lambda c: c.each_group(
        "block_sizes",
        "int32",
        lambda group: group.kv_cache_block_size if "kernel_block_sizes" in c.parameters else group.block_size,
    ),
    "kernel_block_sizes": lambda c: c.each_group("kernel_block_sizes", "int32", lambda group: group.block_size),
    "slot_mappings_ptr": lambda c: c.slot_mappings,
    "slot_mappings_stride": lambda c: c.slot_mappings_stride,
    "cp_rank": lambda c: c.case.cp.rank,
    "CP_SIZE": lambda c: c.case.cp.size,
    "CP_INTERLEAVE": lambda c: c.case.cp.interleave,
    "PAD_ID": lambda c: c.case.pad_id,
    "TRITON_BLOCK_SIZE": _TILE,
    "BLOCK_TABLE_WINDOW_SIZE": _WINDOW,
    "TOTAL_BLOCK_SIZE": lambda c: PRODUCTION_ROW,
    "BLOCK_TABLE_PAD_SIZE": lambda c: max(PRODUCTION_ROW, _power_of_two(max(group.stride for group in c.case.groups))),
    "slot_mapping_enabled": lambda c: (
        c.each_group("slot_mapping_enabled", "bool", lambda group: group.enabled) if _gives_enabled(c) else None
    ),
    "HAS_SLOT_MAPPING_ENABLED": lambda c: _gives_enabled(c),
    "dcp_sharded": lambda c: (
        c.each_group("dcp_sharded", "bool", lambda group: group.sharded) if _gives_sharded(c) else None
    ),
    "group_cp_sizes": lambda c: c.each_group(
        "group_cp_sizes", "int32", lambda group: c.case.cp.size if group.sharded else 1
    ),
}

# Kernels whose programs share the output, not the requests; the rest is V2's.
TILED: Mapping[str, Value] = {
    **V2,
    "num_reqs": lambda c: c.case.num_reqs,
    "num_positions": lambda c: len(c.case.positions),
    "TILE_BLOCK_SIZE": _TILE,
}

# Kernels and host functions that take the addresses of all tables and outputs, without context parallelism. The
# adaptive kernel's small tile is a quarter of the large one here, so that short and long requests both occur.
FUSED: Mapping[str, Value] = {
    "group_count": lambda c: len(c.case.groups),
    "num_reqs": lambda c: c.case.num_reqs,
    "num_tokens": lambda c: c.case.num_tokens,
    "max_num_tokens": lambda c: c.case.max_num_tokens,
    "query_start_loc_ptr": lambda c: c.query_start_loc,
    "positions_ptr": lambda c: c.positions,
    "block_table_addrs_ptr": lambda c: c.block_table_addresses,
    "slot_mapping_addrs_ptr": lambda c: c.slot_mapping_addresses,
    "block_table_strides_ptr": lambda c: c.block_table_strides,
    "block_sizes_ptr": lambda c: c.each_group("block_sizes", "int32", lambda group: group.block_size),
    "min_block_size": lambda c: c.min_block_size,
    "pad_id": lambda c: c.case.pad_id,
    "is_circular_ptr": lambda c: (
        c.each_group("is_circular", "int32", lambda group: group.kind == "circular") if _gives_circular(c) else None
    ),
    "validate": lambda c: False,
    "PAD_ID": lambda c: c.case.pad_id,
    "TILE_BLOCK_SIZE": _TILE,
    "BLOCK_TABLE_WINDOW_SIZE": _WINDOW,
    "SMALL_TILE_BLOCK_SIZE": lambda c: max(c.settings.tile // 4, min(c.settings.tile, 16)),
    "SMALL_BLOCK_TABLE_WINDOW_SIZE": lambda c: max(c.window // 4, 1),
}

# Host functions that compile what the ones above will launch.
PREWARM: Mapping[str, Value] = {
    **{name: FUSED[name] for name in ("min_block_size", "pad_id", "is_circular_ptr")},
    "max_num_batched_tokens": FUSED["max_num_tokens"],
    "device": lambda c: THE_DEVICE,
}

# Host functions that take slots back. The outputs already hold what slot mapping wrote.
REPLAY: Mapping[str, Value] = {
    "num_reqs": lambda c: c.case.num_reqs,
    "query_start_loc": lambda c: c.query_start_loc,
    "positions": lambda c: c.positions,
    "replay_start": lambda c: c.replay_start,
    "slot_mapping_addrs": lambda c: c.replayed_slot_mapping_addresses,
    "cacheable_groups": lambda c: of_values(
        "cacheable_groups", "int32", c.case.replay.cacheable_groups if c.case.replay else ()
    ),
    "window": lambda c: c.case.replay.window if c.case.replay else 0,
    "pad_id": lambda c: c.case.pad_id,
    "validate": lambda c: False,
}


MOST_PROGRAMS = 4


def _programs(launching: Launching) -> int:
    """How many programs share a request: as many as published hosts launch, whatever there is for them to do."""
    return (launching.case.max_num_tokens - 1) % MOST_PROGRAMS + 1


def _v1_programs(launching: Launching) -> int:
    """One a request, and those that pad: as many as could be needed where each pads one tile."""
    tiles = -(-launching.case.max_num_tokens // launching.settings.tile)
    return launching.case.num_reqs + (max(1, tiles) if "num_reqs" in launching.parameters else 1)


def _power_of_two(least: int) -> int:
    return 1 << max(least - 1, 0).bit_length()


def _gives_enabled(launching: Launching) -> bool:
    return launching.has_flags or not all(group.enabled for group in launching.case.groups)


def _gives_circular(launching: Launching) -> bool:
    return launching.has_flags or any(group.kind == "circular" for group in launching.case.groups)


def _gives_sharded(launching: Launching) -> bool:
    return launching.has_flags or not all(group.sharded for group in launching.case.groups)


@dataclass(frozen=True, slots=True)
class Family:
    """Entry points that are called alike: what their parameters mean, those that none can do without, and the grid of
    a kernel (a host function has none).
    """

    values: Mapping[str, Value]
    needed: tuple[str, ...]
    grid: Callable[[Launching], tuple[int, ...]] = lambda c: ()


_ONE_GROUP = ("query_start_loc_ptr", "positions_ptr", "block_table_ptr", "slot_mapping_ptr")
_ALL_GROUPS = ("query_start_loc", "pos", "block_table_ptrs", "slot_mappings_ptr")
_BY_ADDRESS = ("query_start_loc_ptr", "positions_ptr", "block_table_addrs_ptr", "slot_mapping_addrs_ptr")
_BY_OBJECT = ("query_start_loc", "positions", "block_table_ptrs", "slot_mappings")
_BY_TOKEN = ("req_indices", "positions", "block_table", "slot_mapping")

FAMILIES: Mapping[str, Family] = {
    "v1": Family(V1, _ONE_GROUP, lambda c: (_v1_programs(c),)),
    "v2": Family(V2, _ALL_GROUPS, lambda c: (len(c.case.groups), c.case.num_reqs + 1)),
    "tiled": Family(TILED, _ALL_GROUPS, lambda c: (-(-c.case.max_num_tokens // c.settings.tile), len(c.case.groups))),
    "fused": Family(FUSED, _BY_ADDRESS),
    "prewarm": Family(PREWARM, ("max_num_batched_tokens",)),
    "parallel": Family(FUSED, _BY_ADDRESS, lambda c: (len(c.case.groups), c.case.num_reqs + 1, _programs(c))),
    "replay": Family(REPLAY, ("query_start_loc", "positions", "slot_mapping_addrs")),
    "dcp": Family(DCP, _BY_TOKEN),
    "v1-host": Family(V1_HOST, ("query_start_loc", "positions", "block_table", "slot_mapping")),
    "v2-host": Family(GROUPS_HOST, _BY_OBJECT),
    "tiled-host": Family(TILED_HOST, _BY_OBJECT),
    "allocating": Family(ALLOCATING, ("query_start_loc", "positions", "block_table_ptrs", "slot_mapping_ptrs")),
    "allocating-draft": Family(ALLOCATING_DRAFT, _BY_TOKEN),
    "block-table": Family(BLOCK_TABLE, _BY_TOKEN),
    "draft": Family(BLOCK_TABLE, _BY_TOKEN),
}


def check(entry: EntryPoint) -> None:
    """Raise BindingError unless every parameter of ``entry`` is known and none is missing that all have: a run says so
    before it compiles anything.
    """
    family = FAMILIES[entry.family]
    for parameter in entry.parameters:
        if parameter not in family.values:
            raise BindingError(
                f"{entry.function} has a parameter {parameter!r} that the suite does not know"
                f" ({entry.file}:{entry.line}): add it to the table of family {entry.family!r} in {_HERE}"
            )
    for parameter in family.needed:
        if parameter not in entry.parameters:
            raise BindingError(
                f"{entry.function} has no parameter {parameter!r} ({entry.file}:{entry.line}), which family"
                f" {entry.family!r} in {_HERE} cannot do without: give it a family of its own"
            )


def bind(entry: EntryPoint, case: Case, launch: Launch, settings: Settings) -> tuple[Invocation, Launch]:
    """Every parameter of ``entry`` with its value, and ``launch`` with the compile-time ones as ``constants``.

    Raises BindingError naming function, parameter, file and line.
    """
    check(entry)
    family = FAMILIES[entry.family]
    launching = Launching(case, launch, settings, entry.parameters, entry.declaration.features)
    arguments = {parameter: family.values[parameter](launching) for parameter in entry.parameters}
    constants = {name: bound for name in entry.constants if isinstance(bound := arguments[name], int)}
    return Invocation(entry.name, family.grid(launching), arguments), replace(launch, constants=constants)


# Host functions choose among these, by version and by the longest request.
_HOST_TILES = (16, 32, 64, 128, 256, 512, 1024)


def clauses(entry: EntryPoint, case: Case, launch: Launch, settings: Settings) -> frozenset[str]:
    """The clauses beyond the answer's own that ``entry`` needs in this launch, those included that hang on an argument
    which it does not get.
    """
    launching = Launching(case, launch, settings, entry.parameters, entry.declaration.features)
    values = FAMILIES[entry.family].values
    added = {clause for clause, parameter in entry.conditional if values[parameter](launching) is None}
    return entry.declaration.clauses | added


def outside(entry: EntryPoint, case: Case, launch: Launch, settings: Settings) -> tuple[Violation, ...]:
    """What this launch breaks of the contract as far as ``entry`` promises it: none for every case drawn for it."""
    needed = clauses(entry, case, launch, settings)
    if entry.sparse and _consecutive(case):
        needed -= frozenset(entry.sparse)
    broken = violations(case, ANSWER_CLAUSES | needed - {"window"}, launch)
    if broken or "window" not in needed:
        return broken
    known = {FAMILIES[entry.family].values[parameter] for parameter in entry.parameters}
    for tile in (settings.tile,) if _TILE in known else _HOST_TILES:
        window = Launching(case, launch, replace(settings, tile=tile), entry.parameters).window
        constants = {"TILE_BLOCK_SIZE": tile, "BLOCK_TABLE_WINDOW_SIZE": window}
        if broken := violations(case, {"window"}, replace(launch, constants=constants)):
            return broken
    return ()


def _consecutive(case: Case) -> bool:
    """Whether the positions of each request are, and float32 holds the distances between them: a tile has no others."""
    positions, starts = case.positions[: case.num_tokens], set(case.query_start_loc)
    steps = enumerate(pairwise(positions), start=1)
    if not positions or any(after != before + 1 and token not in starts for token, (before, after) in steps):
        return False
    longest = max(end - start for start, end in pairwise(case.query_start_loc))
    return all(divides_distances(each.kv_cache_block_size, case.cp.size, longest) for each in case.groups)


def settings_of(entry: EntryPoint, launch: Launch) -> Settings:
    """The settings that a saved launch was bound with; production's where it names none."""
    values = FAMILIES[entry.family].values
    chosen = {_TILE: "tile", _WINDOW: "window"}
    saved = {chosen[values[name]]: value for name, value in launch.constants.items() if values.get(name) in chosen}
    return Settings(**saved)
