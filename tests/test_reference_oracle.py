"""The oracle against the contract's worked examples, cases from the field, and a second way to the same answer."""

from __future__ import annotations

import json
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from reference.case import Case, ContextParallel, Group, Replay, load
from reference.contract import ContractError, violations
from reference.oracle import PADDING, slot_mapping, trace

PAD = -1
FIELD_CASES = sorted((Path(__file__).parent / "data" / "field_cases").glob("*.json"))


def one_request(positions, table_row, b, kv_cache_block_size=None, world=1, rank=0, interleave=1, **group):
    kv_cache_block_size = kv_cache_block_size or b
    return Case(
        query_start_loc=(0, len(positions)),
        positions=tuple(positions),
        num_tokens=len(positions),
        max_num_tokens=len(positions),
        groups=(Group((tuple(table_row),), b, kv_cache_block_size, **group),),
        cp=ContextParallel(world, rank, interleave),
    )


def slots(case, group=0):
    return slot_mapping(case)[group]


def field_case_id(path):
    """Cases under context parallelism say so, and `-k cp` finds them."""
    world = json.loads(path.read_text())["case"]["cp"]["size"]
    return path.stem if world == 1 else f"{path.stem}-cp{world}"


# Worked by hand


def test_cp_interleave_of_a_whole_block_gives_each_rank_every_second_block():
    """W=2, I=B=b=128: 0..127 and 256..383 are rank 0's and fill bt[0] and bt[1]; 128..255 is rank 1's."""
    rank_0 = slots(one_request(range(384), [5, 9], 128, world=2, rank=0, interleave=128))
    assert rank_0[:128] == [5 * 128 + i for i in range(128)]
    assert rank_0[128:256] == [PAD] * 128
    assert rank_0[256:] == [9 * 128 + i for i in range(128)]
    rank_1 = slots(one_request(range(384), [5, 9], 128, world=2, rank=1, interleave=128))
    assert rank_1 == [PAD] * 128 + [5 * 128 + i for i in range(128)] + [PAD] * 128


def test_cp_eight_ranks_token_by_token():
    """W=8, I=1, b=B=128, row [9]: rank 3 gets 1152 at position 3, 1153 at position 11."""
    assert slots(one_request(range(16), [9], 128, world=8, rank=3)) == [
        {3: 1152, 11: 1153}.get(position, PAD) for position in range(16)
    ]


def test_cp_interleave_over_the_kernel_block():
    """W=2, R=1, I=B=128, b=64, row [5, 9]: 128 -> l=0 -> 5*64; 200 -> l=72 -> 9*64+8. Sharding by b says otherwise."""
    case = one_request([127, 128, 200, 255, 256], [5, 9], 64, 128, world=2, rank=1, interleave=128)
    assert slots(case) == [PAD, 320, 584, 639, PAD]


def test_hybrid_without_sharing_is_plain():
    assert slots(one_request([0, 63, 64, 200], [5, 9, 2, 7], 64, 128)) == [320, 383, 576, 7 * 64 + 8]


def test_block_size_that_is_no_power_of_two():
    assert slots(one_request([0, 2, 3, 8], [4, 0, 6], 3)) == [12, 14, 0, 20]


def test_circular_wraps_within_its_one_block():
    assert slots(one_request([0, 6, 7, 8, 20, -1, -8], [3], 7, kind="circular")) == [21, 27, 21, 22, 27, PAD, PAD]


def test_negative_position_in_a_paged_group_is_pad():
    assert slots(one_request([-1, 0, -300, 5], [4, 8], 4)) == [PAD, 16, PAD, 33]


def test_cp_leaves_a_replicated_group_alone():
    assert slots(one_request(range(4), [2, 6], 2, world=4, rank=3, sharded=False)) == [4, 5, 12, 13]


def test_disabled_group_gets_no_slots_whatever_its_table_holds():
    case = one_request(range(4), [], 2, enabled=False)
    assert slots(case) == [PAD] * 4


def test_cp_token_of_another_rank_needs_no_column():
    """Rank 1 owns position 1 only, so one column serves positions 0..2."""
    assert slots(one_request([0, 1, 2], [6], 1, world=3, rank=1)) == [PAD, 6, PAD]
    with pytest.raises(ContractError, match=r"^row-width: group 0: token 0 .*block index 1"):
        slot_mapping(one_request([4], [6], 1, world=3, rank=1))


def test_rows_come_from_idx_mapping_and_padding_from_pad_id():
    case = Case(
        query_start_loc=(0, 1, 1, 3),
        positions=(1, 0, 1),
        num_tokens=3,
        max_num_tokens=5,
        groups=(Group(((1,), (2,), (3,)), 2, 2),),
        pad_id=-7,
        idx_mapping=(2, -1, 0),
    )
    assert slots(case) == [7, 2, 3, -7, -7]


