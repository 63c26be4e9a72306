"""The KV-cache groups of one launch: what each of them is, and how far positions may reach so that tables stay small.

The first group drawn is that of the specialization. Each of up to five more has a place of its own in the draw, where
"no group" is the simplest choice: shrinking takes out any of them without disturbing the others. In which order they
stand in the launch is drawn last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import TypeVar

from strategies.declaration import Declaration
from strategies.geometry import NO_CP, Geometry
from strategies.picking import Picker
from strategies.specializations import Specialization
from strategies.tables import MOST_CELLS, WIDE_COLUMNS, TableRules, blocks_that_fit

MOST_GROUPS = 6

MOST_CELLS_OF_ALL = 6000
"""Cells of all tables of a launch together, at most."""

MOST_WIDE_CELLS_OF_ALL = 2 * WIDE_COLUMNS
"""The same for each row, where one table is wide."""

MOST_BLOCKS_PER_KV_BLOCK = 16

_ORDERS = (*["as drawn"] * 3, "backwards", "first one last", "first one second")

_DISABLED_BLOCKS = 2
"""Allocated blocks that a row of a disabled group has at most: often fewer than its tokens would need."""

_ABSENT = 1.4
"""How many times as likely as a group is no group, in each of the further places."""

T = TypeVar("T")

_FEATURE_OF = {"circular": "circular", "replicated": "sharded", "disabled": "enabled"}


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group without its table. ``geometry`` is that of one rank where the group is replicated on all of them."""

    geometry: Geometry
    kind: str = "paged"
    sharded: bool = True
    enabled: bool = True

    @property
    def part(self) -> str:
        """The part of a menu where it stands."""
        if not self.enabled:
            return "disabled"
        return self.kind if self.sharded else "replicated"

    @property
    def grows(self) -> bool:
        """Whether its rows must have a column for every local token."""
        return self.enabled and self.kind == "paged"

    @property
    def is_replicated(self) -> bool:
        """Whether every rank needs a column for every token."""
        return self.grows and not self.sharded


def draw_groups(picker: Picker, declaration: Declaration, specialization: Specialization) -> tuple[GroupSpec, ...]:
    """1 to ``MOST_GROUPS`` groups with the feature "groups", else one. The first has the smallest block_size.

    Nothing is drawn where there is no choice.
    """
    first, further = _menus(declaration, specialization)
    groups = [picker.pick(first) if len(first) > 1 else first[0]]
    if further:
        drawn = [picker.pick(further) for _ in range(MOST_GROUPS - 1)]
        groups += [group for group in drawn if group is not None]
    return tuple(groups)


def draw_order(picker: Picker, count: int) -> tuple[int, ...]:
    """Which of ``count`` groups stands in each place: the one with the smallest blocks need not be the first."""
    order = tuple(range(count))
    name = picker.pick(_ORDERS)
    if name == "backwards":
        return order[::-1]
    if name == "first one last":
        return (*order[1:], 0)
    if name == "first one second":
        return (*order[1:2], 0, *order[2:])
    return order


def in_order(groups: Sequence[T], order: Sequence[int]) -> tuple[T, ...]:
    """``groups`` as ``order`` puts them."""
    return tuple(groups[index] for index in order)


