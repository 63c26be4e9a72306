"""Up to where a kernel is right on Ascend, which divides and gathers integer vectors in float32.

``quotient`` is what the chip computes for ``position // block_size``: int32 to float32, a float32 division rounded to
nearest, truncation. No quotient n // d with n < 2**24 is wrong:

    It would have to be rounded up to q + 1, where q = n // d. That is at least 1 / d away. With 2**e < q + 1 <=
    2**(e + 1), float32 numbers there are 2**(e - 23) apart, so rounding goes no further than 2**(e - 24): d * 2**e
    would be 2**24 at least. But 2**e <= q, hence d * 2**e <= d * q <= n. (For q = 0, n and d are too far apart.)

The sweeps here therefore begin at 2**24 and go up to the first wrong position; a test sweeps all positions below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from reference.contract import FLOAT32_EXACT
from reference.fields import INT32_MAX
from strategies.geometry import Geometry

Vector = npt.NDArray[np.int64]
Divide = Callable[[Vector, int], Vector]

_FIRST_CHUNK, _CHUNK = 1 << 12, 1 << 20


def quotient(dividend: Vector, divisor: int) -> Vector:
    """``dividend // divisor`` as the chip has it, for dividends of 0 to 2**31 - 1."""
    in_float32: Vector = np.trunc(dividend.astype(np.float32) / np.float32(divisor)).astype(np.int64)
    return in_float32


def exact(dividend: Vector, divisor: int) -> Vector:
    return dividend // divisor


def first_wrong(holds: Callable[[Vector], npt.NDArray[np.bool_]], start: int, limit: int = INT32_MAX) -> int | None:
    """The smallest number of start .. limit for which ``holds`` is false, None if there is none."""
    size = _FIRST_CHUNK
    while start <= limit:
        numbers = np.arange(start, min(start + size, limit + 1), dtype=np.int64)
        wrong = np.flatnonzero(~holds(numbers))
        if wrong.size:
            return int(numbers[wrong[0]])
        start, size = start + size, min(2 * size, _CHUNK)
    return None


def largest_dividend(divisor: int, start: int = FLOAT32_EXACT) -> int:
    """The largest n for which all quotients of ``start`` .. n are right."""
    wrong = first_wrong(lambda n: quotient(n, divisor) == exact(n, divisor), start)
    return INT32_MAX if wrong is None else wrong - 1


# What each family of kernels computes of a position, with ``//`` as given: the cell of the row, and the place in its
# block. Ranks that do not own a token have no cell, so owner and cell are compared together.

Place = tuple[Vector, Vector, Vector]
"""Owner, cell of the row, place in the block."""


def by_turns(position: Vector, geometry: Geometry, divide: Divide) -> Place:
    """v1 and v2 as published: the five steps one after the other."""
    g, b = geometry, geometry.block_size
    if g.cp.size == 1:
        return _plain(position, b, divide)
    virtual_block = divide(position, g.virtual_block_size)
    virtual_offset = position - virtual_block * g.virtual_block_size
    run = divide(virtual_offset, g.cp.interleave)
    turn = divide(run, g.cp.size)
    local = turn * g.cp.interleave + virtual_offset - run * g.cp.interleave
    kernel_block = divide(local, b)
    cell = virtual_block * g.blocks_per_kv_block + kernel_block
    return run - turn * g.cp.size, cell, local - kernel_block * b


def by_own_position(position: Vector, geometry: Geometry, divide: Divide) -> Place:
    """The kernels here: first the position among the rank's own tokens, then its block."""
    g = geometry
    if g.cp.size == 1:
        return _plain(position, g.block_size, divide)
    virtual_block = divide(position, g.virtual_block_size)
    virtual_offset = position - virtual_block * g.virtual_block_size
    run = divide(virtual_offset, g.cp.interleave)
    turn = divide(run, g.cp.size)
    own = virtual_block * g.kv_cache_block_size + turn * g.cp.interleave + virtual_offset - run * g.cp.interleave
    _, cell, offset = _plain(own, g.block_size, divide)
    return run - turn * g.cp.size, cell, offset


def _plain(position: Vector, block_size: int, divide: Divide) -> Place:
    block = divide(position, block_size)
    return np.zeros_like(position), block, position - block * block_size


@lru_cache(maxsize=1024)
def largest_position(geometry: Geometry, place: Callable[[Vector, Geometry, Divide], Place] = by_turns) -> int:
    """The largest position for which it and all before it get the right cell and place, whatever the rank."""

    def holds(positions: Vector) -> npt.NDArray[np.bool_]:
        pairs = zip(place(positions, geometry, quotient), place(positions, geometry, exact), strict=True)
        right: npt.NDArray[np.bool_] = np.logical_and.reduce([mine == true for mine, true in pairs])
        return right

    wrong = first_wrong(holds, FLOAT32_EXACT)
    return INT32_MAX if wrong is None else wrong - 1