def test_empty_batch_is_all_padding():
    case = Case((0,), (), 0, 3, (Group((), 4, 4),))
    assert slots(case) == [PAD] * 3
    assert trace(case, 0, 2).rule == PADDING


def test_replay_pads_its_window_in_cacheable_groups_only():
    """Request 0 replays [3, 5), request 1 (start 0) nothing; a circular group is never cacheable."""
    groups = (
        Group(((0, 1, 2), (3, 4, 5)), 2, 2),
        Group(((6,), (7,)), 2, 2, kind="circular"),
        Group(((0, 1, 2),) * 2, 2, 2),
    )
    case = Case((0, 4, 6), (2, 3, 4, 5, 0, 1), 6, 7, groups, replay=Replay((3, 0), 2, (0, 1)))
    assert slot_mapping(case) == [
        [2, PAD, PAD, 5, 6, 7, PAD],
        [12, 13, 12, 13, 14, 15, PAD],
        [2, 3, 4, 5, 0, 1, PAD],
    ]
    assert trace(case, 1, 1).slot == 13
    assert trace(case, 0, 1).reason == "PAD: the token is replayed after a prefix-cache hit"
    assert trace(case, 0, 1).steps[-1] == "replay: 3 <= p = 3 < 3 + 2 (start, window): PAD"


def test_elements_of_other_requests_rows_are_never_taken():
    """Row -1 would be Python's last row; a row past the table and a position that is not there would be IndexErrors."""
    case = one_request([0], [6], 1)
    for broken, clause in (
        (replace(case, idx_mapping=(-1,)), "row-exists"),
        (replace(case, idx_mapping=(1,)), "row-exists"),
        (replace(case, positions=()), "qsl-capacity"),
    ):
        with pytest.raises(ContractError, match=f"^{clause}: "):
            slot_mapping(broken)


@pytest.mark.parametrize("path", FIELD_CASES, ids=field_case_id)
def test_field_case(path):
    case, _ = load(path)
    assert violations(case) == ()
    assert slot_mapping(case) == json.loads(path.read_text())["slot_mappings"]


def test_the_field_cases_are_there():
    assert len(FIELD_CASES) == 10


# A second way to the same answer


def slots_by_filling(case, group):
    """Walks each sequence from position 0, dealing out its tokens to the ranks in turns of I.

    The n-th token that a rank gets takes the n-th place of its blocks, filled from the front. No virtual blocks, no
    division by W*I.
    """
    world, interleave = (case.cp.size, case.cp.interleave) if group.sharded else (1, 1)
    mine = case.cp.rank if group.sharded else 0
    out = [case.pad_id] * case.max_num_tokens
    for request in range(case.num_reqs):
        tokens = range(case.query_start_loc[request], case.query_start_loc[request + 1])
        wanted = defaultdict(list)
        for token in tokens:
            wanted[case.positions[token]].append(token)
        blocks = group.block_table[case.row_of(request)] if tokens else ()
        places = ((block, offset) for block in blocks for offset in range(group.block_size))
        rank, left = 0, interleave
        for position in range(max(wanted, default=-1) + 1):
            if rank == mine:
                block, offset = next(places)
                for token in wanted.get(position, ()):
                    out[token] = block * group.block_size + offset
            left -= 1
            if left == 0:
                rank, left = (rank + 1) % world, interleave
    return out


