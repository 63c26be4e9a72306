"""``BlockTable`` and ``MultiGroupBlockTable``: how large they are, what they refuse, what they do not wait for. What
they compute is the state machine's business.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from conformance import lanes
from kernels.block_table import BlockTable, MultiGroupBlockTable
from tests.refusals import first_word, refusal


class MambaSpec:
    """Known by its name."""


@dataclass
class UniformTypeKVCacheSpecs:
    kv_cache_specs: dict[str, Any]


@dataclass
class Layer:
    compress_ratio: int


@dataclass
class KVCacheGroup:
    kv_cache_spec: object


STATE = KVCacheGroup(MambaSpec())
DCP = {"dcp_world_size": 2, "dcp_rank": 1}


def table(**changes: Any) -> BlockTable:
    """Rows 0 and 1 of three, of 2 and 1 allocated blocks of 4 tokens, in kernel blocks of 2; 16 slots."""
    rows = changes.pop("rows", {0: [3, 4], 1: [5]})
    sizes: dict[str, Any] = {
        "block_size": 4,
        "max_num_reqs": 3,
        "max_num_blocks_per_req": 4,
        "max_num_batched_tokens": 16,
        "pin_memory": False,
        "device": "cpu",
        "kernel_sizes": [2],
    }
    made = BlockTable(**{**sizes, **changes})
    for row, blocks in rows.items():
        made.add_row(blocks, row)
    return made


def tables(**changes: Any) -> MultiGroupBlockTable:
    sizes: dict[str, Any] = {
        "max_num_reqs": 3,
        "max_model_len": 100,
        "max_num_batched_tokens": 16,
        "pin_memory": False,
        "device": "cpu",
        "block_sizes": [8, 16],
    }
    return MultiGroupBlockTable(**{**sizes, **changes})


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def longs(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int64)


# --- a drop-in -------------------------------------------------------------------------------------------------------

PARAMETERS = {
    BlockTable: (
        "block_size",
        "max_num_reqs",
        "max_num_blocks_per_req",
        "max_num_batched_tokens",
        "pin_memory",
        "device",
        "kernel_sizes",
        "cp_kv_cache_interleave_size",
        "num_speculative_tokens",
        "kv_cache_group",
    ),
    MultiGroupBlockTable: (
        "max_num_reqs",
        "max_model_len",
        "max_num_batched_tokens",
        "pin_memory",
        "device",
        "block_sizes",
        "num_speculative_tokens",
        "max_num_blocks",
        "kernel_sizes",
        "cp_kv_cache_interleave_size",
        "kv_cache_groups",
    ),
}


@pytest.mark.parametrize("kind", PARAMETERS)
def test_what_published_constructors_take_is_taken_in_the_same_order(kind: type) -> None:
    parameters = inspect.signature(kind).parameters.values()
    assert tuple(each.name for each in parameters if each.kind is not each.KEYWORD_ONLY) == PARAMETERS[kind]


def test_published_methods_are_there() -> None:
    rows = {"append_row", "add_row", "clear_row", "move_row", "swap_row", "commit_block_table", "clear"}
    slots = {"compute_slot_mapping", "compute_slot_mapping_draft"}
    tensors = {"get_device_tensor", "get_cpu_tensor", "get_numpy_array", "_compute_dcp_slot_mapping"}
    assert rows | slots | tensors <= set(dir(BlockTable))
    assert rows | slots | {"__getitem__"} <= set(dir(MultiGroupBlockTable))


# --- how to use it ---------------------------------------------------------------------------------------------------

EXAMPLES = """
import doctest, sys
from conformance import lanes
lanes.by_name(sys.argv[1]).enter(sys.argv[2])
from kernels import block_table, group_block_table
for module in (block_table, group_block_table):
    print(*doctest.testmod(module))
