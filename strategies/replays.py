"""Tokens recomputed after a prefix-cache hit: where each request begins to, for how long, and in which groups."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from reference.case import Replay
from reference.fields import INT32_MAX
from strategies.batches import Batch, Positions
from strategies.groups import GroupSpec
from strategies.picking import Picker

_ANCHORS = (0.0, 1.0, 0.5)
"""The token that a start is chosen for, by its place in the request."""

_ON_A_BORDER = ((0, 0), (-1, 1), (-1, 0), (0, 1), (0, -3))
"""(windows, tokens) from that token to the start: it is the first one replayed, the last one, the one after it, the one
before the first; well inside."""

_STARTS = (
    *[None] * 7,
    *((anchor, windows, tokens) for windows, tokens in _ON_A_BORDER for anchor in _ANCHORS),
)


def draw_replay(picker: Picker, groups: Sequence[GroupSpec], batch: Batch, block_size: int) -> Replay:
    """A replay over the paged ones of ``groups``. The simplest replays nothing, in no group."""
    window = picker.pick((1, 2, 3, 5, block_size, block_size + 1, 16, 128, 1 << 20, 0))
    paged = [index for index, group in enumerate(groups) if group.kind == "paged"]
    chosen = picker.pick(_subsets(len(paged)))
    starts = tuple(_start(picker, positions, window) for positions in batch.requests)
    return Replay(starts, window, tuple(index for place, index in enumerate(paged) if chosen >> place & 1))


def _start(picker: Picker, positions: Positions, window: int) -> int:
    """The first replayed position of a request, 0 where nothing is."""
    start = picker.pick(_STARTS)
    if start is None or not positions:
        return 0
    anchor, windows, tokens = start
    position = positions[round(anchor * (len(positions) - 1))]
    return min(max(position + windows * window + tokens, 0), INT32_MAX)


@cache
def _subsets(size: int) -> Sequence[int]:
    """Bit masks over ``size`` groups: none of them, now and then, or any choice."""
    return (0, *[mask for mask in range(1, 1 << size) for _ in range(4 if size < 5 else 2)])
