"""Small kernels, each about one thing that the lowered lane has to do as a device does.

As a program it compiles one of them into the cache folder that it is given, as soon as it reads a line, and prints
what the launch gave: for tests of several processes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import triton
import triton.language as tl


@triton.jit
def scaled(out, n):
    i = tl.arange(0, 16)
    tl.store(out + i, i * n)


@triton.jit(do_not_specialize=["n"])
def scaled_by_anything(out, n):
    i = tl.arange(0, 16)
    tl.store(out + i, i * n)


@triton.jit(do_not_specialize_on_alignment=["n"])
def scaled_by_any_multiple(out, n):
    i = tl.arange(0, 16)
    tl.store(out + i, i * n)


@triton.jit
def scaled_to_int64(out, n):
    i = tl.arange(0, 16).to(tl.int64)
    tl.store(out + i, i * n)


@triton.jit
def scaled_by_constant(out, FACTOR: tl.constexpr):
    i = tl.arange(0, 16)
    tl.store(out + i, i * FACTOR)


@triton.jit
def what_a_constant_is(out, VALUE: tl.constexpr):
    product = tl.arange(0, 16) * VALUE
    if product.dtype == tl.float32:
        tl.store(out, 32)
    else:
        tl.store(out, 0)


@triton.jit
def gathered_under_a_mask(out, values, n):
    i = tl.arange(0, 16)
    tl.store(out + i, tl.load(values + tl.maximum(i, 3), mask=i < n, other=-1))


@triton.jit
def with_function(out, n, FUNCTION: tl.constexpr):
    i = tl.arange(0, 16)
    tl.store(out + i, FUNCTION(i, n))


@triton.jit
def chosen_by_flags(flags, out):
    i = tl.arange(0, 16)
    tl.store(out + i, tl.where(tl.load(flags + i) != 0, 5, 7))


@triton.jit
def gathered_through_addresses(addresses, out):
    table = tl.program_id(0)
    pointer = tl.load(addresses + table).to(tl.pointer_type(tl.int32))
    i = tl.arange(0, 16)
    tl.store(out + table * 16 + i, tl.load(pointer + i))


@triton.jit
def with_optional_pointer(out, flags=None):
    i = tl.arange(0, 16)
    value = tl.full((16,), 3, tl.int32)
    if flags is not None:
        value = tl.where(tl.load(flags + i) != 0, value, -1)
    tl.store(out + i, value)


@triton.jit
def square(x):
    return x * x


@triton.jit
def square_plus(x, y):
    return square(x) + y


@triton.jit
def with_helpers(out, n):
    i = tl.arange(0, 16)
    tl.store(out + i, square_plus(i, n))


@triton.jit
def nested_loops(out, rows, columns):
    for row in range(rows):
        for column in range(columns):
            tl.store(out + row * columns + column, row * 10 + column)


@triton.jit
def counted_programs(out):
    """Each program stores how many ran before it; ``out[0]`` counts them."""
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    before = tl.load(out)
    tl.store(out + 1 + at, before)
    tl.store(out, before + 1)


@triton.jit
def numbered_programs(out):
    x, y, z = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    at = (z * tl.num_programs(1) + y) * tl.num_programs(0) + x
    tl.store(out + at, z * 100 + y * 10 + x + tl.num_programs(2) * 1000)


if __name__ == "__main__":
    import torch

    from conformance.lanes.lowered.launcher import Launcher

    launcher = Launcher(Path(sys.argv[1]))
    result = torch.zeros(16, dtype=torch.int32)
    print("ready", flush=True)
    sys.stdin.readline()
    compiled = launcher.precompile(with_helpers, {"out": result, "n": 5})
    launcher.launch(with_helpers, (1,), {"out": result, "n": 5})
    print(compiled, result.tolist())
