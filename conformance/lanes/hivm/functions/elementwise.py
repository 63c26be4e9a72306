"""Bodies: arithmetic, bits and shifts, one element at a time. A source of one element stands for all."""

from __future__ import annotations

from conformance.lanes.hivm.functions.call import Call, Rounding
from conformance.lanes.hivm.functions.writer import Writer

_INFINITY = "0x7F800000"


def _operation(call: Call) -> str:
    operation = call.name["op"]
    if call.name.is_float():
        return {"add": "addf", "sub": "subf", "mul": "mulf", "div": "divf"}[operation]
    if operation in ("min", "max"):
        return f"{operation}{'si' if call.name.is_signed() else 'ui'}"
    return f"{operation}i"


def _apply(w: Writer, call: Call, left: str, right: str) -> str:
    element = call.name.element()
    value = w.arith(_operation(call), left, right, element)
    if call.name["op"] == "div" and element == "f32" and call.rounding is not Rounding.EXACT:
        return _neighbour(w, value, call.rounding)
    return value


def _neighbour(w: Writer, value: str, rounding: Rounding) -> str:
    """The next float32 below or above. The bits of numbers are in order, those below zero in reverse."""
    bits = w.op(f"arith.bitcast {value} : f32 to i32")
    negative = w.compare("slt", bits, w.constant(0, "i32"), "i32")
    up, down = w.constant(1, "i32"), w.constant(-1, "i32")
    outward, inward = (up, down) if rounding is Rounding.HIGH else (down, up)
    moved = w.arith("addi", bits, w.select(negative, inward, outward, "i32"), "i32")
    near = w.op(f"arith.bitcast {moved} : i32 to f32")
    zero = w.compare("oeq", value, w.constant("0.0", "f32"), "f32")
    magnitude = w.op(f"arith.bitcast {w.arith('andi', bits, w.constant(0x7FFFFFFF, 'i32'), 'i32')} : i32 to f32")
    finite = w.compare("olt", magnitude, w.constant(_INFINITY, "f32"), "f32")
    stays = w.arith("ori", zero, w.arith("xori", finite, w.constant("true", "i1"), "i1"), "i1")
    return w.select(stays, value, near, "f32")


def two_vectors(w: Writer, call: Call) -> None:
    left, right, result = call.buffers
    count = w.elements(result, reads=(left, right), single=True)
    one, other = w.is_single(left), w.is_single(right)
    with w.loop(count) as i:
        w.store(_apply(w, call, w.load_any(left, i, one), w.load_any(right, i, other)), result, i)


def vector_scalar(w: Writer, call: Call) -> None:
    source, result = call.buffers
    count = w.elements(result, reads=(source,), single=True)
    single = w.is_single(source)
    with w.loop(count) as i:
        w.store(_apply(w, call, w.load_any(source, i, single), call.values[0]), result, i)


def scalar_vector(w: Writer, call: Call) -> None:
    source, result = call.buffers
    count = w.elements(result, reads=(source,), single=True)
    single = w.is_single(source)
    with w.loop(count) as i:
        w.store(_apply(w, call, call.values[0], w.load_any(source, i, single)), result, i)


def invert(w: Writer, call: Call) -> None:
    source, result = call.buffers
    element = call.name.element()
    count = w.elements(result, reads=(source,), single=True)
    single, ones = w.is_single(source), w.constant(-1, element)
    with w.loop(count) as i:
        w.store(w.arith("xori", w.load_any(source, i, single), ones, element), result, i)


def shift(w: Writer, call: Call) -> None:
    """By 0 up to the width, which shifts everything out; what another distance gives is not known."""
    source, result = call.buffers
    element = call.name.element()
    width, distance = int(element[1:]), call.values[0]
    count = w.elements(result, reads=(source,), single=True)
    single, last = w.is_single(source), w.constant(width - 1, element)
    all_out = w.compare("eq", distance, w.constant(width, element), element)
    known = w.compare("ule", distance, w.constant(width, element), element)
    near = w.arith("minui", distance, last, element)
    right = call.name["op"] == "shr"
    operation = ("shrsi" if call.name.is_signed() else "shrui") if right else "shli"
    arithmetic = operation == "shrsi"
    with w.loop(count) as i:
        shifted = w.arith(operation, w.load_any(source, i, single), near, element)
        if not arithmetic:  # by width - 1 an arithmetic shift has filled everything with the sign
            shifted = w.select(all_out, w.zero(element), shifted, element)
        w.store(w.select(known, shifted, w.undefined(element), element), result, i)
