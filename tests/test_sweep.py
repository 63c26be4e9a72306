"""Whole-range sweeps: what they launch, and that a fault which shows far out only is found and cut down."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import sweep
from conformance.engine import Engine, Options
from conformance.lanes import Lane, by_name
from conformance.subjects.binding import outside
from conformance.sweep import Part, every_position, launches, parts
from conformance.under_test import Drawn, UnderTest
from conformance.verdicts import ConformanceFailure
from reference.case import ContextParallel
from reference.contract import ANSWER_CLAUSES, FLOAT32_EXACT, violations
from reference.fields import INT32_MAX, INT32_MIN
from reference.verdict import MISMATCH
from strategies.specializations import Specialization
from tests.commands import pytest_
from tests.faults.catalogue import V1, WINDOW, Fault, write_variant

LOWERED = by_name("lowered")
pytestmark = pytest.mark.skipif(LOWERED.unavailable() is not None, reason=str(LOWERED.unavailable()))
GATE, DEEP = 600, 20_000

# By the kind of case, the first position at which the kernels below go wrong: 16 bits, 20 bits, float32.
FAR = {"plain": 1 << 16, "circular": 1 << 20, "cp": FLOAT32_EXACT + 1}
RIGHT = "        is_local = loaded >= 0\n"
WRONG = """\
        is_local = loaded >= 0
        if IS_CIRCULAR:
            narrow = loaded & 1048575
        elif TOTAL_CP_WORLD_SIZE > 1:
            narrow = loaded.to(tl.float32).to(tl.int32)
        else:
            narrow = loaded & 65535
        loaded = tl.where(is_local, narrow, loaded)