def random_case(rng):
    b = rng.choice([1, 2, 3, 4, 16, 48])
    k = rng.choice([1, 1, 2, 3, 16])
    size = b * k
    world = rng.choice([1, 1, 2, 3, 4, 8])
    cp = ContextParallel(world, rng.randrange(world), rng.choice([d for d in range(1, size + 1) if size % d == 0]))
    num_reqs = rng.randrange(5)
    lengths = [rng.choice([0, 1, 1, 2, 5, rng.randrange(40)]) for _ in range(num_reqs)]
    positions = []
    for length in lengths:
        start = rng.randrange(200)
        run = list(range(start, start + length))
        if rng.random() < 0.3:
            run = [rng.randrange(-3, 240) for _ in run]
        positions += run
    bounds = [sum(lengths[:r]) for r in range(num_reqs + 1)]
    rows = num_reqs + rng.randrange(2)
    width = -(-max([*positions, 0]) // b // k) * k + k
    table = tuple(tuple(rng.randrange(1000) for _ in range(width)) for _ in range(rows))
    stride = rng.choice([None, width, width + 3])
    groups = tuple(
        Group(table, b, size, sharded=rng.random() < 0.8, enabled=rng.random() < 0.9, row_stride=stride)
        for _ in range(rng.choice([1, 1, 2]))
    )
    return Case(
        query_start_loc=tuple(bounds),
        positions=(*positions, *([5] * rng.randrange(2))),
        num_tokens=bounds[-1],
        max_num_tokens=bounds[-1] + rng.choice([0, 1, 9]),
        groups=groups,
        cp=cp,
        pad_id=rng.choice([-1, -1, -2]),
        idx_mapping=rng.choice([None, tuple(rng.sample(range(rows), num_reqs))]),
        replay=rng.choice([None, Replay(tuple(rng.choice([0, rng.randrange(200)]) for _ in lengths), 7, (0,))]),
    )


def random_cases(count):
    rng = random.Random(20240817)
    return [random_case(rng) for _ in range(count)]


def test_oracle_agrees_with_filling_blocks_from_the_front():
    compared = 0
    for case in random_cases(400):
        assert violations(case) == ()
        plain = replace(case, replay=None)
        for group, got in zip(case.groups, slot_mapping(plain), strict=True):
            expected = slots_by_filling(plain, group) if group.enabled else [case.pad_id] * case.max_num_tokens
            assert got == expected, plain
            compared += sum(slot != case.pad_id for slot in got)
    assert compared > 3000


def test_traces_agree_with_the_oracle_and_name_where_the_slot_lies():
    rules = set()
    for case in random_cases(120):
        for group, expected in enumerate(slot_mapping(case)):
            for token, slot in enumerate(expected):
                found = trace(case, group, token)
                assert found.slot == slot
                assert (found.group, found.token) == (group, token)
                rules.add(found.rule)
                if found.reason == "a slot":
                    row = case.groups[group].block_table[case.row_of(found.request)]
                    assert row[found.block_index] == found.block_number
                    assert slot == found.block_number * case.groups[group].block_size + found.offset
                    assert found.steps[-1].endswith(f" = {slot}")
                else:
                    assert slot == case.pad_id
                    assert found.reason.startswith("PAD: ")
    assert rules == {"paged", "sharded", "disabled", "padding"}


def test_cp_trace_shows_the_five_steps():
    case = one_request([128, 200], [5, 9], 64, 128, world=2, rank=1, interleave=128)
    assert trace(case, 0, 1).to_json() == {
        "group": 0,
        "token": 1,
        "rule": "sharded",
        "slot": 584,
        "reason": "a slot",
        "steps": [
            "virtual block: V = B*W = 128*2 = 256; v = p // V = 200 // 256 = 0; o = p % V = 200",
            "owner: (o // I) % W = (200 // 128) % 2 = 1; R = 1: local",
            "local offset: l = (o // (W*I))*I + o % I = (200 // 256)*128 + 200 % 128 = 72",
            "kernel block: i = v*k + l // b = 0*2 + 72 // 64 = 1; offset = l % b = 8",
            "slot = bt[1]*b + offset = 9*64 + 8 = 584",
        ],
        "request": 0,
        "position": 200,
        "row": 0,
        "virtual_block": 0,
        "virtual_offset": 200,
        "owner": 1,
        "is_local": True,
        "local_offset": 72,
        "block_index": 1,
        "offset": 8,
        "block_number": 9,
    }


def test_cp_trace_of_a_foreign_token_ends_at_its_owner():
    found = trace(one_request([0, 1], [6], 1, world=3, rank=0), 0, 1)
    assert (found.owner, found.is_local, found.slot) == (1, False, PAD)
    assert (found.local_offset, found.block_index, found.block_number, found.offset) == (None, None, None, None)
    assert [step.split(":")[0] for step in found.steps] == ["virtual block", "owner"]
    assert found.reason == "PAD: the token is rank 1's, this is rank 0"


@pytest.mark.parametrize(
    ("case", "reason", "steps"),
    [
        (
            one_request([5], [3], 4, kind="circular"),
            "a slot",
            ["ring: i = 0; offset = p % b = 5 % 4 = 1", "slot = bt[0]*b + offset = 3*4 + 1 = 13"],
        ),
        (one_request([-5], [3], 4, kind="circular"), "PAD: position -5 is negative", []),
        (one_request([5], [3], 4, enabled=False), "PAD: the group is disabled (slot_mapping_enabled is false)", []),
    ],
    ids=["ring", "negative", "disabled"],
)
def test_trace_without_sharing(case, reason, steps):
    found = trace(case, 0, 0)
    assert (found.reason, list(found.steps), found.owner) == (reason, steps, None)


@pytest.mark.parametrize(("group", "token"), [(-1, 0), (1, 0), (0, -1), (0, 2)])
def test_trace_of_nothing(group, token):
    with pytest.raises(IndexError, match="there is no"):
        trace(one_request([0, 1], [3], 4), group, token)


def test_trace_of_a_case_without_an_answer():
    with pytest.raises(ContractError, match=r"^row-width: .*needs block index 1, row 0 is 1 blocks wide$"):
        trace(one_request([4], [3], 4), 0, 0)
