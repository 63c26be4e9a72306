"""What a call is given, as short Python expressions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.call import Argument, Buffer

_LEAST = 8  # elements of a run that is worth a word of its own


def listed(values: Sequence[int], names: Mapping[int, str]) -> str:
    """A list display: runs of one value and of consecutive ones are shortened, values in ``names`` are named."""
    pieces: list[str] = []
    start = 0
    while start < len(values):
        length, step = _run(values, start)
        first = values[start]
        if length < _LEAST:
            pieces.append(names.get(first, str(first)))
            start += 1
            continue
        shown = names.get(first, str(first))
        pieces.append(f"*[{shown}] * {length}" if step == 0 else f"*range({first}, {first + length})")
        start += length
    return f"[{', '.join(pieces)}]"


def name_of(buffer: Buffer) -> str:
    """A Python name for a buffer: ``block_table[1]`` becomes ``block_table_1``."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in buffer.name).rstrip("_") or "buffer"


def expression(value: Argument) -> str:
    return name_of(value) if isinstance(value, Buffer) else repr(value)


def _run(values: Sequence[int], start: int) -> tuple[int, int]:
    """How many elements from ``start`` on are equal (step 0) or rise by one (step 1): the longer of the two."""
    found = []
    for step in (0, 1):
        end = start + 1
        while end < len(values) and values[end] - values[end - 1] == step:
            end += 1
        found.append((end - start, step))
    return max(found, key=lambda each: each[0])
