"""Runs that draw what earlier runs drew least: between them they come to all triples of values."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.explored import Explored
from conformance.subjects.entry import EntryPoint
from reference.case import ContextParallel
from reference.fields import CaseError
from strategies.declaration import Declaration
from strategies.specializations import V1_AXES, Specialization, covered, least_drawn, pool

V1 = Declaration(features=frozenset({"circular", "cp", "hybrid", "pad_id", "int64"}))
FEW = Declaration(features=frozenset({"cp"}))
SMALL = replace(V1_AXES, block_sizes=(2, 16), world_sizes=(1, 2, 3), tiles=(16, 64), windows=("rule",), pad_ids=(-1, 0))
ENTRY = EntryPoint("kernels", "1", "v1", "f", "v1", "", 1, (), (), V1)


def test_runs_together_come_to_every_triple() -> None:
    drawn = Counter[Specialization]()
    reached = []
    for number in range(6):
        made = least_drawn(V1, SMALL, 24, drawn, number)
        assert len(made) == 24
        assert {each.kind for each in made} == {"plain", "circular", "cp"}
        drawn.update(made)
        reached.append(covered(V1, SMALL, drawn, 3))
        assert reached[-1] == (made.covered, made.total)
    counts = [count for count, _ in reached]
    assert counts == sorted(counts)
    assert counts[0] < counts[1] < reached[0][1] == counts[-1]
    assert covered(V1, SMALL, drawn, 2) == (pool(V1, SMALL, 64).total,) * 2


def test_when_everything_was_drawn_the_least_drawn_comes_next() -> None:
    everything = Counter(dict.fromkeys(pool(FEW, SMALL, 10_000, 3), 100))
    favoured = Counter({each: 100 if each.tile == 64 else 1 for each in everything})
    next_ones = least_drawn(FEW, SMALL, 20, favoured, 1)
    assert sum(each.tile == 64 for each in next_ones) <= 2
    assert least_drawn(FEW, SMALL, 20, favoured, 1) == next_ones
    assert set(least_drawn(FEW, SMALL, 20, favoured, 2)) != set(next_ones)


def test_a_specialization_that_the_axes_do_not_have_covers_nothing() -> None:
    strange = [Specialization(7), Specialization(2, cp=ContextParallel(7, 1, 1), tile=16, window=16)]
    assert covered(V1, SMALL, strange, 2)[0] == 0
    with pytest.raises(ValueError, match="budget 0"):
        least_drawn(V1, SMALL, 0, {}, 1)


def test_what_was_drawn_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "explored.json"
    first = Explored(file, 3)
    first.read()
    chosen = first.pool(ENTRY, SMALL, 12).specializations
    for each in (*chosen, chosen[0]):
        first.drew(ENTRY, each)
    first.write()
    again = Explored(file, 4)
    again.read()
    assert again.drawn == first.drawn == first.own
    assert again.drawn["kernels.v1"][chosen[0]] == 2
    assert again.describe() == first.describe() != ""
    assert not set(chosen[3:]) & set(again.pool(ENTRY, SMALL, 12))  # but for the simplest of each kind
    again.add(ENTRY, SMALL, Counter({chosen[0]: 5}))
    assert again.own == {"kernels.v1": {chosen[0]: 5}}
    again.write()
    assert json.loads(file.read_text())["entry_points"].keys() == {"kernels.v1"}


@pytest.mark.parametrize("text", ["[]", '{"schema": 2}', '{"schema": 1, "entry_points": {"v1": 3}}'])
def test_a_file_that_is_something_else_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "explored.json"
    file.write_text(text)
    with pytest.raises(CaseError, match=r"explored.json: not what runs have drawn"):
        Explored(file).read()
