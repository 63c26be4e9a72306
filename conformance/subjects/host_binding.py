"""Tables for the host code of this project: what :mod:`conformance.subjects.host_functions` and plain host functions
are given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from conformance.execution.array import Array, of_addresses, of_values
from conformance.execution.session import Argument
from conformance.subjects.allocated import allocated_rows
from conformance.subjects.launching import Launching, output_length
from reference.case import Case, Group
from reference.fields import INT32_MAX

Value = Callable[[Launching], Argument]
Condition = Callable[[Launching], bool]

# Half of the launches ask for the checks that read the tensors: they must not refuse a legal case.
_VALIDATE: Value = lambda c: c.launch.fence == "before"  # noqa: E731
# A host function counts the requests by the length of this.
_QUERY_START_LOC: Value = lambda c: of_values("query_start_loc", "int32", c.case.query_start_loc)  # noqa: E731


def _left_out(value: Value, default: Value) -> Value:
    """``value``, but nothing in half of the launches where the default is the same."""
    return lambda c: None if c.case.num_tokens % 2 and value(c) == default(c) else value(c)


def _unless(is_default: Condition, value: Value) -> Value:
    """``value``, but nothing where it is what the function takes by itself."""
    return lambda c: None if is_default(c) else value(c)


def _each(holds: Callable[[Group], bool]) -> Condition:
    return lambda c: all(map(holds, c.case.groups))


_BATCH: Mapping[str, Value] = {
    "query_start_loc": _QUERY_START_LOC,
    "positions": lambda c: c.positions,
    "max_num_tokens": lambda c: c.case.max_num_tokens,
    "num_tokens": lambda c: c.case.num_tokens,
    "cp_size": lambda c: c.case.cp.size,
    "cp_rank": lambda c: c.case.cp.rank,
    "cp_interleave": lambda c: c.case.cp.interleave,
    "pad_id": lambda c: c.case.pad_id,
    "validate": _VALIDATE,
}

# One group, as tensors.
V1_HOST: Mapping[str, Value] = {
    **_BATCH,
    "block_table": lambda c: c.block_table,
    "slot_mapping": lambda c: c.slot_mapping,
    "block_size": lambda c: c.group.block_size,
    "kv_cache_block_size": _left_out(lambda c: c.group.kv_cache_block_size, lambda c: c.group.block_size),
    "max_num_tokens": _left_out(lambda c: c.case.max_num_tokens, lambda c: output_length(c.case, c.launch)),
    "is_circular": lambda c: c.group.kind == "circular",
}

_SIZES: Mapping[str, Value] = {
    "table_rows": lambda c: c.each_group("table_rows", "int64", lambda group: len(group.block_table)),
    "kernel_block_sizes": lambda c: c.each_group("kernel_block_sizes", "int64", lambda group: group.block_size),
    "block_sizes": lambda c: c.each_group("block_sizes", "int64", lambda group: group.kv_cache_block_size),
    "is_sharded": lambda c: c.each_group("is_sharded", "bool", lambda group: group.sharded),
}


def _briefly(holds: Condition, value: Value) -> Value:
    """``value``, but nothing in half of the launches where it is the default, as ``holds`` says."""
    return _unless(lambda c: (c.positions.size + c.slot_mappings.shape[1]) % 2 == 1 and holds(c), value)


# All groups, as GroupTables.
GROUPS_HOST: Mapping[str, Value] = {
    **_BATCH,
    **_SIZES,
    "block_sizes": _briefly(_each(lambda group: group.blocks_per_kv_block == 1), _SIZES["block_sizes"]),
    "is_sharded": _briefly(_each(lambda group: group.sharded), _SIZES["is_sharded"]),
    "max_num_tokens": _briefly(
        lambda c: c.case.max_num_tokens == output_length(c.case, c.launch), lambda c: c.case.max_num_tokens
    ),
    "block_table_ptrs": lambda c: c.block_table_addresses,
    "table_widths": lambda c: c.each_group("table_widths", "int64", lambda group: group.row_width),
    "block_table_strides": lambda c: c.each_group("block_table_strides", "int64", lambda group: group.stride),
    "is_enabled": _briefly(
        _each(lambda group: group.enabled), lambda c: c.each_group("is_enabled", "bool", lambda group: group.enabled)
    ),
    "idx_mapping": lambda c: of_values("idx_mapping", "int32", map(c.case.row_of, range(c.case.num_reqs))),
    # As wide as the output is: by default that is how far it is padded.
    "slot_mappings": lambda c: replace(
        c.slot_mappings,
        shape=(len(c.case.groups), output_length(c.case, c.launch)),
        strides=(c.slot_mappings_stride, 1),
    ),
}
# Here the rows may be the requests' own.
TILED_HOST: Mapping[str, Value] = {
    **GROUPS_HOST,
    "idx_mapping": _unless(
        lambda c: c.case.idx_mapping is None,
        _briefly(lambda c: c.case.idx_mapping == tuple(range(c.case.num_reqs)), GROUPS_HOST["idx_mapping"]),
    ),
}


_DRAFTS = (0, 1, 2, 3, 5)
# What positions of an earlier step may have left behind a batch.
_BEHIND = (0, INT32_MAX, 1, -1, 1 << 24)


def _drafts(c: Launching) -> int:
    """Speculative tokens a request: one of those numbers for which the case has rows and an output."""
    rows = len(c.group.block_table)
    fitting = [count for count in _DRAFTS if rows % _rows_a_request(c, count) == 0 and _without_drafts(c, count) >= 0]
    return fitting[(c.case.num_tokens + rows) % len(fitting)]


def _rows_a_request(c: Launching, drafts: int) -> int:
    return 1 + drafts if c.case.cp.size > 1 else 1


def _max_num_reqs(c: Launching, drafts: int) -> int:
    return len(c.group.block_table) // _rows_a_request(c, drafts)


def _without_drafts(c: Launching, drafts: int) -> int:
    """What is left of the output when each request's draft tokens but one have had their part."""
    return c.case.max_num_tokens - max(drafts - 1, 0) * _max_num_reqs(c, drafts)


