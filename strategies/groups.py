"""The KV-cache groups of one launch: what each of them is, and how far positions may reach so that tables stay small.

The first group is that of the specialization. Each of up to four more has a place of its own in the draw, where "no
group" is the simplest choice: shrinking takes out any of them without disturbing the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd

from strategies.declaration import Declaration
from strategies.geometry import NO_CP, Geometry
from strategies.picking import MOST_ITEMS, Picker
from strategies.specializations import Specialization
from strategies.tables import MOST_CELLS, TableRules, blocks_that_fit

MOST_GROUPS = 5

MOST_CELLS_OF_ALL = 6000
"""Cells of all tables of a launch together, at most."""

LARGEST_BLOCK = 1 << 22
"""Tokens of a further group's kernel block at most: an int32 slot leaves it 512 blocks."""

MOST_BLOCKS_PER_KV_BLOCK = 16

_SINGLE_BLOCK_ROWS = 2
"""Allocated blocks that a row of a disabled group has at most: fewer than its tokens would need."""

_ABSENT = 1.4
"""How many times as likely as a group is no group, in each of the further places."""


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """A group without its table. ``geometry`` is that of one rank where the group is replicated on all of them."""

    geometry: Geometry
    kind: str = "paged"
    sharded: bool = True
    enabled: bool = True

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


def rules_for(groups: Sequence[GroupSpec], rows: int, top: int, output_dtype: str) -> tuple[list[TableRules], int]:
    """The rules for the table of each group, and the position below which every local token has its column.

    ``top`` is the limit where tables set none.
    """
    rules = [_rules(group, output_dtype) for group in groups]
    growing = [(group.geometry, own) for group, own in zip(groups, rules, strict=True) if group.grows]
    limit = min([top, *(_positions_in(own.most_columns(rows), geometry) for geometry, own in growing)])
    if len(groups) == 1:
        return rules, limit
    narrow = sum(_narrow_columns(group) for group in groups)
    # Each group needs at most one allocated block more than its share of the positions fills.
    density = sum(1 / (geometry.block_size * geometry.cp.size) for geometry, _ in growing)
    if growing:
        limit = min(limit, int((MOST_CELLS_OF_ALL // rows - narrow) / density))
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
    return group.geometry.blocks_per_kv_block * (1 if group.enabled else _SINGLE_BLOCK_ROWS)


def _limited(rules: TableRules, group: GroupSpec, rows: int, limit: int) -> TableRules:
    """``rules`` with no more columns than positions below ``limit`` can need."""
    columns = _narrow_columns(group)
    if group.grows:
        columns = rules.column_step * -(-limit // group.geometry.virtual_block_size)
    return TableRules(rules.column_step, rules.blocks, rules.growing, min(MOST_CELLS, columns * rows))


@lru_cache(maxsize=4096)
def _menus(declaration: Declaration, s: Specialization) -> tuple[Sequence[GroupSpec], Sequence[GroupSpec | None]]:
    """What the first group may be, and what each further one may, simplest first."""
    own = Geometry(s.block_size, s.blocks_per_kv_block, s.cp if s.cp.size > 1 else NO_CP)
    usual = GroupSpec(own, "circular" if s.circular else "paged")
    several = "groups" in declaration.features
    kinds = ("paged", "circular") if several and not s.circular else (usual.kind,)
    others = [group for group in _forms(declaration, own) if group.kind in kinds and group != usual]
    first = [*[usual] * (4 * len(others) or 1), *others]
    if not several:
        return first, ()
    further = _further(declaration, own)
    absent = min(round(_ABSENT * len(further)), MOST_ITEMS - len(further))
    return first, (*[None] * absent, *further)


def _further(declaration: Declaration, own: Geometry) -> list[GroupSpec]:
    """What a further group may be: what has the geometry of the first group comes first, what tells most twice."""
    found: list[GroupSpec] = []
    for geometry in _geometries(own, hybrid="hybrid" in declaration.features):
        size, blocks = geometry.block_size, geometry.blocks_per_kv_block
        for group in _forms(declaration, geometry):
            if group.is_replicated or not group.enabled:
                if blocks <= 2 and size in (own.block_size, 2 * own.block_size, 3 * own.block_size, 128):
                    found.append(group)
            else:
                found += [group] * 2
    return found


def _forms(declaration: Declaration, geometry: Geometry) -> Iterator[GroupSpec]:
    """Every legal group of this geometry that the declaration leaves, simplest first."""
    features, cp = declaration.features, geometry.cp
    one_rank = Geometry(geometry.block_size, geometry.blocks_per_kv_block, NO_CP)
    for enabled in (True, False) if "enabled" in features else (True,):
        if geometry.kv_cache_block_size % cp.interleave == 0:
            yield GroupSpec(geometry, enabled=enabled)
        if "circular" in features and geometry.blocks_per_kv_block == 1 and (cp.size == 1 or not enabled):
            yield GroupSpec(one_rank, "circular", enabled=enabled)
        if "sharded" in features:
            yield GroupSpec(one_rank, sharded=False, enabled=enabled)


def _geometries(own: Geometry, *, hybrid: bool) -> Iterator[Geometry]:
    """Block sizes not below that of ``own``, with numbers of blocks that an allocated block may have."""
    b, k, interleave = own.block_size, own.blocks_per_kv_block, own.cp.interleave
    sizes = (b, 2 * b, 3 * b, 128, 16, 48, b + 1, 272, 1 << 20)
    for size in dict.fromkeys(size for size in sizes if b <= size <= LARGEST_BLOCK):
        fits = interleave // gcd(interleave, size)
        for blocks in sorted({1, k, fits, 2 * fits, 3 * fits}) if hybrid else (1,):
            if blocks <= MOST_BLOCKS_PER_KV_BLOCK:
                yield Geometry(size, blocks, own.cp)
