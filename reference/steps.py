"""Where one position of a sequence lives: the only definition of the arithmetic, shared by oracle, traces and contract.

Symbols: p position, b kernel block, B = k*b allocated block, W ranks, R this rank, I interleave, all counted in tokens.
"""

from __future__ import annotations

from collections.abc import Callable

from reference.case import Case, Group

DISABLED, CIRCULAR, PAGED, SHARDED = "disabled", "circular", "paged", "sharded"

Place = tuple[int | None, int | None, int, int | None, int, int]
"""(virtual block, virtual offset, owner, local offset, block index, offset in the block); None: a step the rule lacks.

A plain tuple, because one is made for every token: a NamedTuple would double the time of the oracle.
"""


def rule_of(case: Case, group: Group) -> str:
    """The rule that gives the slots of ``group``: disabled, circular, paged, or sharded (paged over W > 1 ranks)."""
    if not group.enabled:
        return DISABLED
    if group.kind == "circular":
        return CIRCULAR
    return SHARDED if case.cp.size > 1 and group.sharded else PAGED


def placing(case: Case, group: Group) -> Callable[[int], Place]:
    """The function that takes a position >= 0 to its place in ``group``, which must be enabled.

    A token is local when the owner is ``case.cp.rank``: rules without sharding name this rank as the owner of every
    token. The block index of a token that is not local is the one it has on its owner.
    """
    b, rank = group.block_size, case.cp.rank
    rule = rule_of(case, group)
    if rule == CIRCULAR:
        return lambda p: (None, None, rank, None, 0, p % b)
    if rule == PAGED:
        return lambda p: (None, None, rank, None, p // b, p % b)
    if rule == SHARDED:
        return _five_steps(b, group.kv_cache_block_size, case.cp.size, case.cp.interleave)
    raise ValueError("a disabled group has no places")


def _five_steps(b: int, kv_cache_block_size: int, world: int, interleave: int) -> Callable[[int], Place]:
    """Context parallelism: W ranks share virtual blocks of B*W tokens, in turns of I tokens (vllm-ascend PR 10442)."""
    k = kv_cache_block_size // b
    virtual_size = kv_cache_block_size * world
    turn_of_all = world * interleave

    def place(p: int) -> Place:
        v = p // virtual_size
        o = p % virtual_size
        owner = o // interleave % world
        local = o // turn_of_all * interleave + o % interleave
        return v, o, owner, local, v * k + local // b, local % b

    return place