"""


def test_the_documented_examples_do_what_they_say() -> None:
    """On the lane that this environment has, in a process of its own."""
    root = Path(__file__).resolve().parents[1]
    lane = lanes.automatic()
    done = subprocess.run(
        [sys.executable, "-c", EXAMPLES, lane.name, str(root / ".cache")],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, **lane.environment()},
    )
    results = [tuple(map(int, line.split())) for line in done.stdout.splitlines()[-2:]]
    assert [failed for failed, _ in results] == [0, 0], done.stdout + done.stderr
    assert all(tried > 5 for _, tried in results)


# --- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel_sizes", "block_size", "width"),
    [(None, 12, 4), ([0], 12, 4), ([12], 12, 4), ([5, 8, 4, 6], 4, 12), ([0, 6], 6, 8), ([128, 1], 1, 48)],
    ids=str,
)
def test_the_first_kernel_size_that_divides_is_taken(
    kernel_sizes: list[int] | None, block_size: int, width: int
) -> None:
    made = table(block_size=12, kernel_sizes=kernel_sizes, rows={})
    assert (made.block_size, made.physical_block_size, made.get_device_tensor().shape[1]) == (block_size, 12, width)


@pytest.mark.parametrize(("drafts", "slots"), [(0, 16), (1, 16), (2, 19), (5, 28)])
def test_draft_tokens_have_slots_of_their_own(drafts: int, slots: int) -> None:
    """One token of each request is no draft (vllm-ascend PR 14024)."""
    made = table(num_speculative_tokens=drafts, rows={})
    assert made.slot_mapping.gpu.tolist() == made.slot_mapping.cpu.tolist() == [-1] * slots
    assert made.get_device_tensor().shape[0] == 3


def test_ranks_that_share_sequences_have_a_row_for_each_draft_token() -> None:
    assert table(num_speculative_tokens=2, rows={}, **DCP).get_device_tensor().shape == (9, 8)


@pytest.mark.parametrize(
    ("changes", "widths"),
    [
        ({}, [13, 7]),
        ({"kernel_sizes": [[4]]}, [26, 28]),
        ({"kernel_sizes": [[4], [0]]}, [26, 7]),
        ({"circular": [False, True]}, [13, 1]),
        (DCP, [7, 4]),
        ({**DCP, "sharded": [True, False]}, [7, 8]),
        ({**DCP, "kv_cache_groups": [STATE, KVCacheGroup(None)]}, [14, 4]),
        ({"kv_cache_groups": [STATE, KVCacheGroup(None)]}, [13, 7]),
        ({"max_num_blocks": [3, 2]}, [3, 2]),
        ({"kv_cache_groups": [None, KVCacheGroup(UniformTypeKVCacheSpecs({"a": Layer(4)}))]}, [13, 2]),
        ({"kv_cache_groups": [None, KVCacheGroup(UniformTypeKVCacheSpecs({}))]}, [13, 7]),
    ],
)
def test_a_row_is_as_wide_as_the_longest_request(changes: dict[str, Any], widths: list[int]) -> None:
    made = tables(**changes)
    assert [made[g].get_device_tensor().shape[1] for g in range(2)] == widths


# --- rows ------------------------------------------------------------------------------------------------------------


def test_an_allocated_block_brings_its_kernel_blocks() -> None:
    made = table()
    made.append_row(np.array([7]), 1)
    assert made.get_numpy_array().tolist() == [[6, 7, 8, 9, 0, 0, 0, 0], [10, 11, 14, 15, 0, 0, 0, 0], [0] * 8]
    assert made.num_blocks_per_row.tolist() == [4, 4, 0]


@pytest.mark.parametrize(
    ("message", "blocks", "row"),
    [
        ("row-exists: row 3 is outside [0, 3)", [1], 3),
        ("row-exists: row -1 is outside [0, 3)", [1], -1),
        (
            "row-width: row 0 holds 4 kernel blocks, 3 allocated blocks of 2 more exceed its width 8",
            [1, 2, 6],
            0,
        ),
        ("block_ids: block -1 for row 0 is negative", [2, -1], 0),
        ("slot-fits: block 536870912 for row 0 has slots past int32, the last without is 536870911", [2**29], 0),
        ("block_ids: expected a list of block numbers, got float64 of shape (1,)", [1.5], 0),
        ("block_ids: expected a list of block numbers, got int64 of shape (1, 2)", [[1, 2]], 0),
        ("block_ids: expected a list of block numbers, got int64 of shape ()", 5, 0),
        ("block_ids: expected a list of block numbers, got list (", [[1], [2, 3]], 0),
    ],
    ids=first_word,
)
def test_blocks_that_do_not_fit_are_refused_and_nothing_changes(message: str, blocks: list[Any], row: int) -> None:
    made = table()
    before = made.get_numpy_array().tolist()
    with refusal(message):
        made.append_row(blocks, row)
    if not message.startswith("row-width"):
        with refusal(message):
            made.add_row(blocks, row)
    assert made.get_numpy_array().tolist() == before
    assert made.num_blocks_per_row.tolist() == [4, 2, 0]


def test_a_row_may_be_filled_to_its_end() -> None:
    made = table()
    made.append_row([2**29 - 1, 1], 0)
    assert made.get_numpy_array()[0].tolist() == [6, 7, 8, 9, 2**30 - 2, 2**30 - 1, 2, 3]


def test_groups_change_together_or_not_at_all() -> None:
    made = tables()
    with refusal("block_ids: expected one list for each of 2 groups, got 1"):
        made.add_row(([1],), 0)
    with refusal("row-width: row 0 holds 0 kernel blocks, 8 allocated blocks of 1 more exceed its width 7 (group 1)"):
        made.add_row(([1], [1] * 8), 0)
    assert made[0].num_blocks_per_row.tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("message", "block_ids"),
    [
        ("block_ids[0]: expected one list a group, 2 lists of block numbers, got 5", [5, 6]),
        ("block_ids[0]: expected one list a group, 2 lists of block numbers, got 5", [5, 6, 7]),
        ("block_ids[1]: expected one list a group, 2 lists of block numbers, got 6", [[5], 6]),
        ("block_ids[0]: expected one list a group", np.array([5, 6])),
        ("block_ids[0]: expected one list a group", torch.tensor([5, 6])),
        ("block_ids: expected one list a group, 2 lists of block numbers, got 5", 5),
    ],
    ids=["flat", "flat-of-another-length", "half", "array", "tensor", "number"],
)
@pytest.mark.parametrize("operation", ["add_row", "append_row"])
def test_one_list_for_several_groups_is_refused(operation: str, message: str, block_ids: Any) -> None:
    made = tables()
    with refusal(message):
        getattr(made, operation)(block_ids, 0)
    assert made[0].num_blocks_per_row.tolist() == [0, 0, 0]


@pytest.mark.parametrize("num_reqs", [-1, 4])
def test_more_rows_than_there_are_are_not_copied(num_reqs: int) -> None:
    with refusal(f"row-exists: num_reqs {num_reqs} is outside [0, 3], the rows of the table"):
        table().commit_block_table(num_reqs)


def test_rows_on_their_way_to_the_device_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transfer from pinned memory may still run while the next step changes its rows: it has a copy of its own."""
    sources = []

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        sources.append(tensor.clone())
        return sources[-1]

    monkeypatch.setattr(torch.Tensor, "pin_memory", pinned)
    made = table(device="meta", pin_memory=True)
    made.commit_block_table(2)
    assert [source.tolist() for source in sources] == [made.get_cpu_tensor()[:2].tolist()]


