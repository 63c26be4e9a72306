"""What is drawn on lanes that divide in float32: positions as far as each entry point promises, and no further."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from conformance import lanes
from conformance.engine import Engine, Options
from conformance.subjects.binding import outside
from conformance.subjects.entry import EntryPoint
from conformance.under_test import Drawn, UnderTest
from reference.case import Case
from reference.contract import FLOAT32_EXACT
from reference.fields import INT32_MAX

LANE = lanes.by_name("hivm")

if (_UNAVAILABLE := LANE.unavailable()) is not None:
    pytest.skip(_UNAVAILABLE, allow_module_level=True)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    made = Engine(LANE, Options(("kernels",), {}, 24, 60.0, tmp_path_factory.mktemp("cache"), 1))
    yield made
    made.close()


def entry_of(engine: Engine, name: str) -> EntryPoint:
    return next(each for each in engine.entries() if each.name == name)


def drawn_for(engine: Engine, entry: EntryPoint, count: int) -> list[Drawn]:
    found: list[Drawn] = []

    @seed(3)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(UnderTest(engine, entry).cases())
    def draw(each: Drawn) -> None:
        found.append(each)

    draw()
    return found


def far_tokens(case: Case) -> int:
    return sum(position >= FLOAT32_EXACT for position in case.positions[: case.num_tokens])


@pytest.mark.parametrize("name", ["v1", "v2", "fused", "adaptive", "dcp", "v1_host"])
def test_large_positions_are_drawn_where_they_are_promised(engine: Engine, name: str) -> None:
    """Beside sparse ones below, and never where the contract promises nothing."""
    entry = entry_of(engine, name)
    drawn = drawn_for(engine, entry, 200)
    assert [outside(entry, *each) for each in drawn] == [()] * len(drawn)
    assert sum(far_tokens(case) > 0 for case, _, _ in drawn) >= 2
    steps = [pairwise(case.positions[: case.num_tokens]) for case, _, _ in drawn]
    assert sum(any(after > before + 1 for before, after in each) for each in steps) >= 40


def test_large_positions_reach_the_largest_int32_and_stand_beside_small_ones(engine: Engine) -> None:
    cases = [case for case, _, _ in drawn_for(engine, entry_of(engine, "parallel"), 300)]
    assert sum(max(case.positions[: case.num_tokens], default=0) > INT32_MAX - 200 for case in cases) >= 3
    assert sum(0 < far_tokens(case) < case.num_tokens for case in cases) >= 5


def test_large_positions_are_not_drawn_where_they_are_not_promised(engine: Engine) -> None:
    entry = replace(entry_of(engine, "v1"), sparse=())
    assert not any(far_tokens(case) for case, _, _ in drawn_for(engine, entry, 150))
