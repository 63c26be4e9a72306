"""``python -m conformance.int32_positions``: how far kernels are right, executed.

A request may be as long as positions are int32: no table of that many blocks fits anywhere, so the same cells are
mapped again and again behind each other, and what a cell holds depends on its place in them. Around every power of
two and every multiple of 2**24 (``--up-to``: everywhere below) slots are compared with the definition, up to the first
that is wrong. Prints the table of docs/ascend-audit.md. Exit status 0: the kernels are right as far as
:mod:`conformance.audit.bounds` says, and no further; 1: they are not; 2: nothing was run.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from conformance import lanes
from conformance.agreement import _positive
from conformance.audit.bounds import Vector, bounds
from conformance.int32_launches import OWN, Launch, Launched, published, ring
from conformance.lanes.errors import OutOfBounds
from reference.case import ContextParallel
from reference.fields import INT32_MAX
from strategies.geometry import Geometry

BLOCK_SIZES = (1, 2, 3, 7, 16, 48, 128)
PERIOD = 1 << 17  # cells; block numbers below it: slots of blocks of 128 tokens then fit float32, as some compute them
LARGEST_BLOCK = (INT32_MAX + 1) // PERIOD - 1
MARGIN = 4096
TOKENS = 1 << 16  # of a launch
_ROOT = Path(__file__).parents[1]
_SHARED, _FIXED, _PRIVATE_NOTHING = 0x01, 0x10, 0x02 | 0x20 | 0x4000


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


def slots(positions: Vector, numbers: npt.NDArray[np.int32], g: Geometry) -> Vector:
    """By the definition, in int64."""
    virtual_block, offset = np.divmod(positions, g.virtual_block_size)
    local = offset // g.turn * g.cp.interleave + offset % g.cp.interleave if g.cp.size > 1 else offset
    cell = virtual_block * g.blocks_per_kv_block + local // g.block_size
    found: Vector = numbers[cell % PERIOD].astype(np.int64) * g.block_size + local % g.block_size
    if g.cp.size > 1:
        found[offset // g.cp.interleave % g.cp.size != g.cp.rank] = -1
    return found


def ring_slots(positions: Vector, numbers: npt.NDArray[np.int32], g: Geometry) -> Vector:
    """The same of a ring, whose only block is in the first cell."""
    found: Vector = int(numbers[0]) * g.block_size + positions % g.block_size
    return found


def first_wrong(how: Launched, cells: Cells, g: Geometry, ranges: Iterable[range]) -> tuple[int | None, int]:
    """The first position of ``ranges`` that is wrong, or that a lane stops; None if there is none. And how many were
    looked at.

    No row has 2**31 cells, of which the last position would need the last where a block is one token.
    """
    looked_at, circular = 0, how.launch is ring
    width = min((INT32_MAX // g.virtual_block_size + 1) * g.blocks_per_kv_block, INT32_MAX)
    end = INT32_MAX + 1 if circular else min(width // g.blocks_per_kv_block * g.virtual_block_size, INT32_MAX + 1)
    output = torch.zeros(TOKENS, dtype=torch.int32)
    with cells.row(width) as row:
        for each in ranges:
            for start in range(each.start, min(each.stop, end), TOKENS):
                positions = np.arange(start, min(start + TOKENS, each.stop, end), dtype=np.int64)
                mapped = output[: len(positions)]
                looked_at += len(positions)
                try:
                    how.launch(torch.from_numpy(positions), row, mapped, g)
                except OutOfBounds:
                    return _first_ended(how.launch, row, positions, g), looked_at
                expected = (ring_slots if circular else slots)(positions, cells.numbers, g)
                wrong = np.flatnonzero(mapped.numpy() != expected)
                if wrong.size:
                    return int(positions[wrong[0]]), looked_at
    return None, looked_at


def _first_ended(launch: Launch, row: torch.Tensor, positions: Vector, g: Geometry) -> int:
    """The first of ``positions``, whose launch ends with a violation, up to which one does."""
    low, high = 0, len(positions)  # launches of low positions go through, of high ones they do not
    while high - low > 1:
        middle = (low + high) // 2
        try:
            launch(torch.from_numpy(positions[:middle].copy()), row, torch.zeros(middle, dtype=torch.int32), g)
            low = middle
        except OutOfBounds:
            high = middle
    return int(positions[high - 1])


def edges() -> list[range]:
    """Around every power of two from 2**12 on, and every multiple of 2**24."""
    middles = sorted({0, *(1 << power for power in range(12, 32)), *(number << 24 for number in range(1, 129))})
    return [range(max(0, middle - MARGIN), min(middle + MARGIN, INT32_MAX + 1)) for middle in middles]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.int32_positions", description=__doc__)
    parser.add_argument("--lane", default="hivm", choices=["hivm", "lowered"], help="default hivm")
    parser.add_argument("--kernel", action="append", metavar="NAME", help="only this entry point; repeatable")
    parser.add_argument("--block-size", type=_positive, action="append", metavar="B", help="only this one; repeatable")
    parser.add_argument(
        "--cp-size", type=_positive, default=1, metavar="W", help="ranks that share the request (default 1)"
    )
    parser.add_argument("--circular", action="store_true", help="rings of v1")
    parser.add_argument(
        "--up-to", type=_positive, metavar="N", help="every position below N, instead of those around edges"
    )
    parser.add_argument("--subject", default="kernels", choices=["kernels", "vllm-ascend"], help="default kernels")
    parser.add_argument(
        "--source", metavar="PATH", help="another tree with a package kernels, or the unpacked wheel of vllm-ascend"
    )
    options = parser.parse_args(arguments)
    if options.subject == "kernels" and options.source is not None:
        if not Path(options.source, "kernels", "__init__.py").is_file():
            parser.error(f"{options.source} holds no package kernels")
        sys.path.insert(0, str(Path(options.source).resolve()))
    if options.circular and (options.cp_size > 1 or options.kernel or options.subject != "kernels"):
        parser.error("--circular: rings are those of v1 of subject kernels, on one rank")
    sizes = options.block_size or BLOCK_SIZES
    if max(sizes) > LARGEST_BLOCK:
        parser.error(f"--block-size {max(sizes)}: slots in blocks of more than {LARGEST_BLOCK} tokens may be no int32")
    if max(sizes) * options.cp_size > INT32_MAX:
        parser.error(f"--cp-size {options.cp_size}: a virtual block of {max(sizes)} times as many tokens is no int32")
    lane = lanes.by_name(options.lane)
    reason = lane.unavailable()
    if reason is not None:
        print(f"{parser.prog}: lane {lane.name}: {reason}", file=sys.stderr)
        return 2
    os.environ.update(lane.environment())
    lane.enter(str(_ROOT / ".cache"))
    there: Mapping[str, Launched] = OWN
    if options.circular:
        there = {"v1, a ring": Launched("v1", ring)}
    elif options.subject != "kernels":
        try:
            there = published(options.source, lane)
        except FileNotFoundError as error:
            parser.error(str(error))
    if unknown := set(options.kernel or ()) - there.keys():
        parser.error(f"--kernel {', '.join(sorted(unknown))}: there are {', '.join(there)}")
    alone = {name for name, how in there.items() if options.cp_size > 1 and not how.shares}
    if refused := alone & set(options.kernel or ()):
        parser.error(f"--kernel {', '.join(sorted(refused))}: there is no launch for --cp-size {options.cp_size}")
    chosen = {name: how for name, how in there.items() if name in (options.kernel or there) and name not in alone}
    if not chosen:
        parser.error(f"{options.source or options.subject} has no kernel that could be looked at")
    return _sweep(chosen, sizes, options.cp_size, options.up_to, lane.name)


def _sweep(chosen: Mapping[str, Launched], sizes: Sequence[int], cp_size: int, up_to: int | None, lane: str) -> int:
    """Every one of ``chosen`` in blocks of all ``sizes``: a line each as they are done, and then the table."""
    cells, agree, rows = Cells(), True, []
    for name, how in chosen.items():
        found = []
        for block_size in sizes:
            g = Geometry(block_size, 1, ContextParallel(cp_size, cp_size - 1, 1))
            ranges = _with_the_end(edges(), how, g) if up_to is None else [range(min(up_to, INT32_MAX + 1))]
            started = time.monotonic()
            wrong, looked_at = first_wrong(how, cells, g, ranges)
            expected = _expected(how, g, lane)
            agrees = _agree(wrong, expected, g, ranges[-1].stop - 1)
            agree &= agrees
            print(
                f"{name} b={block_size} W={cp_size}: {looked_at:,} positions, "
                f"{'none wrong' if wrong is None else f'first wrong {wrong:,}'}"
                f"{'' if agrees else f', expected to be right up to {expected:,}'} "
                f"({time.monotonic() - started:.1f} s)",
                file=sys.stderr,
                flush=True,
            )
            found.append("none" if wrong is None else f"{wrong:,}")
        rows.append(f"| `{name}` | {' | '.join(found)} |")
    print(f"| first wrong, W = {cp_size} | {' | '.join(f'b = {each}' for each in sizes)} |")
    print("|---|" + "---|" * len(sizes), *rows, sep="\n")
    return 0 if agree else 1


def _with_the_end(ranges: Sequence[range], how: Launched, g: Geometry) -> list[range]:
    """``ranges``, and the surroundings of the end of what ``how`` stages of a row, in order."""
    if how.stages is None:
        return list(ranges)
    end = how.stages * g.virtual_block_size
    return sorted([*ranges, range(max(0, end - MARGIN), min(end + MARGIN, INT32_MAX + 1))], key=lambda each: each.start)


def _expected(how: Launched, g: Geometry, lane: str) -> int:
    """The largest position up to which ``how`` is right, as the audit has it."""
    compiled_in = how.family == "v1" and g.virtual_block_size == 1  # an argument of 1 is: nothing is divided
    divides = lane == "hivm" and how.divides != "nothing" and not compiled_in
    kinds = frozenset({"division"}) if divides else frozenset[str]()
    position = bounds(g, how.family, kinds, own=how.divides != "positions", wide=False).position
    return position if how.stages is None else min(position, how.stages * g.virtual_block_size - 1)


def _agree(wrong: int | None, expected: int, g: Geometry, furthest: int) -> bool:
    """Whether the first ``wrong`` position is one after ``expected``, and there is one if positions after it were
    looked at, up to ``furthest``. Where ranks share the request there may be none, as each sees its own tokens only."""
    if wrong is not None:
        return wrong > expected
    return g.cp.size > 1 or furthest <= expected


if __name__ == "__main__":
    sys.exit(main())
