"""The pool: which compile-time settings a run compiles, few enough to compile and varied enough to tell.

The pool is a covering array: every combination of ``strength`` values of different parameters that some legal setting
has appears in it, within the budget. covertable makes the array. Measured on the parameters of the v1 kernel
(``V1_AXES``, which had fewer values then), both packages fed with the same rules; 578 pairs have a legal setting:

    covertable 3.2   strength 2: 45 rows, 578 pairs, 0.45 s     strength 3: 272 rows, all triples there are, 2.2 s
    allpairspy 2.5   strength 2: 34 rows, 524 pairs, 0.01 s     strength 3:  40 rows, 44 percent of the triples, 0.02 s

allpairspy stops at the first row that would add nothing, which with rules is long before everything is covered. Half a
second is nothing beside the compilations (0.3 to 5 s each), so covertable it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, islice
from random import Random
from typing import Any

import covertable
from hypothesis import strategies as st

from reference.case import ContextParallel
from reference.fields import INT32_MAX, INT32_MIN
from strategies.declaration import Declaration
from strategies.geometry import (
    BLOCK_SIZES,
    BLOCKS_PER_KV_BLOCK,
    INTERLEAVES,
    RANKS,
    WORLD_SIZES,
    Geometry,
    geometries,
    interleave_of,
    rank_of,
)

WINDOWS = ("rule", "double", "half", "least")
"""Block-table windows against the production rule. The last two cannot hold every consecutive tile."""

PAD_IDS = (-1, 0, INT32_MIN, INT32_MAX)
"""-1 is everybody's; 0 is a slot as well, and the others show where a type is too narrow."""

SHARES = {"plain": 12 / 64, "circular": 8 / 64, "cp": 24 / 64}
"""The part of the budget that each kind gets at least, as long as it has that many combinations of its own."""


@dataclass(frozen=True, slots=True)
class Specialization(Geometry):
    """One assignment of compile-time parameters, hence one compilation.

    ``tile`` counts the tokens that a program handles in one pass, ``window`` the block-table entries it stages for
    them; None where the entry point has no such parameter. ``circular``: the group is a ring of one block a request.
    """

    tile: int | None = None
    window: int | None = None
    circular: bool = False
    pad_id: int = -1
    output_dtype: str = "int32"

    @property
    def kind(self) -> str:
        """plain, circular or cp."""
        if self.cp.size > 1:
            return "cp"
        return "circular" if self.circular else "plain"


@dataclass(frozen=True)
class Axes:
    """The values of each compile-time parameter of an entry point, simplest first; a single value means it is fixed.

    ``ranks``, ``interleaves`` and ``windows`` hold roles, because the value depends on the others. ``tiles`` and
    ``windows`` are (None,) where the entry point has no such parameter. ``rings``: whether a ring compiles to something
    else than a paged group. Where a launch has several groups, all this is about the first one.
    """

    block_sizes: tuple[int, ...] = BLOCK_SIZES
    blocks_per_kv_block: tuple[int, ...] = BLOCKS_PER_KV_BLOCK
    world_sizes: tuple[int, ...] = WORLD_SIZES
    ranks: tuple[str, ...] = RANKS
    interleaves: tuple[str, ...] = INTERLEAVES
    tiles: tuple[int | None, ...] = (None,)
    windows: tuple[str | None, ...] = (None,)
    pad_ids: tuple[int, ...] = PAD_IDS
    output_dtypes: tuple[str, ...] = ("int32", "int64")
    rings: bool = True


V1_AXES = Axes(tiles=(16, 64, 256, 1024), windows=WINDOWS)
V2_AXES = Axes(tiles=(16, 64, 256, 1024), windows=WINDOWS, rings=False)
TILED_AXES = Axes(tiles=(64, 256, 1024))
FUSED_AXES = Axes(world_sizes=(1,), ranks=("first",), interleaves=("one",))
"""The host chooses tile and window of each launch, by its longest request and its smallest block."""


@dataclass(frozen=True)
class Pool:
    """The specializations of a run, simplest first.

    ``covered`` of ``total`` combinations of ``strength`` values are in it; ``total`` counts those that a legal setting
    has.
    """

    specializations: tuple[Specialization, ...]
    strength: int
    covered: int
    total: int

    def __len__(self) -> int:
        return len(self.specializations)

    def __iter__(self) -> Iterator[Specialization]:
        return iter(self.specializations)

    def describe(self) -> str:
        """One line: how many of each kind, and how much they cover."""
        counts = Counter(s.kind for s in self.specializations)
        kinds = ", ".join(f"{counts[kind]} {kind}" for kind in SHARES if counts[kind])
        what = "pairs" if self.strength == 2 else f"{self.strength}-way combinations"
        return f"{len(self)} specializations ({kinds}), {self.covered} of {self.total} {what} covered"


