"""``compute_slot_mappings`` and ``GroupTables``: what is launched, how it is compiled, what is refused."""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.group_tables import GroupTables
from kernels.slot_mappings_v2 import _compute_slot_mappings_kernel, compute_slot_mappings, shard_offset, shard_position
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


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


# --- what is launched ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def on_lane() -> Iterator[OnLane]:
    with OnLane() as started:
        yield started


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS, ids=layout_id)
def test_random_batches_match_the_oracle(layout: Layout, validate: bool, on_lane: OnLane) -> None:
    rng = random.Random(3)
    for _ in range(12):
        case = draw(rng, layout, (0, 1, 2, 5))
        launch = replace(layout.launch, output_length=case.max_num_tokens + 3)
        rows = on_lane(compute_slot_mappings, case, launch, validate=validate)
        assert rows == expected(case, launch), (case, launch)


@pytest.mark.parametrize("document", field_cases("v2"), ids=field_case_id)
def test_a_field_case_gets_the_slots_of_its_file(document: dict[str, Any], on_lane: OnLane) -> None:
    assert on_lane(compute_slot_mappings, Case.from_json(document["case"])) == document["slot_mappings"]


def test_a_request_longer_than_a_tile_is_mapped_to_its_end(on_lane: OnLane) -> None:
    count = 2 * 1024 + 1
    group = Group((tuple(range(100, 400)),), block_size=16, kv_cache_block_size=16)
    case = Case((0, count), tuple(range(9, 9 + count)), count, count + 1025, (group, replace(group, enabled=False)))
    assert on_lane(compute_slot_mappings, case) == expected(case)


def test_a_block_index_past_the_stride_gets_padding(on_lane: OnLane) -> None:
    assert on_lane(compute_slot_mappings, PAST_THE_ROW) == SLOTS_PAST_THE_ROW


def test_a_request_without_a_row_gets_padding(on_lane: OnLane) -> None:
    """The contract has no such request unless it is empty; its tokens must not take the cells before the table."""
    assert on_lane(compute_slot_mappings, WITHOUT_A_ROW) == SLOTS_WITHOUT_A_ROW


# --- how it is compiled ----------------------------------------------------------------------------------------------

DOCUMENTED = (
    "max_num_tokens",
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
    "TRITON_BLOCK_SIZE",
    "BLOCK_TABLE_WINDOW_SIZE",
    "slot_mapping_enabled",
    "HAS_SLOT_MAPPING_ENABLED",
    "dcp_sharded",
)


def test_the_kernel_takes_the_documented_parameters_in_order() -> None:
    parameters = inspect.signature(_compute_slot_mappings_kernel.fn).parameters
    assert tuple(parameters) == DOCUMENTED
    constants = {name for name in DOCUMENTED if "constexpr" in str(parameters[name].annotation)}
    assert constants == {name for name in DOCUMENTED if name.isupper()}
    defaults = {name: parameters[name].default for name in DOCUMENTED[-3:]}
    assert defaults == {"slot_mapping_enabled": None, "HAS_SLOT_MAPPING_ENABLED": False, "dcp_sharded": None}


def test_what_changes_with_every_step_does_not_compile_again() -> None:
    free = {parameter.name for parameter in _compute_slot_mappings_kernel.params if parameter.do_not_specialize}
    unaligned = {
        parameter.name for parameter in _compute_slot_mappings_kernel.params if parameter.do_not_specialize_on_alignment
    }
    assert free == {"max_num_tokens"}
    assert unaligned >= {"idx_mapping", "query_start_loc", "pos"}


@pytest.mark.parametrize(
    "function",
    [_compute_slot_mappings_kernel, shard_position, shard_offset],
    ids=["kernel", "shard_position", "shard_offset"],
)
def test_no_remainder_of_a_vector_is_taken(function: Any) -> None:
    tree = ast.parse(inspect.getsource(function.fn))
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Mod)]


# --- what is refused -------------------------------------------------------------------------------------------------


REPLICATED = {"sharded": [False, False]}


def tables(**changes: Any) -> GroupTables:
    """Two groups, blocks of 4 and of 2 in 4, with ``changes``."""
    arguments: dict[str, Any] = {
        "block_tables": [ints(3, 4, 5, 6).view(2, 2), ints(*range(8)).view(2, 4)],
        "block_sizes": [4, 2],
        "kv_cache_block_sizes": [4, 4],
    }
    return GroupTables(**{**arguments, **changes})


