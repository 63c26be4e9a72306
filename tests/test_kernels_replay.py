"""``pad_replayed_slot_mapping``: which slots it takes back, how it is compiled, and what it refuses."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from kernels import replay
from kernels.replay import _pad_replayed_slots_kernel, pad_replayed_slot_mapping
from reference.case import Case, Replay
from tests.fused_launches import OUTPUT_TAIL, OnLane, batch_of, draw
from tests.refusals import first_word, refusal


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


@pytest.fixture(scope="module")
def on_lane() -> Iterator[OnLane]:
    with OnLane() as started:
        yield started


# --- which slots are taken back --------------------------------------------------------------------------------------


def expected(case: Case) -> list[list[int]]:
    """Each output held the index of every element: it still does, but for the replayed tokens of cacheable groups."""
    assert case.replay is not None
    outputs = [list(range(case.max_num_tokens + OUTPUT_TAIL)) for _ in case.groups]
    for r, start in enumerate(case.replay.starts):
        for token in range(case.query_start_loc[r], case.query_start_loc[r + 1]):
            if 0 < start <= case.positions[token] < start + case.replay.window:
                for group in case.replay.cacheable_groups:
                    outputs[group][token] = case.pad_id
    return outputs


def draw_replay(rng: random.Random) -> Case:
    """Starts around the positions of their request, or none; any of the paged groups."""
    case = draw(rng, ((16, "paged"), (8, "circular"), (4, "paged"), (3, "paged")), -7)
    starts = []
    for start, end in pairwise(case.query_start_loc):
        positions = (1, *case.positions[start:end])
        starts.append(max(0, rng.choice((0, rng.choice(positions), rng.choice(positions) - rng.randint(0, 9)))))
    window = rng.choice((0, 1, 5, 32, 2**31 - 1))
    return replace(case, replay=Replay(tuple(starts), window, tuple(rng.sample((0, 2, 3), rng.randint(0, 3)))))


@pytest.mark.parametrize("validate", [False, True])
def test_random_replays_lose_their_slots_and_nothing_else(validate: bool, on_lane: OnLane) -> None:
    rng = random.Random(6)
    for _ in range(40):
        case = draw_replay(rng)
        assert on_lane.replay(case, validate=validate) == expected(case), case


@pytest.mark.parametrize("first", [1, 1000, 1024, 2047, 2500])
def test_a_window_anywhere_in_a_long_request_is_found(first: int, on_lane: OnLane) -> None:
    case = replace(batch_of(2, 5000, 5000, circular=False), replay=Replay((first, first + 1), 30, (1,)))
    assert on_lane.replay(case) == expected(case)


@pytest.mark.parametrize("start", [1, 2**31 - 4])
@pytest.mark.parametrize("window", [1, 3, 2**31 - 1])
def test_the_last_position_that_int32_holds_is_replayed(start: int, window: int, on_lane: OnLane) -> None:
    case = batch_of(1, 6, 6, circular=False)
    positions = (-(2**31), -1, 0, 2**31 - 3, 2**31 - 2, 2**31 - 1)
    case = replace(case, positions=positions, replay=Replay((start,), window, (0,)))
    assert on_lane.replay(case) == expected(case)


# --- when nothing is launched, and how it is compiled ----------------------------------------------------------------


def call(**changes: Any) -> None:
    """Two requests of two tokens each, of which the second replays; group 1 of 2 is cacheable. Nothing is behind the
    addresses.
    """
    arguments: dict[str, Any] = {
        "num_reqs": 2,
        "query_start_loc": ints(0, 2, 4),
        "positions": longs(0, 1, 6, 7),
        "replay_start": ints(0, 6),
        "slot_mapping_addrs": torch.tensor([1 << 40, 2**64 - 64], dtype=torch.uint64),
        "cacheable_groups": ints(1),
        "window": 2,
        "pad_id": -1,
    }
    pad_replayed_slot_mapping(**{**arguments, **changes})


@pytest.fixture
def grids(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The grids of what is launched, none of which runs."""
    found = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            found.append(grid)
            return lambda *_, **__: None

    monkeypatch.setattr(replay, "_pad_replayed_slots_kernel", Kernel())
    return found


