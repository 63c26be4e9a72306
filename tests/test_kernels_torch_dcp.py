"""The torch path against the oracle, and what it refuses."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest
import torch

from kernels.torch_dcp import compute_dcp_slot_mapping
from reference.case import Case
from reference.verdict import UNWRITTEN, expected_output
from tests.interpreter import table_of
from tests.random_cases import draw
from tests.refusals import first_word, refusal

SIZES: Mapping[str, Any] = {
    "block_size": 4,
    "kv_cache_block_size": 8,
    "cp_size": 2,
    "cp_rank": 1,
    "cp_interleave": 8,
}


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def launch(case: Case, dtype: torch.dtype = torch.int32, extra: int = 5) -> list[int]:
    """The whole output, ``extra`` elements longer than ``max_num_tokens``."""
    (group,) = case.groups
    slot_mapping = torch.full((case.max_num_tokens + extra,), UNWRITTEN, dtype=dtype)
    compute_dcp_slot_mapping(
        torch.repeat_interleave(torch.tensor(case.query_start_loc).diff()),
        torch.tensor(case.positions, dtype=torch.int64),
        table_of(case),
        slot_mapping,
        block_size=group.block_size,
        kv_cache_block_size=group.kv_cache_block_size,
        cp_size=case.cp.size,
        cp_rank=case.cp.rank,
        cp_interleave=case.cp.interleave,
        pad_id=case.pad_id,
    )
    return slot_mapping.tolist()


def tensors(positions: list[int], width: int = 2) -> list[torch.Tensor]:
    """One request with row 10, 11, ...; the output has one element more than there are tokens."""
    return [
        torch.zeros(len(positions), dtype=torch.int32),
        torch.tensor(positions, dtype=torch.int64),
        torch.arange(10, 10 + width, dtype=torch.int32).reshape(1, width),
        torch.full((len(positions) + 1,), UNWRITTEN, dtype=torch.int32),
    ]


def mapped(positions: list[int], width: int = 2, **changes: Any) -> list[int]:
    arguments = tensors(positions, width)
    compute_dcp_slot_mapping(*arguments, **{**SIZES, **changes})
    return arguments[-1].tolist()


def test_random_batches_match_the_oracle() -> None:
    rng = random.Random(0)
    for _ in range(400):
        case = draw(rng, world_sizes=(1, 2, 3, 8))
        assert launch(case) == expected_output(case, case.max_num_tokens + 5, writes_tail=False)[0], case


def test_an_interleave_over_the_kernel_block_stays_on_one_rank() -> None:
    # Rank 1 owns 8..15: two kernel blocks of its first allocated block. Sharded by kernel block it would own 4..7 too.
    assert mapped([4, 7, 8, 11, 12, 15, 16]) == [-1, -1, 40, 43, 44, 47, -1, UNWRITTEN]


def test_the_cell_of_a_foreign_token_need_not_exist() -> None:
    assert mapped([15, 16, 1000]) == [47, -1, -1, UNWRITTEN]


def test_a_rank_without_tokens_may_have_no_column_at_all() -> None:
    assert mapped([0, 7, 16], width=0) == [-1, -1, -1, UNWRITTEN]


def test_a_negative_position_and_a_block_past_the_row_get_padding() -> None:
    assert mapped([-1, -8, 8, 24], pad_id=-7) == [-7, -7, 40, -7, UNWRITTEN]


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_a_row_outside_the_table_gets_padding_and_reads_nothing(dtype: torch.dtype) -> None:
    """Row -1 would be the last one, and row 2 is none."""
    table, slot_mapping = ints(10, 11, 20, 21).view(2, 2), torch.full((5,), UNWRITTEN, dtype=torch.int32)
    rows, positions = torch.tensor([0, -1, 1, 2], dtype=dtype), torch.full((4,), 8)
    compute_dcp_slot_mapping(rows, positions, table, slot_mapping, **SIZES)
    assert slot_mapping.tolist() == [40, -1, 80, -1, UNWRITTEN]
    compute_dcp_slot_mapping(rows, positions, table[:0], slot_mapping, **SIZES)
    assert slot_mapping.tolist() == [-1, -1, -1, -1, UNWRITTEN]


def test_an_empty_batch_writes_nothing() -> None:
    assert mapped([]) == [UNWRITTEN]


def test_an_int64_output_holds_slots_past_int32() -> None:
    arguments = tensors([8, 9])
    arguments[2][:] = 2**31 - 1
    arguments[3] = arguments[3].to(torch.int64)
    compute_dcp_slot_mapping(*arguments, **SIZES)
    assert arguments[3].tolist() == [(2**31 - 1) * 4, (2**31 - 1) * 4 + 1, UNWRITTEN]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA GPU")
def test_a_device_gives_the_same_slots_as_the_host() -> None:
    rng = random.Random(1)
    for _ in range(20):
        case = draw(rng, world_sizes=(2, 3, 8))
        with torch.device("cuda"):
            on_device = launch(case)
        assert on_device == launch(case), case


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("hybrid-divides: block_size is 0, must be at least 1", {"block_size": 0}),
        ("hybrid-divides: kv_cache_block_size 8 is not a positive multiple of block_size 3", {"block_size": 3}),
        (
            "hybrid-divides: kv_cache_block_size 0 is not a positive multiple of block_size 4",
            {"kv_cache_block_size": 0},
        ),
        ("hybrid-width: row width 2 is not a multiple of 8", {"block_size": 1}),
        ("rank-range: cp_size is 0, must be at least 1", {"cp_size": 0}),
        ("rank-range: cp_rank is 2, must be in [0, cp_size = 2)", {"cp_rank": 2}),
        ("rank-range: cp_rank is -1, must be in [0, cp_size = 2)", {"cp_rank": -1}),
        ("interleave-divides: cp_interleave is 0, must be at least 1", {"cp_interleave": 0}),
        ("interleave-divides: cp_interleave 3 does not divide kv_cache_block_size 8", {"cp_interleave": 3}),
        ("slot-fits: pad_id 2147483648 is outside [-2147483648, 2147483647] of int32", {"pad_id": 2**31}),
    ],
    ids=first_word,
)
def test_sizes_that_do_not_go_together_are_refused(message: str, changes: dict[str, int]) -> None:
    with refusal(message):
        mapped([0], **changes)


@pytest.mark.parametrize(
    ("message", "rows", "positions", "block"),
    [
        ("row-exists: req_indices[1] is 1, must be in [0, 1)", [0, 1], [0, 0], 10),
        ("row-exists: req_indices[0] is -1, must be in [0, 1)", [-1, 1], [0, 0], 10),
        ("pos-int32: positions[1] is 2147483648, outside [-2147483648, 2147483647]", [0, 0], [0, 2**31], 10),
        ("row-width: position 24 of row 0 (token 1) needs block index 2, the row has 2", [0, 0], [0, 24], 10),
        ("slot-fits: token 1 in block 536870912 has slot 2147483648, outside [-2147483648,", [0, 0], [0, 8], 2**29),
    ],
    ids=["row", "negative-row", "position", "width", "slot"],
)
def test_what_only_the_tensors_tell_is_refused_when_asked(
    message: str, rows: list[int], positions: list[int], block: int
) -> None:
    arguments = tensors(positions)
    arguments[0][:] = torch.tensor(rows)
    arguments[2][:] = block
    with refusal(message):
        compute_dcp_slot_mapping(*arguments, **SIZES, validate=True)
    assert arguments[3].tolist() == [UNWRITTEN] * 3


def test_what_is_legal_is_not_refused_when_asked() -> None:
    # Negative and foreign tokens have no cell that could be wrong.
    assert mapped([-1, 8, 992], validate=True) == [-1, 40, -1, UNWRITTEN]


@pytest.mark.parametrize(
    ("message", "index", "tensor"),
    [
        ("req_indices: expected int32 or int64, got float32", 0, torch.zeros(3)),
        ("req_indices: 2 rows for 3 positions", 0, torch.zeros(2, dtype=torch.int32)),
        ("positions: expected a contiguous 1-D tensor, got shape (3, 1), strides (1, 1)", 1, torch.zeros(3, 1)),
        ("positions: expected a contiguous 1-D tensor, got shape (3,), strides (2,)", 1, torch.zeros(6)[::2]),
        ("block_table: expected a 2-D tensor, got shape (2,)", 2, torch.zeros(2, dtype=torch.int32)),
        ("block_table: expected int32, got int64", 2, torch.zeros(1, 2, dtype=torch.int64)),
        ("block_table: cells of a row must be adjacent", 2, torch.zeros(2, 4, dtype=torch.int32).T),
        ("block_table: row stride 0 is below", 2, torch.zeros(1, 2, dtype=torch.int32).expand(3, 2)),
        ("block_table: is on meta, expected cpu", 2, torch.zeros(1, 2, dtype=torch.int32, device="meta")),
        ("qsl-capacity: 3 tokens do not fit slot_mapping of 2", 3, torch.zeros(2, dtype=torch.int32)),
        ("slot_mapping: expected int32 or int64, got int16", 3, torch.zeros(4, dtype=torch.int16)),
    ],
    ids=first_word,
)
def test_tensors_of_the_wrong_kind_are_refused(message: str, index: int, tensor: torch.Tensor) -> None:
    arguments = tensors([0, 1, 2])
    arguments[index] = tensor
    with refusal(message):
        compute_dcp_slot_mapping(*arguments, **SIZES)
