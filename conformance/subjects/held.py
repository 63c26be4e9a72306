"""Outputs that hold something before a launch: what an earlier batch left in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from conformance.execution.array import Array
from conformance.execution.session import Argument, Invocation
from conformance.subjects.launching import OUTPUT
from reference.verdict import UNWRITTEN


def holding(invocation: Invocation, rows: Sequence[Sequence[int]]) -> Invocation:
    """``invocation`` with outputs that hold ``rows``, one a group, and poison behind them."""
    made: dict[int, Array] = {}

    def filled(value: Argument) -> Argument:
        if not isinstance(value, Array):
            return value
        if id(value) not in made:
            made[id(value)] = _filled(value, rows)
        return made[id(value)]

    for array in invocation.arrays():  # those behind an address too, each once
        if not array.addresses_of:
            filled(array)
    for array in invocation.arrays():
        if array.addresses_of:
            made[id(array)] = replace(array, addresses_of=tuple(made[id(each)] for each in array.addresses_of))
    return replace(invocation, arguments={name: filled(value) for name, value in invocation.arguments.items()})


def _filled(array: Array, rows: Sequence[Sequence[int]]) -> Array:
    """An output of slots with what its group holds; one buffer for several groups has a row each. Others, a block table
    that is filled among them, are as they were.
    """
    if array.name.partition("[")[0] != OUTPUT:
        return array
    if len(array.shape) > 1:
        stride = array.shape[1] if array.strides is None else array.strides[0]
        data = np.full((len(rows), stride), UNWRITTEN, dtype=array.dtype)
        data[:, : len(rows[0])] = rows
        return replace(array, data=data)
    group = int(array.name.partition("[")[2].rstrip("]") or 0)
    return replace(array, data=np.array(rows[group], dtype=array.dtype))
