"""A bound launch in the words of a report, which knows nothing of guarded memory."""

from __future__ import annotations

from pathlib import Path

from conformance.execution.array import Array
from conformance.execution.session import Invocation
from conformance.subjects.entry import EntryPoint
from reports.call import FUNCTION, KERNEL, METHOD, OBJECTS, Buffer, Call

_OF_OBJECTS = ("v2-host", "tiled-host", "allocating", "allocating-draft")
_WITHOUT_KERNEL = ("dcp", "block-table", "draft", "allocating-draft")


def call_of(entry: EntryPoint, invocation: Invocation) -> Call:
    """``invocation`` of ``entry`` as data, the contents of its buffers included."""
    return Call(
        kind=_kind(entry, invocation),
        module=_module(entry),
        function=entry.function,
        file=entry.file,
        line=entry.line,
        grid=invocation.grid,
        arguments={
            name: _buffer(value) if isinstance(value, Array) else value for name, value in invocation.arguments.items()
        },
        constants=entry.constants,
        launches=entry.family not in _WITHOUT_KERNEL,
    )


def _kind(entry: EntryPoint, invocation: Invocation) -> str:
    if entry.family in _OF_OBJECTS:
        return OBJECTS
    return KERNEL if invocation.grid else METHOD if "." in entry.function else FUNCTION


def _module(entry: EntryPoint) -> str:
    """The dotted name of the entry point's file, from the package that the subject is."""
    parts = Path(entry.file).with_suffix("").parts
    package = entry.subject.replace("-", "_")
    if package not in parts:
        return parts[-1] if parts else ""
    first = len(parts) - 1 - parts[::-1].index(package)
    return ".".join(parts[first:])


def _buffer(array: Array) -> Buffer:
    return Buffer(
        name=array.name,
        dtype=array.dtype,
        shape=array.shape,
        strides=array.strides,
        size=array.size,
        values=None if array.data is None else tuple(map(int, array.data.reshape(-1))),
        writable=array.writable,
        addresses_of=tuple(_buffer(other) for other in array.addresses_of),
    )
