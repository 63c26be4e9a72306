"""Small kernels whose compiled programs were counted by hand, and some that do not compile."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def remainders(values, out, n):
    i = tl.arange(0, 64)
    tl.store(out + i, tl.load(values + i) % n)


@triton.jit
def quotients_of_gathered(values, indices, out, n, tiles):
    for tile in range(tiles):
        i = tile * 128 + tl.arange(0, 128)
        gathered = tl.gather(tl.load(values + tl.arange(0, 128)).to(tl.float32), tl.load(indices + i), 0)
        tl.store(out + i, gathered.to(tl.int32) // n)


@triton.jit
def scattered(values, indices, out):
    i = tl.arange(0, 32)
    tl.store(out + i, tl.load(values + tl.load(indices + i)).to(tl.int64) * 3)


@triton.jit
def shifted_or_divided(values, out, n):
    i = tl.arange(0, 64)
    loaded = tl.load(values + i)
    if n & 1 == 0:  # noqa: SIM108  (a branch each in the program)
        result = loaded >> n
    else:
        result = loaded // n
    tl.store(out + i, result)


@triton.jit
def short_or_long(values, out, n):
    if n < 64:
        for tile in range(n):
            i = tile * 16 + tl.arange(0, 16)
            tl.store(out + i, tl.load(values + i) * n)
    else:
        for tile in range(n):
            i = tile * 256 + tl.arange(0, 256)
            tl.store(out + i, tl.load(values + i) * n)


@triton.jit
def too_large(values, out):
    i = tl.arange(0, 131072)
    tl.store(out + i, tl.load(values + i) + 1)


@triton.jit
def of_every_batch(out, num_tokens: tl.constexpr):
    i = tl.arange(0, 64)
    tl.store(out + i, i + num_tokens)


@triton.jit
def refused(values, out):
    i = tl.arange(0, 64)
    tl.store(out + i, tl.load(values + i) + tl.arange(0, 32))