def _is_later_step(c: Launching) -> bool:
    """Whether the tables have had other rows, and the output other tokens: in half of the launches."""
    return (c.case.num_tokens + c.case.num_reqs) % 2 == 0


def _has_others_behind(c: Launching) -> bool:
    """Whether there are as many positions as the output has elements: where ranks share a group only so many elements
    are written, and elsewhere in some launches. Such a step is not validated.
    """
    if c.case.cp.size > 1:
        return not (_is_later_step(c) and _VALIDATE(c))
    return not _VALIDATE(c) and c.case.num_tokens % 2 == 1


def _with_others_behind(c: Launching) -> Array:
    """Positions, and such behind them as none could be meant."""
    count = c.case.max_num_tokens - c.case.num_tokens
    behind = (_BEHIND[index % len(_BEHIND)] for index in range(count))
    return of_values("positions", "int64", (*c.case.positions[: c.case.num_tokens], *behind))


def _is_alone(c: Launching) -> bool:
    """Whether a table is as its defaults make it, its width too: in half of the launches of one group."""
    return len(c.case.groups) == 1 and c.group.sharded and c.case.num_tokens % 2 == 1


def _max_model_len(c: Launching) -> int:
    """The longest request that makes rows as wide as these are, the shortest, which ends within a block, or one
    between; of those that the positions are in.
    """
    virtual = c.group.kv_cache_block_size * c.case.cp.size
    most = _allocated_width(c.group) * virtual
    least = min(max(most - virtual, *c.case.positions[: c.case.num_tokens]) + 1, most)
    return (least, most, (least + most) // 2)[c.case.num_tokens // 2 % 3]


# Tables that are filled by their own operations. Their buffers are made anew for each launch, and written.
ALLOCATING: Mapping[str, Value] = {
    **_BATCH,
    **_SIZES,
    "positions": lambda c: _with_others_behind(c) if _has_others_behind(c) else c.token_positions,
    "validate": lambda c: bool(_VALIDATE(c)) and not _has_others_behind(c),
    "is_later_step": _is_later_step,
    "allocated_widths": lambda c: c.each_group("allocated_widths", "int64", _allocated_width),
    "max_num_reqs": lambda c: _max_num_reqs(c, _drafts(c)),
    "max_model_len": lambda c: _max_model_len(c) if _is_alone(c) else 1,
    # The output, and what is padded of it, ends at max_num_tokens.
    "max_num_batched_tokens": lambda c: _without_drafts(c, _drafts(c)),
    "num_speculative_tokens": _drafts,
    # A replicated group gets rows for the tokens of all ranks by itself.
    "max_num_blocks": _unless(
        _is_alone,
        lambda c: c.each_group(
            "max_num_blocks",
            "int64",
            lambda group: -(-_allocated_width(group) // (1 if group.sharded else c.case.cp.size)),
        ),
    ),
    "kernel_block_sizes": _unless(
        lambda c: _is_alone(c) and c.group.blocks_per_kv_block == 1, _SIZES["kernel_block_sizes"]
    ),
    "is_circular": _unless(
        lambda c: _is_alone(c) and c.group.kind != "circular",
        lambda c: c.each_group("is_circular", "bool", lambda group: group.kind == "circular"),
    ),
    "is_sharded": _unless(_is_alone, _SIZES["is_sharded"]),
    "allocated_blocks_ptrs": lambda c: of_addresses("allocated_blocks_addresses", _allocated_blocks(c.case)),
    "block_table_ptrs": lambda c: of_addresses("block_table_addresses", _buffers(c.case)),
    "slot_mapping_ptrs": lambda c: c.slot_mapping_addresses,
}
ALLOCATING_DRAFT: Mapping[str, Value] = {
    **_BATCH,
    "positions": lambda c: c.token_positions,
    "req_indices": lambda c: c.req_indices,
    "as_numpy": lambda c: c.case.num_tokens % 2 == 1,  # either kind of array
    "kernel_block_size": lambda c: c.group.block_size,
    "block_size": lambda c: c.group.kv_cache_block_size,
    "allocated_blocks": lambda c: _allocated_blocks(c.case)[0],
    "block_table": lambda c: _buffers(c.case)[0],
    "slot_mapping": lambda c: c.slot_mapping,
}


def _allocated_width(group: Group) -> int:
    return group.row_width // group.blocks_per_kv_block


def _allocated_blocks(case: Case) -> list[Array]:
    return [_blocks_of(f"allocated_blocks[{index}]", group) for index, group in enumerate(case.groups)]


def _blocks_of(name: str, group: Group) -> Array:
    rows = allocated_rows(group)
    assert rows is not None, "cannot_take() lets no such case through"
    data = np.array(rows, dtype=np.int32)
    return Array(name, "int32", data.shape, data)


def _buffers(case: Case) -> list[Array]:
    return [
        Array(f"block_table[{index}]", "int32", (len(group.block_table), _width(case, group)), writable=True)
        for index, group in enumerate(case.groups)
    ]


def _width(case: Case, group: Group) -> int:
    """A replicated group's rows are as wide as those of all ranks together."""
    k, parts = group.blocks_per_kv_block, 1 if group.sharded else case.cp.size
    return -(-(group.row_width // k) // parts) * parts * k
