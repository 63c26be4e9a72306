"""``compute_slot_mapping``: what it launches (interpreted, in a process of its own) and what it refuses."""

from __future__ import annotations

import ast
import inspect
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from kernels.arguments import launching
from kernels.fused_groups import compute_slot_mapping_fused_groups, prewarm_fused_slot_mapping_kernels
from kernels.group_tables import GroupTables
from kernels.replay import pad_replayed_slot_mapping
from kernels.slot_mapping import _compute_slot_mapping_kernel, compute_slot_mapping
from kernels.slot_mappings_v2 import compute_slot_mappings
from kernels.tiled import compute_slot_mapping_tiled
from kernels.torch_dcp import compute_dcp_slot_mapping
from kernels.window import block_table_window_size, look_up_slots
from reference.case import Case, ContextParallel, Group, Launch
from reference.verdict import expected_output
from tests.interpreter import interpret, needs_interpreter
from tests.random_cases import draw
from tests.refusals import first_word, refusal


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


# --- what is launched ------------------------------------------------------------------------------------------------


def draw_launches(seed: int, count: int) -> list[tuple[Case, Launch]]:
    rng, launches = random.Random(seed), []
    for _ in range(count):
        circular = rng.random() < 0.2
        case = draw(rng, world_sizes=(1,) if circular else (1, 2, 3, 8), circular=circular)
        case = replace(case, pad_id=rng.choice((-1, -1, -9, 5)))
        length = case.max_num_tokens + rng.choice((0, 3))
        launches.append((case, Launch(output_dtype=rng.choice(("int32", "int64")), output_length=length)))
    return launches


@needs_interpreter
@pytest.mark.parametrize("validate", [False, True])
def test_random_launches_match_the_oracle(validate: bool) -> None:
    launches = draw_launches(seed=2, count=60)
    outputs = interpret(launches, validate=validate)
    for (case, launch), output in zip(launches, outputs, strict=True):
        assert output == expected_output(case, launch.output_length)[0], (case, launch)


@needs_interpreter
def test_a_request_longer_than_a_tile_is_mapped_to_its_end() -> None:
    count = 2 * 1024 + 1
    group = Group((tuple(range(100, 400)),), block_size=16, kv_cache_block_size=16)
    case = Case((0, count), tuple(range(9, 9 + count)), count, count + 1025, (group,))
    assert interpret([(case, Launch())]) == [expected_output(case, case.max_num_tokens)[0]]


@needs_interpreter
def test_padding_begins_where_the_last_request_ends() -> None:
    """The host counted more tokens than there are, as a captured graph does."""
    group = Group(((7, 9), (3, 4)), block_size=4, kv_cache_block_size=4)
    case = Case((0, 1, 3), (2, 0, 5), 3, 2000, (group,))
    counted = [replace(case, positions=(*case.positions, *(0,) * n), num_tokens=3 + n) for n in (1, 1500)]
    assert interpret([(each, Launch()) for each in counted]) == [expected_output(case, 2000)[0]] * 2


NO_COLUMN = torch.empty((2, 0), dtype=torch.int32)  # torch says that its rows are 1 cell apart


@needs_interpreter
def test_a_rank_without_tokens_needs_no_column() -> None:
    case = Case((0, 1, 2), (0, 0), 2, 4, (Group(((), ()), 2, 2),), cp=ContextParallel(2, 1, 1))
    assert interpret([(case, Launch())]) == [[-1, -1, -1, -1]]


