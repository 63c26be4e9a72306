"""The library functions of the NPU compiler that the lane knows: name, arguments, meaning, source, body.

``arguments`` are those declared, in order: ``T`` and ``U`` the types in the name (``T[]`` a buffer of them, ``i1[]`` a
packed mask), ``i32`` and ``index`` as they are; ``~`` before a temporary, in which the function may leave anything;
``?`` after one that not every declaration has.

Sources are files of Ascend/AscendNPU-IR at tag v1.2.0, below ``bishengir/lib/Template/lib``, and, where the sources end
in an instruction, pages of the asc-devkit documentation (``docs/api/context``). Names that those sources do not have,
and functions of them that are not here, are not known: what a float32 minimum makes of a not-a-number, or in which
order float32 numbers are added up, is published nowhere.

Taken for granted, because nothing says otherwise: int16 and int32 arithmetic keeps the low 16 and 32 bits; float16 and
float32 follow IEEE 754 to nearest (float32 division as :class:`~conformance.lanes.hivm.functions.call.Rounding` says);
buffers of one call do not overlap, but for the result on top of a source.
"""

from __future__ import annotations

import re

from conformance.lanes.hivm.functions import casts, elementwise, masks, movement
from conformance.lanes.hivm.functions.call import Body, Function, Modes

_ELTWISE = "Vector/Elementwise/EltWise1D.cpp"
_CAST = "Vector/Cast/Cast1D.cpp"
_SELECT = "Vector/CmpSel/Sel1D.cpp"
_COMPARE = "Vector/CmpSel/Cmp1D.cpp"
_COPY = "DMA/Ubuf/Copy1D.cpp"

_INTEGER = "u?int(?:8|16|32|64)_t"
_ANY = f"{_INTEGER}|half|float"
_NUMBER = "int16_t|int32_t|half|float"
_SELECTED = "u?int(?:16|32)_t|int64_t|half|float"


def _known(
    pattern: str, arguments: str, meaning: str, source: str, write: Body, modes: Modes | None = None
) -> Function:
    return Function(re.compile(pattern), arguments, meaning, source, write, modes)


