"""``compute_slot_mapping_fused_groups``: what it launches, how much of it is compiled, and what it refuses."""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from conformance import lanes
from kernels import fused_groups
from kernels.fused_groups import compute_slot_mapping_fused_groups, prewarm_fused_slot_mapping_kernels
from reference.case import Case, Group
from reference.verdict import expected_output
from tests.faults.catalogue import Fault, write_variant
from tests.fused_launches import BETWEEN_ROWS, OUTPUT_TAIL, OnLane, batch_of, draw, tensors_of
from tests.group_launches import field_case_id, field_cases
from tests.refusals import first_word, refusal


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


def addresses(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint64)


@pytest.fixture(scope="module")
def on_lane() -> Iterator[OnLane]:
    with OnLane() as started:
        yield started


def expected(case: Case) -> list[list[int]]:
    return expected_output(case, case.max_num_tokens + OUTPUT_TAIL)


# --- what is launched ------------------------------------------------------------------------------------------------

LAYOUTS = {
    "paged": (((16, "paged"), (48, "paged")), -1),
    "circular-and-paged": (((128, "circular"), (3, "paged"), (64, "circular")), 5),
    "one-paged": (((4, "paged"),), -9),
    "one-circular": (((7, "circular"),), -1),
}


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_random_batches_match_the_oracle(layout: str, validate: bool, on_lane: OnLane) -> None:
    rng = random.Random(4)
    for _ in range(15):
        case = draw(rng, *LAYOUTS[layout])
        assert on_lane.map(case, validate=validate) == expected(case), case


@pytest.mark.parametrize("document", field_cases("fused"), ids=field_case_id)
def test_a_field_case_gets_the_slots_of_its_file(document: dict[str, Any], on_lane: OnLane) -> None:
    outputs = on_lane.map(Case.from_json(document["case"]))
    assert [output[:-OUTPUT_TAIL] for output in outputs] == document["slot_mappings"]


@pytest.mark.parametrize("num_reqs", [1, 2])
def test_programs_that_share_a_request_map_all_of_it(num_reqs: int, on_lane: OnLane) -> None:
    """Five tiles and a token of each request, and of padding: more tiles than programs, the last one hardly filled."""
    count = num_reqs * (5 * 1024 + 1)
    assert fused_groups._tile_block_size(num_reqs, count) == 1024
    assert fused_groups._programs_per_request(2, num_reqs, count) == 4
    case = batch_of(num_reqs, count, count + 5 * 1024 + 1, circular=True)
    assert on_lane.map(case) == expected(case)


@pytest.mark.parametrize("num_reqs", [1, 2])
def test_padding_begins_where_the_last_request_ends(num_reqs: int, on_lane: OnLane) -> None:
    """The host counted 3 or 2000 tokens more than there are, as a captured graph does."""
    for behind in (3, 2000):
        case = batch_of(num_reqs, 10, 2020, circular=True)
        counted = replace(case, positions=(*case.positions, *(0,) * behind), num_tokens=10 + behind)
        assert on_lane.map(counted) == expected(case)


def test_a_long_request_among_short_ones_is_mapped_to_its_end(on_lane: OnLane) -> None:
    lengths = (*(1,) * 40, 3000, *(2,) * 40)
    assert fused_groups._tile_block_size(len(lengths), sum(lengths)) == 64
    bounds = [sum(lengths[:r]) for r in range(len(lengths) + 1)]
    positions = [p for length in lengths for p in range(length)]
    group = Group((tuple(range(1, 190)),) * len(lengths), 16, 16)
    case = Case(tuple(bounds), tuple(positions), bounds[-1], bounds[-1], (group,))
    assert on_lane.map(case) == expected(case)


def test_a_block_index_past_the_stride_gets_padding(on_lane: OnLane) -> None:
    """In its row, twice between the row's width and its stride, past that, far past it; nothing past it is read."""
    positions = (5, 8, 15, 16, 2**31 - 1)
    case = Case((0, 5), positions, 5, 6, (Group(((7, 9),), 4, 4, row_stride=4),))
    (output,) = on_lane.map(case)
    assert output[:-OUTPUT_TAIL] == [9 * 4 + 1, BETWEEN_ROWS * 4, BETWEEN_ROWS * 4 + 3, -1, -1, -1]


