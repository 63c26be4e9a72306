"""Bodies: what gives packed masks, and what takes them."""

from __future__ import annotations

from conformance.lanes.hivm.functions.call import Call
from conformance.lanes.hivm.functions.writer import Writer


def _compared(w: Writer, call: Call, left: str, right: str) -> str:
    predicate = call.name["op"]
    if call.name.is_float():  # a not-a-number is unequal to everything, and nothing else
        predicate = "une" if predicate == "ne" else f"o{predicate}"
    return w.compare(predicate, left, right, call.name.element())


def compare_vectors(w: Writer, call: Call) -> None:
    left, right = call.buffers
    (result,) = call.masks
    count = w.elements(left, reads=(right,), writes=(result,))
    with w.loop(count) as i:
        w.set_bit(_compared(w, call, w.load(left, i), w.load(right, i)), result, i)


def compare_scalar(w: Writer, call: Call) -> None:
    (source,), (result,) = call.buffers, call.masks
    count = w.elements(source, writes=(result,))
    with w.loop(count) as i:
        w.set_bit(_compared(w, call, w.load(source, i), call.values[0]), result, i)


def combine(w: Writer, call: Call) -> None:
    left, right, result = call.masks
    count = w.elements(result, reads=(left, right))
    with w.loop(count) as i:
        bit = w.arith(f"{call.name['op']}i", w.get_bit(left, i), w.get_bit(right, i), "i1")
        w.set_bit(bit, result, i)


def invert(w: Writer, call: Call) -> None:
    source, result = call.masks
    count = w.elements(result, reads=(source,))
    with w.loop(count) as i:
        w.set_bit(w.arith("xori", w.get_bit(source, i), w.constant("true", "i1"), "i1"), result, i)


def fill(w: Writer, call: Call) -> None:
    (result,) = call.masks
    with w.loop(result.size) as i:
        w.set_bit(call.values[0], result, i)


def select(w: Writer, call: Call) -> None:
    """``op``: what the first and the second choice are, v (vector) or s (scalar) each."""
    (condition,), result = call.masks, call.buffers[-1]
    sources, values = list(call.buffers[:-1]), list(call.values)
    choices = [sources.pop(0) if each == "v" else values.pop(0) for each in call.name["op"]]
    vectors = [each for each in choices if not isinstance(each, str)]
    count = w.elements(result, reads=(condition, *vectors))
    with w.loop(count) as i:
        yes, no = (each if isinstance(each, str) else w.load(each, i) for each in choices)
        w.store(w.select(w.get_bit(condition, i), yes, no, call.name.element()), result, i)


def to_numbers(w: Writer, call: Call) -> None:
    (source,), (result,) = call.masks, call.buffers
    element = call.name.element("U")
    operation = "uitofp" if call.name.is_float("U") else "extui"
    count = w.elements(result, reads=(source,))
    with w.loop(count) as i:
        w.store(w.op(f"arith.{operation} {w.get_bit(source, i)} : i1 to {element}"), result, i)
