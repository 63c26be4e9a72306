"""Bodies: casts of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from conformance.lanes.hivm.library.call import Call, Name
from conformance.lanes.hivm.library.writer import BYTES, Writer

# CastMode of the sources: 0 to nearest, ties to even; 4 toward zero; 6 keep the low bits. 1 ties away from zero, 2
# down, 3 up and 5 to odd are not written here.
NEAREST, TOWARD_ZERO, LOW_BITS = 0, 4, 6


def modes(name: Name) -> Mapping[int, Iterable[int]]:
    """Casts to a wider type are exact and ignore it; compilers give 0."""
    return {2: (TOWARD_ZERO,) if name.is_float("T") and not name.is_float("U") else (NEAREST,)}


def convert(w: Writer, call: Call) -> None:
    source, result = call.buffers
    count = w.elements(source, writes=(result,))
    with w.loop(count) as i:
        w.store(_converted(w, call.name, w.load(source, i)), result, i)


def low_bits(w: Writer, call: Call) -> None:
    source, result = call.buffers
    count = w.elements(source, writes=(result,))
    with w.loop(count) as i:
        w.store(w.op(f"arith.trunci {w.load(source, i)} : {source.element} to {result.element}"), result, i)


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
        return w.select(w.compare("uno", value, value, source), w.poison(result), kept, result)
    if BYTES[result] > BYTES[source]:
        return w.op(f"arith.{'extsi' if name.is_signed('T') else 'extui'} {value} : {source} to {result}")
    bits = 8 * BYTES[result] - 1
    low, high = w.constant(-(1 << bits), source), w.constant((1 << bits) - 1, source)
    near = w.arith("minsi", w.arith("maxsi", value, low, source), high, source)
    return w.op(f"arith.trunci {near} : {source} to {result}")