def test_without_groups_nothing_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_groups, "_launch", lambda *_, **__: pytest.fail("launched"))
    arguments, _ = tensors_of(batch_of(1, 1, 1, circular=False))
    compute_slot_mapping_fused_groups(**{**arguments, "group_count": 0})


# --- how a launch is chosen ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_reqs", "num_tokens", "tile"),
    [
        (0, 0, 16),
        (1, 0, 16),
        (1, 1, 16),
        (1, 16, 16),
        (1, 17, 32),
        (64, 64, 16),
        (64, 64 * 16 + 1, 32),
        (3, 3 * 512, 512),
        (3, 3 * 512 + 1, 1024),
        (1, 1 << 20, 1024),
    ],
)
def test_the_tile_follows_the_mean_length(num_reqs: int, num_tokens: int, tile: int) -> None:
    assert fused_groups._tile_block_size(num_reqs, num_tokens) == tile


@pytest.mark.parametrize(
    ("groups", "num_reqs", "num_tokens", "programs"),
    [
        (1, 1, 1024, 1),
        (1, 1, 1025, 2),
        (6, 1, 1 << 20, 4),
        (1, 127, 1 << 20, 4),
        (1, 128, 1 << 20, 3),
        (6, 256, 8192, 1),
        (9, 1 << 12, 1 << 20, 1),
        (1, 0, 0, 1),
    ],
)
def test_programs_share_a_request_as_long_as_they_do_not_queue(
    groups: int, num_reqs: int, num_tokens: int, programs: int
) -> None:
    assert fused_groups._programs_per_request(groups, num_reqs, num_tokens) == programs


# --- how it is compiled ----------------------------------------------------------------------------------------------

KERNELS = (
    fused_groups._compute_slot_mapping_fused_groups_kernel,
    fused_groups._compute_slot_mapping_fused_groups_adaptive_kernel,
)
POINTERS = {name for name in inspect.signature(KERNELS[0].fn).parameters if name.endswith("_ptr")}

needs_lowered = pytest.mark.skipif(
    lanes.by_name("lowered").unavailable() is not None, reason=str(lanes.by_name("lowered").unavailable())
)


def test_the_host_function_takes_the_documented_parameters_in_order() -> None:
    assert tuple(inspect.signature(compute_slot_mapping_fused_groups).parameters) == (
        *("group_count", "num_reqs", "num_tokens", "max_num_tokens", "query_start_loc_ptr", "positions_ptr"),
        *("block_table_addrs_ptr", "slot_mapping_addrs_ptr", "block_table_strides_ptr", "block_sizes_ptr"),
        *("min_block_size", "pad_id", "is_circular_ptr", "validate"),
    )
    assert tuple(inspect.signature(prewarm_fused_slot_mapping_kernels).parameters) == (
        *("min_block_size", "max_num_batched_tokens", "pad_id", "device", "is_circular_ptr"),
    )


@pytest.mark.parametrize("kernel", KERNELS, ids=["parallel", "adaptive"])
def test_what_changes_with_every_step_is_not_specialized_on(kernel: Any) -> None:
    assert {parameter.name for parameter in kernel.params if parameter.do_not_specialize} == {
        "num_tokens",
        "max_num_tokens",
    }
    assert {parameter.name for parameter in kernel.params if parameter.do_not_specialize_on_alignment} == POINTERS
    assert all(parameter.name.isupper() for parameter in kernel.params if parameter.is_constexpr)


def test_no_remainder_of_a_vector_is_taken() -> None:
    functions = [value for value in vars(fused_groups).values() if hasattr(value, "fn")]
    assert len(functions) > len(KERNELS)
    for function in functions:
        tree = ast.parse(inspect.getsource(function.fn))
        assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Mod)]


