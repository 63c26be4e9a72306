"""``python -m conformance.int32_positions``: how far kernels are right, executed.

A request may be as long as positions are int32: no table of that many blocks fits anywhere, so the same cells are
mapped again and again behind each other, and what a cell holds depends on its place in them. Around every power of
two and every multiple of 2**24 (``--up-to``: everywhere below) slots are compared with the definition, up to the first
that is wrong. Exit status 0: the kernels are right as far as :mod:`conformance.audit.bounds` says, and no further;
1: they are not.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import mmap
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from conformance import lanes
from conformance.audit.bounds import Vector, bounds
from reference.case import ContextParallel
from reference.fields import INT32_MAX
from strategies.geometry import Geometry

BLOCK_SIZES = (1, 2, 3, 7, 16, 48, 128)
PERIOD = 1 << 18  # cells; block numbers below it, so that slots of blocks of 128 tokens fit int32 many times over
MARGIN = 4096
TOKENS = 1 << 16  # of a launch
_ROOT = Path(__file__).parents[1]
_SHARED, _FIXED, _PRIVATE_NOTHING = 0x01, 0x10, 0x02 | 0x20 | 0x4000

Launch = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Geometry], None]
"""Of (positions of one request, its row of the table, output, geometry)."""


class Cells:
    """A row of int32 cells as long as asked for: a permutation of 0 .. PERIOD - 1, over and over."""

    def __init__(self) -> None:
        self.numbers = np.random.default_rng(5).permutation(PERIOD).astype(np.int32)
        self._file = os.memfd_create("cells")
        os.write(self._file, self.numbers.tobytes())
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_long,
        ]

    @contextmanager
    def row(self, width: int) -> Iterator[torch.Tensor]:
        """A table of one row, ``width`` cells wide. Raises OSError where they cannot be mapped."""
        times = -(-width // PERIOD)
        size = 4 * PERIOD
        start = self._map(None, times * size, _PRIVATE_NOTHING, -1)
        try:
            for index in range(times):
                self._map(start + index * size, size, _SHARED | _FIXED, self._file)
            cells = (ctypes.c_int32 * width).from_address(start)
            yield torch.from_numpy(np.ctypeslib.as_array(cells)).view(1, width)
        finally:
            self._libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t(times * size))

    def _map(self, address: int | None, size: int, flags: int, file: int) -> int:
        found = self._libc.mmap(address, size, mmap.PROT_READ, flags, file, 0)
        if found is None or found == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), f"cannot map {size} bytes of cells")
        return int(found)


def _v1(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    tokens = len(positions)
    _function("slot_mapping", "compute_slot_mapping")(
        torch.tensor([0, tokens], dtype=torch.int32),
        positions,
        row,
        output,
        num_tokens=tokens,
        block_size=g.block_size,
        kv_cache_block_size=g.kv_cache_block_size,
        cp_size=g.cp.size,
        cp_rank=g.cp.rank,
        cp_interleave=g.cp.interleave,
    )


def _groups(row: torch.Tensor, g: Geometry) -> Any:
    return _function("group_tables", "GroupTables")(
        [row],
        [g.block_size],
        [g.kv_cache_block_size],
        cp_size=g.cp.size,
        cp_rank=g.cp.rank,
        cp_interleave=g.cp.interleave,
    )


def _v2(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    starts = torch.tensor([0, len(positions)], dtype=torch.int32)
    _function("slot_mappings_v2", "compute_slot_mappings")(
        _groups(row, g), torch.zeros(1, dtype=torch.int32), starts, positions, output.view(1, len(positions))
    )


def _tiled(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    starts = torch.tensor([0, len(positions)], dtype=torch.int32)
    launch = _function("tiled", "compute_slot_mapping_tiled")
    launch(_groups(row, g), starts, positions, output.view(1, len(positions)))


def _fused(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    launch = _function("fused_groups", "compute_slot_mapping_fused_groups")
    launch(1, 1, *_by_address(positions, row, output, g), g.block_size, pad_id=-1)


def _parallel(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    kernel = _function("fused_groups", "_compute_slot_mapping_fused_groups_kernel")
    kernel[_GRID](*_by_address(positions, row, output, g), None, **_tile(g, ""))


def _adaptive(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> None:
    kernel = _function("fused_groups", "_compute_slot_mapping_fused_groups_adaptive_kernel")
    kernel[_GRID](*_by_address(positions, row, output, g), None, **_tile(g, ""), **_tile(g, "SMALL_", 64))


_GRID = (1, 2, 4)  # groups; requests and the padding behind them; programs of each


def _by_address(positions: torch.Tensor, row: torch.Tensor, output: torch.Tensor, g: Geometry) -> tuple[Any, ...]:
    """What fused kernels and their host function take of one group, in this order."""
    tokens = len(positions)
    return (
        tokens,
        tokens,
        torch.tensor([0, tokens], dtype=torch.int32),
        positions,
        torch.tensor([row.data_ptr()], dtype=torch.uint64),
        torch.tensor([output.data_ptr()], dtype=torch.uint64),
        torch.tensor([row.shape[1]], dtype=torch.int64),
        torch.tensor([g.block_size], dtype=torch.int32),
    )


def _tile(g: Geometry, prefix: str, tile: int = 1024) -> dict[str, int]:
    window = _function("window", "block_table_window_size")(tile, g.block_size)
    padding = {} if prefix else {"PAD_ID": -1}
    return {**padding, f"{prefix}TILE_BLOCK_SIZE": tile, f"{prefix}BLOCK_TABLE_WINDOW_SIZE": window}


def _function(module: str, name: str) -> Any:
    """Of package ``kernels``, which ``--source`` chooses: so nothing of it may be imported before."""
    return getattr(importlib.import_module(f"kernels.{module}"), name)


KERNELS: dict[str, tuple[str, Launch]] = {
    "v1": ("v1", _v1),
    "v2": ("v2", _v2),
    "fused": ("fused", _fused),
    "parallel": ("fused", _parallel),
    "adaptive": ("fused", _adaptive),
    "tiled": ("tiled", _tiled),
}
"""Entry points, each with its family and how it is launched."""


def slots(positions: Vector, numbers: npt.NDArray[np.int32], g: Geometry) -> Vector:
    """By the definition, in int64."""
    virtual_block, offset = np.divmod(positions, g.virtual_block_size)
    local = offset // g.turn * g.cp.interleave + offset % g.cp.interleave if g.cp.size > 1 else offset
    cell = virtual_block * g.blocks_per_kv_block + local // g.block_size
    found: Vector = numbers[cell % PERIOD].astype(np.int64) * g.block_size + local % g.block_size
    if g.cp.size > 1:
        found[offset // g.cp.interleave % g.cp.size != g.cp.rank] = -1
    return found


def first_wrong(launch: Launch, cells: Cells, g: Geometry, ranges: Iterable[range]) -> tuple[int | None, int]:
    """The first wrong position of ``ranges``, None if there is none, and how many were looked at.

    No row has 2**31 cells, of which the last position would need the last where a block is one token.
    """
    looked_at = 0
    width = min((INT32_MAX // g.virtual_block_size + 1) * g.blocks_per_kv_block, INT32_MAX)
    end = min(width // g.blocks_per_kv_block * g.virtual_block_size, INT32_MAX + 1)
    output = torch.zeros(TOKENS, dtype=torch.int32)
    with cells.row(width) as row:
        for each in ranges:
            for start in range(each.start, min(each.stop, end), TOKENS):
                positions = np.arange(start, min(start + TOKENS, each.stop, end), dtype=np.int64)
                mapped = output[: len(positions)]
                launch(torch.from_numpy(positions), row, mapped, g)
                looked_at += len(positions)
                wrong = np.flatnonzero(mapped.numpy() != slots(positions, cells.numbers, g))
                if wrong.size:
                    return int(positions[wrong[0]]), looked_at
    return None, looked_at


def edges() -> list[range]:
    """Around every power of two from 2**12 on, and every multiple of 2**24."""
    middles = sorted({0, *(1 << power for power in range(12, 32)), *(number << 24 for number in range(1, 129))})
    return [range(max(0, middle - MARGIN), min(middle + MARGIN, INT32_MAX + 1)) for middle in middles]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.int32_positions", description=__doc__)
    parser.add_argument("--lane", default="hivm", choices=["hivm", "lowered"], help="default hivm")
    parser.add_argument("--kernel", action="append", choices=list(KERNELS), help="only this one; repeatable")
    parser.add_argument("--block-size", type=int, action="append", metavar="B", help="only this one; repeatable")
    parser.add_argument("--cp-size", type=int, default=1, metavar="W", help="ranks that share the request (default 1)")
    parser.add_argument("--up-to", type=int, metavar="N", help="every position below N, instead of those around edges")
    parser.add_argument("--source", metavar="PATH", help="another tree with a package kernels than this project's")
    options = parser.parse_args(arguments)
    if options.source is not None:
        if not Path(options.source, "kernels", "__init__.py").is_file():
            parser.error(f"{options.source} holds no package kernels")
        sys.path.insert(0, str(Path(options.source).resolve()))
    lane = lanes.by_name(options.lane)
    reason = lane.unavailable()
    if reason is not None:
        print(f"{parser.prog}: lane {lane.name}: {reason}", file=sys.stderr)
        return 2
    os.environ.update(lane.environment())
    lane.enter(str(_ROOT / ".cache"))
    cells, agree = Cells(), True
    ranges = edges() if options.up_to is None else [range(min(options.up_to, INT32_MAX + 1))]
    for name in options.kernel or KERNELS:
        family, launch = KERNELS[name]
        if family == "fused" and options.cp_size > 1:
            continue
        for block_size in options.block_size or BLOCK_SIZES:
            g = Geometry(block_size, 1, ContextParallel(options.cp_size, options.cp_size - 1, 1))
            started = time.monotonic()
            wrong, looked_at = first_wrong(launch, cells, g, ranges)
            kinds = frozenset({"division"}) if lane.name == "hivm" else frozenset[str]()
            expected = bounds(g, family, kinds, own=True, wide=False).position
            agrees = _agree(wrong, expected, g)
            agree &= agrees
            print(
                f"{name} b={block_size} W={options.cp_size}: {looked_at:,} positions, "
                f"{'none wrong' if wrong is None else f'first wrong {wrong:,}'}"
                f"{'' if agrees else f', expected to be right up to {expected:,}'} "
                f"({time.monotonic() - started:.1f} s)",
                flush=True,
            )
    return 0 if agree else 1


def _agree(wrong: int | None, expected: int, g: Geometry) -> bool:
    """Whether the first ``wrong`` position is the one after ``expected``; later where ranks share the request, as each
    sees its own tokens only."""
    if wrong is not None and wrong <= expected:
        return False
    return g.cp.size > 1 or (wrong is None) == (expected == INT32_MAX)


if __name__ == "__main__":
    sys.exit(main())