def test_memory_of_the_host_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", None)
    made = table(pin_memory=True)
    made.commit_block_table(3)
    assert made.get_device_tensor(3).tolist() == made.get_cpu_tensor().tolist()


# --- what constructors refuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("max_num_reqs: is 0, must be at least 1", {"max_num_reqs": 0}),
        ("max_num_blocks_per_req: is 0, must be at least 1", {"max_num_blocks_per_req": 0}),
        ("max_num_batched_tokens: is -1, must be at least 0", {"max_num_batched_tokens": -1}),
        ("num_speculative_tokens: is -1, must be at least 0", {"num_speculative_tokens": -1}),
        ("slot-fits: pad_id -2147483649 is outside", {"pad_id": -(2**31) - 1}),
        ("hybrid-divides: none of the kernel sizes [3, 8] divides block_size 4", {"kernel_sizes": [3, 8]}),
        ("hybrid-divides: none of the kernel sizes [] divides block_size 4", {"kernel_sizes": []}),
        ("hybrid-divides: block_size is 0, must be at least 1", {"block_size": 0, "kernel_sizes": None}),
        ("rank-range: cp_rank is 2, must be in [0, cp_size = 2)", {"dcp_world_size": 2, "dcp_rank": 2}),
        ("rank-range: cp_rank is 2", {"dcp_world_size": 2, "dcp_rank": 2, "is_sharded": False}),
        ("interleave-divides: cp_interleave 3 does not divide", {**DCP, "cp_kv_cache_interleave_size": 3}),
        ("interleave-divides: cp_interleave is 0,", {"cp_kv_cache_interleave_size": 0, "is_sharded": False}),
        (
            "circular-no-cp: a circular group cannot be shared by 2 ranks, the limit is 1",
            {**DCP, "is_circular": True, "kernel_sizes": None, "max_num_blocks_per_req": 1},
        ),
        (
            "circular-no-cp: a circular group cannot be shared by 2 ranks, the limit is 1",
            {**DCP, "is_circular": True, "is_sharded": False},
        ),
        (
            "circular-one-block: a circular group's row is 1 kernel block wide, 1 allocated blocks of 2 were asked for",
            {"is_circular": True, "max_num_blocks_per_req": 1},
        ),
        ("circular-one-block: ", {"is_circular": True, "kernel_sizes": None}),
    ],
    ids=["" for _ in range(16)],
)
def test_sizes_that_do_not_go_together_are_refused(message: str, changes: dict[str, Any]) -> None:
    with refusal(message):
        table(rows={}, **changes)


