"""Small kernels for lane hivm."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def masked(values, out, n):
    i = tl.arange(0, 64)
    tl.store(out + i, tl.load(values + i, mask=i < n, other=0) + 1)


@triton.jit
def added(values, others, out):
    i = tl.arange(0, 64)
    tl.store(out + i, tl.load(values + i) * 3 + tl.load(others + i))


@triton.jit
def counted_up(out, n):
    i = tl.program_id(0) * 48 + tl.arange(0, 64)
    tl.store(out + i, tl.load(out + i) + n)


@triton.jit
def divided(values, out, n):
    i = tl.arange(0, 64)
    tl.store(out + i, tl.load(values + i) // n)


@triton.jit
def remainders(values, out, n):
    i = tl.arange(0, 64)
    tl.store(out + i, tl.load(values + i) % n)


@triton.jit
def shifted(values, out, n):
    i = tl.arange(0, 64)
    tl.store(out + i, tl.load(values + i) >> n)


@triton.jit
def shifted_and_thrown_away(values, out, n):
    i = tl.arange(0, 64)
    tl.store(out + i, tl.where(i < 0, tl.load(values + i) >> n, i))


@triton.jit
def gathered(values, indices, out):
    i = tl.arange(0, 64)
    tl.store(out + i, tl.gather(tl.load(values + i).to(tl.float32), tl.load(indices + i), 0).to(tl.int32))


@triton.jit
def chosen(values, out, n):
    i = tl.arange(0, 64)
    tl.store(out + i, tl.where(tl.load(values + i) == n, 1, 2))


@triton.jit
def chained_programs(out):
    """What is left hangs on the order of programs."""
    i = tl.arange(0, 64)
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + i, tl.load(out + i) * 3 + at)


@triton.jit
def numbered_programs(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + at, z * 100 + y * 10 + x)


@triton.jit
def raised_to_e(values, out):
    i = tl.arange(0, 64)
    tl.store(out + i, tl.exp(tl.load(values + i)))
