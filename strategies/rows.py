"""``idx_mapping``: which row of the block tables each request uses."""

from __future__ import annotations

from math import gcd

from strategies.picking import Picker

_STYLES = (*["in order"] * 8, *["backwards"] * 3, *["scattered"] * 4, "shared")
_NO_ROW = (False, True)


def draw_idx_mapping(picker: Picker, lengths: list[int], rows: int) -> tuple[int, ...]:
    """A row below ``rows`` for each request, which has ``lengths[request]`` tokens; ``rows`` is at least their number.

    Identity is the simplest. Requests have rows of their own, but rarely two neighbours have the same. Requests without
    tokens have sometimes no row, -1.
    """
    style = picker.pick(_STYLES)
    offset = picker.below(rows)
    without_row = picker.pick(_NO_ROW)
    factor = {"in order": 1, "backwards": -1, "scattered": _coprime(rows), "shared": 1}[style]
    order = range(len(lengths)) if style != "shared" else [request // 2 for request in range(len(lengths))]
    return tuple(
        -1 if without_row and length == 0 else (place * factor + offset) % rows
        for place, length in zip(order, lengths, strict=True)
    )


def _coprime(rows: int) -> int:
    """A step that visits all rows, about 0.6 of them at a time, so that neighbours end far apart."""
    return next(step for step in range(max(1, rows * 5 // 8), 0, -1) if gcd(step, rows) == 1)