# v1, v2 and the fused kernels here divide distances, not positions: from the beginning of the virtual block (of the
# lap, in a ring) in which the tile's smallest position lies, and then of the block in which a window begins. tiled
# divides positions by the virtual block's size in int64, which is exact, and then offsets within it.

BY_DISTANCE = ("v1", "v2", "fused", "parallel")
TILE = 1 << 12
"""Positions that a tile may have beyond its smallest: consecutive ones, in tiles larger than any here."""


@lru_cache(maxsize=1024)
def largest_position_by_distance(geometry: Geometry, shifted: frozenset[int] = frozenset()) -> int:
    """Like ``largest_position``, of tiles of consecutive positions. By the divisors ``shifted`` it is a shift."""
    b = geometry.block_size
    exactly = shifted | ({b} if b <= FLOAT32_EXACT else set())  # within a window, at most 2**24
    return _largest_distance(geometry, exactly, geometry.virtual_block_size + TILE)


@lru_cache(maxsize=1024)
def largest_position_by_virtual_block(geometry: Geometry) -> int:
    """Like ``largest_position``, where positions are divided exactly by the virtual block's size."""
    size = geometry.virtual_block_size
    return _largest_distance(geometry, frozenset({size}), size - 1)


def _largest_distance(g: Geometry, exactly: frozenset[int], last: int) -> int:
    """The largest position, where ``last`` is the largest distance that is divided, by ``exactly`` without an error."""

    def divide(dividend: Vector, divisor: int) -> Vector:
        return exact(dividend, divisor) if divisor in exactly else quotient(dividend, divisor)

    def holds(distances: Vector) -> npt.NDArray[np.bool_]:
        pairs = zip(by_own_position(distances, g, divide), by_own_position(distances, g, exact), strict=True)
        right: npt.NDArray[np.bool_] = np.logical_and.reduce([mine == true for mine, true in pairs])
        return right

    wrong = first_wrong(holds, FLOAT32_EXACT, min(last, INT32_MAX))
    return INT32_MAX if wrong is None else wrong - 1


def _shifted(geometry: Geometry, family: str) -> frozenset[int]:
    """The divisors that are powers of two and compiled in, by which a kernel here shifts."""
    cp = geometry.cp
    compiled_in = {"v1": {geometry.virtual_block_size, cp.interleave, cp.size}, "v2": {cp.interleave}}
    return frozenset(each for each in compiled_in.get(family, set()) if each & (each - 1) == 0)


# Block numbers


@lru_cache(maxsize=1024)
def largest_block(block_size: int, *, gathered: bool, multiplied: bool, wide: bool = False) -> int:
    """The largest block number for which it and all before it give right slots that fit the output.

    ``gathered``: it is converted to float32 for the gather; ``multiplied``: the slot is computed in float32 too;
    ``wide``: slots are int64.
    """
    most = INT32_MAX if wide else (INT32_MAX + 1) // block_size - 1

    def holds(blocks: Vector) -> npt.NDArray[np.bool_]:
        right = np.ones(blocks.shape, dtype=np.bool_)
        for offset in _offsets(block_size):
            slots = blocks * block_size + offset
            if multiplied:
                carried = blocks.astype(np.float32) * np.float32(block_size) + np.float32(offset)
            else:
                carried = blocks.astype(np.float32)
            found = carried.astype(np.int64)
            right &= (found if multiplied else found * block_size + offset) == slots
        return right

    if not (gathered or multiplied):
        return most
    start = max(0, min(FLOAT32_EXACT // block_size - 1 if multiplied else FLOAT32_EXACT - 1, most))
    wrong = first_wrong(holds, start, most)
    return most if wrong is None else wrong - 1


def _offsets(block_size: int) -> Iterator[int]:
    """Rounding to float32 depends on the last bits of the slot: the first, odd and even, and the last offsets."""
    yield from sorted({0, 1, 2, 3, block_size - 2, block_size - 1} & set(range(block_size)))


@dataclass(frozen=True, slots=True)
class Bounds:
    """Largest ``position`` and ``block`` number that give right slots, all smaller ones included."""

    position: int
    block: int


def bounds(geometry: Geometry, family: str, kinds: frozenset[str], *, own: bool, wide: bool) -> Bounds:
    """For a kernel that has these ``kinds`` of float32 use (:class:`conformance.audit.measure.Float32Use`)."""
    position = INT32_MAX
    if "division" in kinds:
        if own and family in BY_DISTANCE:
            position = largest_position_by_distance(geometry, _shifted(geometry, family))
        elif own and family == "tiled":
            position = largest_position_by_virtual_block(geometry)
        else:
            position = largest_position(geometry, by_own_position if own else by_turns)
    gathered, multiplied = "gather" in kinds, {"gather", "arithmetic"} <= kinds
    return Bounds(position, largest_block(geometry.block_size, gathered=gathered, multiplied=multiplied, wide=wide))