SHAPES = 200
TILES = 7
"""Six small ones and the large one: what a layout may compile, as often again where some group is circular."""


def shapes(max_num_tokens: int) -> list[tuple[int, int, int]]:
    """(num_reqs, num_tokens, max_num_tokens): decodes of all sizes, drafts, chunks, prefills, nothing at all."""
    rng, drawn = random.Random(5), [(0, 0, 0)]
    while len(drawn) < SHAPES:
        num_reqs = rng.choice((1, 1, 2, 16, rng.randint(1, 64)))
        num_tokens = min(num_reqs * rng.choice((1, 1, 4, 2 ** rng.randint(0, 11))) + rng.randint(0, 3), max_num_tokens)
        drawn.append((num_reqs, num_tokens, rng.choice((num_tokens, max_num_tokens))))
    return drawn


@needs_lowered
def test_no_more_is_compiled_than_there_are_tiles(on_lane: OnLane) -> None:
    on_lane.forget()
    assert on_lane.sweep(shapes(8192), TILES, circular=False) == TILES
    assert on_lane.sweep(shapes(8192), 2 * TILES, circular=True) == 2 * TILES


@needs_lowered
@pytest.mark.parametrize("circular", [False, True], ids=["paged", "circular"])
@pytest.mark.parametrize(
    ("max_num_batched_tokens", "tiles"), [(8192, 7), (513, 7), (512, 6), (100, 4), (16, 1), (0, 1)]
)
def test_after_the_prewarm_nothing_is_compiled(
    max_num_batched_tokens: int, tiles: int, circular: bool, on_lane: OnLane
) -> None:
    on_lane.forget()
    on_lane.prewarm(max_num_batched_tokens, circular=circular)
    assert on_lane.sweep([], tiles, circular=circular) == tiles
    assert on_lane.sweep(shapes(max_num_batched_tokens), tiles, circular=circular) == tiles


COMPILED_IN = {
    "num_reqs": (
        (
            "    PAD_ID: tl.constexpr,\n    SMALL_TILE",
            "    NUM_REQS: tl.constexpr,\n    PAD_ID: tl.constexpr,\n    SMALL_TILE",
        ),
        (
            "            SMALL_TILE_BLOCK_SIZE=tile,\n",
            "            SMALL_TILE_BLOCK_SIZE=tile,\n            NUM_REQS=grid[1] - 1,\n",
        ),
    ),
    "programs-per-request": (
        (
            '    BLOCK_TABLE_WINDOW_SIZE: tl.constexpr,\n):\n    """Grid',
            '    BLOCK_TABLE_WINDOW_SIZE: tl.constexpr,\n    SHARED: tl.constexpr,\n):\n    """Grid',
        ),
        ("_groups_kernel[grid](**arguments, **large)", "_groups_kernel[grid](**arguments, **large, SHARED=grid[2])"),
    ),
    "num_tokens-of-1": (
        ('_NEW_EVERY_STEP = ["num_tokens", "max_num_tokens"]', '_NEW_EVERY_STEP = ["max_num_tokens"]'),
    ),
}


@needs_lowered
@pytest.mark.parametrize("what", COMPILED_IN)
def test_a_number_that_changes_with_every_step_is_found_where_it_is_compiled_in(what: str, tmp_path: Path) -> None:
    fault = Fault(f"{what}-compiled-in", "compile keys", "", "fused_groups.py", COMPILED_IN[what], ())
    with OnLane(write_variant(fault, tmp_path)) as lane:
        assert lane.sweep(shapes(8192), TILES, circular=False) > TILES


@needs_lowered
def test_the_front_end_reads_no_freed_memory() -> None:
    """triton-ascend 3.2.0 does, for some kernels: its pass triton-to-unstructure keeps a reference into a table that
    grows, and whether it grows just then depends on how many values the addresses of a kernel are computed from. Such
    a kernel compiles 99 times and crashes the compiler the hundredth. Where freed memory is overwritten, as here, it
    crashes every time, or the compiler never ends.
    """
    with OnLane(environment={"MALLOC_PERTURB_": "165"}) as lane:
        assert lane.lower() == 2 * TILES + 1


