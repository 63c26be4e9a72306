"""``compute_slot_mapping_tiled``: what is launched, how it is compiled, what is refused."""

from __future__ import annotations

import ast
import inspect
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.group_tables import GroupTables
from kernels.tiled import TILE_BLOCK_SIZE, _compute_slot_mapping_tiled_kernel, compute_slot_mapping_tiled, find_requests
from reference.case import Case, Group
from tests.group_launches import (
    LAYOUTS,
    PAST_THE_ROW,
    SLOTS_PAST_THE_ROW,
    SLOTS_WITHOUT_A_ROW,
    WITHOUT_A_ROW,
    Layout,
    OnLane,
    draw,
    expected,
    field_case_id,
    field_cases,
    layout_id,
)
from tests.refusals import first_word, refusal

# --- what is launched ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_lane() -> Iterator[OnLane]:
    with OnLane() as started:
        yield started


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=layout_id)
def test_random_batches_match_the_oracle(layout: Layout, validate: bool, on_lane: OnLane) -> None:
    rng = random.Random(4)
    for _ in range(12):
        case = draw(rng, layout, (0, 1, 2, 4, 5, 9))
        launch = replace(layout.launch, output_length=case.max_num_tokens + 3)
        rows = on_lane(compute_slot_mapping_tiled, case, launch, validate=validate)
        assert rows == expected(case, launch), (case, launch)


@pytest.mark.parametrize("num_reqs", [255, 256, 257, 511, 512, 700])
def test_more_requests_than_are_sampled_at_once(num_reqs: int, on_lane: OnLane) -> None:
    """Around 256 and 512 the distance between two sampled offsets changes; many requests are empty."""
    rng = random.Random(num_reqs)
    lengths = [rng.choice((0, 0, 1, 1, 2, 3)) for _ in range(num_reqs)]
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    table = tuple((rng.randrange(1000),) for _ in range(num_reqs))
    positions = tuple(rng.randrange(4) for _ in range(bounds[-1]))
    case = Case(tuple(bounds), positions, bounds[-1], bounds[-1] + 500, (Group(table, 4, 4),))
    assert on_lane(compute_slot_mapping_tiled, case) == expected(case)


@pytest.mark.parametrize("short_requests", [1, 6])
@pytest.mark.parametrize("num_tokens", [TILE_BLOCK_SIZE - 1, TILE_BLOCK_SIZE, 2 * TILE_BLOCK_SIZE + 1])
def test_padding_begins_anywhere_in_a_tile(num_tokens: int, short_requests: int, on_lane: OnLane) -> None:
    bounds = (*range(short_requests + 1), num_tokens)
    table = tuple(tuple(range(row * 200, (row + 1) * 200)) for row in range(short_requests + 1))
    padded = 3 * TILE_BLOCK_SIZE - 1
    case = Case(bounds, tuple(range(num_tokens)), num_tokens, padded, (Group(table, 4, 4),))
    assert on_lane(compute_slot_mapping_tiled, case) == expected(case)


@pytest.mark.parametrize("document", field_cases("v2"), ids=field_case_id)
def test_a_field_case_gets_the_slots_of_its_file(document: dict[str, Any], on_lane: OnLane) -> None:
    assert on_lane(compute_slot_mapping_tiled, Case.from_json(document["case"])) == document["slot_mappings"]


def test_a_block_index_past_the_stride_gets_padding(on_lane: OnLane) -> None:
    assert on_lane(compute_slot_mapping_tiled, PAST_THE_ROW) == SLOTS_PAST_THE_ROW


def test_a_request_without_a_row_gets_padding(on_lane: OnLane) -> None:
    assert on_lane(compute_slot_mapping_tiled, WITHOUT_A_ROW) == SLOTS_WITHOUT_A_ROW


# --- how it is compiled ----------------------------------------------------------------------------------------------

