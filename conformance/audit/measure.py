"""What a compiled kernel does, counted in the last program before code generation (``module.hivm.opt.mlir``).

Only the form that Ascend910 chips compile to is known: library functions on vectors, loops with single loads and stores
for what has no vector form, every buffer at its planned address. Anything else is NotMeasured, with the reason: a
figure is never guessed, and never 0 because something was not recognized.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from conformance.lanes.ascend.ir import Line, Module, Operation, Unreadable, parse

_T = r"(?:u?int\d+_t|half|bfloat16_t|float|bool)"
# Library functions of the vector unit, and which argument is the result: by position among the arguments.
_VECTOR: tuple[tuple[str, int], ...] = (
    (rf"broadcast_scalar_{_T}_to_1d", 1),
    (rf"arange_1d_{_T}", 0),
    (rf"v(?:add|sub|mul|div|max|min|and|or|xor|shl|shr)s?(?:_vs|_sv|)_1d_{_T}", 2),
    (rf"v(?:not|abs|relu|exp|ln|sqrt|rsqrt|rec)_1d_{_T}", 1),
    (rf"vcmps?_(?:eq|ne|lt|le|gt|ge)(?:_vs|_sv|)_1d_{_T}", 2),
    (rf"vsel_(?:vv_|vs_|sv_|ss_|)1d_(?:bool_)?{_T}", 3),
    (rf"vcast_{_T}_to_{_T}_1d_with_\w+", 1),
    (rf"reduce_(?:min|max|sum)_r_{_T}", 1),
    (rf"gather_1d_{_T}", 2),
    (rf"copy_ubuf_to_ubuf_1d_{_T}", 1),
)
# Transfers between global memory and the on-chip buffer (UB): the result, and where the buffer stands.
_MOVEMENT: tuple[tuple[str, int], ...] = (
    (rf"load_gm_to_ubuf_1d_{_T}", 1),
    (rf"store_ubuf_to_gm_1d_{_T}", 1),
)
# Operations without a figure of their own: names of buffers, parts of them, order.
_FREE = frozenset(
    "arith.constant memref.cast memref.subview memref.reinterpret_cast memref.alloc memref.dim scf.for scf.while scf.if"
    " scf.yield scf.condition func.call call return func.return func.func hivm.hir.pointer_cast hivm.hir.bitcast"
    " hivm.hir.set_flag hivm.hir.wait_flag hivm.hir.pipe_barrier hivm.hir.set_mask_norm hivm.hir.set_ctrl"
    " annotation.mark".split()
)
_SCALAR = re.compile(r"(?:arith|affine)\.\w+|memref\.(?:load|store)|hivm\.hir\.get_(?:sub_)?block_(?:idx|num)")
_BITS = {"i1": 1, "i8": 8, "i16": 16, "f16": 16, "bf16": 16, "i32": 32, "f32": 32, "i64": 64, "f64": 64}
_MEMREF = re.compile(r"memref<(?P<shape>(?:\d+x)*)(?P<element>[a-z]+\d+)(?=[,>])")
_UB = "#hivm.address_space<ub>"


class NotMeasured(Exception):
    """The program is of a kind that this module does not know. The message says what it met."""


@dataclass(frozen=True, slots=True)
class ScalarLoop:
    """A loop that handles one element at a time. ``operation`` is what has no vector form; ``trips`` None: known only
    at run time; ``instructions`` of the scalar unit in each trip.
    """

    line: Line | None
    operation: str
    trips: int | None
    instructions: int


@dataclass(frozen=True, slots=True)
class Float32Use:
    """Integers that go through float32. ``kind``: "division", "gather", "arithmetic" or "comparison"; ``operation`` is
    the library function, ``divisor`` what it divides by where that is compiled in.
    """

    kind: str
    line: Line | None
    operation: str
    divisor: int | None = None


@dataclass(frozen=True, slots=True)
class Measures:
    """The figures of one compiled kernel. Bytes are bytes.

    ``vector`` and ``movement`` count calls of the whole program by function; those ``_per_tile`` are in the loop with
    most vector operations, loops in it included (all of it where the kernel has none). ``scalar_per_tile`` are
    instructions of the scalar unit there, those of scalar loops times their trips. ``read`` and ``written`` are bytes
    between global memory and the chip in that loop, every mask full.
    """

    ub_used: int
    ub_available: int
    vector: Counter[str]
    movement: Counter[str]
    vector_per_tile: int
    movement_per_tile: int
    scalar_per_tile: int
    read_per_tile: int
    written_per_tile: int
    scalar_loops: tuple[ScalarLoop, ...]
    float32: tuple[Float32Use, ...]


def ub(text: str) -> tuple[int, int]:
    """Bytes of UB used, and available, by the planned addresses. Ascend950's programs have them too. Raises
    NotMeasured.
    """
    found = re.search(r'"UB_SIZE", (\d+) : i32', text)
    if found is None:
        raise NotMeasured("the module says nothing of UB_SIZE")
    used = 0
    for function in re.split(r"^(?=  func\.func )", text, flags=re.MULTILINE):
        used = max(used, _planned(function))
    return used, int(found[1]) // 8


def _planned(function: str) -> int:
    """Where the last buffer of UB in the text of one function ends."""
    constants = {
        name: int(value)
        for name, value in re.findall(
            r"(%[\w-]+) = (?:arith\.constant|llvm\.mlir\.constant\()\s*(-?\d+) : i64", function
        )
    }
    end = 0
    for addresses, kind in re.findall(r"hivm\.hir\.pointer_cast\(([^)]*)\)[^:\n]* : (memref<[^>]*>?>)", function):
        if _UB not in kind:
            continue
        size = _bytes(kind)
        for address in addresses.split(", "):
            if address not in constants or size is None:
                raise NotMeasured(f"a buffer of UB without a planned address or size: {addresses} : {kind}")
            end = max(end, constants[address] + size)
    return end


def measure(text: str, function: str) -> Measures:
    """The figures of kernel ``function`` in the text of ``module.hivm.opt.mlir``. Raises NotMeasured."""
    if "hivm_regbaseintrins" in text:
        raise NotMeasured("a program of vector functions on registers, as Ascend950 has it: only its buffers are known")
    try:
        module = parse(text)
    except Unreadable as error:
        raise NotMeasured(str(error)) from error
    kernel = module.function(function)
    if kernel is None:
        raise NotMeasured(f"no function {function} in the program")
    others = [each.symbol for each in module.functions if each.inner and "function_kind<HOST>" not in each.text]
    if len(others) != 1:
        raise NotMeasured(f"the program has {len(others)} functions that run on the chip, expected one")
    _check_known(kernel)
    return _Counting(module, kernel).measures(*ub(text))


def _check_known(kernel: Operation) -> None:
    for each in kernel.walk():
        if each.callee is not None and _kind(each.callee) is None:
            raise NotMeasured(f"library function {each.callee} is not known")
        if each.name not in _FREE and not _SCALAR.fullmatch(each.name):
            raise NotMeasured(f"operation {each.name} is not known")


def _kind(function: str) -> tuple[str, int] | None:
    """ "vector" or "movement", and the position of the result; None for a function that is not known."""
    for kind, table in (("vector", _VECTOR), ("movement", _MOVEMENT)):
        for pattern, result in table:
            if re.fullmatch(pattern, function):
                return kind, result
    return None


def _bytes(memref: str) -> int | None:
    """Of a buffer of static shape; bits of i1 are packed."""
    found = _MEMREF.match(memref)
    if found is None or found["element"] not in _BITS:
        return None
    elements = 1
    for extent in found["shape"].split("x")[:-1]:
        elements *= int(extent)
    return -(-elements * _BITS[found["element"]] // 8)


@dataclass(slots=True)
class _Counting:
    """One walk over a kernel."""

    module: Module
    kernel: Operation
    defined: dict[str, Operation] = field(default_factory=dict)

    def measures(self, ub_used: int, ub_available: int) -> Measures:
        self.defined = {name: each for each in self.kernel.walk() for name in each.results}
        calls = [each for each in self.kernel.walk() if each.callee is not None]
        tile = self._tile()
        in_tile = [(each, weight) for part in tile for each, weight in self._weighted(part)]
        of_tile = [each.callee for each, _ in in_tile if each.callee is not None]
        moved = [self._moved(each, weight) for each, weight in in_tile]
        return Measures(
            ub_used=ub_used,
            ub_available=ub_available,
            vector=_count(calls, "vector"),
            movement=_count(calls, "movement"),
            vector_per_tile=sum(_is(name, "vector") for name in of_tile),
            movement_per_tile=sum(_is(name, "movement") for name in of_tile),
            scalar_per_tile=sum(weight for each, weight in in_tile if _SCALAR.fullmatch(each.name) and _works(each)),
            read_per_tile=sum(read for read, _ in moved),
            written_per_tile=sum(written for _, written in moved),
            scalar_loops=tuple(self._scalar_loops()),
            float32=tuple(self._float32(calls)),
        )

    # Loops

    def _tile(self) -> list[Operation]:
        """The outermost loop with most vector operations, of several the one that moves most; all there is where most
        vector operations are in no loop.
        """
        outermost = list(_outermost_loops(self.kernel))
        inside = sum(map(_vector_calls, outermost))
        if 2 * inside < _vector_calls(self.kernel) or not outermost:
            return self.kernel.inner
        return max(outermost, key=lambda loop: (_vector_calls(loop), self._moved_in(loop))).inner

    def _moved_in(self, loop: Operation) -> int:
        return sum(sum(self._moved(each, weight)) for each, weight in self._weighted(loop))

    def _weighted(self, operation: Operation, weight: int = 1) -> Iterator[tuple[Operation, int]]:
        """Everything in ``operation`` with how often it runs: what is in scalar loops as often as they go round."""
        yield operation, weight
        inside = weight * (self._trips(operation) or 1) if _is_scalar(operation) else weight
        for each in operation.inner:
            yield from self._weighted(each, inside)

    def _scalar_loops(self) -> Iterator[ScalarLoop]:
        for each in self.kernel.walk():
            if _is_scalar(each):
                body = [part for part in each.walk() if _SCALAR.fullmatch(part.name) and _works(part)]
                yield ScalarLoop(self.module.line_of(each), self._cause(each), self._trips(each), len(body))

    def _trips(self, loop: Operation) -> int | None:
        found = re.match(r"scf\.for %[\w-]+ = (%[\w-]+) to (%[\w-]+) step (%[\w-]+)", loop.text)
        bounds = [self._constant(name) for name in found.groups()] if found else [None]
        if None in bounds:
            return None
        low, high, step = (bound or 0 for bound in bounds)
        return max(0, -(-(high - low) // step)) if step > 0 else None

    def _constant(self, name: str) -> int | None:
        made = self.defined.get(name)
        found = re.match(r"arith\.constant (-?\d+)(?:\.0*(?:e\+00)?)? : ", made.text) if made is not None else None
        if found is None and made is not None:
            found = re.match(r"arith\.constant (-?\d+\.\d+e\+\d+) : f32", made.text)
        return int(float(found[1])) if found else None

    def _cause(self, loop: Operation) -> str:
        """What has no vector form: a load or store of single cells of global memory, else the arithmetic."""
        scattered = [
            "scattered-load" if each.name == "memref.load" else "scattered-store"
            for each in loop.walk()
            if each.name in ("memref.load", "memref.store") and self._is_global(each)
        ]
        if scattered:
            return scattered[0]
        work = [
            f"{each.name}:{found[1]}"
            for each in loop.walk()
            if each.name.startswith("arith.") and (found := re.search(r" : (\w+)(?: to \w+)?$", each.text))
        ]
        work = [
            each for each in work if not re.match(r"arith\.(?:index_cast|constant|ext[su]i|select)\b", each)
        ] or work
        return "+".join(dict.fromkeys(work)) or "copy"

    # Buffers

    def _is_global(self, access: Operation) -> bool:
        return "#hivm.address_space<gm>" in access.text

    def _sources(self, name: str) -> Iterator[Operation]:
        """The operation that makes a buffer, then those that make what it is a view of, or a choice among."""
        waiting, seen = [name], set()
        while waiting:
            name = waiting.pop()
            made = self.defined.get(name)
            if made is None or name in seen:
                continue
            seen.add(name)
            yield made
            if made.name in ("memref.cast", "memref.subview", "memref.reinterpret_cast", "hivm.hir.bitcast"):
                waiting.append(made.operands[0])
            elif made.name == "arith.select":
                waiting += made.operands[1:3]
            elif made.name == "scf.if":
                place = made.results.index(name)
                waiting += [each.operands[place] for each in made.inner if each.name == "scf.yield"]

    def _buffers(self, name: str) -> frozenset[str]:
        """The names of the buffers that ``name`` is a view of."""
        found = [each.results[0] for each in self._sources(name) if each.name in ("hivm.hir.pointer_cast",)]
        return frozenset(found) or frozenset({name})

    def _size(self, names: list[str]) -> int:
        """Bytes of the first whole buffer, or part of one, of known size that one of ``names`` is a view of."""
        for name in names:
            for made in self._sources(name):
                for memref in re.findall(r"memref<[^>]*>?>", made.text)[::-1]:
                    if (size := _bytes(memref)) is not None:
                        return size
        raise NotMeasured("a transfer of unknown size")

    def _moved(self, operation: Operation, weight: int) -> tuple[int, int]:
        """Bytes that one operation reads from global memory and writes to it, in all its rounds."""
        if operation.callee is not None and _is(operation.callee, "movement"):
            size = self._size(operation.operands[:2])
            return (size, 0) if operation.callee.startswith("load") else (0, size)
        if operation.name in ("memref.load", "memref.store") and self._is_global(operation):
            found = re.search(r"memref<(?:[\d?]+x)*(?P<element>[a-z]+\d+)", operation.text)
            size = weight * _BITS.get(found["element"], 0) // 8 if found else 0
            return (size, 0) if operation.name == "memref.load" else (0, size)
        return 0, 0

    # Integers in float32

    def _float32(self, calls: list[Operation]) -> Iterator[Float32Use]:
        """In the order of the program, what becomes of integers that were converted to float32. A float32 vector that
        comes from nowhere known is taken for such integers: what is not understood must not look safe.
        """
        floats: set[str] = set()  # buffers that hold what was a float from the beginning
        for call in calls:
            function = call.callee or ""
            place = _kind(function)
            assert place is not None, "checked before"
            arguments = call.operands
            result = self._buffers(arguments[place[1]])
            given = [name for index, name in enumerate(arguments[: place[1]]) if index != place[1]]
            vectors = [self._buffers(name) for name in given if self._is_float32(name)]
            of_integers = any(not each <= floats for each in vectors)
            converted = bool(re.fullmatch(r"vcast_u?int(?:32|64)_t_to_float_1d_with_\w+", function))
            line = self.module.line_of(call)
            if of_integers and function.endswith("_float"):
                if re.match(r"vdivs?_", function):
                    yield Float32Use("division", line, function, self._divisor(arguments))
                elif function.startswith("gather_"):
                    yield Float32Use("gather", line, function)
                elif function.startswith("vcmp"):
                    yield Float32Use("comparison", line, function)
                elif not function.startswith(("vsel_", "copy_", "reduce_")):
                    yield Float32Use("arithmetic", line, function)
            if converted or of_integers:
                floats -= result
            elif self._is_float32(arguments[place[1]]):
                floats |= result

    def _is_float32(self, name: str) -> bool:
        """Whether a value is a vector of float32 as it was made: bits of integers, looked at as float32, are not."""
        roots = [each for each in self._sources(name) if each.name == "hivm.hir.pointer_cast"]
        texts = [each.text for each in roots] or [each.text for each in self._sources(name)]
        return any(re.search(r"memref<[\dx?]*xf32", text) for text in texts)

    def _divisor(self, arguments: list[str]) -> int | None:
        return self._constant(arguments[1]) if len(arguments) > 1 else None


def _outermost_loops(operation: Operation) -> Iterator[Operation]:
    for each in operation.inner:
        if each.is_loop and not _is_scalar(each):
            yield each
        else:
            yield from _outermost_loops(each)


def _is_scalar(operation: Operation) -> bool:
    """Whether it is a loop of single loads and stores, without a library function."""
    if not operation.is_loop or any(each.callee is not None for each in operation.walk()):
        return False
    direct = [part for each in operation.inner for part in ([each] if not each.is_loop else [])]
    return any(part.name in ("memref.load", "memref.store") for each in direct for part in _without_loops(each))


def _without_loops(operation: Operation) -> Iterator[Operation]:
    yield operation
    for each in operation.inner:
        if not each.is_loop:
            yield from _without_loops(each)


def _works(operation: Operation) -> bool:
    """Whether the scalar unit has something to do: constants are in the code."""
    return operation.name not in _FREE


def _vector_calls(operation: Operation) -> int:
    return sum(_is(each.callee, "vector") for each in operation.walk())


def _is(function: str | None, kind: str) -> bool:
    place = _kind(function) if function is not None else None
    return place is not None and place[0] == kind


def _count(calls: list[Operation], kind: str) -> Counter[str]:
    return Counter(each.callee for each in calls if each.callee is not None and _is(each.callee, kind))
