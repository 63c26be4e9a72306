"""The same slots as the per-token oracle's, with NumPy: for large batches and for whole ranges of positions.

The arithmetic is written anew on purpose, and differently: the tokens of one rank, counted through, fill its blocks
from the front, so that neither the virtual block nor the allocated one is needed. That holds because the interleave
divides the allocated block (``interleave-divides``). Two oracles that were derived apart and agree are worth more than
one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from reference.case import Case, ContextParallel, Group
from reference.contract import ContractError, violations
from reference.steps import CIRCULAR, DISABLED, SHARDED, rule_of

Integers = npt.NDArray[np.int64]
_ALONE = ContextParallel()


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the tokens of a group go, apart from its table: kernel blocks of ``block_size`` tokens, and who shares
    them: nobody where ``cp`` has size 1. ``circular``: one ring block a request, and no sharing.
    """

    block_size: int
    cp: ContextParallel = _ALONE
    circular: bool = False


def slot_mapping(case: Case) -> Integers:
    """What ``reference.oracle.slot_mapping`` gives, as int64 [groups, max_num_tokens].

    Raises ContractError for a token without a row or a block, as that does.
    """
    slots = np.full((len(case.groups), case.max_num_tokens), case.pad_id, dtype=np.int64)
    bounds = np.array(case.query_start_loc, dtype=np.int64)
    count = int(bounds[-1])
    positions = np.array(case.positions[:count], dtype=np.int64)
    requests = np.repeat(np.arange(case.num_reqs), np.diff(bounds))
    rows = requests if case.idx_mapping is None else np.array(case.idx_mapping, dtype=np.int64)[requests]
    for index, group in enumerate(case.groups):
        layout = layout_of(case, group)
        if layout is None:
            continue
        table = np.array(group.block_table, dtype=np.int64).reshape(len(group.block_table), group.row_width)
        try:
            slots[index, :count] = slots_of(positions, table, layout, rows=rows, pad_id=case.pad_id)
        except IndexError:  # a missing position, too: masks and rows are then of different lengths
            raise ContractError(violations(case)) from None
    if case.replay is not None:
        starts = np.array(case.replay.starts, dtype=np.int64)[requests]
        replayed = (starts > 0) & (positions >= starts) & (positions < starts + case.replay.window)
        for index in case.replay.cacheable_groups:
            if case.groups[index].kind != "circular":
                slots[index, :count][replayed] = case.pad_id
    return slots


def layout_of(case: Case, group: Group) -> Layout | None:
    """How ``group`` is laid out in ``case``; None for a disabled one, which has no slots."""
    rule = rule_of(case, group)
    if rule == DISABLED:
        return None
    return Layout(group.block_size, case.cp if rule == SHARDED else _ALONE, rule == CIRCULAR)


def slots_of(
    positions: Integers,
    block_table: npt.NDArray[np.integer],
    layout: Layout,
    *,
    rows: Integers | None = None,
    pad_id: int = -1,
) -> Integers:
    """The slots of ``positions`` [n], ``pad_id`` where one is negative or another rank's; int64 [n].

    ``block_table`` [rows, width]; ``rows`` [n] names the row of each token, None: all have row 0. Raises IndexError
    where a token's row is not in the table, or the block of a local token not in its row.
    """
    b, cp = layout.block_size, layout.cp
    if rows is not None and rows.size and not (rows.min() >= 0 and rows.max() < len(block_table)):
        raise IndexError(f"a token has no row of the {len(block_table)} rows")
    if layout.circular:
        own, index, offset = positions >= 0, np.zeros_like(positions), positions % b
    elif cp.size == 1:
        own = positions >= 0
        index, offset = np.divmod(positions, b)
    else:
        turn, within = np.divmod(positions, cp.interleave)
        earlier, owner = np.divmod(turn, cp.size)
        own = (positions >= 0) & (owner == cp.rank)
        index, offset = np.divmod(earlier * cp.interleave + within, b)
    slots = np.full(positions.shape, pad_id, dtype=np.int64)
    index, offset = index[own], offset[own]
    if index.size and index.max() >= block_table.shape[1]:
        raise IndexError(f"a token needs block index {index.max()} of a row of {block_table.shape[1]} blocks")
    numbers = block_table[0][index] if rows is None else block_table[rows[own], index]
    slots[own] = numbers.astype(np.int64) * b + offset
    return slots
