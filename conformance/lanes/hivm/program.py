"""The last program before code generation (``module.hivm.opt.mlir``), rewritten for upstream MLIR.

What the rewrite does not know it refuses with the operation and the line of the kernel: nothing is guessed.

- A buffer at a planned address becomes a descriptor into UB. Its first pointer, which nothing dereferences, holds what
  was planned (:func:`conformance.lanes.hivm.ub.word`) and travels through every part that is made of the buffer.
- A call of a library function gets the number of its *site*, the place in the kernel, in front of its arguments.
- Single loads and stores in UB, and single stores to global memory, become calls as well: they are checked, and kept.
- A packed mask (``i1``) is declared as bytes; offset and size of its parts still count bits.
- Synchronization is dropped: one operation runs after the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from conformance.lanes.ascend import upstream
from conformance.lanes.ascend.ir import Module, Unreadable, parse, without_location
from conformance.lanes.errors import Unsupported
from conformance.lanes.hivm import ub

PASSES = (
    "--canonicalize",
    "--cse",
    "--lower-affine",
    "--expand-strided-metadata",
    "--lower-affine",
    "--convert-scf-to-cf",
    "--arith-expand",
    "--convert-arith-to-llvm",
    "--convert-index-to-llvm",
    "--finalize-memref-to-llvm",
    "--convert-func-to-llvm",
    "--convert-cf-to-llvm",
    "--convert-arith-to-llvm",
    "--reconcile-unrealized-casts",
)

ANY = "strided<[?], offset: ?>"
"""The layout that library functions take buffers in."""

BITS = {"i1": 1, "i8": 8, "i16": 16, "f16": 16, "bf16": 16, "i32": 32, "f32": 32, "i64": 64, "f64": 64}

# Order among pipes: nothing to do where one operation follows the other.
_DROPPED = re.compile(r"hivm\.hir\.(?:set_flag|wait_flag|pipe_barrier|set_mask_norm)")
# Upstream operations, taken as they are.
_KEPT = re.compile(
    r"(?:arith\.(?:constant|select|bitcast|index_cast(?:ui)?|cmp[if]|ext(?:f|si|ui)|trunc[fi]|[su]itofp|fpto[su]i|negf"
    r"|add[fi]|sub[fi]|mul[fi]|divf|(?:ceil|floor)?div[su]i|rem[su]i|andi|ori|xori|shli|shr[su]i"
    r"|(?:max|min)[su]i|(?:max|min)(?:imum|num)f)|affine\.(?:apply|min|max)|scf\.(?:for|if|while|yield|condition)"
    r"|memref\.(?:cast|subview|reinterpret_cast)|return|\}|\^bb\d+)"
)
# Hints for scheduling and for caches. An attribute that is not among them may mean something.
_HINT = (
    r"(?:hivm\.unlikely_condition|DiscreteMemAccess|ExtractedLoadOrStore|pipeline\.veconly"
    r"|markDCacheInvalidatePatternVisited = \d : i32)"
)
_HINTS = re.compile(rf" \{{{_HINT}(?:, {_HINT})*\}}")
# What may stand in braces: nothing but a region, which begins at the end of a line and ends at the beginning of one.
_ATTRIBUTES = re.compile(r"(?!^)\}|\{(?!$)|\bfastmath<")
_OPERATION = re.compile(r"^(?:%[^=]*? = )?(?P<name>\}|\^bb\d+|[a-z_]\w*(?:\.\w+)*)")
_CONSTANT = re.compile(r"^(%[\w-]+) = arith\.constant (\S+) : \w+$")
_DECLARATION = re.compile(r"^func\.func private @(\w+)\((.*?)\)(?: attributes \{.*\})?$")
_CALL = re.compile(r"^(?:func\.)?call @(\w+)\((.*?)\) : \((.*)\) -> \(\)$")
_POINTER = re.compile(r"^(%[\w-]+) = hivm\.hir\.pointer_cast\(([^)]*)\)(?: \[(%[\w#-]+)\])? : (memref<.*>)$")
_BITCAST = re.compile(r"^(%[\w-]+) = hivm\.hir\.bitcast (%[\w#-]+) : (memref<.*>) -> (memref<.*>)$")
_BLOCK = re.compile(r"^(%[\w-]+) = hivm\.hir\.get_block_idx -> i64$")
_LOAD = re.compile(r"^(%[\w-]+) = memref\.load (%[\w#-]+)\[(%[\w#-]+)\] : (memref<.*>)$")
_STORE = re.compile(r"^memref\.store (%[\w#-]+), (%[\w#-]+)\[(%[\w#-]+)\] : (memref<.*>)$")
_MEMREF = re.compile(r"^memref<(?:(\d+|\?)x)(\w+)(?:, (strided<.*?>))?, #hivm\.address_space<(\w+)>>$")
_ENTRY = re.compile(r"^func\.func @(\w+)\((.*)\) attributes \{(.*)\} \{$")


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer as planned: its bytes in UB, what it holds, and the line of the kernel that it is for."""

    begin: int
    end: int
    what: str
    line: str


