"""Block sizes and context parallelism, always legal together: I divides B = k*b, 0 <= R < W.

Symbols as in the contract: b kernel block, B = k*b allocated block, W ranks, R this rank, I interleave, all in tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from hypothesis import strategies as st

from reference.case import ContextParallel
from reference.contract import FLOAT32_EXACT

BLOCK_SIZES = (2, 1, 3, 16, 880, 128, 1 << 20)
"""Kernel blocks, simplest first. 880 times the float32 that is nearest to 1/880 is less than 1: who multiplies by that
instead of dividing is wrong. At 2^20 a table of 2048 blocks reaches the largest int32 position.
"""

BLOCKS_PER_KV_BLOCK = (1, 2, 3, 16)
WORLD_SIZES = (1, 2, 3, 4, 6, 8)
RANKS = ("first", "middle", "last")

INTERLEAVES = ("one", "part", "block", "over", "whole")
"""I by its place between 1 and B: one token, a part of the kernel block, the kernel block, over it, all of B."""


NO_CP = ContextParallel()


def divides_distances(kv_cache_block_size: int, ranks: int, tokens: int) -> bool:
    """Whether float32 holds what a kernel divides that divides distances between so many consecutive positions."""
    return tokens + kv_cache_block_size * ranks < FLOAT32_EXACT


@dataclass(frozen=True, slots=True)
class Geometry:
    """Where the tokens of a sequence go, apart from the block table. Legal as drawn and in a pool.

    Because I divides B, the owner of position p is ``(p // I) % W``: the virtual block never cuts a turn of all ranks.
    """

    block_size: int = 2
    blocks_per_kv_block: int = 1
    cp: ContextParallel = NO_CP

    @property
    def kv_cache_block_size(self) -> int:
        """B, tokens in an allocated block."""
        return self.block_size * self.blocks_per_kv_block

    @property
    def virtual_block_size(self) -> int:
        """V = B*W, the tokens of a sequence that one allocated block on each rank takes."""
        return self.kv_cache_block_size * self.cp.size

    @property
    def turn(self) -> int:
        """W*I, the tokens after which it is the same rank's turn again; 1 without context parallelism."""
        return self.cp.size * self.cp.interleave if self.cp.size > 1 else 1

    def is_local(self, position: int) -> bool:
        return self.cp.size == 1 or position // self.cp.interleave % self.cp.size == self.cp.rank

    def block_index(self, position: int) -> int:
        """The column that ``position`` has on the rank that owns it."""
        if self.cp.size == 1:
            return position // self.block_size
        virtual_block, offset = divmod(position, self.virtual_block_size)
        local = offset // self.turn * self.cp.interleave + offset % self.cp.interleave
        return virtual_block * self.blocks_per_kv_block + local // self.block_size

    def last_local(self, first: int, last: int) -> int | None:
        """The last local position in first..last, None if there is none."""
        if self.cp.size == 1:
            return last
        chunk = last // self.cp.interleave
        behind = (chunk - self.cp.rank) % self.cp.size
        found = last if behind == 0 else (chunk - behind + 1) * self.cp.interleave - 1
        return found if found >= first else None

    def non_local_from(self, position: int) -> int:
        """Where this rank's part of the turn of ``position`` ends; W > 1. The next (W-1)*I are not local."""
        return position // self.turn * self.turn + (self.cp.rank + 1) * self.cp.interleave

    def reach(self, start: int, window: int) -> int:
        """How many positions from ``start`` on, at least 1, surely lie within ``window`` columns, local or not."""
        b, k, interleave = self.block_size, self.blocks_per_kv_block, self.cp.interleave
        if self.cp.size == 1:
            return (start // b + window) * b - start
        virtual_block, offset = divmod(start, self.virtual_block_size)
        if window >= k:
            return (virtual_block + window // k) * self.virtual_block_size - start
        turn = offset // self.turn
        last_turn = min((turn * interleave // b + window) * b, self.kv_cache_block_size) // interleave
        if last_turn > turn:
            return last_turn * self.turn - offset
        local = turn * interleave + offset % interleave
        return min(interleave - offset % interleave, (local // b + window) * b - local)


def interleave_of(role: str, block_size: int, blocks_per_kv_block: int) -> int | None:
    """The interleave that plays ``role`` (see ``INTERLEAVES``), None where these sizes leave it no value of its own.

    A part of the block lies near its square root, away from 1 and from b. Over the block is the smallest that is
    possible: where it is no multiple of b, a rank's turn ends in the middle of a kernel block.
    """
    b, size = block_size, block_size * blocks_per_kv_block
    if role == "one":
        return 1
    if role == "block":
        return b if b > 1 else None
    if role == "whole":
        return size if blocks_per_kv_block > 1 else None
    if role == "part":
        parts = [d for d in divisors(b) if 1 < d < b]
        return parts[(len(parts) - 1) // 2] if parts else None
    if role == "over":
        return next((d for d in divisors(size) if b < d < size), None)
    raise ValueError(f"unknown interleave {role!r}: known are {', '.join(INTERLEAVES)}")


def rank_of(role: str, world_size: int) -> int | None:
    """The rank that plays ``role`` (see ``RANKS``) among W, None where it would be the same as a simpler one."""
    if role == "first":
        return 0
    if role == "middle":
        return world_size // 2 if world_size > 2 else None
    if role == "last":
        return world_size - 1 if world_size > 1 else None
    raise ValueError(f"unknown rank {role!r}: known are {', '.join(RANKS)}")


@lru_cache(maxsize=1024)
def divisors(number: int) -> tuple[int, ...]:
    """The divisors of ``number``, ascending."""
    low = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(low + [number // d for d in reversed(low) if d * d != number])


_FREE_BLOCK_SIZES = st.sampled_from(
    # Slots of the last ones leave int32 where the output does not.
    (*BLOCK_SIZES[:2], *range(3, 18), 24, 32, 41, 48, 64, 96, 128, 272, 880, 1056, 4096, *BLOCK_SIZES[-1:] * 4)
)
_FREE_BLOCKS_PER_KV_BLOCK = st.sampled_from((1, 1, 2, 3, 4, 6, 8, 16))
_FREE_WORLD_SIZES = (1, 2, 3, 4, 5, 6, 8, 16)


@st.composite
def geometries(draw: st.DrawFn, *, hybrid: bool, cp: bool, plain: bool = True) -> Geometry:
    """Any legal geometry: k > 1 with ``hybrid`` only, W > 1 with ``cp`` only, W == 1 with ``plain`` only."""
    block_size = draw(_FREE_BLOCK_SIZES)
    blocks_per_kv_block = draw(_FREE_BLOCKS_PER_KV_BLOCK) if hybrid else 1
    size = draw(st.sampled_from(_FREE_WORLD_SIZES[0 if plain else 1 :])) if cp else 1
    if size == 1:
        return Geometry(block_size, blocks_per_kv_block)
    rank = draw(st.integers(0, size - 1))
    interleave = draw(st.sampled_from(divisors(block_size * blocks_per_kv_block)))
    return Geometry(block_size, blocks_per_kv_block, ContextParallel(size, rank, interleave))