"""


@contextmanager
def target_of(source: Path | None, cache: Path, lane: Lane = LOWERED, budget: int = 64) -> Iterator[UnderTest]:
    """Entry point v1 of these kernels, or of this project's own."""
    sources = {} if source is None else {"kernels": str(source)}
    engine = Engine(lane, Options(("kernels",), sources, budget, 60.0, cache, 1))
    try:
        yield UnderTest(engine, engine.session("kernels").entries["v1"])
    finally:
        engine.close()


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnderTest]:
    with target_of(None, tmp_path_factory.mktemp("cache")) as target:
        yield target


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with these faults."""
    return write_variant(Fault("far out", "far out", "", V1, ((RIGHT, WRONG),), ()), tmp_path_factory.mktemp("wrong"))


@pytest.fixture(scope="module")
def failing(wrong: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnderTest]:
    with target_of(wrong, tmp_path_factory.mktemp("cache")) as target:
        yield target


# The node id of context parallelism says so.
@pytest.mark.parametrize("kind", FAR)
def test_a_fault_that_shows_far_out_is_found_and_cut_down(kind: str, failing: UnderTest) -> None:
    with pytest.raises(ConformanceFailure) as raised:
        every_position(failing, kind, GATE)
    finding = raised.value.finding
    (group,), (position,) = finding.case.groups, finding.case.positions
    assert finding.verdict.kind == MISMATCH
    assert position >= FAR[kind]
    assert violations(finding.case, launch=finding.launch) == ()
    assert group.row_width <= position // group.block_size + 1


def test_what_is_explained_does_not_end_a_sweep(failing: UnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    asserted: list[Drawn] = []
    monkeypatch.setattr(failing, "agrees_on", asserted.append)
    every_position(failing, "plain", GATE)
    assert max(case.positions[-1] for case, *_ in asserted) > FLOAT32_EXACT
    assert all(case.num_tokens == 1 for case, *_ in asserted)


def test_the_failure_of_a_sweep_is_reported_and_replayed_like_any_other(wrong: Path, tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    arguments = ("--source", f"kernels={wrong}", "--report-dir", folder, "-p", "no:cacheprovider")
    test = "conformance/test_sweep.py::test_every_position_gets_its_slot[kernels.v1]"
    done = pytest_(test, "--compile-budget", "6", *arguments)
    assert done.status == 1, done.tail
    (file,) = folder.glob("failure-*.json")
    report = json.loads(file.read_text())
    assert report["test"] == test
    (position,) = report["case"]["positions"]
    assert 1 << 16 <= position < 1 << 17
    again = pytest_("conformance", "--replay", file, *arguments)
    assert again.status == 1, again.tail


def test_what_hangs_on_the_place_in_the_launch_keeps_the_tokens_before_it(tmp_path: Path) -> None:
    """No position alone shows it: the cut is the launch up to the token."""
    changed = ("in_request = token < end", "in_request = (token < end) & (token < 3000)")
    source = write_variant(Fault("late tokens", "far out", "", V1, (changed,), ()), tmp_path)
    with target_of(source, tmp_path / "cache") as target, pytest.raises(ConformanceFailure) as raised:
        every_position(target, "circular", 0)
    assert raised.value.finding.case.num_tokens == 3001


@pytest.mark.parametrize("examples", [0, 100, GATE, DEEP])
def test_parts_reach_as_far_as_the_profile_says(examples: int, right: UnderTest) -> None:
    extent = {0: 1 << 12, 100: 1 << 16, GATE: 1 << 20, DEEP: 1 << 24}[examples]
    for kind in ("plain", "circular", "cp"):
        found = parts(right, kind, examples)
        assert found[0].positions == range(-sweep.MARGIN, extent + sweep.MARGIN)
        assert found[0].specialization.block_size == 128
        assert found[0].specialization.tile == 1024
        assert all(part.specialization.kind == kind for part in found)
        covered = [part.positions for part in found]
        assert any(INT32_MAX in positions for positions in covered)
        assert any(INT32_MIN in positions for positions in covered)
        assert any(FLOAT32_EXACT in positions and FLOAT32_EXACT - 1 in positions for positions in covered)
        whole = {part.specialization for part in found if part.positions.stop - part.positions.start > extent >> 4}
        assert len(whole) >= 2
        every = {each for each in right.engine.pool(right.entry) or () if each.kind == kind}
        assert ({part.specialization for part in found} == every) == (examples == DEEP or len(every) <= 3)


def test_parts_keep_to_what_an_entry_point_needs(right: UnderTest) -> None:
    needy = right.engine.session("kernels").entries["tiled"].needing(frozenset({"pos-f32", "pos-nonneg"}))
    needy = replace(needy, sparse=())  # as a published entry point, which promises no large positions
    found = parts(UnderTest(right.engine, needy), "plain", GATE)
    assert min(part.positions.start for part in found) == 0
    assert max(part.positions.stop for part in found) == FLOAT32_EXACT


@pytest.mark.parametrize("name", ["v1", "v2", "fused", "parallel", "adaptive", "v1_host", "v2_host"])
def test_what_is_promised_up_to_the_largest_int32_is_swept_wherever_a_lane_divides_in_float32(
    name: str, right: UnderTest
) -> None:
    entry = right.engine.session("kernels").entries[name].needing(frozenset({"pos-f32"}))
    found = parts(UnderTest(right.engine, entry), "plain", GATE)
    assert any(FLOAT32_EXACT + 1 in part.positions or INT32_MAX in part.positions for part in found)
    large = any(each.block_size == 1 << 20 for each in right.engine.pool(entry) or ())
    assert large == (name != "fused")
    assert any(INT32_MAX in part.positions for part in found) == large


def test_a_division_of_positions_is_found_on_the_lane_that_divides_as_the_chip_does(tmp_path: Path) -> None:
    changed = ("block = distance // block_size", "block = tl.where(found, (pending + 1) // block_size - base, 0)")
    source = write_variant(Fault("divided positions", "far out", "", WINDOW, (changed,), ()), tmp_path)
    with (
        target_of(source, tmp_path / "cache", by_name("hivm"), budget=4) as target,
        pytest.raises(ConformanceFailure) as raised,
    ):
        every_position(target, "plain", 0)
    finding = raised.value.finding
    assert finding.verdict.kind == MISMATCH
    assert finding.case.positions[-1] > FLOAT32_EXACT
    assert outside(finding.entry, finding.case, finding.launch, finding.settings) == ()  # so that it can be replayed


# Context parallelism with I above b, k above 1 and a negative start; rows of a block size that is no power of two.
LAUNCHED = [
    Part(Specialization(128), range(-9, 2000)),
    Part(Specialization(48, 3, ContextParallel(3, 1, 72)), range(1 << 20, (1 << 20) + 700)),
    Part(Specialization(1 << 20, 1, ContextParallel(4, 2, 64)), range(INT32_MAX - 600, INT32_MAX + 1)),
    Part(Specialization(1 << 20), range(INT32_MAX - 600, INT32_MAX + 1)),
    Part(Specialization(1 << 20, 3), range(INT32_MAX - 600, INT32_MAX + 1)),
    Part(Specialization(16, circular=True), range(INT32_MIN, INT32_MIN + 600)),
    Part(Specialization(16, output_dtype="int64"), range(600)),
]


class FewAtOnce(type(LOWERED)):  # type: ignore[misc]
    swept_at_once = 250


@pytest.mark.parametrize("number", range(len(LAUNCHED)))
def test_launches_are_legal_and_leave_no_position_out(number: int, right: UnderTest) -> None:
    part = LAUNCHED[number]
    drawn = list(launches(right.entry, part, FewAtOnce()))
    assert [position for case, *_ in drawn for position in case.positions] == list(part.positions)
    assert len(drawn) > 1
    for case, launch, settings in drawn:
        constants = {"TILE_BLOCK_SIZE": settings.tile, "BLOCK_TABLE_WINDOW_SIZE": 2}
        assert violations(case, ANSWER_CLAUSES, launch) == ()
        assert violations(case, {"window"}, type(launch)(launch.output_dtype, constants=constants)) == ()
        assert right.entry.cannot_take(case, launch) is None
    numbers = drawn[0][0].groups[0].block_table[0]
    assert len(set(numbers)) >= len(numbers) - part.specialization.blocks_per_kv_block
    for distance in (1, 2, 256):
        steps = {second - first for first, second in zip(numbers, numbers[distance:], strict=False)}
        assert len(steps) > 1 or len(numbers) <= distance + 1