def test_an_interleave_means_nothing_to_a_replicated_group() -> None:
    assert not table(rows={}, **DCP, cp_kv_cache_interleave_size=3, is_sharded=False).is_shared


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("block_sizes: holds nothing, expected the block size of at least 1 group", {"block_sizes": []}),
        ("kernel_sizes: expected one element for each of 2 groups, got 3", {"kernel_sizes": [[1]] * 3}),
        ("circular: expected one element for each of 2 groups, got 1", {"circular": [True]}),
        ("sharded: expected one element for each of 2 groups, got 1", {"sharded": [True]}),
        ("kv_cache_groups: expected one element for each of 2 groups, got 0", {"kv_cache_groups": []}),
        ("max_num_blocks: expected one element for each of 2 groups, got 1", {"max_num_blocks": [1]}),
        ("max_model_len: is 0, must be at least 1 (group 0)", {"max_model_len": 0}),
        ("block_sizes: is 0, must be at least 1 (group 1)", {"block_sizes": [8, 0]}),
        ("dcp_world_size: is 0, must be at least 1 (group 0)", {"dcp_world_size": 0}),
        (
            "circular-no-cp: a circular group cannot be shared by 2 ranks, the limit is 1 (group 1)",
            {**DCP, "circular": [False, True]},
        ),
        (
            "hybrid-divides: none of the kernel sizes [16] divides block_size 8 (group 0)",
            {"kernel_sizes": [[16]]},
        ),
    ],
    ids=first_word,
)
def test_groups_that_do_not_go_together_are_refused(message: str, changes: dict[str, Any]) -> None:
    with refusal(message):
        tables(**changes)


# --- what computing refuses ------------------------------------------------------------------------------------------


def batch(**changes: Any) -> dict[str, Any]:
    return {"num_reqs": 2, "query_start_loc": ints(0, 2, 3), "positions": longs(0, 7, 3), **changes}


