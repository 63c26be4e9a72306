"""Writes the MLIR text of one library function, so that every access to a buffer goes through one place.

Arguments are ``%a0``, ``%a1``, ... as declared: ``memref<?xT, strided<[?], offset: ?>>`` for a buffer, a scalar, an
index. A packed mask (a buffer of ``i1``) is declared with ``i8``, and its descriptor keeps its meaning: the pointer is
that of a byte; offset, size and stride count bits, of which bit 0 of a byte is the first.

Nothing outside a buffer is touched. What a function would touch there it tells ``OUTSIDE`` instead, which the lane
defines:

    func.func private @hivm_outside(%address: i64, %size: i64, %index: i64, %kind: i64)

``address`` of the buffer's first element in bytes (of a mask: its first byte), its ``size`` in elements, the ``index``
of the element outside, and ``kind``: READ, WRITE, STRAY (a gather's index, which the chip follows to wherever in UB it
leads) or LAYOUT (the buffer lies in memory so that it is not known what the function does: nothing was done).

What a function leaves undefined is what the lane says, which defines that as well, eight bytes of it:

    func.func private @hivm_undefined() -> i64
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

OUTSIDE, UNDEFINED = "hivm_outside", "hivm_undefined"
DECLARED = f"""\
  func.func private @{OUTSIDE}(i64, i64, i64, i64)
  func.func private @{UNDEFINED}() -> i64
