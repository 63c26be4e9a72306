"""What a run drew, as pictures: heat maps of pairs, bars of counts. Laid out here, drawn by ``charts.svg``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

LEVELS = 6
"""Shades of a heat map, from the fewest cases to the most, by their logarithm."""

MOST_VALUES = 12
"""Values of one parameter that are shown one by one; numbers beyond that are shown by powers of two."""

AXES: Mapping[str, tuple[str, str]] = {
    "block size x kernel blocks": ("block size b", "kernel blocks in an allocated block, k"),
    "world size x rank": ("ranks W", "this rank R"),
    "world size x interleave": ("ranks W", "interleave I, between one token and B"),
    "block size x tile": ("block size b", "tokens in a tile"),
    "tile x window": ("tokens in a tile", "block-table window"),
    "output x group": ("output", "group"),
}
"""What is written beside the two axes of each pair: rows, columns."""

_CELL_HEIGHT, _HEAD = 24, 40


@dataclass(frozen=True, slots=True)
class Cell:
    x: float
    y: float
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """``gaps`` counts the cells that were compiled and never drawn (level 0)."""

    title: str
    rows: str
    columns: str
    width: float
    height: float
    cell_width: float
    cells: tuple[Cell, ...]
    row_labels: tuple[tuple[float, float, str], ...]
    column_labels: tuple[tuple[float, float, str], ...]
    gaps: int
    words: str


@dataclass(frozen=True, slots=True)
class Bars:
    """Upright bars: (x, height, label or "", what it counts in words)."""

    title: str
    unit: str
    width: float
    height: float
    bar_width: float
    bars: tuple[tuple[float, float, str, str], ...]
    words: str


@dataclass(frozen=True, slots=True)
class Share:
    """One line of a list of bars that lie: ``width`` of 100."""

    name: str
    number: int
    percent: float
    width: float


@dataclass(frozen=True, slots=True)
class Drawn:
    """What was drawn for one entry point, or for several together."""

    name: str
    cases: int
    maps: tuple[HeatMap, ...]
    shapes: tuple[Share, ...]
    batches: HeatMap | None
    bars: tuple[Bars, ...]


@dataclass(slots=True)
class _Sum:
    """The counts of several entry points added up."""

    cases: int = 0
    pairs: dict[str, Counter[tuple[object, object]]] = field(default_factory=dict)
    shapes: Counter[str] = field(default_factory=Counter)
    batches: Counter[tuple[object, object]] = field(default_factory=Counter)
    powers: dict[str, Counter[int]] = field(default_factory=dict)

    def add(self, counts: Mapping[str, Any]) -> None:
        self.cases += int(counts["cases"])
        for name, found in counts["pairs"].items():
            into = self.pairs.setdefault(name, Counter())
            for first, second, number in found:
                into[first, second] += int(number)
        self.shapes.update({name: int(number) for name, number in counts["shapes"].items()})
        for requests, tokens, number in counts["batches"]:
            self.batches[int(requests), int(tokens)] += int(number)
        for name in ("tokens", "longest_request", "positions"):
            self.powers.setdefault(name, Counter()).update({int(key): int(number) for key, number in counts[name]})


def drawn(name: str, counted: Iterable[Mapping[str, Any]]) -> Drawn:
    """The pictures of what ``coverage.json`` says of some entry points. Raises KeyError, TypeError or ValueError for
    what is none.
    """
    total = _Sum()
    for counts in counted:
        total.add(counts)
    maps = [_pair_map(title, pairs) for title, pairs in total.pairs.items() if pairs]
    powers = total.powers
    return Drawn(
        name,
        total.cases,
        tuple(maps),
        tuple(_shares(total.shapes, total.cases)),
        _batch_map(total.batches) if total.batches else None,
        tuple(
            _bars(title, unit, powers[key])
            for key, title, unit in (
                ("tokens", "Tokens a case", "cases"),
                ("longest_request", "Longest request of a case", "cases"),
                ("positions", "Positions", "tokens"),
            )
            if powers.get(key)
        ),
    )


def power_label(power: int) -> str:
    """The numbers that ``reports.coverage.power`` counts together."""
    if power < 2:
        return {-1: "< 0", 0: "0", 1: "1"}.get(power, "?")
    if power < 10:
        return f"{1 << (power - 1)}\N{EN DASH}{(1 << power) - 1}"
    return f"{_binary(power - 1)}\N{EN DASH}{_binary(power)}"


def _binary(exponent: int) -> str:
    """2^exponent in few characters."""
    return f"{1 << exponent % 10}{' kMGT'[exponent // 10].strip()}"


def short(number: int) -> str:
    """A count in few characters."""
    if number < 1000:
        return str(number)
    for unit, size in (("M", 1_000_000), ("k", 1000)):
        if number >= size:
            shown = number / size
            return f"{shown:.1f}{unit}" if shown < 10 else f"{shown:.0f}{unit}"
    raise AssertionError(number)


def _pair_map(name: str, pairs: Counter[tuple[object, object]]) -> HeatMap:
    rows, columns = AXES.get(name, (name.partition(" x ")[0], name.partition(" x ")[2]))
    row_of, row_order = _axis([first for first, _ in pairs])
    column_of, column_order = _axis([second for _, second in pairs])
    counts: Counter[tuple[str, str]] = Counter()
    for (first, second), number in pairs.items():
        counts[row_of[first], column_of[second]] += number
    return _heat_map(name, rows, columns, counts, row_order, column_order)


def _batch_map(batches: Counter[tuple[object, object]]) -> HeatMap:
    counts = Counter({(power_label(r), power_label(t)): n for (r, t), n in batches.items()})  # type: ignore[arg-type]
    tokens, requests = ([power_label(power) for power in sorted({key[at] for key in batches})] for at in (1, 0))  # type: ignore[type-var, arg-type]
    turned = Counter({(t, r): n for (r, t), n in counts.items()})
    return _heat_map("batches", "tokens", "requests", turned, tokens, requests)


_ORDER = ("1", "below b", "b", "above b", "B", "below the rule", "the rule", "above the rule", "paged", "circular")


def _axis(values: Iterable[object]) -> tuple[dict[object, str], list[str]]:
    """The label of each value, and the labels in order: numbers by size (many of them by powers of two), then words."""
    numbers = sorted({value for value in values if type(value) is int})
    words = sorted(
        {value for value in values if type(value) is not int},
        key=lambda word: (_ORDER.index(word) if word in _ORDER else len(_ORDER), str(word)),
    )
    by_power = len(numbers) > MOST_VALUES and max(numbers) > 2 * MOST_VALUES
    labels: dict[object, str] = {}
    for number in numbers:
        labels[number] = power_label(number.bit_length() if number >= 0 else -1) if by_power else _number(number)
    for word in words:
        labels[word] = str(word)[:24]
    return labels, list(dict.fromkeys([labels[each] for each in (*numbers, *words)]))


def _number(number: int) -> str:
    """Large powers of two by their exponent."""
    if number >= 1 << 14 and number & (number - 1) == 0:
        return f"2{_superscript(number.bit_length() - 1)}"
    return str(number)


def _superscript(number: int) -> str:
    return str(number).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _heat_map(
    title: str,
    rows: str,
    columns: str,
    counts: Counter[tuple[str, str]],
    row_order: Sequence[str],
    column_order: Sequence[str],
) -> HeatMap:
    left = 7.0 * max(map(len, row_order)) + 14
    wide = max(34.0, 6.6 * max(map(len, column_order)) + 8) if len(column_order) <= 10 else 26.0
    most = max(counts.values())
    cells = []
    for (row, column), number in sorted(counts.items()):
        x, y = left + column_order.index(column) * wide, _HEAD + row_order.index(row) * _CELL_HEIGHT
        cells.append(Cell(x, y, _level(number, most), short(number)))
    gaps = sum(number == 0 for number in counts.values())
    width = left + len(column_order) * wide
    return HeatMap(
        title=title,
        rows=rows,
        columns=columns,
        width=max(width, 7.0 * len(columns) + left),
        height=_HEAD + len(row_order) * _CELL_HEIGHT + 2,
        cell_width=wide,
        cells=tuple(cells),
        row_labels=tuple((left - 8, _HEAD + place * _CELL_HEIGHT + 16, label) for place, label in enumerate(row_order)),
        column_labels=tuple(
            (left + place * wide + wide / 2, _HEAD - 7.0, label) for place, label in enumerate(column_order)
        ),
        gaps=gaps,
        words=f"{rows} against {columns}: {len(counts)} combinations, drawn {min(counts.values())} to {most} times",
    )


def _level(number: int, most: int) -> int:
    """0 for none, else 1 to LEVELS."""
    if number == 0:
        return 0
    return 1 + min(LEVELS - 1, int(LEVELS * log(number) / log(most + 1)))


def _bars(title: str, unit: str, counts: Mapping[int, int]) -> Bars:
    low, high = min(counts), max(counts)
    places = range(low, high + 1)
    step = 24.0 if len(places) <= 13 else 320 / len(places)
    most = max(counts.values()) or 1
    tall, every = 84.0, -(-len(places) // 7)
    bars = []
    for place, power in enumerate(places):
        number = counts.get(power, 0)
        label = power_label(power).partition("\N{EN DASH}")[0] if place % every == 0 else ""
        bars.append((place * step, tall * number / most, label, f"{power_label(power)}: {number:,} {unit}"))
    return Bars(
        title=title,
        unit=unit,
        width=max(step * len(places) + 30, 120),
        height=tall,
        bar_width=step - 2,
        bars=tuple(bars),
        words=f"{title}: {'; '.join(words for *_, words in bars if not words.endswith(f': 0 {unit}'))}",
    )


def _shares(shapes: Mapping[str, int], cases: int) -> Iterable[Share]:
    for name, number in shapes.items():
        percent = 100 * number / cases if cases else 0.0
        yield Share(name, number, percent, percent)