def production_window(tile: int, block_size: int) -> int:
    """next_power_of_2(cdiv(tile, b) + 1): enough for consecutive positions, wherever in a block they begin."""
    return 1 << (-(-tile // block_size)).bit_length()


def window_of(role: str, tile: int, block_size: int) -> int | None:
    """The window that plays ``role`` (see ``WINDOWS``), None where it would be the same as another. At least 2."""
    rule = production_window(tile, block_size)
    if role == "rule":
        return rule
    if role == "double":
        return 2 * rule
    if role == "half":
        return rule // 2 if rule > 2 else None
    if role == "least":
        return 2 if rule > 4 else None
    raise ValueError(f"unknown window {role!r}: known are {', '.join(WINDOWS)}")


@lru_cache(maxsize=64)
def pool(declaration: Declaration, axes: Axes, budget: int, strength: int = 2) -> Pool:
    """At most ``budget`` specializations for an entry point with this declaration; the same ones in every run.

    All combinations of ``strength`` values (at least 2) are covered when the budget allows, else as many as a greedy
    choice gets. Then, while the budget lasts, each kind is filled up to its share (``SHARES``) with combinations that
    are new among its own settings. Raises ValueError when the budget is below 1 or the strength outside 2..9.
    """
    if budget < 1:
        raise ValueError(f"compile budget {budget}: at least one specialization is needed")
    values = _values(declaration, axes)
    if not 2 <= strength <= len(values):
        raise ValueError(f"strength {strength}: a covering array here has strength 2..{len(values)}")
    array = _covering_array(values, strength)
    everything = {c for row in array for c in _combinations(row, strength)}
    fixed = _fixed_rows(values)[:budget]
    chosen = fixed + _greedy(array, budget - len(fixed), strength, fixed)
    for kind, share in SHARES.items():
        own = [layout for layout in values["layout"] if _kind(layout) == kind]
        present = sum(_kind(row["layout"]) == kind for row in chosen)
        wanted = min(round(share * budget) - present, budget - len(chosen))
        if own and wanted > 0:
            more = _covering_array({**values, "layout": tuple(own)}, strength)
            chosen += _greedy(more, wanted, strength, [row for row in chosen if _kind(row["layout"]) == kind])
    chosen += [row for row in _beyond_int32(values) if row not in chosen][: budget - len(chosen)]
    covered = {c for row in chosen for c in _combinations(row, strength)}
    chosen.sort(key=lambda row: _complexity(row, values))
    return Pool(tuple(_specialization(row) for row in chosen), strength, len(covered & everything), len(everything))


@st.composite
def free_specializations(draw: st.DrawFn, declaration: Declaration, kind: str | None = None) -> Specialization:
    """Settings for an entry point that compiles nothing: any geometry, no tile, no window. ``kind`` "plain" has one
    rank, "cp" several, None any number.
    """
    features = declaration.features
    sharing = "cp" in features and kind != "plain"
    geometry = draw(geometries(hybrid="hybrid" in features, cp=sharing, plain=not sharing or kind != "cp"))
    output_dtype = draw(st.sampled_from(("int32", "int64"))) if "int64" in features else "int32"
    pad_id = draw(st.sampled_from((-1, *PAD_IDS))) if "pad_id" in features else -1
    size, k = geometry.block_size, geometry.blocks_per_kv_block
    return Specialization(size, k, geometry.cp, pad_id=pad_id, output_dtype=output_dtype)


# Rows of the array: the name of each parameter with its value or role.

_Row = dict[str, Any]
_Values = dict[str, tuple[Any, ...]]
_Layout = tuple[bool, int]
"""(circular, W): one parameter, because rings know no context parallelism and each kind must meet every other value."""

_SERVING = {"block_size": 128, "tile": 1024, "window": "rule"}

_RULES: tuple[tuple[tuple[str, ...], Callable[..., bool]], ...] = (
    (("layout", "rank"), lambda layout, rank: rank_of(rank, layout[1]) is not None),
    (("layout", "blocks_per_kv_block"), lambda layout, k: not layout[0] or k == 1),
    (("interleave", "block_size", "blocks_per_kv_block"), lambda i, b, k: interleave_of(i, b, k) is not None),
    (("window", "tile", "block_size"), lambda w, tile, b: w is None or window_of(w, tile, b) is not None),
)


def _values(declaration: Declaration, axes: Axes) -> _Values:
    """The values of each parameter that the declaration leaves."""
    features = declaration.features
    worlds = axes.world_sizes if "cp" in features else tuple(w for w in axes.world_sizes if w == 1)
    layouts = [(False, w) for w in worlds]
    if "circular" in features and axes.rings:
        layouts.insert(1 if 1 in worlds else 0, (True, 1))
    windows = axes.windows
    if "window" in declaration.clauses:
        windows = tuple(w for w in windows if w in (None, "rule", "double"))
    return {
        "layout": tuple(layouts),
        "block_size": axes.block_sizes,
        "blocks_per_kv_block": axes.blocks_per_kv_block if "hybrid" in features else axes.blocks_per_kv_block[:1],
        "rank": axes.ranks,
        "interleave": axes.interleaves,
        "tile": axes.tiles,
        "window": windows,
        "pad_id": axes.pad_ids if "pad_id" in features else axes.pad_ids[:1],
        "output_dtype": axes.output_dtypes if "int64" in features else axes.output_dtypes[:1],
    }


def _kind(layout: _Layout) -> str:
    circular, world_size = layout
    if world_size > 1:
        return "cp"
    return "circular" if circular else "plain"


def _legal(row: _Row) -> bool:
    return all(rule(*(row[name] for name in names)) for names, rule in _RULES)


def _combinations(row: _Row, strength: int) -> Iterable[tuple[tuple[str, Any], ...]]:
    return combinations(row.items(), strength)


def _complexity(row: _Row, values: _Values) -> tuple[int, int, list[int]]:
    """How far a row is from the simplest one: parameters that differ, then how far they do."""
    steps = [values[name].index(value) for name, value in row.items()]
    return sum(step > 0 for step in steps), sum(steps), steps


def _covering_array(values: _Values, strength: int) -> list[_Row]:
    """Rows with every legal combination, ``_fixed_rows`` in front."""
    fixed = _fixed_rows(values)
    constraints = [
        {"operator": "fn", "requires": list(names), "evaluate": _evaluator(names, rule)} for names, rule in _RULES
    ]
    made = covertable.make(values, strength=strength, constraints=constraints, presets=fixed)
    rows = [{name: row[name] for name in values} for row in made]
    return _simplified(rows, len(fixed), values, strength)


def _evaluator(names: tuple[str, ...], rule: Callable[..., bool]) -> Callable[[_Row], bool]:
    return lambda row: rule(*(row[name] for name in names))


def _fixed_rows(values: _Values) -> list[_Row]:
    """What a pool has in any case: of each kind the simplest setting, then that of serving, as far as the axes have it.

    There is none without its block_size, or with tiles and windows that are all others.
    """
    first_of_kind: dict[str, _Layout] = {}
    for layout in values["layout"]:
        first_of_kind.setdefault(_kind(layout), layout)
    simplest = {name: choices[0] for name, choices in values.items()}
    rows = [{**simplest, "layout": layout} for layout in first_of_kind.values()]
    serving = {name: value for name, value in _SERVING.items() if values[name] != (None,)}
    if all(value in values[name] for name, value in serving.items()):
        rows += [{**row, **serving} for row in rows]
    return [row for row in rows if _legal(row)]


def _beyond_int32(values: _Values) -> list[_Row]:
    """A ring whose slots may leave int32 in an output that they fit: that takes three parameters."""
    ring = next((layout for layout in values["layout"] if _kind(layout) == "circular"), None)
    if ring is None or "int64" not in values["output_dtype"]:
        return []
    simplest = {name: choices[0] for name, choices in values.items()}
    row = {**simplest, "layout": ring, "block_size": values["block_size"][-1], "output_dtype": "int64"}
    return [row] if _legal(row) else []


def _simplified(rows: list[_Row], fixed: int, values: _Values, strength: int) -> list[_Row]:
    """The same coverage with simpler values: most tiles small, PAD_ID mostly -1. Rows that add nothing go."""
    counts = Counter(c for row in rows for c in _combinations(row, strength))
    kept = rows[:fixed]
    for row in rows[fixed:]:
        counts.subtract(_combinations(row, strength))
        needed = {c for c in _combinations(row, strength) if counts[c] == 0}
        if not needed:
            continue
        for name, choices in values.items():
            for value in choices[: choices.index(row[name])]:
                simpler = {**row, name: value}
                if _legal(simpler) and needed <= set(_combinations(simpler, strength)):
                    row = simpler
                    break
        counts.update(_combinations(row, strength))
        kept.append(row)
    return kept


def _greedy(rows: list[_Row], budget: int, strength: int, present: Iterable[_Row]) -> list[_Row]:
    """At most ``budget`` of ``rows``, each the one that adds most to those before it, until none adds anything."""
    seen = {c for row in present for c in _combinations(row, strength)}
    left = [(row, frozenset(_combinations(row, strength))) for row in rows]
    chosen: list[_Row] = []
    while left and len(chosen) < budget:
        row, combined = left.pop(max(range(len(left)), key=lambda i: len(left[i][1] - seen)))
        if combined <= seen:
            break
        seen |= combined
        chosen.append(row)
    return chosen


def _specialization(row: _Row) -> Specialization:
    circular, world_size = row["layout"]
    rank = rank_of(row["rank"], world_size)
    interleave = interleave_of(row["interleave"], row["block_size"], row["blocks_per_kv_block"])
    assert rank is not None
    assert interleave is not None
    window = None if row["window"] is None else window_of(row["window"], row["tile"], row["block_size"])
    return Specialization(
        row["block_size"],
        row["blocks_per_kv_block"],
        ContextParallel(world_size, rank, interleave),
        row["tile"],
        window,
        circular,
        row["pad_id"],
        row["output_dtype"],
    )


# What several runs draw between them.


@lru_cache(maxsize=128)
def _space(declaration: Declaration, axes: Axes, strength: int) -> tuple[_Values, list[_Row], frozenset[Any]]:
    """The values of each parameter, a covering array, and every combination that a legal setting has."""
    values = _values(declaration, axes)
    array = _covering_array(values, strength)
    return values, array, frozenset(c for row in array for c in _combinations(row, strength))


def covered(
    declaration: Declaration, axes: Axes, specializations: Iterable[Specialization], strength: int
) -> tuple[int, int]:
    """How many combinations of ``strength`` values some of ``specializations`` has, and how many there are."""
    values, _, everything = _space(declaration, axes, strength)
    rows = (_row(each, values) for each in specializations)
    seen = {c for row in rows if row is not None for c in _combinations(row, strength)}
    return len(seen & everything), len(everything)


def least_drawn(
    declaration: Declaration, axes: Axes, budget: int, drawn: Mapping[Specialization, int], number: int
) -> Pool:
    """The simplest specialization of each kind, then those that add most triples of values to what was ``drawn`` (how
    often, by specialization), then those whose triples were drawn least.

    ``number`` decides among equals, and which settings are looked at beside those of a covering array. Raises
    ValueError when the budget is below 1.
    """
    if budget < 1:
        raise ValueError(f"budget {budget}: at least one specialization is needed")
    values, array, everything = _space(declaration, axes, 3)
    rows = [(row, cases) for each, cases in drawn.items() if (row := _row(each, values)) is not None]
    counts = Counter[Any]()
    for row, cases in rows:
        counts.update(dict.fromkeys(_combinations(row, 3), cases))
    randomly = Random(number)
    others = [*array, *_random_rows(values, randomly, len(array))]
    randomly.shuffle(others)
    simplest = {_kind(row["layout"]): row for row in reversed(_fixed_rows(values))}
    chosen = list(simplest.values())[:budget]
    chosen += _greedy(others, budget - len(chosen), 3, [*chosen, *(row for row, _ in rows)])
    left = [row for row in others if row not in chosen]
    left.sort(key=lambda row: sum(counts[c] for c in _combinations(row, 3)))
    chosen += left[: budget - len(chosen)]
    seen = {c for row in (*chosen, *(row for row, _ in rows)) for c in _combinations(row, 3)}
    chosen.sort(key=lambda row: _complexity(row, values))
    return Pool(tuple(_specialization(row) for row in chosen), 3, len(seen & everything), len(everything))


def _random_rows(values: _Values, randomly: Random, count: int) -> list[_Row]:
    """Legal ones, ``count`` at most."""
    rows = ({name: randomly.choice(choices) for name, choices in values.items()} for _ in range(20 * count))
    return list(islice(filter(_legal, rows), count))


def _row(s: Specialization, values: _Values) -> _Row | None:
    """The row that ``s`` is made of; None where these values have none."""
    b, k, world = s.block_size, s.blocks_per_kv_block, s.cp.size
    row = {
        "layout": (s.circular, world),
        "block_size": b,
        "blocks_per_kv_block": k,
        "rank": next((each for each in values["rank"] if rank_of(each, world) == s.cp.rank), None),
        "interleave": next((i for i in values["interleave"] if interleave_of(i, b, k) == s.cp.interleave), None),
        "tile": s.tile,
        "window": next(
            (w for w in values["window"] if w is not None and s.tile and window_of(w, s.tile, b) == s.window), None
        ),
        "pad_id": s.pad_id,
        "output_dtype": s.output_dtype,
    }
    return row if all(row[name] in choices for name, choices in values.items()) else None