@dataclass(frozen=True, slots=True)
class Site:
    """Where in the kernel something is called or touched."""

    what: str
    line: str


@dataclass(frozen=True, slots=True)
class Function:
    """A library function as declared: argument types, for each buffer with its address space, for example
    ``memref<?xi1, strided<[?], offset: ?>, #hivm.address_space<ub>>``.
    """

    name: str
    types: tuple[str, ...]

    @property
    def plain_types(self) -> tuple[str, ...]:
        """Without address spaces, and masks as bytes."""
        return tuple(map(_plain, self.types))


@dataclass(slots=True)
class Rewritten:
    """``text`` is the module; the kernel in it has the block index in front of its own arguments. ``ub_bytes`` of UB
    are planned, of which the chip has ``ub_limit``.
    """

    text: str
    functions: list[Function]
    places: list[Place]
    sites: list[Site]
    ub_bytes: int
    ub_limit: int


CheckCall = Callable[[str, Mapping[int, str]], None]
"""Called with a library function's name and its arguments that are constants, by number: raises Unsupported for a mode
that is not implemented.
"""


def rewritten(program: str, kernel: str, check_call: CheckCall) -> Rewritten:
    """``program``, in which the function ``kernel`` is the kernel, for upstream MLIR. Raises Unsupported."""
    if "hivm_regbaseintrins." in program:
        chip = re.search(r'#hacc\.target<"(\w+)">', program)
        raise Unsupported(
            f"a program for {chip[1] if chip else 'Ascend950'}, whose vectors are in registers: lane hivm knows the"
            " programs of Ascend910 chips, whose vectors are buffers in UB"
        )
    try:
        module = parse(program)
    except Unreadable as error:
        raise Unsupported(f"the compiler's last program is not as expected: {error}") from error
    return _Rewrite(module, kernel, check_call).run(program)


def _limit(module: Module) -> int:
    """Bytes of UB that the chip has."""
    found = re.search(r'"UB_SIZE", (\d+) : i32', module.attributes)
    if found is None:
        raise Unsupported("the compiler's last program does not say how much UB the chip has")
    return int(found[1]) // 8


