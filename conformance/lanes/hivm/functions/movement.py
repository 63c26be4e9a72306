"""Bodies: what fills, moves, gathers and reduces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from conformance.lanes.hivm.functions.call import Call, Name
from conformance.lanes.hivm.functions.writer import BLOCK, BYTES, LAYOUT, STRAY, WRITE, Writer

# PadMode of the sources: 0 none, 2 the value given. 1, the first element, is not written here.
NO_PADDING, PAD_VALUE = 0, 2


def broadcast(w: Writer, call: Call) -> None:
    w.fill(call.buffers[0], call.values[0])


def arange(w: Writer, call: Call) -> None:
    """Where elements do not lie side by side, the library multiplies the offset by their distance. So does this."""
    (result,), (offset, step) = call.buffers, call.values
    _, stride = w.metadata(result)
    first = w.arith("muli", offset, stride)
    with w.loop(w.size(result)) as i:
        value = w.arith("addi", first, w.arith("muli", step, i))
        w.store(w.op(f"arith.index_cast {value} : index to {result.element}"), result, i)


def copy(w: Writer, call: Call) -> None:
    source, result = call.buffers
    count = w.elements(source, writes=(result,))
    with w.loop(count) as i:
        w.store(w.load(source, i), result, i)


def load(w: Writer, call: Call) -> None:
    """From global memory: what there is, and then the rest of the chip's last block of 32 bytes.

    The transfer fills that with the value (mode 2) or with zero. It begins at a block: elements before the first one
    are moved singly, and where those are all, nothing is filled. So are elements that do not lie side by side.
    """
    source, result = call.buffers
    mode, value = call.values[0], call.values[1]
    size = w.size(source)
    element, width = result.element, BYTES[result.element]
    address, stride = w.metadata(result)
    _, distance = w.metadata(source)
    count = w.elements(source, writes=(result,))
    one = w.constant(1)
    apart = w.compare("ne", stride, one)
    whole = w.arith("remui", stride, w.constant(BLOCK // width))
    by_blocks = w.arith("andi", apart, w.compare("eq", whole, w.constant(0)), "i1")
    with w.when(by_blocks):  # a transfer for each element, which fills its block
        w.outside(result, size, w.constant(0), LAYOUT)
    count = w.select(by_blocks, w.constant(0), count, "index")
    with w.loop(count) as i:
        w.store(w.load(source, i), result, i)
    bytes_ = w.arith("muli", count, w.constant(width))
    into = w.arith("remui", address, w.constant(BLOCK))
    head = w.arith("remui", w.arith("subi", w.constant(BLOCK), into), w.constant(BLOCK))
    transfer = w.arith("andi", w.compare("ugt", bytes_, head), w.compare("eq", distance, one), "i1")
    transfer = w.arith("andi", transfer, w.arith("xori", apart, w.constant("true", "i1"), "i1"), "i1")
    transfer = w.arith("andi", transfer, w.compare("eq", count, size), "i1")
    past = w.arith("remui", w.arith("addi", address, bytes_), w.constant(BLOCK))
    left = w.arith("remui", w.arith("subi", w.constant(BLOCK), past), w.constant(BLOCK))
    fill = w.select(transfer, w.arith("divui", left, w.constant(width)), w.constant(0), "index")
    given = w.compare("eq", mode, w.constant(PAD_VALUE, "i32"), "i32")
    padding = w.select(given, value, w.zero(element), element)
    with w.loop(w.arith("addi", count, fill), count) as i:
        w.store(padding, result, i)


def load_modes(_: Name) -> Mapping[int, Iterable[int]]:
    return {2: (NO_PADDING, PAD_VALUE), 4: (0,)}  # padding to the left of none


def plain(_: Name) -> Mapping[int, Iterable[int]]:
    """Of a store: no atomic operation; of a copy: no padding."""
    return {2: (0,)}


def gather(w: Writer, call: Call) -> None:
    """An index outside the source gives nothing that is defined, and is told about.

    The chip adds it to the source's address, whatever it is, and takes the elements of the source to lie side by side.
    Of an aligned source of one element the library copies that one and does not look at indices.
    """
    source, indices, result = call.buffers
    element = source.element
    size = w.size(source)
    _, stride = w.metadata(source)
    count = w.elements(indices, writes=(result,))
    apart = w.compare("ne", stride, w.constant(1))
    with w.when(apart):
        w.outside(source, size, w.constant(0), LAYOUT)
    count = w.select(apart, w.constant(0), count, "index")
    address, _ = w.metadata(source)
    aligned = w.compare("eq", w.arith("remui", address, w.constant(BLOCK)), w.constant(0))
    only = w.arith("andi", w.is_single(source), aligned, "i1")
    with w.loop(count) as i:
        index = w.op(f"arith.index_cast {w.load(indices, i)} : i32 to index")
        index = w.select(only, w.constant(0), index, "index")
        inside = w.compare("ult", index, size)
        value = w.new()
        w.emit(f"{value} = scf.if {inside} -> ({element}) {{")
        w.emit(f"scf.yield {w.load(source, index)} : {element}")
        w.emit("} else {")
        w.outside(source, size, index, STRAY)
        w.emit(f"scf.yield {w.undefined(element)} : {element}")
        w.emit("}")
        w.store(value, result, i)


def reduce(w: Writer, call: Call) -> None:
    """Of no elements, nothing is written."""
    source, result = call.buffers
    operation = {"sum": "addi", "min": "minsi", "max": "maxsi"}[call.name["op"]]
    element, size = source.element, w.size(source)
    total, index, so_far = w.new(), w.new(), w.new()
    w.emit(
        f"{total} = scf.for {index} = {w.constant(0)} to {size} step {w.constant(1)}"
        f" iter_args({so_far} = {call.values[0]}) -> ({element}) {{"
    )
    w.emit(f"scf.yield {w.arith(operation, so_far, w.load(source, index), element)} : {element}")
    w.emit("}")
    with w.when(w.compare("ne", size, w.constant(0))):
        room = w.size(result)
        full = w.compare("eq", room, w.constant(0))
        with w.when(full):
            w.outside(result, room, w.constant(0), WRITE)
        with w.when(w.compare("ne", room, w.constant(0))):
            w.store(total, result, w.constant(0))


def neutral(name: Name) -> Mapping[int, Iterable[int]]:
    """The library starts from it, or fills with it, or does not use it: only what changes nothing is known."""
    bits = 8 * BYTES[name.element()] - 1
    return {3: ({"sum": 0, "min": (1 << bits) - 1, "max": -(1 << bits)}[name["op"]],)}
