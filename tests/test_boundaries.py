"""What is promised outside the contract, and that kernels which do not keep it are found."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from conformance import lanes
from conformance.boundaries import boundaries, promised, stays_inside, verdict_of
from conformance.engine import Engine, Options
from conformance.outside import BoundaryFailure, outside
from conformance.saved import read
from conformance.subjects.launching import Settings
from conformance.under_test import Drawn, UnderTest
from reference import verdict as v
from reference.case import Case, CaseError, ContextParallel, Group, Launch, Replay
from strategies.declaration import Declaration
from tests.commands import ROOT
from tests.faults.catalogue import DCP, TILED, WINDOW, Fault, write_variant

LANE = lanes.automatic()
LOWERED = lanes.by_name("lowered").unavailable()
U = v.UNWRITTEN

PAGED = Group(((5, 6), (7, 8)), 2, 2, row_stride=3)
CASE = Case((0, 3, 4), (0, 1, 3, 2), 4, 5, (PAGED,))
LAUNCH = Launch(output_length=6)


def of(positions: tuple[int, ...], *needed: str, group: Group = PAGED, **changes: object) -> list[int | None]:
    """What is promised of the tokens of ``CASE`` at these positions."""
    case = replace(CASE, positions=positions, groups=(group,), **changes)
    (row,) = promised(case, LAUNCH, frozenset(needed), writes_tail=True)
    assert row[4:] == [-1, U]
    return row[:4]


def test_a_case_inside_the_contract_has_its_slots() -> None:
    assert of(CASE.positions) == [10, 11, 13, 16]
    (row,) = promised(CASE, LAUNCH, frozenset(), writes_tail=False)
    assert row == [10, 11, 13, 16, U, U]


def test_a_block_past_the_stride_gives_padding_and_one_before_it_anything() -> None:
    assert of((0, 4, 6, 2)) == [10, None, -1, 16]
    assert of((0, 5, (1 << 31) - 1, 2)) == [10, None, -1, 16]


def test_nothing_is_promised_of_a_position_that_is_no_int32() -> None:
    assert of((0, 1 << 31, -(1 << 31) - 1, 2)) == [10, None, None, 16]


def test_negative_positions_give_padding_unless_the_entry_point_needs_them_not_to_be() -> None:
    assert of((0, -1, -(1 << 31), 2)) == [10, -1, -1, 16]
    assert of((0, -1, 3, 2), "pos-nonneg") == [10, None, 13, 16]


def test_nothing_is_promised_of_a_block_that_is_none_or_of_slots_that_do_not_fit() -> None:
    for number in (-1, 1 << 24, 1 << 30):
        assert of(CASE.positions, group=replace(PAGED, block_table=((5, number), (7, 8)))) == [10, 11, None, 16]
    large = replace(PAGED, block_size=256, kv_cache_block_size=256, block_table=((1 << 23, 6), (7, 8)))
    assert of((0, 256, 257, 2), group=large) == [None, 6 * 256, 6 * 256 + 1, 7 * 256 + 2]


def test_rings_take_every_position_of_32_bits() -> None:
    ring = Group(((5,), (7,)), 2, 2, kind="circular")
    assert of(((1 << 31) - 1, 1 << 31, -1, 2), group=ring) == [11, None, -1, 14]
    assert of((0, -1, 3, 2), "pos-nonneg", group=ring) == [10, -1, 11, 14]


def test_positions_of_other_ranks_give_padding_wherever_they_are() -> None:
    ranks = ContextParallel(2, 0, 2)
    assert of((0, 3, (1 << 30) + 2, 1 << 30), cp=ranks) == [10, -1, -1, -1]
    assert of((0, 1 << 24, 1, 4), "pos-f32", cp=ranks, group=replace(PAGED, row_stride=1 << 23)) == [10, None, 11, 16]


def test_disabled_groups_and_replays_are_as_they_are() -> None:
    assert of((0, 99, -5, 2), group=replace(PAGED, enabled=False)) == [-1] * 4
    assert of((0, 1, -7, 2), replay=Replay((1, 0), 5, (0,))) == [10, -1, -1, 16]


def test_a_window_that_is_needed_and_too_small_frees_the_sparse_requests() -> None:
    wide = Group((tuple(range(9)), tuple(range(9, 18))), 2, 2)
    case = replace(CASE, positions=(0, 1, 16, 2), groups=(wide,))
    launch = Launch(constants={"TILE_BLOCK_SIZE": 16, "BLOCK_TABLE_WINDOW_SIZE": 4})
    assert promised(case, launch, frozenset({"window"}), writes_tail=True) == [[None, None, None, 20, -1]]
    assert promised(case, launch, frozenset(), writes_tail=True) == [[0, 1, 16, 20, -1]]


# Kernels


def engine(source: Path | None, lane: str, budget: int = 1) -> Engine:
    sources = {} if source is None else {"kernels": str(source)}
    return Engine(lanes.by_name(lane), Options(("kernels",), sources, budget, 10.0, ROOT / ".cache", 1))


def wrong(name: str, file: str, old: str, new: str) -> Fault:
    """``old`` in ``kernels/<file>`` is ``new``: wrong outside the contract only, or there above all."""
    return Fault(name, "outside the contract", name, file, ((old, new),), ())


MISTAKES = (
    (wrong("stride-not-masked", WINDOW, ", mask=cell < row_stride)", ")"), "guard violation"),
    (
        wrong(
            "stride-not-looked-at",
            WINDOW,
            "tl.minimum(wide_block_size * row_stride - 1, NOTHING_PENDING)",
            "NOTHING_PENDING",
        ),
        "mismatch",
    ),
    (wrong("column-not-masked", TILED, "is_local & (block_index < row_stride)", "is_local"), "guard violation"),
    (wrong("index-not-checked", DCP, "is_local & (block_index < width)", "is_local"), "crash: IndexError"),
)


@pytest.mark.skipif(LOWERED is not None, reason=str(LOWERED))
@pytest.mark.parametrize(("fault", "says"), MISTAKES, ids=[fault.name for fault, _ in MISTAKES])
def test_a_mistake_outside_the_contract_is_found(fault: Fault, says: str, tmp_path: Path) -> None:
    run = engine(write_variant(fault, tmp_path), "lowered")
    try:
        target = UnderTest(run, run.session("kernels").entries[fault.entry_point])

        @seed(0)
        @settings(
            max_examples=400,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(boundaries(target))
        def inside(drawn: Drawn) -> None:
            stays_inside(target, drawn)

        expected = f"outside the contract .*: {says}"
        with pytest.raises(BoundaryFailure, match=expected) as found:
            inside()
        kept = outside(run, tmp_path, 0, "test", found.value, drawn=True)
        with pytest.raises(CaseError, match="a launch outside the contract"):
            read(kept.file)
        again = read(kept.file, boundary=True)
        assert (again.concerns(target.entry), again.why_not(target.entry)) == (True, None)
        with pytest.raises(BoundaryFailure, match=expected):
            stays_inside(target, again.drawn(target.entry))
        promising_nothing = replace(
            target.entry, declaration=Declaration(features=target.entry.declaration.features - {"total"})
        )
        assert "does not promise" in str(again.why_not(promising_nothing))
    finally:
        run.close()


def test_a_refusal_must_name_what_is_broken() -> None:
    """The fused host function looks into the tensors when it is asked to, which it is in half of the launches."""
    run = engine(None, LANE.name)
    try:
        entry = run.session("kernels").entries["fused"]
        case = replace(CASE, positions=(0, 1, 6, 2))
        launch = Launch(output_length=6, fence="before")
        assert verdict_of(run, entry, case, launch, Settings()).passed
        inside = replace(CASE, pad_id=1 << 40)  # refused as slot-fits, and no token of the case breaks that
        assert verdict_of(run, entry, inside, launch, Settings()).kind == v.REFUSED
    finally:
        run.close()


def test_who_promises_nothing_is_not_asked() -> None:
    run = engine(None, LANE.name)
    try:
        entry = replace(run.session("kernels").entries["dcp"], declaration=Declaration())
        with pytest.raises(pytest.skip.Exception, match="does not promise to stay inside its buffers"):
            boundaries(UnderTest(run, entry))
    finally:
        run.close()
