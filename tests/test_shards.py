"""``--shard I/N``: N machines do N different things, and all of them together what one does."""

from __future__ import annotations

import json
from itertools import repeat
from pathlib import Path

import pytest

from conformance.shards import Shard, parse
from strategies.declaration import FEATURES, Declaration
from strategies.specializations import TILED_AXES, V1_AXES, V2_AXES, Axes, Pool, pool
from tests.commands import USAGE_ERROR, in_few_processes, together

EVERYTHING = Declaration(frozenset(), FEATURES)


def shards(count: int) -> list[Shard]:
    return [Shard(index, count) for index in range(1, count + 1)]


@pytest.fixture(scope="module", params=[V1_AXES, V2_AXES, TILED_AXES], ids=["v1", "v2", "tiled"])
def whole(request: pytest.FixtureRequest) -> Pool:
    axes: Axes = request.param
    return pool(EVERYTHING, axes, 64)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_shards_have_the_whole_pool_and_share_nothing(whole: Pool, count: int) -> None:
    shares = [list(each.share(whole)) for each in shards(count)]
    together = [each for share in shares for each in share]
    assert len(together) == len(set(together)), "one specialization is in two shards"
    assert set(together) == set(whole)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    for share in shares:
        assert share == [each for each in whole if each in share], "not simplest first"
        assert {each.kind for each in share} == {each.kind for each in whole}


def test_every_shard_has_every_kind_however_many_there_are(whole: Pool) -> None:
    count = 3 * len(whole)
    shares = [list(each.share(whole)) for each in shards(count)]
    kinds = {each.kind for each in whole}
    assert {each for share in shares for each in share} == set(whole)
    for share in shares:
        assert {each.kind for each in share} == kinds
        assert len(share) == len(kinds)


def test_seeds_differ_between_shards_and_from_those_of_the_next_run() -> None:
    drawn = [each.seed(seed) for seed in (0, 1, 2) for count in (2, 3, 4) for each in shards(count)]
    assert len(set(drawn)) == len(drawn)
    assert all(0 <= each < 2**32 for each in drawn)
    assert Shard().seed(17) == 17
    assert Shard(2, 4).seed(17) == Shard(2, 4).seed(17)


def test_what_is_done_once_is_done_on_one_shard() -> None:
    assert [[each.has(number) for each in shards(3)].count(True) for number in range(7)] == [1] * 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is not I/N"),
        ("1", "'1' is not I/N"),
        ("1/2/3", "'1/2/3' is not I/N"),
        ("-1/2", "'-1/2' is not I/N"),
        (" 1/2", "' 1/2' is not I/N"),
        ("1/0", "1/0: the number of shards is not within 1..10000"),
        ("1/10001", "1/10001: the number of shards is not within 1..10000"),
        ("0/2", "0/2: shards are numbered from 1 to 2"),
        ("3/2", "3/2: shards are numbered from 1 to 2"),
    ],
)
def test_what_is_no_shard_is_said_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=r"^.*$") as raised:
        parse(text)
    assert str(raised.value).startswith(message)


def test_what_the_shards_of_a_run_collect() -> None:
    """Each test that draws is in every shard, the others are in one each."""
    chosen = ["conformance", "-k", "test_dcp or test_large"]
    whole, first, second, refused = in_few_processes(
        [
            [*chosen, "--collect-only", "-q"],
            [*chosen, "--collect-only", "-q", "--shard", "1/2"],
            [*chosen, "--collect-only", "-q", "--shard", "2/2"],
            [*chosen, "--shard", "two"],
        ]
    )
    both = first.collected() & second.collected()
    assert first.collected() | second.collected() == whole.collected()
    assert both
    assert all("test_dcp_" in each for each in both), both
    assert len(first.collected() - both) - len(second.collected() - both) in (-1, 0, 1)
    assert len(first.collected() - both) > 3
    assert refused.status == USAGE_ERROR
    assert "ERROR: --shard: 'two' is not I/N, as in 1/4" in refused.lines


def test_shards_of_one_seed_draw_different_cases(tmp_path: Path) -> None:
    """On a CI machine too. The summary says which shard it was."""
    drawing = ["conformance/test_dcp.py", "-k", "dcp_slots", "--max-examples", "5", "--hypothesis-seed", "3"]
    commands = [[*drawing, "--report-dir", tmp_path / name, "--shard", f"{name}/2"] for name in "12"]
    ended = together(commands, repeat({"CI": "true"}))
    assert [each.status for each in ended] == [0, 0], ended[0].tail + ended[1].tail
    summaries = [json.loads((tmp_path / name / "summary.json").read_text()) for name in "12"]
    assert [(each["shard"], each["seed"]) for each in summaries] == [("1/2", 3), ("2/2", 3)]
    drawn = [json.loads((tmp_path / name / "coverage.json").read_text())["entry_points"] for name in "12"]
    assert [each["kernels.dcp"]["cases"] for each in drawn] == [5, 5]
    assert drawn[0]["kernels.dcp"]["pairs"] != drawn[1]["kernels.dcp"]["pairs"]