# --- what is refused -------------------------------------------------------------------------------------------------


def call(**changes: Any) -> None:
    """Two requests of two tokens each, in blocks of 4 and in a ring of 8, with ``changes``. Nothing is behind the
    addresses.
    """
    arguments: dict[str, Any] = {
        "group_count": 2,
        "num_reqs": 2,
        "num_tokens": 4,
        "max_num_tokens": 8,
        "query_start_loc_ptr": ints(0, 2, 4),
        "positions_ptr": longs(0, 1, 6, 7),
        "block_table_addrs_ptr": addresses(1 << 40, 2 << 40),
        "slot_mapping_addrs_ptr": addresses(3 << 40, 2**64 - 64),
        "block_table_strides_ptr": longs(2, 1),
        "block_sizes_ptr": ints(4, 8),
        "min_block_size": 4,
        "pad_id": -1,
        "is_circular_ptr": ints(0, 1),
    }
    compute_slot_mapping_fused_groups(**{**arguments, **changes})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"positions_ptr": longs(0, 1, -6, 7, 99)},  # a negative position is no error, and there may be more of them
        {"positions_ptr": longs(-(2**31), 1, 6, 7)},
        {"query_start_loc_ptr": ints(0, 2, 4, 77)},
        {"num_reqs": 1, "num_tokens": 2},
        {"num_reqs": 0, "num_tokens": 0, "query_start_loc_ptr": ints(0), "positions_ptr": longs()},
        {"block_table_strides_ptr": ints(2, 1)},
        {"block_sizes_ptr": ints(4, 8, 0), "block_table_strides_ptr": longs(2, 1, -1)},  # a third group, not asked for
        {"is_circular_ptr": None, "block_table_strides_ptr": longs(2, 1)},
        {"pad_id": 2**31 - 1},
    ],
    ids=lambda changes: "+".join(changes),
)
def test_what_is_not_refused_here_is_launched(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    class Launched(Exception):
        pass

    def launch(tile: int, grid: tuple[int, ...], *_: Any, **__: Any) -> None:
        assert (tile, grid) == (16, (2, changes.get("num_reqs", 2) + 1, 1))
        raise Launched

    monkeypatch.setattr(fused_groups, "_launch", launch)
    with pytest.raises(Launched):
        call(**changes, validate=True)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("group_count: is -1, must not be negative", {"group_count": -1}),
        ("num_reqs: is -1, must not be negative", {"num_reqs": -1}),
        ("min_block_size: is 0, must be at least 1", {"min_block_size": 0}),
        ("query_start_loc_ptr: expected int32, got int64", {"query_start_loc_ptr": longs(0, 2, 4)}),
        ("query_start_loc_ptr: holds 2 offsets, 2 requests need 3", {"query_start_loc_ptr": ints(0, 2)}),
        ("query_start_loc_ptr: expected a contiguous 1-D tensor", {"query_start_loc_ptr": ints(0, 2, 4)[:, None]}),
        ("positions_ptr: expected int64, got int32", {"positions_ptr": ints(0, 1, 6, 7)}),
        ("positions_ptr: expected a contiguous 1-D tensor", {"positions_ptr": longs(*range(8))[::2]}),
        ("positions_ptr: is on meta, expected cpu", {"positions_ptr": longs(0, 1, 6, 7).to("meta")}),
        ("block_table_addrs_ptr: expected uint64, got int64", {"block_table_addrs_ptr": longs(1, 2)}),
        ("block_table_addrs_ptr: holds 1 elements, 2 groups need one each", {"block_table_addrs_ptr": addresses(64)}),
        ("slot_mapping_addrs_ptr: expected uint64, got int32", {"slot_mapping_addrs_ptr": ints(1, 2)}),
        ("slot_mapping_addrs_ptr: holds 0 elements", {"slot_mapping_addrs_ptr": addresses()}),
        ("block_table_strides_ptr: expected int64 or int32, got uint64", {"block_table_strides_ptr": addresses(2, 1)}),
        ("block_table_strides_ptr: holds 1 elements", {"block_table_strides_ptr": longs(2)}),
        ("block_sizes_ptr: expected int32, got int64", {"block_sizes_ptr": longs(4, 8)}),
        ("block_sizes_ptr: holds 1 elements", {"block_sizes_ptr": ints(4)}),
        ("is_circular_ptr: expected int32, got bool", {"is_circular_ptr": torch.tensor([False, True])}),
        ("is_circular_ptr: holds 1 elements", {"is_circular_ptr": ints(0)}),
        ("qsl-capacity: num_tokens 5 exceeds the 4 positions", {"num_tokens": 5}),
        ("qsl-capacity: num_tokens -1 is outside [0, max_num_tokens = 8]", {"num_tokens": -1}),
        ("qsl-capacity: num_tokens 4 is outside [0, max_num_tokens = 3]", {"max_num_tokens": 3}),
        ("slot-fits: pad_id 2147483648 is outside", {"pad_id": 2**31}),
    ],
    ids=first_word,
)
def test_what_can_be_checked_on_the_host_is_refused(message: str, changes: dict[str, Any]) -> None:
    with refusal(message):
        call(**changes)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("qsl-monotone: query_start_loc[0] is 1, must be 0", {"query_start_loc_ptr": ints(1, 2, 4)}),
        ("qsl-monotone: query_start_loc[2] is 4, below query_start_loc[1] = 5", {"query_start_loc_ptr": ints(0, 5, 4)}),
        ("qsl-capacity: query_start_loc ends at 3, num_tokens is 4", {"query_start_loc_ptr": ints(0, 2, 3, 4)}),
        ("pos-int32: positions[3] is 2147483648", {"positions_ptr": longs(0, 1, 2, 2**31)}),
        (
            "row-width: position 8 of request 1 (token 2) needs block index 2 in group 0, whose row stride is 2",
            {"positions_ptr": longs(0, 1, 8, 9)},
        ),
        ("block_table_addrs_ptr: the address of group 1 is 0", {"block_table_addrs_ptr": addresses(64, 0)}),
        ("slot_mapping_addrs_ptr: the address of group 0 is 0", {"slot_mapping_addrs_ptr": addresses(0, 64)}),
        ("block_sizes_ptr: block size 3 of group 1 is below min_block_size 4", {"block_sizes_ptr": ints(4, 3)}),
        ("block_table_strides_ptr: stride 0 of group 1 is below 1", {"block_table_strides_ptr": longs(2, 0)}),
        (
            "block_table_strides_ptr: stride -1 of group 0 is below 0",
            {"block_table_strides_ptr": longs(-1, 1), "positions_ptr": longs(-1, -1, -1, -1)},
        ),
    ],
    ids=first_word,
)
def test_what_only_the_contents_tell_is_refused_on_demand(message: str, changes: dict[str, Any]) -> None:
    with refusal(message):
        call(**changes, validate=True)


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("min_block_size: is 0, must be at least 1", (0, 8192, -1, "cpu")),
        ("max_num_batched_tokens: is -1, must not be negative", (16, -1, -1, "cpu")),
        ("slot-fits: pad_id -2147483649 is outside", (16, 8192, -(2**31) - 1, "cpu")),
        ("is_circular_ptr: expected int32, got int64", (16, 8192, -1, "cpu", longs(1))),
        ("is_circular_ptr: is on cpu, expected meta", (16, 8192, -1, "meta", ints(1))),
        ("is_circular_ptr: holds 0 elements", (16, 8192, -1, "cpu", ints())),
    ],
    ids=first_word,
)
def test_a_prewarm_of_what_cannot_be_launched_is_refused(message: str, arguments: tuple[Any, ...]) -> None:
    with refusal(message):
        prewarm_fused_slot_mapping_kernels(*arguments)