TABLE: tuple[Function, ...] = (
    # Filling
    _known(
        rf"broadcast_scalar_(?P<T>{_ANY})_to_1d",
        "T T[]",
        "every element becomes the scalar",
        "Vector/Broadcast/BrcSinglePoint.cpp",
        movement.broadcast,
    ),
    _known(
        "broadcast_scalar_bool_to_1d",
        "i1 i1[]",
        "every bit becomes the scalar",
        "Vector/Broadcast/BrcSinglePoint.cpp",
        masks.fill,
    ),
    _known(
        "arange_1d_(?P<T>int(?:16|32|64)_t)",
        "T[] index index",
        "offset, offset + step, offset + 2 step, ...",
        "Vector/Arange/Arange1D.cpp",
        movement.arange,
    ),
    # Arithmetic
    _known(
        rf"v(?P<op>add|sub|mul)_1d_(?P<T>{_NUMBER})",
        "T[] T[] T[] ~T[]",
        "a op b",
        _ELTWISE,
        elementwise.two_vectors,
    ),
    _known(
        rf"v(?P<op>add|mul)s_vs_1d_(?P<T>{_NUMBER})",
        "T[] T T[] ~T[]",
        "a op scalar",
        _ELTWISE,
        elementwise.vector_scalar,
    ),
    _known(
        rf"v(?P<op>sub)_vs_1d_(?P<T>{_NUMBER})",
        "T[] T T[] ~T[]",
        "a - scalar",
        _ELTWISE,
        elementwise.vector_scalar,
    ),
    _known(
        rf"v(?P<op>sub)_sv_1d_(?P<T>{_NUMBER})",
        "T T[] T[] ~T[]",
        "scalar - a",
        _ELTWISE,
        elementwise.scalar_vector,
    ),
    _known(
        "v(?P<op>div)_1d_(?P<T>half|float)",
        "T[] T[] T[] ~T[]",
        "a / b, float32 rounded as asked for, float16 to nearest",
        _ELTWISE,
        elementwise.two_vectors,
    ),
    _known(
        "v(?P<op>div)_vs_1d_(?P<T>half|float)",
        "T[] T T[] ~T[]",
        "a / scalar, float32 rounded as asked for, float16 to nearest",
        _ELTWISE,
        elementwise.vector_scalar,
    ),
    _known(
        "v(?P<op>div)_sv_1d_(?P<T>half|float)",
        "T T[] T[] ~T[]",
        "scalar / a, float32 rounded as asked for, float16 to nearest",
        _ELTWISE,
        elementwise.scalar_vector,
    ),
    _known(
        "v(?P<op>min|max)_1d_(?P<T>int(?:16|32)_t)",
        "T[] T[] T[] ~T[]",
        "the smaller or the larger",
        _ELTWISE,
        elementwise.two_vectors,
    ),
    _known(
        "v(?P<op>min|max)s_vs_1d_(?P<T>int(?:16|32)_t)",
        "T[] T T[] ~T[]",
        "the smaller or the larger of a and the scalar",
        _ELTWISE,
        elementwise.vector_scalar,
    ),
    # Bits of integers
    _known(
        rf"v(?P<op>and|or|xor)_1d_(?P<T>{_INTEGER})",
        "T[] T[] T[] ~T[]",
        "a op b, bit by bit",
        _ELTWISE,
        elementwise.two_vectors,
    ),
    _known(
        rf"vnot_1d_(?P<T>{_INTEGER})",
        "T[] T[] ~T[]",
        "every bit inverted",
        _ELTWISE,
        elementwise.invert,
    ),
    _known(
        "v(?P<op>shl)s_vs_1d_(?P<T>u?int(?:16|32)_t)",
        "T[] T T[] ~T[]?",
        "a shifted to the left, zeros from the right",
        f"{_ELTWISE}; ShiftLefts.md",
        elementwise.shift,
    ),
    _known(
        "v(?P<op>shr)s_vs_1d_(?P<T>u?int(?:16|32)_t)",
        "T[] T T[] ~T[]?",
        "a shifted to the right: the sign from the left for signed types, zeros for unsigned ones",
        f"{_ELTWISE}; ShiftRight.md",
        elementwise.shift,
    ),
    # Packed masks
    _known(
        "vcmp_(?P<op>eq|ne|lt|le|gt|ge)_1d_(?P<T>half|float)",
        "T[] T[] i1[]",
        "1 where a op b; of a not-a-number only ne is true",
        _COMPARE,
        masks.compare_vectors,
    ),
    _known(
        "vcmp_(?P<op>eq|ne)_1d_(?P<T>int32_t)",
        "T[] T[] i1[]",
        "1 where a op b",
        _COMPARE,
        masks.compare_vectors,
    ),
    _known(
        "vcmps_(?P<op>eq|ne|lt|le|gt|ge)_1d_(?P<T>half|float)",
        "T[] T i1[]",
        "1 where a op scalar; of a not-a-number only ne is true",
        _COMPARE,
        masks.compare_scalar,
    ),
    _known(
        "vcmps_(?P<op>eq|ne)_1d_(?P<T>int32_t)",
        "T[] T i1[]",
        "1 where a op scalar",
        _COMPARE,
        masks.compare_scalar,
    ),
    _known("v(?P<op>and|or|xor)_1d_bool", "i1[] i1[] i1[] ~i1[]", "a op b, bit by bit", _ELTWISE, masks.combine),
    _known("vnot_1d_bool", "i1[] i1[] ~i1[]", "every bit inverted", _ELTWISE, masks.invert),
    _known(
        rf"vsel_(?P<op>vv)_1d_bool_(?P<T>{_SELECTED})",
        "i1[] T[] T[] T[] ~T[]?",
        "a where the bit is 1, else b",
        _SELECT,
        masks.select,
    ),
    _known(
        rf"vsel_(?P<op>vs)_1d_(?P<T>{_SELECTED})",
        "i1[] T[] T T[] ~T[]?",
        "a where the bit is 1, else the scalar",
        _SELECT,
        masks.select,
    ),
    _known(
        rf"vsel_(?P<op>sv)_1d_(?P<T>{_SELECTED})",
        "i1[] T T[] T[] ~T[]?",
        "the scalar where the bit is 1, else a",
        _SELECT,
        masks.select,
    ),
    _known(
        rf"vsel_(?P<op>ss)_1d_(?P<T>{_SELECTED})",
        "i1[] T T T[] ~T[]?",
        "the first scalar where the bit is 1, else the second",
        _SELECT,
        masks.select,
    ),
    # Casts
    _known(
        "vcast_bool_to_(?P<U>u?int(?:16|32)_t|half|float)_1d_with_temp",
        "i1[] U[] ~U[] i32",
        "1 or 0 of a bit",
        _CAST,
        masks.to_numbers,
        lambda _: {3: (0,)},
    ),
    _known(
        "vcast_(?P<T>float)_to_(?P<U>half|int64_t|int32_t|int16_t)_1d_with_mode",
        "T[] U[] i32",
        "to float16 to nearest (at 32-byte blocks only), to integers toward zero, where what does not fit gives the"
        " nearest that does;"
        " of a not-a-number nothing is known",
        _CAST,
        casts.convert,
        casts.modes,
    ),
    _known(
        "vcast_(?P<T>half)_to_(?P<U>float|int32_t|int16_t|int8_t|uint8_t)_1d_with_mode",
        "T[] U[] i32",
        "to float32 exactly; to integers like float32",
        _CAST,
        casts.convert,
        casts.modes,
    ),
    _known(
        "vcast_(?P<T>int64_t|int32_t|int16_t)_to_(?P<U>float)_1d_with_mode",
        "T[] U[] i32",
        "the nearest float32, ties to even",
        _CAST,
        casts.convert,
        casts.modes,
    ),
    _known(
        "vcast_(?P<T>u?int8_t|int16_t)_to_(?P<U>half)_1d_with_mode",
        "T[] U[] i32",
        "the nearest float16, ties to even",
        _CAST,
        casts.convert,
        casts.modes,
    ),
    _known(
        "vcast_(?P<T>int32_t)_to_(?P<U>int64_t|int16_t)_1d_with_mode",
        "T[] U[] i32",
        "the same number; what int16 cannot hold gives the nearest it can; to int16 at 32-byte blocks only",
        _CAST,
        casts.convert,
        casts.modes,
    ),
    _known(
        "vcast_(?P<T>int64_t)_to_(?P<U>int32_t)_1d_with_mode",
        "T[] U[] i32",
        "the same number; what int32 cannot hold gives the nearest it can; at 32-byte blocks only",
        _CAST,
        casts.convert,
        casts.modes,
    ),
    _known(
        "vcast_(?P<T>int64_t)_to_(?P<U>int32_t)_1d_with_overflow",
        "T[] U[] ~T[] i32",
        "the low 32 bits",
        _CAST,
        casts.low_bits,
        lambda _: {3: (casts.LOW_BITS,)},
    ),
    _known(
        "vcast_(?P<T>int32_t)_to_(?P<U>int16_t)_1d_with_overflow",
        "T[] U[] ~T[] i32",
        "the low 16 bits",
        _CAST,
        casts.low_bits,
        lambda _: {3: (casts.LOW_BITS,)},
    ),
    # Reduction, gather, movement
    _known(
        "reduce_(?P<op>min|max|sum)_r_(?P<T>int(?:16|32)_t)",
        "T[] T[] ~T[] T",
        "of all elements, into the first of the result",
        "Vector/Reduction/ReduceR.cpp",
        movement.reduce,
        movement.neutral,
    ),
    _known(
        "gather_1d_(?P<T>u?int(?:16|32)_t|half|float)",
        "T[] i32[] T[] ~i32[]",
        "the elements of a at the indices; a single aligned one whatever they are",
        "Vector/Gather/Gather1D.cpp",
        movement.gather,
    ),
    _known(
        rf"load_gm_to_ubuf_1d_(?P<T>{_ANY})",
        "T[] T[] i32 T index",
        "from global memory, then padding up to the next 32 bytes: the value where the mode is 2, else zero",
        f"{_COPY}, ../include/DMA/DMAUtils.h",
        movement.load,
        movement.load_modes,
    ),
    _known(
        rf"store_ubuf_to_gm_1d_(?P<T>{_ANY})",
        "T[] T[] i32",
        "to global memory",
        _COPY,
        movement.copy,
        movement.plain,
    ),
    _known(
        rf"copy_ubuf_to_ubuf_1d_(?P<T>{_ANY})",
        "T[] T[] i32 T",
        "from UB to UB",
        _COPY,
        movement.copy,
        movement.plain,
    ),
)
