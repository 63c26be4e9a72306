"""What the writer of a body is given: the parts of the function's name, and its arguments taken apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from conformance.lanes.hivm.functions.writer import Buffer, Mask, Writer

ELEMENTS = {
    "int8_t": "i8",
    "uint8_t": "i8",
    "int16_t": "i16",
    "uint16_t": "i16",
    "int32_t": "i32",
    "uint32_t": "i32",
    "int64_t": "i64",
    "uint64_t": "i64",
    "half": "f16",
    "float": "f32",
}
"""Elements of buffers by their names in functions' names."""


class Rounding(Enum):
    """Where a float32 division of vectors lands: on the correctly rounded quotient, or on the number below or above it.

    How the chip's instruction rounds is not published; one unit in the last place is what such instructions promise.
    Zeros, infinities and not-a-numbers stay what they are.
    """

    EXACT = "exact"
    LOW = "low"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Name:
    """A function's name by its parts. ``T`` and ``U`` are types as they are written there."""

    text: str
    parts: Mapping[str, str]

    def __getitem__(self, part: str) -> str:
        return self.parts[part]

    def element(self, part: str = "T") -> str:
        return ELEMENTS[self.parts[part]]

    def is_signed(self, part: str = "T") -> bool:
        return not self.parts[part].startswith("u")

    def is_float(self, part: str = "T") -> bool:
        return self.parts[part] in ("half", "float")


@dataclass(frozen=True, slots=True)
class Call:
    """``buffers`` holds the arguments that are buffers, in order, without temporaries; ``masks`` those that are packed;
    ``values`` the others.
    """

    name: Name
    buffers: tuple[Buffer, ...]
    masks: tuple[Mask, ...]
    values: tuple[str, ...]
    rounding: Rounding


Body = Callable[[Writer, Call], None]

Modes = Callable[[Name], Mapping[int, Iterable[int]]]
"""Of arguments that choose what a function does, by position: the values that are known."""


@dataclass(frozen=True, slots=True)
class Function:
    """One family of library functions.

    ``pattern`` of their names, with groups ``T``, ``U`` and ``op``; ``arguments``: the declared ones, see
    ``conformance.lanes.hivm.functions.table``; ``meaning`` for a reader; ``source``: where the meaning is from;
    ``write``: the body.
    """

    pattern: re.Pattern[str]
    arguments: str
    meaning: str
    source: str
    write: Body
    modes: Modes | None = None
