"""What the library functions of the NPU compiler do: a body in MLIR for each, own code.

:mod:`conformance.lanes.hivm.functions.table` is the list: what is known, what it means, and from where. Whatever is not
in it raises Unsupported with its name: nothing is guessed. Bodies touch nothing outside their buffers; how they tell is
in :mod:`conformance.lanes.hivm.functions.writer`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.lanes.errors import Unsupported
from conformance.lanes.hivm.functions.call import ELEMENTS, Call, Function, Name, Rounding
from conformance.lanes.hivm.functions.table import TABLE
from conformance.lanes.hivm.functions.writer import (
    DECLARED,
    LAYOUT,
    OUTSIDE,
    READ,
    STRAY,
    UNDEFINED,
    WRITE,
    Buffer,
    Mask,
    Writer,
    memref,
)

__all__ = ["DECLARED", "LAYOUT", "OUTSIDE", "READ", "STRAY", "UNDEFINED", "WRITE", "Rounding", "body", "check_call"]

_MASK = memref("i8")


def body(name: str, types: Sequence[str], rounding: Rounding = Rounding.EXACT) -> str:
    """The MLIR text of library function ``name`` with arguments of ``types``, as declared without address spaces and
    with ``i8`` for ``i1`` in buffers. The module declares what it calls (``DECLARED``), and the lane defines it.

    Raises Unsupported for a name that is not known, and for one that is declared otherwise than it is known.
    """
    function, parsed = _find(name)
    expected = [_declared(each, parsed) for each in function.arguments.split()]
    if tuple(types) not in (tuple(expected), tuple(expected[: _needed(function)])):
        declared, known = ", ".join(types), ", ".join(expected)
        raise Unsupported(f"library function {name}: declared with ({declared}), known with ({known})")
    w = Writer(name, types)
    temporaries: list[Buffer | Mask] = []
    buffers: list[Buffer] = []
    masks: list[Mask] = []
    values: list[str] = []
    for index, (kind, type_) in enumerate(zip(function.arguments.split(), types, strict=False)):
        argument, temporary = f"%a{index}", kind.startswith("~")
        if "i1[]" in kind:
            mask = w.mask(argument)
            (temporaries if temporary else masks).append(mask)
        elif "[]" in kind:
            buffer = Buffer(argument, type_.removeprefix("memref<?x").partition(",")[0])
            (temporaries if temporary else buffers).append(buffer)
        else:
            values.append(argument)
    for each in temporaries:
        _forget(w, each)
    function.write(w, Call(parsed, tuple(buffers), tuple(masks), tuple(values), rounding))
    for each in temporaries:
        _forget(w, each)
    return w.text()


def check_call(name: str, constants: Mapping[int, str]) -> None:
    """Raise Unsupported where an argument of a call of ``name`` asks for something that is not known.

    ``constants``: those arguments that are constants, by number, as they are written in the program.
    """
    function, parsed = _find(name)
    if function.modes is None:
        return
    for index, known in function.modes(parsed).items():
        value = constants.get(index)
        if value not in {str(each) for each in known}:
            what = "is not a constant" if value is None else f"is {value}"
            raise Unsupported(
                f"library function {name}: argument {index} {what}, known is {' or '.join(map(str, known))}"
            )


def _find(name: str) -> tuple[Function, Name]:
    for function in TABLE:
        if match := function.pattern.fullmatch(name):
            return function, Name(name, match.groupdict())
    raise Unsupported(f"library function {name} is not known")


def _needed(function: Function) -> int:
    """How many arguments every declaration has."""
    return sum(not each.endswith("?") for each in function.arguments.split())


def _declared(kind: str, name: Name) -> str:
    element, brackets, _ = kind.strip("~?").partition("[]")
    if element in ("T", "U"):
        element = ELEMENTS[name[element]]
    if not brackets:
        return element
    return _MASK if element == "i1" else memref(element)


def _forget(w: Writer, temporary: Buffer | Mask) -> None:
    if isinstance(temporary, Mask):
        w.fill_mask(temporary, w.undefined("i8"))
    else:
        w.fill(temporary, w.undefined(temporary.element))