def test_rows_without_a_column_are_no_cells_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes the stride for the cells that a row has."""
    launched: list[Any] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            return lambda *arguments, **constants: launched.append(arguments[5])

    monkeypatch.setattr("kernels.slot_mapping._compute_slot_mapping_kernel", Kernel())
    offsets, positions = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([-1])
    compute_slot_mapping(offsets, positions, NO_COLUMN, torch.empty(1, dtype=torch.int32), num_tokens=1, block_size=2)
    assert launched == [0]


def test_groups_whose_rows_have_no_column_are_taken() -> None:
    assert GroupTables([NO_COLUMN], [2]).device == NO_COLUMN.device


# --- how it is compiled ----------------------------------------------------------------------------------------------

DOCUMENTED = (
    "num_tokens",
    "max_num_tokens",
    "query_start_loc_ptr",
    "positions_ptr",
    "block_table_ptr",
    "block_table_stride",
    "block_size",
    "slot_mapping_ptr",
    "KV_CACHE_BLOCK_SIZE",
    "BLOCKS_PER_KV_BLOCK",
    "TOTAL_CP_WORLD_SIZE",
    "TOTAL_CP_RANK",
    "CP_KV_CACHE_INTERLEAVE_SIZE",
    "PAD_ID",
    "TILE_BLOCK_SIZE",
    "BLOCK_TABLE_WINDOW_SIZE",
    "IS_CIRCULAR",
)


def test_the_kernel_takes_the_documented_parameters_in_order() -> None:
    parameters = inspect.signature(_compute_slot_mapping_kernel.fn).parameters
    assert tuple(parameters) == DOCUMENTED
    assert {name for name in DOCUMENTED if "constexpr" in str(parameters[name].annotation)} == set(DOCUMENTED[8:])
    assert parameters["IS_CIRCULAR"].default is False


def test_a_new_number_of_tokens_does_not_compile_again() -> None:
    function = ast.parse(inspect.getsource(_compute_slot_mapping_kernel.fn)).body[0]
    assert isinstance(function, ast.FunctionDef)
    (decorator,) = function.decorator_list
    assert isinstance(decorator, ast.Call)
    (option,) = decorator.keywords
    assert option.arg == "do_not_specialize"
    assert ast.literal_eval(option.value) == ["num_tokens", "max_num_tokens"]


def test_the_kernel_takes_no_remainder_of_a_vector() -> None:
    for function in (_compute_slot_mapping_kernel, look_up_slots):
        tree = ast.parse(inspect.getsource(function.fn))
        assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Mod)]


@pytest.mark.parametrize("tile", [16, 64, 1024])
@pytest.mark.parametrize("block_size", [1, 3, 16, 48, 128, 2048])
def test_a_window_holds_the_blocks_of_consecutive_tokens(tile: int, block_size: int) -> None:
    window = block_table_window_size(tile, block_size)
    touched = max((first + tile - 1) // block_size - first // block_size + 1 for first in range(block_size))
    assert touched <= window < 2 * (tile // block_size + 2)
    assert window & (window - 1) == 0


# --- what is refused -------------------------------------------------------------------------------------------------


def call(**changes: Any) -> None:
    """Two requests of two tokens each in blocks of 4, with ``changes``."""
    arguments: dict[str, Any] = {
        "query_start_loc": ints(0, 2, 4),
        "positions": torch.tensor([0, 1, 6, 7], dtype=torch.int64),
        "block_table": ints(3, 4, 5, 6).view(2, 2),
        "slot_mapping": torch.zeros(8, dtype=torch.int32),
        "num_tokens": 4,
        "block_size": 4,
    }
    compute_slot_mapping(**{**arguments, **changes})


def test_what_is_not_refused_here_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    class Launched(Exception):
        pass

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> None:
            assert grid == (3,)
            raise Launched

    monkeypatch.setattr("kernels.slot_mapping._compute_slot_mapping_kernel", Kernel())
    with pytest.raises(Launched):
        call(validate=True)
    with pytest.raises(Launched):
        call(validate=True, positions=torch.tensor([0, 1, -6, 7]))  # a negative position is no error: it gets padding
    with pytest.raises(Launched):
        call(cp_interleave=3)  # means nothing on one rank
    with pytest.raises(Launched):  # position 28 is rank 1's, its block index 3 need not exist here
        call(validate=True, positions=torch.tensor([0, 1, 3, 28]), cp_size=2, cp_interleave=4)
    with pytest.raises(Launched):  # the last slot that int32 holds, on the third lap of the ring
        call(
            validate=True,
            positions=torch.tensor([0, 1, 2, 11]),
            is_circular=True,
            block_table=ints(3, 2**29 - 1)[:, None],
        )


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("hybrid-divides: block_size is 0, must be at least 1", {"block_size": 0}),
        (
            "hybrid-divides: kv_cache_block_size 6 is not a positive multiple of block_size 4",
            {"kv_cache_block_size": 6},
        ),
        ("hybrid-divides: kv_cache_block_size 0 is not", {"kv_cache_block_size": 0}),
        ("hybrid-width: row width 2 is not a multiple of 3", {"kv_cache_block_size": 12}),
        ("rank-range: cp_rank is 1, must be in [0, cp_size = 1)", {"cp_rank": 1}),
        ("interleave-divides: cp_interleave 3 does not divide", {"cp_size": 2, "cp_interleave": 3}),
        ("circular-no-cp: a circular group cannot be shared by cp_size 2", {"is_circular": True, "cp_size": 2}),
        ("circular-one-block: a circular group's row is 1 block wide, this one is 2", {"is_circular": True}),
        ("qsl-capacity: num_tokens 5 exceeds the 4 positions", {"num_tokens": 5}),
        ("qsl-capacity: num_tokens -1 is outside [0, max_num_tokens = 8]", {"num_tokens": -1}),
        ("qsl-capacity: num_tokens 4 is outside [0, max_num_tokens = 3]", {"max_num_tokens": 3}),
        ("qsl-capacity: max_num_tokens 9 exceeds slot_mapping of 8", {"max_num_tokens": 9}),
        ("row-exists: 2 requests need as many rows, block_table has 1", {"block_table": ints(3, 4).view(1, 2)}),
        ("slot-fits: pad_id -2147483649 is outside", {"pad_id": -(2**31) - 1}),
        ("query_start_loc: expected int32, got int64", {"query_start_loc": torch.tensor([0, 2, 4])}),
        ("query_start_loc: holds nothing", {"query_start_loc": ints()}),
        ("query_start_loc: is on meta", {"query_start_loc": ints(0, 2, 4).to("meta")}),
        ("positions: expected int64, got int32", {"positions": ints(0, 1, 2, 3)}),
        ("positions: expected a contiguous 1-D tensor", {"positions": torch.zeros(8, dtype=torch.int64)[::2]}),
        ("block_table: expected a 2-D tensor, got shape (4,)", {"block_table": ints(0, 1, 2, 3)}),
        ("block_table: expected int32, got int64", {"block_table": torch.zeros(2, 2, dtype=torch.int64)}),
        ("block_table: cells of a row must be adjacent", {"block_table": ints(*range(8)).view(2, 4)[:, ::2]}),
        ("block_table: row stride 0 is below", {"block_table": ints(3, 4).expand(2, 2)}),
        (
            "block_table: 2 rows of stride 3 span 6 cells, its storage ends after 5",
            {"block_table": ints(*range(6))[1:].as_strided((2, 2), (3, 1))},
        ),
        ("slot_mapping: expected int32 or int64, got int16", {"slot_mapping": torch.zeros(8, dtype=torch.int16)}),
    ],
    ids=first_word,
)
def test_what_can_be_checked_on_the_host_is_refused(message: str, changes: dict[str, Any]) -> None:
    with refusal(message):
        call(**changes)


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        ("qsl-monotone: query_start_loc[0] is 1, must be 0", {"query_start_loc": ints(1, 2, 4)}),
        ("qsl-monotone: query_start_loc[2] is 4, below query_start_loc[1] = 5", {"query_start_loc": ints(0, 5, 4)}),
        ("qsl-capacity: query_start_loc ends at 3, num_tokens is 4", {"query_start_loc": ints(0, 2, 3)}),
        (
            "pos-int32: positions[3] is 2147483648, outside [-2147483648, 2147483647]",
            {"positions": torch.tensor([0, 1, 2, 2**31])},
        ),
        (
            "row-width: position 8 of request 1 (token 2) needs block index 2, the row has 2",
            {"positions": torch.tensor([0, 1, 8, 9])},
        ),
        (
            "row-width: position 17 of request 0 (token 1) needs block index 2, the row has 2",
            {"positions": torch.tensor([0, 17, 20, 28]), "cp_size": 2, "cp_interleave": 4},
        ),
        (
            "slot-fits: token 2 in block 536870912 has slot 2147483650, outside [-2147483648, 2147483647]",
            {"block_table": ints(3, 4, 5, 2**29).view(2, 2)},
        ),
    ],
    ids=first_word,
)
def test_what_only_the_tensors_tell_is_refused_when_asked(message: str, changes: dict[str, Any]) -> None:
    with refusal(message):
        call(validate=True, **changes)


# --- what is no tensor -----------------------------------------------------------------------------------------------

PAIR, LONGS, ADDRESSES = ints(0, 2), torch.tensor([0, 1]), torch.tensor([1, 1], dtype=torch.uint64)
ALL_GROUPS = {
    "groups": GroupTables([ints(3, 4).view(1, 2)], [4]),
    "idx_mapping": ints(0),
    "query_start_loc": PAIR,
    "positions": LONGS,
    "slot_mappings": torch.zeros(1, 4, dtype=torch.int32),
}
LEGAL: dict[Any, dict[str, Any]] = {
    compute_slot_mapping: {
        "query_start_loc": PAIR,
        "positions": LONGS,
        "block_table": ints(3, 4).view(1, 2),
        "slot_mapping": torch.zeros(4, dtype=torch.int32),
        "num_tokens": 2,
        "block_size": 4,
    },
    compute_slot_mappings: ALL_GROUPS,
    compute_slot_mapping_tiled: ALL_GROUPS,
    compute_slot_mapping_fused_groups: {
        "group_count": 1,
        "num_reqs": 1,
        "num_tokens": 2,
        "max_num_tokens": 2,
        "query_start_loc_ptr": PAIR,
        "positions_ptr": LONGS,
        "block_table_addrs_ptr": ADDRESSES,
        "slot_mapping_addrs_ptr": ADDRESSES,
        "block_table_strides_ptr": LONGS,
        "block_sizes_ptr": ints(4),
        "min_block_size": 4,
        "pad_id": -1,
        "is_circular_ptr": ints(0),
    },
    pad_replayed_slot_mapping: {
        "num_reqs": 1,
        "query_start_loc": PAIR,
        "positions": LONGS,
        "replay_start": ints(1),
        "slot_mapping_addrs": ADDRESSES,
        "cacheable_groups": ints(0),
        "window": 4,
        "pad_id": -1,
    },
    compute_dcp_slot_mapping: {
        "req_indices": ints(0, 0),
        "positions": LONGS,
        "block_table": ints(3, 4).view(1, 2),
        "slot_mapping": torch.zeros(4, dtype=torch.int32),
        "block_size": 4,
        "kv_cache_block_size": 4,
        "cp_size": 2,
        "cp_rank": 0,
        "cp_interleave": 1,
    },
}
NOT_SCALARS = [
    (function, name)
    for function, arguments in LEGAL.items()
    for name, value in arguments.items()
    if not isinstance(value, int)
]


@pytest.mark.parametrize("kind", [torch.Tensor.tolist, torch.Tensor.numpy], ids=["list", "ndarray"])
@pytest.mark.parametrize(("function", "name"), NOT_SCALARS)
def test_what_is_no_tensor_is_refused(function: Any, name: str, kind: Any) -> None:
    value = LEGAL[function][name]
    given, expected = (kind(value), "a tensor of ") if isinstance(value, torch.Tensor) else ([value], "GroupTables, ")
    with refusal(f"{name}: expected {expected}") as raised:
        function(**{**LEGAL[function], name: given})
    assert str(raised.value).endswith(f"got {type(given).__name__}")


def test_a_block_table_of_a_group_is_no_list() -> None:
    for tables, group in (([[3, 4]], 0), ([ints(3, 4).view(1, 2), [[3, 4]]], 1)):
        with refusal(f"block_table: expected a tensor of int32, got list (group {group})"):
            GroupTables(tables, [4] * len(tables))


# --- where Triton cannot launch --------------------------------------------------------------------------------------

LAUNCHING = [function for function in LEGAL if function is not compute_dcp_slot_mapping]


@pytest.mark.parametrize("function", LAUNCHING)
def test_tensors_of_the_host_need_the_interpreter(function: Any) -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("Triton interprets")
    with pytest.raises(RuntimeError, match=r"Triton cannot launch it here on tensors of cpu \(.*TRITON_INTERPRET=1 be"):
        function(**LEGAL[function])


def test_compiling_for_the_host_beforehand_needs_the_interpreter() -> None:
    if os.environ.get("TRITON_INTERPRET") == "1":
        pytest.skip("Triton interprets")
    with pytest.raises(RuntimeError, match="_kernel is a Triton kernel, and Triton cannot launch it here"):
        prewarm_fused_slot_mapping_kernels(4, 16, -1, "cpu")


def test_what_a_launcher_in_place_of_tritons_raises_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(Exception):
        pass

    def run(*_: Any, **__: Any) -> None:
        raise Crash("as it was")

    monkeypatch.setattr(type(_compute_slot_mapping_kernel), "run", run)
    with pytest.raises(Crash, match=r"^as it was$"), launching(_compute_slot_mapping_kernel, torch.device("cpu")):
        _compute_slot_mapping_kernel[(1,)]()
    with pytest.raises(Crash, match=r"^as it was$"):
        call()


def test_what_tritons_launcher_raises_for_a_device_is_not_changed() -> None:
    with pytest.raises(KeyError, match="as it was"), launching(_compute_slot_mapping_kernel, torch.device("cuda")):
        raise KeyError("as it was")


@needs_interpreter
def test_what_the_interpreter_raises_is_not_changed() -> None:
    text = (
        "import torch\n"
        "from kernels.arguments import launching\n"
        "from kernels.slot_mapping import _compute_slot_mapping_kernel as kernel\n"
        "with launching(kernel, torch.device('cpu')):\n"
        "    raise KeyError('as it was')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).resolve().parents[1],
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.stderr.endswith("KeyError: 'as it was'\n")