def call(**changes: Any) -> None:
    """Two requests of two tokens each in those groups, with ``changes``."""
    arguments: dict[str, Any] = {
        "groups": tables(),
        "idx_mapping": ints(1, 0),
        "query_start_loc": ints(0, 2, 4),
        "positions": torch.tensor([0, 1, 6, 7], dtype=torch.int64),
        "slot_mappings": torch.zeros(2, 8, dtype=torch.int32),
    }
    compute_slot_mappings(**{**arguments, **changes})


def test_what_is_not_refused_here_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    class Launched(Exception):
        pass

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> None:
            assert grid == (2, 3)
            raise Launched

    monkeypatch.setattr("kernels.slot_mappings_v2._compute_slot_mappings_kernel", Kernel())
    for changes in (
        {},
        {"positions": torch.tensor([0, 1, -6, 7])},  # a negative position is no error: it gets padding
        {"idx_mapping": ints(1, -1), "query_start_loc": ints(0, 4, 4)},  # an empty request needs no row
        {"max_num_tokens": 4},
        {"slot_mappings": torch.zeros(2, 9, dtype=torch.int64)[:, :4]},
        # The interleave divides what is shared, which the second group is not.
        {"groups": tables(cp_size=2, cp_interleave=4, kv_cache_block_sizes=[4, 2], sharded=[True, False])},
        # Nothing of a group that has no slots matters.
        {"groups": tables(enabled=[True, False]), "positions": torch.tensor([0, 1, 4, 7])},
    ):
        with pytest.raises(Launched):
            call(validate=True, **changes)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("block_tables: holds nothing", {"block_tables": [], "block_sizes": [], "kv_cache_block_sizes": []}),
        ("block_sizes: expected one element for each of 2 groups, got 1", {"block_sizes": [4]}),
        # Replicated groups have no use for a rank, and hide no wrong one.
        ("rank-range: cp_rank is 9, must be in [0, cp_size = 2)", {**REPLICATED, "cp_size": 2, "cp_rank": 9}),
        ("rank-range: cp_size is 0, must be at least 1", {**REPLICATED, "cp_size": 0}),
        ("interleave-divides: cp_interleave is 0, must be at least 1", {**REPLICATED, "cp_interleave": 0}),
        ("kv_cache_block_sizes: expected one element for each of 2 groups, got 3", {"kv_cache_block_sizes": [4] * 3}),
        ("sharded: expected one element for each of 2 groups, got 0", {"sharded": []}),
        ("enabled: expected one element for each of 2 groups, got 0", {"enabled": []}),
        ("hybrid-divides: block_size is 0, must be at least 1 (group 1)", {"block_sizes": [4, 0]}),
        (
            "hybrid-divides: kv_cache_block_size 5 is not a positive multiple of block_size 2 (group 1)",
            {"kv_cache_block_sizes": [4, 5]},
        ),
        (
            "hybrid-width: row width 2 is not a multiple of 3 kernel blocks in an allocated block (group 0)",
            {"kv_cache_block_sizes": [12, 4]},
        ),
        ("rank-range: cp_rank is 2, must be in [0, cp_size = 2) (group 0)", {"cp_size": 2, "cp_rank": 2}),
        (
            "interleave-divides: cp_interleave 4 does not divide kv_cache_block_size 2 (group 1)",
            {"cp_size": 2, "cp_interleave": 4, "kv_cache_block_sizes": [4, 2]},
        ),
        (
            "block_table: expected int32, got int64 (group 0)",
            {"block_tables": [torch.zeros(2, 2, dtype=torch.int64), ints(*range(8)).view(2, 4)]},
        ),
        (
            "block_table: is on meta, expected cpu (group 1)",
            {"block_tables": [ints(3, 4).view(1, 2), ints(3, 4).view(1, 2).to("meta")]},
        ),
        (
            "block_table: 2 rows of stride 3 span 6 cells, its storage ends after 5 (group 0)",
            {"block_tables": [ints(*range(6))[1:].as_strided((2, 2), (3, 1)), ints(*range(8)).view(2, 4)]},
        ),
    ],
    ids=first_word,
)
def test_tables_that_do_not_fit_are_refused(message: str, changes: dict[str, Any]) -> None:
    with refusal(message):
        tables(**changes)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("idx_mapping: expected int32, got int64", {"idx_mapping": torch.tensor([0, 1])}),
        ("query_start_loc: expected int32, got int64", {"query_start_loc": torch.tensor([0, 2, 4])}),
        ("query_start_loc: holds 3 offsets, 1 requests need 2", {"idx_mapping": ints(1)}),
        ("query_start_loc: is on meta, expected cpu", {"query_start_loc": ints(0, 2, 4).to("meta")}),
        ("positions: expected int64, got int32", {"positions": ints(0, 1, 2, 3)}),
        ("positions: expected a contiguous 1-D tensor", {"positions": torch.zeros(8, dtype=torch.int64)[::2]}),
        (
            "slot_mappings: expected one row for each of 2 groups, got shape (8,)",
            {"slot_mappings": torch.zeros(8, dtype=torch.int32)},
        ),
        (
            "slot_mappings: expected one row for each of 2 groups, got shape (3, 8)",
            {"slot_mappings": torch.zeros(3, 8, dtype=torch.int32)},
        ),
        ("slot_mappings: expected int32 or int64, got", {"slot_mappings": torch.zeros(2, 8, dtype=torch.int16)}),
        ("slot_mappings: expected a contiguous", {"slot_mappings": torch.zeros(2, 16, dtype=torch.int32)[:, ::2]}),
        (
            "slot_mappings: row stride 0 is below the row length 8: rows overlap",
            {"slot_mappings": torch.zeros(8, dtype=torch.int32).expand(2, 8)},
        ),
        ("qsl-capacity: max_num_tokens 9 exceeds slot_mapping of 8", {"max_num_tokens": 9}),
        ("qsl-capacity: num_tokens 0 is outside [0, max_num_tokens = -1]", {"max_num_tokens": -1}),
        ("slot-fits: pad_id -2147483649 is outside", {"pad_id": -(2**31) - 1}),
    ],
    ids=first_word,
)
def test_what_can_be_checked_on_the_host_is_refused(message: str, changes: dict[str, Any]) -> None:
    with refusal(message):
        call(**changes)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("qsl-monotone: query_start_loc[0] is 1, must be 0 (group 0)", {"query_start_loc": ints(1, 2, 4)}),
        ("qsl-monotone: query_start_loc[2] is 3, below query_start_loc[1] = 4", {"query_start_loc": ints(0, 4, 3)}),
        ("qsl-capacity: num_tokens 5 exceeds the 4 positions", {"query_start_loc": ints(0, 2, 5)}),
        ("qsl-capacity: num_tokens 4 is outside [0, max_num_tokens = 3]", {"max_num_tokens": 3}),
        ("row-exists: idx_mapping[0] is 2, must be in [0, 2), or -1", {"idx_mapping": ints(2, 0)}),
        (
            "row-exists: idx_mapping[0] is 1, must be in [0, 1), or -1",
            {"groups": tables(block_tables=[ints(3, 4, 5, 6).view(2, 2), ints(*range(4)).view(1, 4)])},
        ),
        ("row-exists: idx_mapping[1] is -1, must be in [0, 2), or -1", {"idx_mapping": ints(0, -1)}),
        (
            "pos-int32: positions[3] is 2147483648, outside [-2147483648, 2147483647]",
            {"positions": torch.tensor([0, 1, 2, 2**31])},
        ),
        (
            "row-width: position 8 of request 1 (token 2) needs block index 4, the row has 4 (group 1)",
            {"positions": torch.tensor([0, 1, 8, 9]), "groups": tables(enabled=[False, True])},
        ),
        (  # of two ranks, each of which has all of it
            "row-width: position 8 of request 1 (token 2) needs block index 2, the row has 2 (group 0)",
            {"positions": torch.tensor([0, 1, 8, 9]), "groups": tables(cp_size=2, cp_rank=1, sharded=[False, True])},
        ),
        (
            "slot-fits: token 0 in block 536870912 has slot 2147483648, outside [-2147483648, 2147483647] (group 0)",
            {"groups": tables(block_tables=[ints(3, 4, 2**29, 6).view(2, 2), ints(*range(8)).view(2, 4)])},
        ),
    ],
    ids=first_word,
)
def test_what_only_the_tensors_tell_is_refused_when_asked(message: str, changes: dict[str, Any]) -> None:
    with refusal(message):
        call(validate=True, **changes)
