"""What a run says it drew is what it drew, and counting costs next to nothing."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from reference.case import Case, ContextParallel, Group, Launch
from reports.coverage import PAIRS, SHAPES, WINDOWS, Coverage, power, write

GROUP = Group(((3, 4, 5, 6),), 16, 64)
CONSTANTS = {"TILE_BLOCK_SIZE": 64, "BLOCK_TABLE_WINDOW_SIZE": 8}
TWO_RANKS = ContextParallel(2, 1, 16)
# Three requests: one token, none, four with a gap.
CASE = Case((0, 1, 1, 5), (7, 0, 1, 2, 9), 5, 8, (GROUP,), cp=TWO_RANKS)
LAUNCH = Launch(output_length=9, constants=CONSTANTS)


def counted(*launches: tuple[Case, Launch], compiled: tuple[tuple[Case, Launch], ...] = ()) -> dict:
    coverage = Coverage()
    for case, launch in compiled:
        coverage.of("kernels.v1").count_compiled(case, launch)
    for case, launch in launches:
        coverage.of("kernels.v1").count(case, launch, 0.25)
    return json.loads(json.dumps(coverage.to_json()))["entry_points"]["kernels.v1"]


def test_a_launch_is_counted_under_everything_that_it_is() -> None:
    found = counted((CASE, LAUNCH), (CASE, LAUNCH))
    assert found["cases"] == 2
    assert found["seconds"] == {"compile": 0.0, "launch": 0.5}
    assert found["pairs"] == {
        "block size x kernel blocks": [[16, 4, 2]],
        "world size x rank": [[2, 1, 2]],
        "world size x interleave": [[2, "b", 2]],
        "block size x tile": [[16, 64, 2]],
        "tile x window": [[64, "the rule", 2]],
        "output x group": [["int32", "paged", 2]],
    }
    true = {name for name, number in found["shapes"].items() if number}
    assert true == {"mixed", "with empty requests", "gaps in positions", "padded", "longer buffer"}
    assert found["batches"] == [[2, 3, 2]]  # three requests, five tokens
    assert found["tokens"] == [[3, 2]]
    assert found["longest_request"] == [[3, 2]]
    assert found["positions"] == [[0, 2], [1, 2], [2, 2], [3, 2], [4, 2]]  # 0, 1, 2, 7, 9
    assert list(found["shapes"]) == list(SHAPES)
    assert list(found["pairs"]) == list(PAIRS)


@pytest.mark.parametrize(
    ("bounds", "shape"),
    [((0, 1, 2), "decode only"), ((0, 2, 4), "prefill only"), ((0, 1, 3), "mixed"), ((0, 0), "no tokens")],
)
def test_a_batch_is_of_one_kind(bounds: tuple[int, ...], shape: str) -> None:
    tokens = bounds[-1]
    found = counted((Case(bounds, tuple(range(tokens)), tokens, tokens, (GROUP,)), Launch()))
    assert {name for name in SHAPES[:4] if found["shapes"][name]} == {shape}


def test_negative_positions_and_what_stands_behind_the_tokens_are_told_apart() -> None:
    found = counted((Case((0, 3), (-5, -1, 8, 99), 3, 3, (GROUP,)), Launch()))
    assert found["positions"] == [[-1, 2], [4, 1]]
    assert found["shapes"]["negative positions"] == 1
    assert [power(number) for number in (-3, 0, 1, 2, 3, 4, 1 << 24)] == [-1, 0, 1, 2, 2, 3, 25]


def test_many_positions_are_counted_like_few() -> None:
    few = (*range(-3, 1200), 1 << 40)
    batches = [Case((0, len(each)), each, len(each), len(each), (GROUP,)) for each in (few, few * 5)]
    small, large = (counted((batch, Launch()))["positions"] for batch in batches)
    assert large == [[power, 5 * number] for power, number in small]


@pytest.mark.parametrize(("window", "place"), [(2, 0), (4, 0), (8, 1), (16, 2)])
def test_a_window_is_named_by_its_place_against_the_production_rule(window: int, place: int) -> None:
    constants = {"TILE_BLOCK_SIZE": 64, "BLOCK_TABLE_WINDOW_SIZE": window}  # cdiv(64, 16) + 1 = 5: the rule is 8
    assert counted((CASE, Launch(constants=constants)))["pairs"]["tile x window"] == [[64, WINDOWS[place], 1]]


@pytest.mark.parametrize(("turn", "name"), [(1, "1"), (8, "below b"), (16, "b"), (32, "above b"), (64, "B")])
def test_an_interleave_is_named_by_its_place_between_one_token_and_the_block(turn: int, name: str) -> None:
    case = Case((0,), (), 0, 1, (GROUP,), cp=ContextParallel(2, 0, turn))
    assert counted((case, LAUNCH))["pairs"]["world size x interleave"] == [[2, name, 1]]


def test_a_request_over_one_tile_is_seen() -> None:
    for tokens, more in ((64, 0), (65, 1)):
        case = Case((0, tokens), tuple(range(tokens)), tokens, tokens, (Group((tuple(range(8)),), 16, 16),))
        assert counted((case, LAUNCH))["shapes"]["over one tile"] == more


def test_what_was_compiled_and_never_drawn_is_counted_as_none() -> None:
    ring = Case((0,), (), 0, 1, (Group(((0,),), 16, 16, kind="circular"),))
    found = counted((CASE, LAUNCH), compiled=((ring, LAUNCH),))
    assert found["pairs"]["output x group"] == [["int32", "circular", 0], ["int32", "paged", 1]]
    assert found["cases"] == 1


def test_an_entry_point_without_tiles_has_no_pair_of_them() -> None:
    assert counted((CASE, Launch()))["pairs"]["block size x tile"] == []


def test_coverage_is_written_whole(tmp_path: Path) -> None:
    coverage = Coverage()
    coverage.of("kernels.v1").count(CASE, LAUNCH, 0.0)
    path = write(coverage, tmp_path / "new")
    assert path == tmp_path / "new" / "coverage.json"
    read = json.loads(path.read_text())
    assert read == coverage.to_json()
    assert read["schema"] == 1


def test_counting_is_cheap() -> None:
    """Beside some 1,400 microseconds that a case takes on the lowered lane. Machines are shared: the best of several,
    in time of this process.
    """
    case = Case((0, 1, 20, 40), tuple(range(40)), 40, 64, (GROUP,), cp=TWO_RANKS)
    counts = Coverage().of("kernels.v1")

    def once() -> float:
        started = time.process_time()
        for _ in range(200):
            counts.count(case, LAUNCH, 0.0)
        return (time.process_time() - started) / 200

    assert min(once() for _ in range(10)) < 40e-6
