"""Block tables: which physical block each logical block of a row is.

The structure (rows, width, blocks shared between rows) is drawn. The contents are the identity, the simplest of all, or
follow from one drawn number by cheap arithmetic: drawing every cell for itself costs more than everything else
together.
"""

from __future__ import annotations

from dataclasses import dataclass

from reference.contract import FLOAT32_EXACT
from reference.fields import INT32_MAX
from strategies.picking import Picker

MOST_CELLS = 4096
"""Cells of a table at most: positions are drawn to what that affords."""

STAGED_COLUMNS = 4096
"""Cells of a row that published kernels stage at once: one that stages a fixed number fails only beyond it."""

WIDE_COLUMNS = STAGED_COLUMNS + 128
"""Cells of a row at most where one is to be wider than that."""

_CONTENTS = 4096
_EXTRA_ROWS = (0, 0, 0, 0, 1, 2, 5)
_EXTRA_COLUMNS = (0, 0, 0, 0, 1, 1, 2, 5)
_EXTRA_STRIDE = (0, 0, 0, 1, 2, 7)
_LEAST_COLUMNS = (1, 1, 1, 0)
_SHARED_COLUMNS = (0, 0, 0, 0, 0, 1, 2, MOST_CELLS)

Table = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class TableRules:
    """What a table keeps to: rows grow by ``column_step`` columns, block numbers are below ``blocks``, a power of two.

    ``growing`` is false for rings, whose rows are one block wide. The table has at most ``cells`` cells.
    """

    column_step: int
    blocks: int
    growing: bool = True
    cells: int = MOST_CELLS

    def most_columns(self, rows: int) -> int:
        """The width that a table of ``rows`` rows can afford, each cell a block of its own."""
        if not self.growing:
            return 1
        return min(self.cells, self.blocks) // rows // self.column_step * self.column_step


def blocks_that_fit(block_size: int, output_dtype: str) -> int:
    """How many block numbers have slots that fit the output, rounded down to a power of two; at most 2^24."""
    if output_dtype == "int64":
        return FLOAT32_EXACT
    return min(FLOAT32_EXACT, 1 << ((INT32_MAX + 1) // block_size).bit_length() - 1)


def draw_rows(picker: Picker, requests: int) -> int:
    """Rows for ``requests`` requests: often no more, so that what follows the last one is not the table's."""
    return max(requests, 1) + picker.pick(_EXTRA_ROWS)


def draw_table(picker: Picker, rules: TableRules, rows: int, columns: int, *, empty: bool = False) -> Table:
    """A table of ``rows`` rows: as wide as ``columns``, rounded up to whole allocated blocks, or wider. ``empty``: it
    may have no column where none is needed.

    Raises ValueError when that is more than ``rules`` affords: positions were to be drawn below their limit.
    """
    step, most = rules.column_step, rules.most_columns(rows)
    least = picker.pick(_LEAST_COLUMNS) if empty and not columns else 1
    width = max(least, -(-columns // step)) * step
    if width > most:
        raise ValueError(f"{columns} columns are needed, a table of {rows} rows affords {most}")
    if rules.growing and width:
        width = min(width + picker.pick(_EXTRA_COLUMNS) * step, most)
    contents = picker.below(_CONTENTS)
    table = tuple(_row(contents, row, rows, width, rules.blocks) for row in range(rows))
    shared = picker.pick(_SHARED_COLUMNS) if rows > 1 else 0
    if shared:
        first = table[0][:shared]
        table = (table[0], *(first + row[shared:] for row in table[1:]))
    return table


def draw_row_stride(picker: Picker, width: int) -> int | None:
    """The distance between rows: None for the width itself."""
    extra = picker.pick(_EXTRA_STRIDE)
    return width + extra if extra else None


def _row(contents: int, row: int, rows: int, width: int, blocks: int) -> tuple[int, ...]:
    """The block numbers of one row; all cells of a table differ.

    Every fourth of ``contents`` is the identity; the others are scattered over a small pool, scattered over all blocks,
    or counted down from the highest block.
    """
    seed, kind = divmod(contents, 4)
    first = row * width
    if kind == 0:
        return tuple(range(first, first + width))
    if kind == 3:
        top = blocks - 1 - seed % (blocks - rows * width + 1)
        return tuple(range(top - first, top - first - width, -1))
    # Multiplying by an odd number modulo a power of two that is not below the number of cells keeps them apart.
    mask = (blocks if kind == 2 else min(blocks, 1 << (rows * width).bit_length())) - 1
    factor, offset = 2 * (seed * 40503 + 1326) + 1, seed * 977
    return tuple([(cell * factor + offset) & mask for cell in range(first, first + width)])