"""
"""What a module with functions declares."""

READ, WRITE, STRAY, LAYOUT = range(4)

BYTES = {"i8": 1, "i16": 2, "f16": 2, "i32": 4, "f32": 4, "i64": 8}
BLOCK = 32
"""Bytes that the chip moves and aligns by."""

_ALL = 1 << 20  # bytes that a mask may reach from its pointer: more than any chip has of UB


@dataclass(frozen=True, slots=True)
class Buffer:
    """An argument that is a buffer of ``element``."""

    value: str
    element: str

    @property
    def type(self) -> str:
        return memref(self.element)


@dataclass(frozen=True, slots=True)
class Mask:
    """An argument that is a packed mask, taken apart: values of type index, in bits; ``bytes`` is all of its memory."""

    argument: str
    bytes: str
    offset: str
    size: str
    stride: str


def memref(element: str) -> str:
    """The declared type of a buffer of ``element``."""
    return f"memref<?x{element}, strided<[?], offset: ?>>"


class Writer:
    """One function. Values are SSA names; loops run upward, one element at a time."""

    def __init__(self, name: str, types: Sequence[str]) -> None:
        self._name, self._types = name, tuple(types)
        self._lines: list[str] = []
        self._values = 0
        self._constants: dict[tuple[str, str], str] = {}
        self._undefined: dict[str, str] = {}

    # Text

    def text(self) -> str:
        arguments = ", ".join(f"%a{index}: {each}" for index, each in enumerate(self._types))
        constants = [
            f"{name} = arith.constant {value}" + (f" : {kind}" if kind != "i1" else "")
            for (value, kind), name in self._constants.items()
        ]
        undefined = [line for element, name in self._undefined.items() for line in _undefined(name, element)]
        body = "\n    ".join([*constants, *undefined, *self._lines, "return"])
        return (
            f"  func.func private @{self._name}({arguments})"
            f" attributes {{llvm.linkage = #llvm.linkage<internal>}} {{\n    {body}\n  }}\n"
        )

    def emit(self, line: str) -> None:
        self._lines.append(line)

    def new(self) -> str:
        self._values += 1
        return f"%v{self._values}"

    def op(self, text: str) -> str:
        """The value that the operation ``text`` gives."""
        value = self.new()
        self.emit(f"{value} = {text}")
        return value

    def constant(self, value: int | str, kind: str = "index") -> str:
        return self._constants.setdefault((str(value), kind), f"%c{len(self._constants)}")

    def zero(self, element: str) -> str:
        return self.constant("0.0" if element[0] == "f" else 0, element)

    def undefined(self, element: str) -> str:
        """What temporaries hold before and after a call, and results that are not defined."""
        return self._undefined.setdefault(element, f"%undefined_{element}")

    def select(self, condition: str, yes: str, no: str, kind: str) -> str:
        return self.op(f"arith.select {condition}, {yes}, {no} : {kind}")

    def compare(self, predicate: str, left: str, right: str, kind: str = "index") -> str:
        return self.op(f"arith.cmp{'f' if kind[0] == 'f' else 'i'} {predicate}, {left}, {right} : {kind}")

    def arith(self, operation: str, left: str, right: str, kind: str = "index") -> str:
        return self.op(f"arith.{operation} {left}, {right} : {kind}")

    @contextmanager
    def loop(self, count: str, start: str | None = None) -> Iterator[str]:
        """``start`` (0) up to ``count``: yields the index."""
        index, one = self.new(), self.constant(1)
        self.emit(f"scf.for {index} = {start or self.constant(0)} to {count} step {one} {{")
        yield index
        self.emit("}")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        self.emit(f"scf.if {condition} {{")
        yield
        self.emit("}")

    # Buffers

    def size(self, buffer: Buffer | Mask) -> str:
        if isinstance(buffer, Mask):
            return buffer.size
        return self.op(f"memref.dim {buffer.value}, {self.constant(0)} : {buffer.type}")

    def metadata(self, buffer: Buffer) -> tuple[str, str]:
        """(address of the first element, stride in elements), both of type index."""
        v = self.new()
        self.emit(
            f"{v}b, {v}o, {v}n, {v}s = memref.extract_strided_metadata {buffer.value} : {buffer.type}"
            f" -> memref<{buffer.element}>, index, index, index"
        )
        base = self.op(f"memref.extract_aligned_pointer_as_index {buffer.value} : {buffer.type} -> index")
        offset = self.arith("muli", f"{v}o", self.constant(BYTES[buffer.element]))
        return self.arith("addi", base, offset), f"{v}s"

    def outside(self, buffer: Buffer | Mask, size: str, index: str, kind: int) -> None:
        """Tell that ``index`` of ``buffer`` was not touched."""
        if isinstance(buffer, Mask):
            base = self.op(f"memref.extract_aligned_pointer_as_index {buffer.argument} : {memref('i8')} -> index")
            byte = self.arith("shrui", buffer.offset, self.constant(3))
            address = self.arith("addi", base, byte)
        else:
            address, _ = self.metadata(buffer)
        words = [self.op(f"arith.index_cast {each} : index to i64") for each in (address, size, index)]
        words.append(self.constant(kind, "i64"))
        self.emit(f"func.call @{OUTSIDE}({', '.join(words)}) : (i64, i64, i64, i64) -> ()")

    def elements(
        self,
        leader: Buffer | Mask,
        reads: Sequence[Buffer | Mask] = (),
        writes: Sequence[Buffer | Mask] = (),
        single: bool = False,
    ) -> str:
        """How many elements there are to handle: as many as ``leader`` has, and no more than the others have.

        A shorter one is told about. ``single``: a source of one element stands for all.
        """
        count = asked = self.size(leader)
        for buffer, kind in [*((each, READ) for each in reads), *((each, WRITE) for each in writes)]:
            size = self.size(buffer)
            short = self.compare("ult", size, asked)
            if single and kind == READ:
                many = self.compare("ne", size, self.constant(1))
                short = self.arith("andi", short, many, "i1")
            with self.when(short):
                self.outside(buffer, size, self.arith("subi", asked, self.constant(1)), kind)
            count = self.select(short, self.arith("minui", count, size), count, "index")
        return count

    def load(self, buffer: Buffer, index: str) -> str:
        return self.op(f"memref.load {buffer.value}[{index}] : {buffer.type}")

    def load_any(self, buffer: Buffer, index: str, single: str) -> str:
        """Like ``load``; where ``single`` holds, the only element."""
        return self.load(buffer, self.select(single, self.constant(0), index, "index"))

    def is_single(self, buffer: Buffer) -> str:
        return self.compare("eq", self.size(buffer), self.constant(1))

    def store(self, value: str, buffer: Buffer, index: str) -> None:
        self.emit(f"memref.store {value}, {buffer.value}[{index}] : {buffer.type}")

    def fill(self, buffer: Buffer, value: str) -> None:
        with self.loop(self.size(buffer)) as index:
            self.store(value, buffer, index)

    # Packed masks

    def mask(self, argument: str) -> Mask:
        v = self.new()
        self.emit(
            f"{v}b, {v}o, {v}n, {v}s = memref.extract_strided_metadata {argument} : {memref('i8')}"
            " -> memref<i8>, index, index, index"
        )
        flat = self.op(
            f"memref.reinterpret_cast {v}b to offset: [0], sizes: [{_ALL}], strides: [1]"
            f" : memref<i8> to memref<{_ALL}xi8>"
        )
        return Mask(argument, flat, f"{v}o", f"{v}n", f"{v}s")

    def _place(self, mask: Mask, index: str) -> tuple[str, str]:
        """(byte, bit in it) of an element."""
        bit = self.arith("addi", mask.offset, self.arith("muli", index, mask.stride))
        byte = self.arith("shrui", bit, self.constant(3))
        place = self.arith("andi", bit, self.constant(7))
        return byte, self.op(f"arith.index_cast {place} : index to i8")

    def get_bit(self, mask: Mask, index: str) -> str:
        byte, place = self._place(mask, index)
        value = self.op(f"memref.load {mask.bytes}[{byte}] : memref<{_ALL}xi8>")
        return self.op(f"arith.trunci {self.arith('shrui', value, place, 'i8')} : i8 to i1")

    def set_bit(self, bit: str, mask: Mask, index: str) -> None:
        byte, place = self._place(mask, index)
        old = self.op(f"memref.load {mask.bytes}[{byte}] : memref<{_ALL}xi8>")
        hole = self.arith("shli", self.constant(1, "i8"), place, "i8")
        kept = self.arith("andi", old, self.arith("xori", hole, self.constant(-1, "i8"), "i8"), "i8")
        new = self.arith("shli", self.op(f"arith.extui {bit} : i1 to i8"), place, "i8")
        self.emit(f"memref.store {self.arith('ori', kept, new, 'i8')}, {mask.bytes}[{byte}] : memref<{_ALL}xi8>")

    def fill_mask(self, mask: Mask, byte: str) -> None:
        """Every whole byte of ``mask``."""
        end = self.arith("shrui", self.arith("addi", mask.offset, mask.size), self.constant(3))
        start = self.arith("shrui", self.arith("addi", mask.offset, self.constant(7)), self.constant(3))
        with self.loop(end, start) as index:
            self.emit(f"memref.store {byte}, {mask.bytes}[{index}] : memref<{_ALL}xi8>")


def _undefined(name: str, element: str) -> list[str]:
    """Operations that make ``name`` the first bytes of what the lane says."""
    bits = f"i{8 * BYTES[element]}"
    lines = [f"{name}_word = func.call @{UNDEFINED}() : () -> i64"]
    lines.append(f"{name}_bits = arith.{'bitcast' if bits == 'i64' else 'trunci'} {name}_word : i64 to {bits}")
    return [*lines, f"{name} = arith.bitcast {name}_bits : {bits} to {element}"]
