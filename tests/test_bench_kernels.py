"""``make bench-kernels``: what it holds the figures against, and that it times nothing on a lane without a clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from conformance.bench_kernels import PADDED, Aim, Row, aims, main, table

FLOOR = {"floor_us": 1.0, "copy_tb_per_s": 2.0, "copy_in_cache_tb_per_s": 4.0}
DECODE = Row("64x1", 64, PADDED, 1, 1, {"tiled": 2.2, "fused": 2.0, "published direct": 3.0, "published window": 2.0})
PREFILL = Row("1x131072", 131072, 131072, 1, 1, {**DECODE.us, "published direct": 110.0, "published window": 120.0})
LONG = Row("1x1048576", 1 << 20, 1 << 20, 1, 1, {**DECODE.us, "tiled": 6.291456})


def judged(*rows: Row) -> dict[str, Aim]:
    return {aim.name: aim for aim in aims(rows, FLOOR)}


def with_tiled(row: Row, time: float) -> Row:
    return replace(row, us={**row.us, "tiled": time})


@pytest.mark.parametrize(("time", "met"), [(2.19, True), (2.21, False)])
def test_tiled_may_take_a_tenth_more_than_the_faster_published_design(time: float, met: bool) -> None:
    assert judged(with_tiled(DECODE, time))["tiled over the best published, 64x1, W=1, 1 group"].met is met


@pytest.mark.parametrize(("time", "met"), [(2.5, True), (2.51, False)])
def test_a_padded_batch_may_take_two_and_a_half_empty_launches(time: float, met: bool) -> None:
    assert judged(with_tiled(DECODE, time))["tiled over the empty launch, 64x1, W=1, 1 group"].met is met


@pytest.mark.parametrize(("time", "met"), [(2.19, True), (2.21, False)])
def test_a_long_request_must_be_fifty_times_faster(time: float, met: bool) -> None:
    assert judged(with_tiled(PREFILL, time))["the best published over tiled, 1x131072, W=1, 1 group"].met is met


@pytest.mark.parametrize(("time", "met"), [(6.28, True), (6.3, False)])
def test_a_very_long_request_must_reach_half_the_bandwidth_of_the_faster_copy(time: float, met: bool) -> None:
    """12 bytes for each of 2^20 tokens in 6.29 us are 2 TB/s."""
    aim = judged(with_tiled(LONG, time))["bandwidth of tiled over that of the faster copy, 1x1048576, W=1, 1 group"]
    assert aim.met is met


@pytest.mark.parametrize(("name", "met"), [("tiled", True), ("fused", False)])
def test_six_groups_may_take_half_as_long_again_as_one(name: str, met: bool) -> None:
    six = replace(DECODE, groups=6, us={**DECODE.us, "tiled": 3.3, "fused": 3.01})
    assert judged(DECODE, six)[f"6 groups over one, {name}, 64x1"].met is met


def test_a_missed_aim_says_by_how_much() -> None:
    assert str(Aim("time", 1.5, 2.2549)) == "missed time: 2.25 (aim <= 1.5)"
    assert str(Aim("share", 0.5, 0.75, at_least=True)) == "met    share: 0.75 (aim >= 0.5)"


def test_the_table_leaves_a_gap_where_an_implementation_cannot_run() -> None:
    lines = table([DECODE, replace(DECODE, us=dict.fromkeys(("tiled", "published window"), 9.5))]).splitlines()
    assert lines[0].split()[:4] == ["batch", "padded", "W", "groups"]
    assert [line.split()[4:] for line in lines[1:]] == [["2.20", "2.00", "3.00", "2.00"], ["9.50", "9.50"]]
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("lane", ["lowered", "interpreter", "npu"])
def test_other_lanes_are_refused(lane: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--lane", lane]) == 2
    assert capsys.readouterr().err == f"kernels are timed on a GPU: LANE=cuda, not {lane}\n"