DOCUMENTED = (
    "max_num_tokens",
    "num_reqs",
    "num_positions",
    "idx_mapping",
    "query_start_loc",
    "pos",
    "block_table_ptrs",
    "block_table_strides",
    "block_sizes",
    "kernel_block_sizes",
    "slot_mappings_ptr",
    "slot_mappings_stride",
    "cp_rank",
    "CP_SIZE",
    "CP_INTERLEAVE",
    "PAD_ID",
    "TILE_BLOCK_SIZE",
    "slot_mapping_enabled",
    "dcp_sharded",
)


def test_the_kernel_takes_the_documented_parameters_in_order() -> None:
    parameters = inspect.signature(_compute_slot_mapping_tiled_kernel.fn).parameters
    assert tuple(parameters) == DOCUMENTED
    constants = {name for name in DOCUMENTED if "constexpr" in str(parameters[name].annotation)}
    assert constants == {name for name in DOCUMENTED if name.isupper()}


def test_what_changes_with_every_step_does_not_compile_again() -> None:
    parameters = _compute_slot_mapping_tiled_kernel.params
    assert {each.name for each in parameters if each.do_not_specialize} == {
        "max_num_tokens",
        "num_reqs",
        "num_positions",
    }
    unaligned = {each.name for each in parameters if each.do_not_specialize_on_alignment}
    assert unaligned >= {"idx_mapping", "query_start_loc", "pos"}


@pytest.mark.parametrize("function", [_compute_slot_mapping_tiled_kernel, find_requests], ids=["kernel", "search"])
def test_no_remainder_of_a_vector_is_taken(function: Any) -> None:
    tree = ast.parse(inspect.getsource(function.fn))
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Mod)]


# --- what is refused: what v2 refuses, and what it means to have no idx_mapping --------------------------------------


def call(**changes: Any) -> None:
    """Two requests of two tokens each in blocks of 4, with ``changes``."""
    arguments: dict[str, Any] = {
        "groups": GroupTables([torch.tensor([[3, 4], [5, 6]], dtype=torch.int32)], [4]),
        "query_start_loc": torch.tensor([0, 2, 4], dtype=torch.int32),
        "positions": torch.tensor([0, 1, 6, 7], dtype=torch.int64),
        "slot_mappings": torch.zeros(1, 300, dtype=torch.int32),
    }
    compute_slot_mapping_tiled(**{**arguments, **changes})


class Launched(Exception):
    """Raised instead of a launch; its argument is the grid."""


@pytest.fixture
def _nothing_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> None:
            raise Launched(grid)

    monkeypatch.setattr("kernels.tiled._compute_slot_mapping_tiled_kernel", Kernel())


@pytest.mark.usefixtures("_nothing_is_launched")
def test_what_is_not_refused_here_is_launched() -> None:
    with pytest.raises(Launched, match=re.escape("(2, 1)")):
        call(validate=True)
    with pytest.raises(Launched, match=re.escape("(2, 1)")):
        call(validate=True, idx_mapping=torch.tensor([1, 1], dtype=torch.int32))


@pytest.mark.usefixtures("_nothing_is_launched")
def test_where_nothing_is_to_be_written_nothing_is_launched() -> None:
    call(max_num_tokens=0)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (
            "row-exists: 3 requests need as many rows, a block table has 2",
            {"query_start_loc": torch.tensor([0, 2, 4, 4], dtype=torch.int32)},
        ),
        (
            "query_start_loc: holds 0 offsets, 0 requests need 1",
            {"query_start_loc": torch.tensor([], dtype=torch.int32)},
        ),
        (
            "query_start_loc: holds 3 offsets, 1 requests need 2",
            {"idx_mapping": torch.tensor([0], dtype=torch.int32)},
        ),
        ("qsl-capacity: max_num_tokens 301 exceeds slot_mapping of 300", {"max_num_tokens": 301}),
        ("slot-fits: pad_id 2147483648 is outside", {"pad_id": 2**31}),
        (
            "row-width: position 8 of request 1 (token 2) needs block index 2, the row has 2 (group 0)",
            {"positions": torch.tensor([0, 1, 8, 7]), "validate": True},
        ),
    ],
    ids=first_word,
)
def test_what_is_refused(message: str, changes: dict[str, Any]) -> None:
    with refusal(message):
        call(**changes)
