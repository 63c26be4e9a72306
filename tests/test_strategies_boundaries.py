"""Cases at the boundary: each breaks its clause and no other, in batches of every kind, by little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from reference.case import Case, ContextParallel, Group, Launch
from reference.contract import CLAUSES, FLOAT32_EXACT, violations
from reference.fields import INT32_MAX, INT32_MIN
from strategies.boundaries import _CHANGES, BREAKABLE, IMPLIED, _Choice, bound, boundary_cases, breakable
from strategies.cases import Declaration
from strategies.specializations import FUSED_AXES, V1_AXES, V2_AXES, Axes, Specialization, pool

V1 = frozenset({"circular", "cp", "hybrid", "pad_id", "int64", "row_stride", "tail"})
V2 = frozenset({"cp", "hybrid", "groups", "sharded", "enabled", "idx_mapping", "int64", "pad_id", "row_stride", "tail"})
FUSED = frozenset({"circular", "groups", "pad_id", "row_stride", "tail"})

DECLARATIONS: dict[str, tuple[Declaration, Axes]] = {
    "v1": (Declaration(features=V1), V1_AXES),
    "v2": (Declaration(features=V2), V2_AXES),
    "fused": (Declaration(features=FUSED), FUSED_AXES),
    "replay": (Declaration(features=FUSED | {"replay"}), FUSED_AXES),
}
# A host chooses the window itself, and a replay looks into no table.
NEVER = {("fused", "window"), ("replay", "window"), ("replay", "row-width"), ("replay", "slot-fits")}
PAIRS = [(name, clause) for name in DECLARATIONS for clause in BREAKABLE if (name, clause) not in NEVER]

Drawn = tuple[Specialization, Case, Launch]


@cache
def drawn_from(name: str, clause: str) -> list[Drawn]:
    """120 cases, always the same ones."""
    declaration, axes = DECLARATIONS[name]
    able = [each for each in pool(declaration, axes, 64) if breakable(declaration, each, clause)]
    drawn: list[Drawn] = []

    @seed(0)
    @settings(
        max_examples=120, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def collect(data: st.DataObject) -> None:
        specialization = data.draw(st.sampled_from(able))
        drawn.append((specialization, *data.draw(boundary_cases(declaration, specialization, clause))))

    collect()
    return drawn


@pytest.mark.parametrize(("name", "clause"), PAIRS)
def test_one_clause_is_broken_and_nothing_else(name: str, clause: str) -> None:
    for specialization, case, launch in drawn_from(name, clause):
        broken = {each.clause for each in violations(case, CLAUSES, bound(specialization, launch))}
        assert clause in broken
        assert broken - {clause} <= IMPLIED.get(clause, set())


@pytest.mark.parametrize(("name", "clause"), sorted(NEVER))
def test_what_cannot_be_broken_is_refused(name: str, clause: str) -> None:
    declaration, axes = DECLARATIONS[name]
    specialization = next(iter(pool(declaration, axes, 64)))
    assert not breakable(declaration, specialization, clause)
    with pytest.raises(ValueError, match=f"^{clause}: not broken by one position or one cell of"):
        boundary_cases(declaration, specialization, clause)


@pytest.mark.parametrize(
    ("specialization", "clauses"),
    [
        (Specialization(2, tile=16, window=16), {"pos-nonneg", "pos-int32", "row-width", "window", "slot-fits"}),
        (Specialization(2, circular=True), {"pos-int32", "pos-f32", "slot-fits"}),
        (
            Specialization(2, 1, ContextParallel(2, 0, 1)),
            {"pos-nonneg", "pos-int32", "pos-f32", "row-width", "slot-fits"},
        ),
        (Specialization(1 << 20, 16, ContextParallel(8, 0, 1)), {"pos-nonneg", "pos-int32", "pos-f32", "slot-fits"}),
    ],
    ids=["paged", "ring", "ranks", "large-blocks"],
)
def test_what_a_setting_can_break(specialization: Specialization, clauses: set[str]) -> None:
    assert {each for each in BREAKABLE if breakable(Declaration(features=V1), specialization, each)} == clauses


def tokens(case: Case) -> Iterator[tuple[int, int]]:
    """(request, position) of every token."""
    bounds = case.query_start_loc
    for request in range(case.num_reqs):
        yield from ((request, position) for position in case.positions[bounds[request] : bounds[request + 1]])


def past(case: Case, group: Group, columns: int) -> bool:
    """Whether a token of one rank needs a column at or past ``columns``."""
    return case.cp.size == 1 and any(p >= columns * group.block_size for _, p in tokens(case) if p < 1 << 30)


def shapes(case: Case, clause: str) -> Iterator[str]:
    """What a case at the boundary is, in words."""
    positions = [position for _, position in tokens(case)]
    ordinary = [position for position in positions if 0 <= position < FLOAT32_EXACT]
    if len(ordinary) not in (0, len(positions)):
        yield "beside ordinary tokens"
    if clause == "pos-nonneg":
        yield "smallest int32" if min(positions) == INT32_MIN else "-1" if -1 in positions else "negative"
    if clause == "pos-int32":
        yield "positive" if max(positions) > INT32_MAX else "below int32"
        if any(0 <= p % (1 << 32) < 1 << 20 and abs(p) > INT32_MAX for p in positions):
            yield "ordinary in 32 bits"
    if clause == "row-width":
        for group in case.groups:
            if group.kind == "paged" and past(case, group, group.stride):
                yield "past the stride"
            elif group.kind == "paged" and past(case, group, group.row_width):
                yield "between width and stride"
            if past(case, group, group.stride * len(group.block_table)):
                yield "past the table"
    if clause == "slot-fits":
        cells = [cell for group in case.groups for row in group.block_table for cell in row]
        yield "negative block" if min(cells) < 0 else "large block"


@pytest.mark.parametrize(
    ("clause", "wanted"),
    [
        ("pos-nonneg", {"beside ordinary tokens", "smallest int32", "-1", "negative"}),
        ("pos-int32", {"beside ordinary tokens", "positive", "below int32", "ordinary in 32 bits"}),
        ("pos-f32", {"beside ordinary tokens"}),
        ("row-width", {"past the stride", "between width and stride", "past the table"}),
        ("slot-fits", {"negative block", "large block"}),
    ],
)
def test_clauses_are_broken_in_every_way(clause: str, wanted: set[str]) -> None:
    seen: Counter[str] = Counter()
    for name in ("v1", "v2"):
        for _, case, _ in drawn_from(name, clause):
            seen.update(set(shapes(case, clause)))
    assert {shape: seen[shape] for shape in wanted if seen[shape] < 3} == {}


@pytest.mark.parametrize(("name", "clause"), [pair for pair in PAIRS if pair[0] in ("v1", "v2")])
def test_many_cases_are_no_smaller_than_others(name: str, clause: str) -> None:
    """The rest of a batch is there to be disturbed."""
    drawn = drawn_from(name, clause)
    assert sum(case.num_reqs > 1 for _, case, _ in drawn) > 0.2 * len(drawn)
    assert sum(case.num_tokens > 3 for _, case, _ in drawn) > 0.2 * len(drawn)


@pytest.mark.parametrize("clause", ["slot-fits", "window"])
def test_rows_without_a_column_are_not_torn(clause: str) -> None:
    """A rank without tokens may have none: there is no cell to break, and what is widened is widened alike."""
    group = Group(((), ()), 2, 2)
    case = Case((0, 2, 3), (0, 0, 0), 3, 3, (group,), cp=ContextParallel(2, 1, 1))
    specialization = Specialization(2, cp=case.cp, tile=16, window=2)
    changed = _CHANGES[clause](case, specialization, _Choice(0, 0, 0))
    widths = [{len(row) for row in each.groups[0].block_table} for each in changed]
    assert all(len(each) == 1 for each in widths)
    assert all(0 not in each for each in widths)
