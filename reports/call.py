"""A launch as it was bound: the function, the grid, every argument by name, and what each buffer holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

KERNEL = "kernel"
FUNCTION = "function"
METHOD = "method"
OBJECTS = "function of objects"


@dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer. ``shape`` and ``strides`` count elements; ``strides`` None: contiguous.

    ``values`` are all elements in memory order, those between rows included (None: an output that holds poison).
    ``writable``: an output. ``addresses_of``: it holds the addresses of these buffers, and ``values`` is None.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    size: int
    values: tuple[int, ...] | None = None
    writable: bool = False
    addresses_of: tuple[Buffer, ...] = ()

    def reachable(self) -> Iterator[Buffer]:
        """Those whose addresses it holds, then the buffer itself: in the order in which they can be made."""
        for buffer in self.addresses_of:
            yield from buffer.reachable()
        yield self

    def to_json(self) -> dict[str, object]:
        """What the buffer is; what it holds follows from the case."""
        found: dict[str, object] = {
            "buffer": self.name,
            "dtype": self.dtype,
            "shape": list(self.shape),
            "strides": list(self.strides or _contiguous(self.shape)),
            "writable": self.writable,
        }
        if self.addresses_of:
            found["addresses_of"] = [buffer.to_json() for buffer in self.addresses_of]
        return found


Argument = Buffer | int | bool | str | None


@dataclass(frozen=True, slots=True)
class Call:
    """One call. ``kind``: a ``@triton.jit`` ``kernel`` with its ``grid``, a ``function``, a ``method`` of a published
    class, or a "function of objects" that the suite makes of ``arguments``. ``launches``: whether kernels are launched.

    ``module`` is the dotted name under which ``file`` is imported; ``constants`` are the names of the compile-time ones
    among ``arguments``.
    """

    kind: str
    module: str
    function: str
    file: str
    line: int
    grid: tuple[int, ...]
    arguments: Mapping[str, Argument]
    constants: tuple[str, ...] = ()
    launches: bool = True

    def buffers(self) -> list[Buffer]:
        """Every buffer once, those behind an address before the one that holds it."""
        passed = (value for value in self.arguments.values() if isinstance(value, Buffer))
        return list({each.name: each for value in passed for each in value.reachable()}.values())

    def specialization(self) -> dict[str, object]:
        """What a compiler sees: the constants, the element type of each buffer, and which arguments are not given."""
        given = {name: value for name, value in self.arguments.items() if name not in self.constants}
        return {
            "constants": {name: value for name, value in self._scalars().items() if name in self.constants},
            "dtypes": {name: value.dtype for name, value in given.items() if isinstance(value, Buffer)},
            "absent": [name for name, value in given.items() if value is None],
        }

    def to_json(self) -> dict[str, object]:
        scalars = self._scalars()
        return {
            "kind": self.kind,
            "module": self.module,
            "function": self.function,
            "file": self.file,
            "line": self.line,
            "launches": self.launches,
            "grid": list(self.grid),
            "compile_time": {name: value for name, value in scalars.items() if name in self.constants},
            "run_time": {
                name: value.to_json() if isinstance(value, Buffer) else value
                for name, value in self.arguments.items()
                if name not in self.constants
            },
        }

    def _scalars(self) -> dict[str, int | bool | str | None]:
        return {name: value for name, value in self.arguments.items() if not isinstance(value, Buffer)}


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, elements = [], 1
    for extent in reversed(shape):
        strides.append(elements)
        elements *= extent
    return tuple(reversed(strides))