REFUSED = [
    ("row-exists: num_reqs 4 is outside [0, 3], the rows of the table", batch(num_reqs=4)),
    ("query_start_loc: holds 3 offsets, 3 requests need 4", batch(num_reqs=3)),
    ("query_start_loc: expected int32, got int64", batch(query_start_loc=longs(0, 2, 3))),
    ("query_start_loc: is on meta, expected cpu", batch(query_start_loc=ints(0, 2, 3).to("meta"))),
    ("positions: expected int64, got int32", batch(positions=ints(0, 7, 3))),
    ("query_start_loc: expected a tensor of int32, got list", batch(query_start_loc=[0, 2, 3])),
    ("positions: expected a tensor of int64, got ndarray", batch(positions=np.array([0, 7, 3]))),
    ("positions: expected a contiguous 1-D tensor", batch(positions=longs(0, 7, 3)[:, None])),
    (
        "qsl-capacity: 17 tokens exceed the 16 slots of max_num_batched_tokens 16 and 0 draft tokens",
        batch(positions=torch.arange(17)),
    ),
]
VALIDATED = [
    ("qsl-monotone: query_start_loc[0] is 1, must be 0", batch(query_start_loc=ints(1, 2, 3))),
    ("qsl-monotone: query_start_loc[2] is 1, below query_start_loc[1] = 2", batch(query_start_loc=ints(0, 2, 1))),
    ("qsl-capacity: query_start_loc ends at 2, num_tokens is 3", batch(query_start_loc=ints(0, 2, 2))),
    ("pos-int32: positions[1] is 2147483648, outside [-2147483648, 2147483647]", batch(positions=longs(0, 2**31, 3))),
    (
        "row-width: position 4 of row 1 (token 2) needs block index 2, the row holds 2 blocks",
        batch(positions=longs(0, 7, 4)),
    ),
]


@pytest.mark.parametrize(("message", "arguments"), REFUSED, ids=first_word)
@pytest.mark.parametrize("world", [{}, DCP, {**DCP, "use_cp_kernel": True}], ids=["alone", "cp2-torch", "cp2-kernel"])
def test_batches_that_do_not_fit_are_refused(message: str, arguments: dict[str, Any], world: dict[str, Any]) -> None:
    made = table(**world)
    made.commit_block_table(3)
    with refusal(message):
        made.compute_slot_mapping(**arguments)


@pytest.mark.parametrize(("message", "arguments"), [*REFUSED, *VALIDATED], ids=first_word)
def test_launches_over_all_groups_refuse_the_same(message: str, arguments: dict[str, Any]) -> None:
    made = tables(block_sizes=[4, 4], kernel_sizes=[[2]])
    for row, blocks in ((0, [3, 4]), (1, [5])):
        made.add_row([blocks, blocks], row)
    made.commit_block_table(3)
    with refusal(message):
        made.compute_slot_mapping(**arguments, validate=True)


@pytest.mark.parametrize(("message", "arguments"), VALIDATED, ids=first_word)
def test_what_only_the_tensors_tell_is_refused_when_asked(message: str, arguments: dict[str, Any]) -> None:
    made = table()
    made.commit_block_table(2)
    with refusal(message):
        made.compute_slot_mapping(**arguments, validate=True)


def test_rows_that_the_device_does_not_know_are_refused() -> None:
    made = table()
    with refusal(
        "block_table: row 0 changed after it was last copied to the device: commit_block_table(2) comes first"
    ):
        made.compute_slot_mapping(**batch())


@pytest.mark.parametrize("world", [{}, DCP], ids=["alone", "cp2"])
@pytest.mark.parametrize(
    ("message", "rows", "positions", "validate"),
    [
        ("req_indices: 1 rows for 2 positions", [0], [0, 1], False),
        ("qsl-capacity: 17 tokens exceed the 16 slots of", [0] * 17, [0] * 17, False),
        ("row-exists: req_indices[1] is 3, must be in [0, 3)", [0, 3], [0, 1], True),
        ("row-exists: req_indices[0] is -1, must be in [0, 3)", [-1, 3], [0, 1], True),
        ("pos-int32: positions[1] is 2147483648, outside", [0, 1], [0, 2**31], True),
        ("row-width: position 22 of row 1 (token 1) needs block index", [0, 1], [0, 22], True),
    ],
    ids=["count", "slots", "row", "negative-row", "position", "block"],
)
def test_draft_tokens_that_do_not_fit_are_refused(
    message: str, rows: list[int], positions: list[int], validate: bool, world: dict[str, Any]
) -> None:
    made = table(cp_kv_cache_interleave_size=2, **world)
    with refusal(message):
        made.compute_slot_mapping_draft(np.array(rows), np.array(positions), validate=validate)


