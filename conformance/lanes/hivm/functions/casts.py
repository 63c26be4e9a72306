"""Bodies: casts of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from conformance.lanes.hivm.functions.call import Call, Name
from conformance.lanes.hivm.functions.writer import BLOCK, BYTES, LAYOUT, Buffer, Writer

# CastMode of the sources: 0 to nearest, ties to even; 4 toward zero; 6 keep the low bits. 1 ties away from zero, 2
# down, 3 up and 5 to odd are not written here.
NEAREST, TOWARD_ZERO, LOW_BITS = 0, 4, 6


def modes(name: Name) -> Mapping[int, Iterable[int]]:
    """Casts to a wider type are exact and ignore it; compilers give 0."""
    return {2: (TOWARD_ZERO,) if name.is_float("T") and not name.is_float("U") else (NEAREST,)}


def convert(w: Writer, call: Call) -> None:
    source, result = call.buffers
    count = w.elements(source, writes=(result,))
    if _narrows(call.name):
        for buffer in (source, result):
            count = _of_aligned(w, buffer, count)
    with w.loop(count) as i:
        w.store(_converted(w, call.name, w.load(source, i)), result, i)


def low_bits(w: Writer, call: Call) -> None:
    source, result = call.buffers
    count = w.elements(source, writes=(result,))
    with w.loop(count) as i:
        w.store(w.op(f"arith.trunci {w.load(source, i)} : {source.element} to {result.element}"), result, i)


def _narrows(name: Name) -> bool:
    """Whether the library does something else where a buffer is not aligned: there it takes one element after the
    other (``scalar_cast_1d_with_mode``), integers wrap around, and float32 to float16 traps.
    """
    source, result = name.element("T"), name.element("U")
    smaller = BYTES[result] < BYTES[source]
    return smaller and name.is_float("T") == name.is_float("U")


def _of_aligned(w: Writer, buffer: Buffer, count: str) -> str:
    """``count``; none, which is told about, where ``buffer`` does not begin at a block of 32 bytes."""
    address, _ = w.metadata(buffer)
    zero = w.constant(0)
    unaligned = w.compare("ne", w.arith("remui", address, w.constant(BLOCK)), zero)
    with w.when(unaligned):
        w.outside(buffer, w.size(buffer), zero, LAYOUT)
    return w.select(unaligned, zero, count, "index")


def _converted(w: Writer, name: Name, value: str) -> str:
    source, result = name.element("T"), name.element("U")
    if source == result:
        return value
    if name.is_float("T") and name.is_float("U"):
        return w.op(f"arith.{'extf' if BYTES[result] > BYTES[source] else 'truncf'} {value} : {source} to {result}")
    if name.is_float("U"):
        return w.op(f"arith.{'si' if name.is_signed('T') else 'ui'}tofp {value} : {source} to {result}")
    if name.is_float("T"):
        sign = "s" if name.is_signed("U") else "u"
        kept = w.op(f'llvm.call_intrinsic "llvm.fpto{sign}i.sat.{result}.{source}"({value}) : ({source}) -> {result}')
        return w.select(w.compare("uno", value, value, source), w.undefined(result), kept, result)
    if BYTES[result] > BYTES[source]:
        return w.op(f"arith.{'extsi' if name.is_signed('T') else 'extui'} {value} : {source} to {result}")
    bits = 8 * BYTES[result] - 1
    low, high = w.constant(-(1 << bits), source), w.constant((1 << bits) - 1, source)
    near = w.arith("minsi", w.arith("maxsi", value, low, source), high, source)
    return w.op(f"arith.trunci {near} : {source} to {result}")