def affordable_rows(groups: Sequence[GroupSpec], output_dtype: str) -> int:
    """How many rows the tables may have at most so that each has room for tokens in every row."""
    steps = [
        (group.geometry.blocks_per_kv_block, _rules(group, output_dtype).blocks) for group in groups if group.grows
    ]
    of_each = [min(MOST_CELLS, blocks) // step for step, blocks in steps]
    of_all = MOST_CELLS_OF_ALL // (2 * sum(map(_narrow_columns, groups)))
    return min([of_all, *of_each])


def rules_for(
    groups: Sequence[GroupSpec], rows: int, top: int, output_dtype: str, *, wide: bool = False
) -> tuple[list[TableRules], int]:
    """The rules for the table of each group, and the position below which every local token has its column.

    ``top`` is the limit where tables set none. ``wide``: tables may have more columns than a kernel stages at once.
    """
    cells = rows * WIDE_COLUMNS if wide else MOST_CELLS
    rules = [replace(_rules(group, output_dtype), cells=cells) for group in groups]
    growing = [(group.geometry, own) for group, own in zip(groups, rules, strict=True) if group.grows]
    limit = min([top, *(_positions_in(own.most_columns(rows), geometry) for geometry, own in growing)])
    if len(groups) == 1:
        return rules, limit
    if growing:
        # A row has a column for every b*W of its positions, and, rounded up, an allocated block more at most.
        rounding = sum(_narrow_columns(group) for group in groups)
        columns_a_position = sum(1 / (geometry.block_size * geometry.cp.size) for geometry, _ in growing)
        columns = MOST_WIDE_CELLS_OF_ALL if wide else MOST_CELLS_OF_ALL // rows
        limit = min(limit, int((columns - rounding) / columns_a_position))
    return [_limited(own, group, rows, limit) for own, group in zip(rules, groups, strict=True)], limit


def positions_in_a_row(geometry: Geometry, output_dtype: str) -> int:
    """How many positions the table of one group alone affords when it has one row."""
    return _positions_in(_rules(GroupSpec(geometry), output_dtype).most_columns(1), geometry)


def _rules(group: GroupSpec, output_dtype: str) -> TableRules:
    geometry = group.geometry
    blocks = blocks_that_fit(geometry.block_size, output_dtype)
    return TableRules(geometry.blocks_per_kv_block, blocks, growing=group.kind == "paged")


def _positions_in(columns: int, geometry: Geometry) -> int:
    return columns // geometry.blocks_per_kv_block * geometry.virtual_block_size


def _narrow_columns(group: GroupSpec) -> int:
    """The columns of a row that no position needs."""
    if group.kind == "circular":
        return 1
    return group.geometry.blocks_per_kv_block * (1 if group.enabled else _DISABLED_BLOCKS)


def _limited(rules: TableRules, group: GroupSpec, rows: int, limit: int) -> TableRules:
    """``rules`` with no more columns than positions below ``limit`` can need."""
    columns = _narrow_columns(group)
    if group.grows:
        columns = rules.column_step * -(-limit // group.geometry.virtual_block_size)
    return replace(rules, cells=columns * rows)


@lru_cache(maxsize=4096)
def _menus(declaration: Declaration, s: Specialization) -> tuple[Sequence[GroupSpec], Sequence[GroupSpec | None]]:
    """What the first group may be, and what each further one may: paged as usual, a ring, replicated, disabled.

    Each part of a menu has the same size for every specialization, so that shrinking may change the specialization and
    keep the groups, and goes from simple to odd geometries, so that it finds the simplest.
    """
    own = Geometry(s.block_size, s.blocks_per_kv_block, s.cp if s.cp.size > 1 else NO_CP)
    usual = GroupSpec(own, "circular" if s.circular else "paged")
    several = "groups" in declaration.features
    kinds = ("paged", "circular") if several and not s.circular else (usual.kind,)
    forms = [group for group in _forms(declaration, own) if group.kind in kinds]
    first = [usual, *_parts(declaration, forms, {"paged": 8, "circular": 4, "replicated": 2, "disabled": 2}, usual)]
    if not several:
        return first if len(set(first)) > 1 else first[:1], ()
    geometries = list(_geometries(own, hybrid="hybrid" in declaration.features))
    simple = [each for each in geometries if each.block_size in _multiples(own) and each.blocks_per_kv_block <= 2]
    forms = [group for each in geometries for group in _forms(declaration, each) if group.enabled and group.sharded]
    forms += [group for each in simple for group in _forms(declaration, each) if not (group.enabled and group.sharded)]
    further = _parts(declaration, forms, {"paged": 40, "circular": 32, "replicated": 20, "disabled": 12}, forms[0])
    return first, [*[None] * round(_ABSENT * len(further)), *further]


def _parts(
    declaration: Declaration, groups: Sequence[GroupSpec], sizes: Mapping[str, int], instead: GroupSpec
) -> list[GroupSpec]:
    """For each kind that the declaration has a part of a menu; ``instead`` where there is no such group."""
    menu: list[GroupSpec] = []
    for kind, size in sizes.items():
        if _FEATURE_OF.get(kind) in (None, *declaration.features):
            part = [group for group in groups if group.part == kind] or [instead]
            menu += [part[place * len(part) // size] for place in range(size)]
    return menu


def _forms(declaration: Declaration, geometry: Geometry) -> Iterator[GroupSpec]:
    """Every legal group of this geometry that the declaration leaves, simplest first."""
    features, cp = declaration.features, geometry.cp
    one_rank = Geometry(geometry.block_size, geometry.blocks_per_kv_block, NO_CP)
    for enabled in (True, False) if "enabled" in features else (True,):
        if geometry.kv_cache_block_size % cp.interleave == 0:
            yield GroupSpec(geometry, enabled=enabled)
        if "circular" in features and (cp.size == 1 or not enabled):
            yield GroupSpec(Geometry(geometry.block_size, 1, NO_CP), "circular", enabled=enabled)
        if "sharded" in features:
            yield GroupSpec(one_rank, sharded=False, enabled=enabled)


def _geometries(own: Geometry, *, hybrid: bool) -> Iterator[Geometry]:
    """Block sizes not below that of ``own``, with numbers of blocks that an allocated block may have."""
    b, k, interleave = own.block_size, own.blocks_per_kv_block, own.cp.interleave
    sizes = (*_multiples(own), 16, 48, b + 1, 272, 880, 1 << 20)
    for size in dict.fromkeys(size for size in sizes if size >= b):
        fits = interleave // gcd(interleave, size)
        for blocks in sorted({1, k, fits, 2 * fits, 3 * fits}) if hybrid else (1,):
            if blocks <= MOST_BLOCKS_PER_KV_BLOCK:
                yield Geometry(size, blocks, own.cp)


def _multiples(own: Geometry) -> tuple[int, ...]:
    """The block sizes that serving has beside that of ``own``; 128 is its usual one."""
    return own.block_size, 2 * own.block_size, 3 * own.block_size, 128