@dataclass(slots=True)
class _Rewrite:
    module: Module
    kernel: str
    check_call: CheckCall
    output: list[str] = field(default_factory=list)
    declared: dict[str, Function] = field(default_factory=dict)
    called: dict[str, Function] = field(default_factory=dict)
    helpers: set[str] = field(default_factory=set)
    constants: dict[str, str] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    sites: dict[Site, int] = field(default_factory=dict)
    names: int = 0
    location: str = ""

    def run(self, program: str) -> Rewritten:
        limit = _limit(self.module)
        if "#hivm.module_core_type<AIV>" not in self.module.attributes:
            raise Unsupported("the kernel is not for the vector cores alone: this lane runs no others")
        aliases = []
        inside = found = False
        for line in program.splitlines():
            text, self.location = without_location(line.strip())
            if text.startswith("#map"):
                aliases.append(text)
            elif text.startswith(("#", "module ")) or not text:
                continue
            elif declaration := _DECLARATION.match(text):
                self.declared[declaration[1]] = Function(declaration[1], tuple(_types(declaration[2])))
            elif text.startswith("func.func "):
                inside = self._entry(text)
                found = found or inside
            elif line.startswith("  }"):  # the end of a function
                if inside:
                    self.output.append("}")
                inside = False
            elif inside:
                self._operation(text)
        if not found:
            raise Unsupported(f"the compiler's last program has no kernel {self.kernel}")
        declarations = [
            f"func.func private @{each.name}({', '.join(['i64', *each.plain_types])})" for each in self.called.values()
        ]
        text = "\n".join([*aliases, "module {", *declarations, *sorted(self.helpers), *self.output, "}", ""])
        used = max((place.end for place in self.places), default=0)
        return Rewritten(text, list(self.called.values()), self.places, list(self.sites), used, limit)

    def refuse(self, what: str) -> Unsupported:
        """With the line of the kernel."""
        where = self.module.line_at(self.location)
        return Unsupported(f"{what}{f' ({where})' if where else ''}")

    def _entry(self, text: str) -> bool:
        """Whether this function is the kernel, which is then begun."""
        found = _ENTRY.match(text)
        if found is None or found[1] != self.kernel:
            if "#hacc.function_kind<HOST>" in text:
                return False
            raise self.refuse(f"function {text[:80]}")
        arguments = re.sub(r" \{[^{}]*\}", "", _unlocated(found[2]))
        self.output.append(f"func.func @{self.kernel}(%hv_block: i64, {_spaceless(arguments)}) {{")
        self.output.append("%hv_none = arith.constant 0 : i64")
        return True

    def _operation(self, text: str) -> None:
        text = _HINTS.sub("", text)
        found = _OPERATION.match(text)
        name = found["name"] if found else text[:80]
        if constant := _CONSTANT.match(text):
            self.constants[constant[1]] = constant[2]
        elif text.startswith("%"):  # a name may stand for something else in another region
            self.constants.pop(text.partition(" ")[0], None)
        if attributes := _ATTRIBUTES.search(text):
            raise self.refuse(f"attribute of {name}: {text[max(attributes.start() - 40, 0) :][:120]}")
        if _DROPPED.fullmatch(name):
            return
        handler = _HANDLERS.get(name)
        if handler is not None:
            handler(self, text)
        elif _KEPT.fullmatch(name):
            self.output.append(_spaceless(_unlocated(text) if text.startswith("^") else text))
        else:
            raise self.refuse(f"operation {name}")

    def _new(self) -> str:
        self.names += 1
        return f"%hv{self.names}"

    def _line(self) -> str:
        return str(self.module.line_at(self.location) or "")

    def _site(self, what: str) -> str:
        """A value that holds the number of this place in the kernel."""
        number = self.sites.setdefault(Site(what, self._line()), len(self.sites))
        name = self._new()
        self.output.append(f"{name} = arith.constant {number} : i64")
        return name

    def _call(self, text: str) -> None:
        found = _CALL.match(text)
        function = self.declared.get(found[1]) if found else None
        if found is None or function is None:
            raise self.refuse(f"call {text[:80]}")
        arguments = [each.strip() for each in found[2].split(",")]
        known = {number: self.constants[each] for number, each in enumerate(arguments) if each in self.constants}
        try:
            self.check_call(function.name, known)
        except Unsupported as error:
            raise self.refuse(str(error)) from error
        self.called[function.name] = function
        site = self._site(function.name)
        types = ", ".join(["i64", *function.plain_types])
        self.output.append(f"func.call @{function.name}({', '.join([site, *arguments])}) : ({types}) -> ()")

    def _pointer(self, text: str) -> None:
        found = _POINTER.match(text)
        if found is None or "," in found[2]:
            raise self.refuse(f"buffer at several addresses: {text[:80]}")
        result, address, size, memref = found.groups()
        shape, element, layout, space = self._memref(memref)
        p = self._new()
        if space == "gm":  # an address that the kernel has read from a table
            length = f"arith.index_cast {size} : index to i64" if size else f"llvm.mlir.constant({shape} : i64) : i64"
            self.output += [f"{p}n = {length}", f"{p}p = llvm.inttoptr {address} : i64 to !llvm.ptr"]
            made = upstream.descriptor(result, p, f"{p}p", f"{p}p", f"{p}n", _plain(memref))
            self.output.append(made)
            return
        if space != "ub" or size or layout or address not in self.constants:
            raise self.refuse(f"buffer {memref} at an address that the plan does not say")
        begin = int(self.constants[address])
        nbytes = -(-int(shape) * BITS[element] // 8)
        place = len(self.places)
        self.places.append(Place(begin, begin + nbytes, f"{shape} x {element}", self._line()))
        if begin < 0 or begin + nbytes > ub.SPAN or place >= 1 << 15:
            raise self.refuse(f"buffer {memref} at {begin:#x}, far outside UB")
        self.output += [
            f"{p}n = llvm.mlir.constant({shape} : i64) : i64",
            f"{p}w = llvm.mlir.constant({ub.word(begin, begin + nbytes, place)} : i64) : i64",
            f"{p}a = llvm.inttoptr {p}w : i64 to !llvm.ptr",
            f"{p}u = llvm.mlir.constant({ub.BASE + begin} : i64) : i64",
            f"{p}p = llvm.inttoptr {p}u : i64 to !llvm.ptr",
            upstream.descriptor(result, p, f"{p}a", f"{p}p", f"{p}n", _plain(memref)),
        ]

    def _bitcast(self, text: str) -> None:
        found = _BITCAST.match(text)
        if found is None:
            raise self.refuse(f"bitcast {text[:80]}")
        result, source, old, new = found.groups()
        (shape, element, layout, _), (other, target, other_layout, _) = self._memref(old), self._memref(new)
        if layout or other_layout or shape != other or BITS[element] != BITS[target] or "i1" in (element, target):
            raise self.refuse(f"bitcast from {old} to {new}")
        p, struct = self._new(), upstream.DESCRIPTOR
        self.output += [
            f"{p} = builtin.unrealized_conversion_cast {source} : {_plain(old)} to {struct}",
            f"{result} = builtin.unrealized_conversion_cast {p} : {struct} to {_plain(new)}",
        ]

    def _block(self, text: str) -> None:
        found = _BLOCK.match(text)
        if found is None:
            raise self.refuse(text[:80])
        self.output.append(f"{found[1]} = arith.addi %hv_block, %hv_none : i64")

    def _load(self, text: str) -> None:
        found = _LOAD.match(text)
        if found is None:
            raise self.refuse(f"load {text[:80]}")
        result, source, index, memref = found.groups()
        _, element, _, space = self._memref(memref)
        if element == "i1":
            raise self.refuse(f"single load of a packed mask {memref}")
        if space == "gm":
            self.output.append(_spaceless(text))
            return
        self._touch(f"ub_load_{element}", f"{result} = ", [], source, index, memref, element)

    def _store(self, text: str) -> None:
        found = _STORE.match(text)
        if found is None:
            raise self.refuse(f"store {text[:80]}")
        value, target, index, memref = found.groups()
        _, element, _, space = self._memref(memref)
        if element == "i1":
            raise self.refuse(f"single store to a packed mask {memref}")
        self._touch(f"{space}_store_{element}", "", [value], target, index, memref, element)

    def _touch(
        self, helper: str, result: str, value: list[str], buffer: str, index: str, memref: str, element: str
    ) -> None:
        """A single access, done by ``helper``."""
        what = "a single load" if result else "a single store"
        site, plain, taken = self._site(what), _plain(memref), f"memref<?x{element}, {ANY}>"
        if plain != taken:
            cast = self._new()
            self.output.append(f"{cast} = memref.cast {buffer} : {plain} to {taken}")
            buffer = cast
        types = ["i64", taken, "index", *[element] * len(value)]
        returned = element if result else "()"
        self.helpers.add(f"func.func private @{helper}({', '.join(types)}){f' -> {element}' if result else ''}")
        arguments = ", ".join([site, buffer, index, *value])
        self.output.append(f"{result}func.call @{helper}({arguments}) : ({', '.join(types)}) -> {returned}")

    def _memref(self, memref: str) -> tuple[str, str, str, str]:
        """(size, element, layout, address space)."""
        found = _MEMREF.match(memref)
        if found is None or found[4] not in ("ub", "gm") or found[2] not in BITS:
            raise self.refuse(f"buffer {memref}")
        return found[1], found[2], found[3] or "", found[4]


_HANDLERS: Mapping[str, Callable[[_Rewrite, str], None]] = {
    "call": _Rewrite._call,
    "func.call": _Rewrite._call,
    "hivm.hir.pointer_cast": _Rewrite._pointer,
    "hivm.hir.bitcast": _Rewrite._bitcast,
    "hivm.hir.get_block_idx": _Rewrite._block,
    "memref.load": _Rewrite._load,
    "memref.store": _Rewrite._store,
}


def _types(listed: str) -> list[str]:
    """The types of a list, in which a type may have commas of its own."""
    return [each.strip() for each in re.split(r", (?=memref<|[if]\d|bf16|index)", listed) if each.strip()]


def _spaceless(text: str) -> str:
    """Without address spaces, and masks as bytes."""
    text = re.sub(r", #hivm\.address_space<\w+>", "", text)
    return re.sub(r"memref<(\?|\d+)xi1(?=[,>])", r"memref<\1xi8", text)


def _unlocated(arguments: str) -> str:
    """Arguments of a function or block without their locations."""
    return re.sub(r" loc\((?:[^()]|\([^()]*\))*\)", "", arguments)


def _plain(kind: str) -> str:
    return _spaceless(kind)
