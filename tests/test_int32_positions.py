"""How far this project's kernels are right on lane ``hivm``: executed, and as the audit's model has it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from conformance import lanes
from reference.case import Case, ContextParallel, Group
from reference.oracle import slot_mapping
from strategies.geometry import Geometry
from tests.commands import run
from tests.faults.catalogue import WINDOW, Fault, write_variant

pytest.importorskip("triton")
from conformance.int32_launches import Launched
from conformance.int32_positions import (
    MARGIN,
    PERIOD,
    Cells,
    _agree,
    _sweep,
    _with_the_end,
    edges,
    first_wrong,
    main,
    slots,
)
from conformance.lanes.errors import OutOfBounds
from reference.verdict import Guard

_UNAVAILABLE = lanes.by_name("hivm").unavailable()


@pytest.mark.skipif(_UNAVAILABLE is not None, reason=str(_UNAVAILABLE))
def test_the_model_and_the_compilers_program_agree() -> None:
    names = ("v1", "parallel", "adaptive", "tiled")
    asked = [word for name in names for word in ("--kernel", name)]
    done = run(sys.executable, "-m", "conformance.int32_positions", *asked, "--block-size", "3")
    assert done.status == 0, done.output
    *lines, header, _, v1, parallel, adaptive, tiled = done.output.splitlines()
    for name, line, cells in zip(names, lines, (v1, parallel, adaptive, tiled), strict=True):
        assert line.startswith(f"{name} b=3 W=1: 1,146,880 positions, none wrong (")
        assert cells == f"| `{name}` | none |"
    assert header == "| first wrong, W = 1 | b = 3 |"


@pytest.mark.skipif(_UNAVAILABLE is not None, reason=str(_UNAVAILABLE))
def test_another_tree_is_looked_at(tmp_path: Path) -> None:
    changed = ("block = distance // block_size", "block = tl.where(found, (pending + 1) // block_size - base, 0)")
    source = write_variant(Fault("divided positions", "far out", "", WINDOW, (changed,), ()), tmp_path)
    asked = ["--kernel", "v1", "--block-size", "128", "--source", str(source)]
    done = run(sys.executable, "-m", "conformance.int32_positions", *asked)
    assert done.status == 1, done.output
    assert ", first wrong 16,777,343, expected to be right up to 2,147,483,647 (" in done.output
    nothing = run(sys.executable, "-m", "conformance.int32_positions", "--source", str(tmp_path / "nothing"))
    assert nothing.status == 2
    assert "holds no package kernels" in nothing.output


@pytest.mark.parametrize(
    "geometry",
    [Geometry(1), Geometry(7), Geometry(3, 2, ContextParallel(3, 1, 2)), Geometry(16, 1, ContextParallel(2, 0, 16))],
    ids=lambda g: f"b{g.block_size}-W{g.cp.size}",
)
def test_slots_are_those_of_the_contract(geometry: Geometry) -> None:
    numbers = np.random.default_rng(1).permutation(1 << 18).astype(np.int32)
    positions = np.arange(900)
    row = tuple(numbers[: 900 * geometry.blocks_per_kv_block].tolist())
    group = Group((row,), geometry.block_size, geometry.kv_cache_block_size)
    case = Case((0, 900), tuple(positions.tolist()), 900, 900, (group,), cp=geometry.cp)
    assert slots(positions, numbers, geometry).tolist() == slot_mapping(case)[0]


def test_cells_repeat_behind_each_other() -> None:
    cells = Cells()
    with cells.row(3 * len(cells.numbers) + 5) as row:
        assert row.shape == (1, 3 * len(cells.numbers) + 5)
        assert np.array_equal(row[0].numpy(), np.resize(cells.numbers, row.shape[1]))


def test_edges_reach_the_largest_position_and_the_smallest() -> None:
    assert edges()[0].start == 0
    assert edges()[-1].stop == 2**31
    assert any(1 << 24 in each and (1 << 24) - 1 in each for each in edges())


@pytest.mark.parametrize(
    ("wrong", "expected", "furthest", "agrees"),
    [
        (None, 2**31 - 1, 2**31 - 1, True),
        (101, 100, 2**31 - 1, True),
        (100, 100, 2**31 - 1, False),
        (None, 100, 2**31 - 1, False),
        (5, 2**31 - 1, 2**31 - 1, False),
        (None, 100, 100, True),
        (None, 100, 101, False),
    ],
)
def test_sooner_and_later_than_the_model_says_is_told(
    wrong: int | None, expected: int, furthest: int, agrees: bool
) -> None:
    assert _agree(wrong, expected, Geometry(3), furthest) == agrees


@pytest.mark.skipif(_UNAVAILABLE is not None, reason=str(_UNAVAILABLE))
@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("--kernel fused --cp-size 2", "--kernel fused: there is no launch for --cp-size 2"),
        ("--kernel dcp --up-to 0", "argument --up-to: 0 is not above 0"),
        ("--up-to -5", "argument --up-to: -5 is not above 0"),
        ("--block-size 0", "argument --block-size: 0 is not above 0"),
        ("--block-size 16384", "--block-size 16384: slots in blocks of more than 16383 tokens may be no int32"),
        ("--cp-size 0", "argument --cp-size: 0 is not above 0"),
        ("--cp-size 16777216", "--cp-size 16777216: a virtual block of 128 times as many tokens is no int32"),
    ],
)
def test_nothing_to_look_at_is_said(asked: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(asked.split())
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"error: {says}\n")


def test_positions_below_what_a_kernel_gets_wrong_are_right(capsys: pytest.CaptureFixture[str]) -> None:
    def launch(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
        output.copy_(torch.from_numpy(slots(positions.numpy(), row[0, :PERIOD].numpy(), g)))

    chosen = {"v1": Launched("v1", launch, "positions"), "v2": Launched("v2", launch, "positions", 100)}
    assert _sweep(chosen, [16], 1, 1600, "hivm") == 0
    assert _sweep(chosen, [16], 1, 1601, "hivm") == 1
    assert "v2 b=16 W=1: 1,601 positions, none wrong, expected to be right up to 1,599 (" in capsys.readouterr().err


def test_the_end_of_what_a_kernel_stages_is_looked_at_and_found() -> None:
    """Launches end with a violation from block 100 on, somewhere within a launch."""

    def launch(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
        if int(positions[-1]) >= 100 * g.block_size:
            raise OutOfBounds(Guard("UB", "read", 0, 0, "past what was staged"))
        output.copy_(torch.from_numpy(slots(positions.numpy(), cells.numbers, g)))

    cells, how, g = Cells(), Launched("v2", launch, "positions", 100), Geometry(48)
    (around,) = _with_the_end([], how, g)
    assert around == range(4800 - MARGIN, 4800 + MARGIN)
    assert first_wrong(how, cells, g, [around])[0] == 4800
