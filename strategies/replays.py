"""Tokens recomputed after a prefix-cache hit: where each request begins to, for how long, and in which groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from reference.case import Replay
from reference.fields import INT32_MAX
from strategies.batches import Batch
from strategies.groups import GroupSpec
from strategies.picking import Picker

_WINDOWS = (1, 2, 3, 5, 16, 128, 1 << 20, 0, 1 << 24, INT32_MAX)

_WHO = (*[(0, 1)] * 2, *[(1, 1)] * 5, (1, 2), (1, 2), (2, 2), (2, 2))
"""(first, step): the requests that replay something, counted from 1; 0 is for none."""

_ANCHORS = (0.0, 1.0, 0.5)
"""The token that a start is chosen for, by its place in the request."""

_ON_A_BORDER = ((0, 0), (-1, 1), (-1, 0), (0, 1), (0, -3))
"""(windows, tokens) from that token to the start: it is the first one replayed, the last one, the one after it, the one
before the first; well inside."""

_BEYOND = (0, 1 << 30)
"""Past every position of an ordinary request."""

_STARTS = [(anchor, *border) for border in (*_ON_A_BORDER, _BEYOND) for anchor in _ANCHORS]


def draw_replay(picker: Picker, groups: Sequence[GroupSpec], batch: Batch) -> Replay:
    """A replay over the paged ones of ``groups``. The simplest replays nothing, in no group.

    All requests that replay something do it in the same way: a pick for each would keep a batch from shrinking to the
    one that tells.
    """
    window = picker.pick(_WINDOWS)
    first, step = picker.pick(_WHO)
    anchor, windows, tokens = picker.pick(_STARTS)
    paged = [index for index, group in enumerate(groups) if group.kind == "paged"]
    chosen = picker.pick(_subsets(len(paged)))
    starts = [0] * len(batch.requests)
    for request in range(first - 1, len(starts), step) if first else ():
        if positions := batch.requests[request]:
            position = positions[round(anchor * (len(positions) - 1))]
            starts[request] = min(max(position + windows * window + tokens, 0), INT32_MAX)
    return Replay(tuple(starts), window, tuple(index for place, index in enumerate(paged) if chosen >> place & 1))


def reordered(replay: Replay, order: Sequence[int]) -> Replay:
    """``replay`` where ``order`` says which group now stands in each place."""
    return replace(
        replay,
        cacheable_groups=tuple(place for place, index in enumerate(order) if index in replay.cacheable_groups),
    )


@cache
def _subsets(size: int) -> Sequence[int]:
    """Bit masks over ``size`` groups: none of them, now and then, or any choice."""
    return (0, *[mask for mask in range(1, 1 << size) for _ in range(4 if size < 5 else 2)])