@pytest.mark.parametrize(
    ("changes", "launched"),
    [
        ({}, [(1, 2)]),
        ({"num_reqs": 1, "query_start_loc": ints(0, 2, 4, 4)}, [(1, 1)]),
        ({"cacheable_groups": ints(0, 1), "positions": longs(0, 1, -6, 7, 99)}, [(2, 2)]),
        ({"num_reqs": 0}, []),
        ({"num_reqs": 0, "query_start_loc": ints(0), "replay_start": ints(), "positions": longs()}, []),
        ({"cacheable_groups": ints()}, []),
        ({"window": 0}, []),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else None,
)
def test_nothing_is_launched_for_nothing(
    changes: dict[str, Any], launched: list[tuple[int, ...]], grids: list[tuple[int, ...]]
) -> None:
    call(**changes)
    call(**changes, validate=True)
    assert grids == launched * 2


def test_a_window_that_int32_cannot_hold_is_cut_to_what_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far apart no two positions are, and a larger number would make the kernel another one."""
    windows = []
    monkeypatch.setattr(replay, "_pad_replayed_slots_kernel", {(1, 2): lambda *given, **_: windows.append(given[5])})
    call(window=2**31 - 1)
    call(window=2**63)
    assert windows == [2**31 - 1] * 2


def test_the_host_function_takes_the_documented_parameters_in_order() -> None:
    assert tuple(inspect.signature(pad_replayed_slot_mapping).parameters) == (
        *("num_reqs", "query_start_loc", "positions", "replay_start", "slot_mapping_addrs", "cacheable_groups"),
        *("window", "pad_id", "validate"),
    )


def test_no_batch_compiles_again() -> None:
    parameters = _pad_replayed_slots_kernel.params
    assert {parameter.name for parameter in parameters if parameter.do_not_specialize} == {"window"}
    unaligned = {parameter.name for parameter in parameters if parameter.do_not_specialize_on_alignment}
    assert unaligned == {parameter.name for parameter in parameters if parameter.name.endswith("_ptr")}
    assert {parameter.name for parameter in parameters if parameter.is_constexpr} == {"PAD_ID", "TILE_BLOCK_SIZE"}


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("num_reqs: is -1, must not be negative", {"num_reqs": -1}),
        ("window: is -1 tokens, must not be negative", {"window": -1}),
        ("query_start_loc: expected int32, got int64", {"query_start_loc": longs(0, 2, 4)}),
        ("query_start_loc: holds 2 offsets, 2 requests need 3", {"query_start_loc": ints(0, 2)}),
        ("positions: expected int64, got int32", {"positions": ints(0, 1, 6, 7)}),
        ("positions: expected a contiguous 1-D tensor", {"positions": longs(0, 1, 6, 7).view(2, 2)}),
        ("positions: is on meta, expected cpu", {"positions": longs(0, 1, 6, 7).to("meta")}),
        ("replay_start: expected int32, got int64", {"replay_start": longs(0, 6)}),
        ("replay_start: holds 1 positions, 2 requests need one each", {"replay_start": ints(6)}),
        ("slot_mapping_addrs: expected uint64, got int64", {"slot_mapping_addrs": longs(1, 2)}),
        ("cacheable_groups: expected int32, got bool", {"cacheable_groups": torch.tensor([False, True])}),
        ("slot-fits: pad_id 2147483648 is outside", {"pad_id": 2**31}),
    ],
    ids=first_word,
)
def test_what_can_be_checked_on_the_host_is_refused(
    message: str, changes: dict[str, Any], grids: list[tuple[int, ...]]
) -> None:
    with refusal(message):
        call(**changes)
    assert grids == []


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("qsl-monotone: query_start_loc[0] is 1, must be 0", {"query_start_loc": ints(1, 2, 4)}),
        ("qsl-monotone: query_start_loc[2] is 4, below query_start_loc[1] = 5", {"query_start_loc": ints(0, 5, 4)}),
        ("qsl-capacity: query_start_loc ends at 5, 4 positions are given", {"query_start_loc": ints(0, 2, 5)}),
        ("pos-int32: positions[3] is 2147483648", {"positions": longs(0, 1, 2, 2**31)}),
        ("cacheable_groups: there is no group 2, the last is 1", {"cacheable_groups": ints(1, 2)}),
        ("cacheable_groups: there is no group -1, the last is 1", {"cacheable_groups": ints(-1)}),
    ],
    ids=first_word,
)
def test_what_only_the_contents_tell_is_refused_on_demand(
    message: str, changes: dict[str, Any], grids: list[tuple[int, ...]]
) -> None:
    call(**changes)
    assert len(grids) == 1
    with refusal(message):
        call(**changes, validate=True)
    assert len(grids) == 1