@pytest.mark.parametrize("kind", [torch.from_numpy, lambda values: values], ids=["tensors", "arrays"])
@pytest.mark.parametrize("row", [-1, 3])
@pytest.mark.parametrize("world", [{}, DCP], ids=["alone", "cp2"])
def test_the_row_of_a_draft_token_is_looked_at_without_being_asked(world: dict[str, Any], row: int, kind: Any) -> None:
    made = table(**world)
    with refusal(f"row-exists: req_indices[1] is {row}, must be in [0, 3)"):
        made.compute_slot_mapping_draft(kind(np.array([0, row])), kind(np.array([0, 1])))
    assert made.slot_mapping.gpu.tolist() == [-1] * 16


@pytest.mark.parametrize("validate", [False, True])
@pytest.mark.parametrize("name", ["req_indices", "positions"])
def test_an_unsigned_number_does_not_become_a_negative_one(name: str, validate: bool) -> None:
    zero, large = np.array([0, 0]), np.array([0, 2**64 - 1], dtype=np.uint64)
    arguments = {"req_indices": zero, "positions": zero, name: large}
    with refusal(f"{name}: element 1 is 18446744073709551615, past int64"):
        table().compute_slot_mapping_draft(**arguments, validate=validate)


@pytest.mark.parametrize(
    ("message", "rows", "positions"),
    [
        ("req_indices: is on meta, the draft path of one rank takes", ints(0).to("meta"), longs(0)),
        ("positions: is on meta, the draft path of one rank takes", ints(0), longs(0).to("meta")),
        ("positions: expected a 1-D array of integers, got float64 of shape (1,)", np.array([0]), np.array([0.5])),
        ("req_indices: expected a 1-D array of integers, got int64 of shape (1, 1)", np.array([[0]]), np.array([0])),
    ],
    ids=first_word,
)
def test_draft_tokens_of_the_wrong_kind_are_refused(message: str, rows: Any, positions: Any) -> None:
    with refusal(message):
        table().compute_slot_mapping_draft(rows, positions)


@pytest.mark.parametrize("world", [{}, DCP], ids=["alone", "cp2"])
@pytest.mark.parametrize(
    ("message", "rows", "positions"),
    [
        ("req_indices: expected a 1-D array of integers, got list", [0], np.array([0])),
        ("positions: expected a 1-D array of integers, got list", np.array([0]), [0]),
        ("positions: expected ", np.array([0]), torch.tensor([0.5], dtype=torch.bfloat16)),
        ("positions: expected a 1-D array of integers, got object", np.array([0]), np.array([None])),
    ],
    ids=["list-of-rows", "list-of-positions", "bfloat16", "objects"],
)
def test_draft_tokens_that_are_no_integers_are_refused(
    message: str, rows: Any, positions: Any, world: dict[str, Any]
) -> None:
    with refusal(message):
        table(**world).compute_slot_mapping_draft(rows, positions)


# --- slots that need no launch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.from_numpy, lambda values: values], ids=["tensors", "arrays"])
def test_draft_tokens_use_the_rows_of_the_host_as_they_are(kind: Any) -> None:
    """Committed or not. Past the blocks of its row a token is in block 0, past the row's width nowhere."""
    made = table()
    made.compute_slot_mapping_draft(kind(np.array([0, 0, 1, 1, 1, 0])), kind(np.array([0, 7, 3, -1, 5, 16])))
    assert made.slot_mapping.gpu.tolist() == [12, 19, 23, -1, 1, -1] + [-1] * 10


def test_draft_tokens_of_shared_groups_are_mapped_by_torch() -> None:
    made = table(**DCP, cp_kv_cache_interleave_size=2)
    made.compute_slot_mapping_draft(np.array([0, 0, 1], dtype=np.int32), np.array([0, 7, 3]))
    assert made.slot_mapping.gpu.tolist() == made.slot_mapping.cpu.tolist() == [-1, 15, 21] + [-1] * 13


