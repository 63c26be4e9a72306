"""How one case is drawn: picks from menus, each with a strategy of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from hypothesis import strategies as st

T = TypeVar("T")

MOST_ITEMS = 256
"""Items of a menu at most: up to here Hypothesis draws an index uniformly, beyond it prefers low ones."""


class Picker:
    """Draws indices: the front of a menu is what shrinking moves toward.

    Hypothesis mutates an example by copying what a strategy gave in one place over what it gave in another, five times
    for each example that is new. Batches of several requests would then be mostly such copies. Therefore no strategy is
    drawn from twice within a case: the indices of each pick lie in a range of their own.
    """

    __slots__ = ("_draw", "_picks")

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self._picks = 0

    def pick(self, menu: Sequence[T]) -> T:
        """One of the items of ``menu``, each as likely; an item may stand there more than once."""
        index = self._draw(_indices(len(menu), self._picks))
        self._picks += 1
        return menu[index % MOST_ITEMS]

    def below(self, limit: int) -> int:
        """An integer in [0, limit), mostly a small one where ``limit`` is large."""
        base = self._picks << 32
        self._picks += 1
        return self._draw(st.sampled_from(range(base, base + limit))) - base


@cache
def _indices(size: int, pick: int) -> st.SearchStrategy[int]:
    if size > MOST_ITEMS:
        raise ValueError(f"a menu of {size} items: at most {MOST_ITEMS} are drawn uniformly")
    return st.sampled_from(range(pick * MOST_ITEMS, pick * MOST_ITEMS + size))