def test_a_batch_of_a_shared_group_is_mapped_without_its_empty_requests() -> None:
    made = table(**DCP, cp_kv_cache_interleave_size=2, rows={0: [3], 2: [5]})
    made.commit_block_table(3)
    made.slot_mapping.fill(99)
    made.compute_slot_mapping(3, ints(0, 1, 1, 3), longs(2, 2, 7))
    assert made.slot_mapping.gpu.tolist() == [12, 20, 23] + [99] * 13


def test_tokens_behind_the_last_request_have_no_slot() -> None:
    made = table(**DCP, cp_kv_cache_interleave_size=2)
    made.commit_block_table(2)
    made.compute_slot_mapping(2, ints(0, 1, 2), longs(2, 2, 2, 2))
    assert made.slot_mapping.gpu.tolist() == [12, 20] + [-1] * 14


def test_no_slot_of_the_step_before_stays_behind_fewer_tokens() -> None:
    """On the path that launches nothing; the state machine goes through all."""
    made = table(**DCP, cp_kv_cache_interleave_size=2)
    made.commit_block_table(2)
    made.compute_slot_mapping(2, ints(0, 2, 4), longs(2, 3, 2, 3))
    made.clear_row(1)
    made.commit_block_table(2)
    made.compute_slot_mapping(1, ints(0, 1), longs(6, 2, 2, 3))
    assert made.slot_mapping.gpu.tolist() == [14] + [-1] * 15


def test_state_has_no_slots() -> None:
    made = table(kv_cache_group=STATE)
    made.compute_slot_mapping(**batch())
    made.compute_slot_mapping_draft(np.array([0]), np.array([0]))
    assert made.slot_mapping.gpu.tolist() == [-1] * 16


def test_compressed_tokens_have_rows_and_positions_of_their_own() -> None:
    made = tables(block_sizes=[4, 8])
    made.add_row(([3, 4], [5]), 0)
    lists = {
        "positions_compressed_list": [np.array([1, 4]), np.array([3])],
        "req_indices_compressed_list": [np.array([0, 0]), np.array([0])],
    }
    for compute in (
        lambda: made.compute_slot_mapping(1, ints(0, 1), longs(0), **lists),
        lambda: made.compute_slot_mapping_draft(np.array([0]), np.array([0]), **lists),
    ):
        for group in made.block_tables:
            group.slot_mapping.fill(99)
        compute()
        assert made[0].slot_mapping.gpu.tolist()[:3] == [13, 16, 99]
        assert made[1].slot_mapping.gpu.tolist()[:2] == [43, 99]
    with refusal("positions: expected one list for each of 2 groups, got 1"):
        made.compute_slot_mapping(1, ints(0, 1), longs(0), [np.array([1])], [np.array([0])] * 2)


def test_compressed_positions_without_rows_are_not_used() -> None:
    made = tables(block_sizes=[4, 8], **DCP, cp_kv_cache_interleave_size=2)
    made.add_row(([3, 4], [5]), 0)
    made.commit_block_table(1)
    made.compute_slot_mapping(1, ints(0, 1), longs(2), [np.array([3]), np.array([3])])
    assert [group.slot_mapping.gpu.tolist()[:2] for group in made.block_tables] == [[12, -1], [40, -1]]


def test_the_kernel_is_compiled_once_for_all_allocated_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """On one rank the allocated block plays no part."""
    seen = []
    monkeypatch.setattr(
        "kernels.group_block_table.compute_slot_mapping",
        lambda *_, **arguments: seen.append(arguments["kv_cache_block_size"]),
    )
    for changes in ({}, {**DCP, "use_cp_kernel": True}, {**DCP, "use_cp_kernel": True, "is_sharded": False}):
        made = table(**changes)
        made.commit_block_table(2)
        made.compute_slot_mapping(**batch())
    assert seen == [None, 4, None]
