"""Lane ``hivm``: every library function of the NPU compiler on its own, against NumPy.

Sizes 0 to 65, elements apart and from the middle of a block, masks from every bit of a byte, extreme values. Nothing
else in memory changes, and temporaries end as poison.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conformance.lanes.errors import Unsupported
from conformance.lanes.hivm.functions import LAYOUT, READ, STRAY, WRITE, Rounding, body, check_call
from conformance.lanes.hivm.functions.table import TABLE
from tests.hivm_functions import POISON, Compiled, Packed, Vector, arguments, dtype, types

Values = npt.NDArray[Any]
SIZES = range(66)
INTEGERS = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)]
ANY = [*INTEGERS, "half", "float"]
NUMBERS = ["int16_t", "int32_t", "half", "float"]
SELECTED = ["int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "half", "float"]
COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}
BINARY: dict[str, Callable[..., Values]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}
_FLOATS = [0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 3.0, 48.0, 0.1, 65504.0, np.inf, -np.inf, np.nan]
_EDGES = {
    "float": [*_FLOATS, 2.0**24 + 2, 2.0**31, -(2.0**31), 2.0**63, 1e-45, -1e-45, 3.4e38, 1e-38, 16777343.0],
    "half": [*_FLOATS, 6e-8, -6e-8, 2048.0, 2049.0, -65504.0, 127.5, -129.0, 256.0],
}


@cache
def edges(kind: str) -> Values:
    """Values of a type where something may go wrong."""
    if kind in _EDGES:
        return np.array(_EDGES[kind], dtype=dtype(kind))
    low, high = int(np.iinfo(dtype(kind)).min), int(np.iinfo(dtype(kind)).max)
    near = [0, 1, 2, 3, 7, 100, 127, 128, 255, 32767, 32768, 2**24, 2**24 + 1, 2**31 - 1, 2**31, high // 2, high - 1]
    chosen = {each for value in (*near, high) for each in (value, -value, -value - 1, low) if low <= each <= high}
    return np.array(sorted(chosen), dtype=dtype(kind))


def drawn(kind: str, count: int, number: random.Random) -> Values:
    return edges(kind)[[number.randrange(len(edges(kind))) for _ in range(count)]]


# Every name of the table, and what it computes


def _names() -> Iterator[str]:
    yield from (f"broadcast_scalar_{kind}_to_1d" for kind in [*ANY, "bool"])
    yield from (f"arange_1d_int{bits}_t" for bits in (16, 32, 64))
    for operation, kind in itertools.product(("add", "sub", "mul"), NUMBERS):
        yield f"v{operation}_1d_{kind}"
    for operation, kind in itertools.product(("adds_vs", "muls_vs", "sub_vs", "sub_sv"), NUMBERS):
        yield f"v{operation}_1d_{kind}"
    for operation, kind in itertools.product(("div", "div_vs", "div_sv"), ("half", "float")):
        yield f"v{operation}_1d_{kind}"
    for operation, kind in itertools.product(("min", "max", "mins_vs", "maxs_vs"), ("int16_t", "int32_t")):
        yield f"v{operation}_1d_{kind}"
    for operation, kind in itertools.product(("and", "or", "xor", "not"), [*INTEGERS, "bool"]):
        yield f"v{operation}_1d_{kind}"
    for operation, bits, sign in itertools.product(("shls", "shrs"), (16, 32), ("", "u")):
        yield f"v{operation}_vs_1d_{sign}int{bits}_t"
    for letter, operation in itertools.product(("", "s"), COMPARISONS):
        for kind in ("half", "float", *(["int32_t"] if operation in ("eq", "ne") else [])):
            yield f"vcmp{letter}_{operation}_1d_{kind}"
    for choices, kind in itertools.product(("vv_1d_bool", "vs_1d", "sv_1d", "ss_1d"), SELECTED):
        yield f"vsel_{choices}_{kind}"
    for kind in ("int16_t", "uint16_t", "int32_t", "uint32_t", "half", "float"):
        yield f"vcast_bool_to_{kind}_1d_with_temp"
    for cast in CASTS:
        yield f"vcast_{cast}_1d_with_mode"
    yield from ("vcast_int64_t_to_int32_t_1d_with_overflow", "vcast_int32_t_to_int16_t_1d_with_overflow")
    for operation, kind in itertools.product(("min", "max", "sum"), ("int16_t", "int32_t")):
        yield f"reduce_{operation}_r_{kind}"
    yield from (f"gather_1d_{kind}" for kind in ("int16_t", "uint16_t", "int32_t", "uint32_t", "half", "float"))
    for kind in ANY:
        yield from (f"load_gm_to_ubuf_1d_{kind}", f"store_ubuf_to_gm_1d_{kind}", f"copy_ubuf_to_ubuf_1d_{kind}")


CASTS = [
    *(f"float_to_{kind}" for kind in ("half", "int64_t", "int32_t", "int16_t")),
    *(f"half_to_{kind}" for kind in ("float", "int32_t", "int16_t", "int8_t", "uint8_t")),
    *(f"{kind}_to_float" for kind in ("int64_t", "int32_t", "int16_t")),
    *(f"{kind}_to_half" for kind in ("uint8_t", "int8_t", "int16_t")),
    *("int32_t_to_int64_t", "int32_t_to_int16_t", "int64_t_to_int32_t"),
]
NAMES = tuple(_names())


def cast(values: Values, kind: str) -> Values:
    """As :data:`TABLE` says: to integers toward zero, what does not fit gives the nearest that does."""
    target = dtype(kind)
    if target.kind == "f":
        return values.astype(target)
    low, high = int(np.iinfo(target).min), int(np.iinfo(target).max)
    poison = np.full(1, POISON * 0x0101010101010101, dtype=np.int64).view(target)[0]
    found = np.empty(values.shape, dtype=target)
    for index, value in enumerate(values.tolist()):
        if value != value:
            found[index] = poison
        elif value in (np.inf, -np.inf):
            found[index] = high if value > 0 else low
        else:
            found[index] = min(max(int(value), low), high)
    return found


def shifted(values: Values, distance: int, left: bool) -> Values:
    width = 8 * values.dtype.itemsize
    if not 0 <= distance <= width:
        return np.full(values.size * values.dtype.itemsize, POISON, dtype=np.uint8).view(values.dtype)
    low, high = int(np.iinfo(values.dtype).min), int(np.iinfo(values.dtype).max)
    whole = [value << distance if left else value >> distance for value in values.tolist()]
    return np.array([(each - low) % (high - low + 1) + low for each in whole], dtype=values.dtype)


def model(name: str, given: Sequence[Any]) -> Values:
    """The result, where it is one vector. ``given``: the arguments, of buffers the values, of the result its size."""
    parts = re.split(r"_(?:\w\w_)?1d_?", name, maxsplit=1)
    if name.startswith("broadcast"):
        return np.full(given[1], given[0])
    if name.startswith("arange"):
        return np.array([given[1] + each * given[2] for each in range(given[0])]).astype(dtype(parts[1]))
    if match := re.fullmatch(r"vcmps?_(\w\w)_1d_\w+", name):
        return COMPARISONS[match[1]](given[0], given[1])
    if name.startswith("vsel"):
        return np.where(given[0], given[1], given[2])
    if match := re.fullmatch(r"vcast_\w+?_to_(\w+)_1d_with_mode", name):
        return cast(given[0], match[1])
    if match := re.fullmatch(r"vcast_\w+?_to_(\w+)_1d_with_\w+", name):
        return np.asarray(given[0].astype(dtype(match[1])))
    if name.startswith(("copy", "store")):
        return np.asarray(given[0])
    if name.startswith("vnot"):
        return np.asarray(~given[0])
    if name.startswith("vsh"):
        return shifted(given[0], int(given[1]), name.startswith("vshl"))
    return BINARY[re.sub(r"^v|s$", "", parts[0])](given[0], given[1])


def same(found: Values, expected: Values) -> bool:
    """Bit for bit, but that one not-a-number is as good as another."""
    if expected.dtype.kind != "f":
        return bool(np.array_equal(found, expected))
    nan = np.isnan(expected)
    return bool(
        np.array_equal(np.isnan(found), nan)
        and np.array_equal(found[~nan].view(np.uint8), expected[~nan].astype(found.dtype).view(np.uint8))
    )


# Calls


@pytest.fixture(scope="module")
def compiled() -> Compiled:
    return Compiled(NAMES)


def layouts(size: int) -> tuple[int, int]:
    """(offset, distance of elements): each of them comes with sizes of all kinds."""
    return (0, 1, 3, 8, 5)[size % 5], (1, 1, 2, 3)[size // 5 % 4]


def call(
    functions: Compiled, name: str, size: int, number: random.Random, bit: int, rounding: Callable[[Values], Values]
) -> None:
    """One call with drawn arguments, of which the last that is neither temporary nor a mode is the result."""
    declared = arguments(name)
    results = [index for index, each in enumerate(declared) if "[]" in each and "~" not in each]
    result = 0 if name.startswith("arange") else results[-1]
    given: list[Any] = []
    seen: list[Any] = []
    for index, each in enumerate(declared):
        kind, brackets, _ = each.strip("~").partition("[]")
        offset, stride = layouts(size + index)
        if kind == "i1" and brackets:
            mask = Packed(size, bit + 3 * index, 1 if "~" in each else 1 + (size + index) % 2)
            if "~" not in each:
                mask.set(np.array([number.random() < 0.5 for _ in range(size)], dtype=bool))
            given.append(mask)
            seen.append(size if index == result else mask.values)
        elif brackets:
            offset = 0 if name in NARROWING else offset
            vector = Vector(kind, size + (3 if "~" in each else 0), offset, stride)
            if "~" not in each:
                vector.set(drawn(kind, size, number))
            given.append(vector)
            seen.append(size if index == result else vector.values.copy())
        elif kind == "i1":
            given.append(number.random() < 0.5)
            seen.append(np.bool_(given[-1]))
        elif kind == "index":
            given.append(number.choice([0, 1, -1, 5, 1000]))
            seen.append(given[-1])
        elif kind == "i32" or name.startswith("copy"):  # a mode, and what a copy would pad with
            given.append(0)
            seen.append(0)
        else:
            shift = name.startswith("vsh")
            given.append(number.randrange(0, 36) if shift else drawn(kind, 1, number)[0])
            seen.append(given[-1])
    if name.startswith("arange"):  # elements apart: the library multiplies the offset by their distance
        seen[1] *= given[0].stride
    with np.errstate(all="ignore"):
        expected = rounding(model(name, seen))
    assert functions(name, *given) == []
    assert same(given[result].values, expected), (name, size, given[result].values, expected)
    for index, each in enumerate(declared):
        if isinstance(given[index], Packed):
            assert given[index].rest().all(), (name, size)
            if "~" in each:
                whole = slice(-(-given[index].offset // 8), (given[index].offset + size) // 8)
                assert (given[index].memory[whole] == POISON).all(), (name, size)
            elif index != result:
                assert np.array_equal(given[index].values, seen[index])
        elif isinstance(given[index], Vector):
            assert given[index].rest().all(), (name, size)
            if "~" in each:
                assert (np.ascontiguousarray(given[index].values).view(np.uint8) == POISON).all(), (name, size)
            elif index != result:
                assert same(given[index].values, seen[index])


# The library takes one element after the other where buffers are not aligned, and then does something else.
NARROWING = [f"vcast_{cast}_1d_with_mode" for cast in ("int64_t_to_int32_t", "int32_t_to_int16_t", "float_to_half")]
PLAIN = [name for name in NAMES if not name.startswith(("reduce", "gather", "load"))]


@pytest.mark.parametrize("name", PLAIN)
def test_against_numpy(compiled: Compiled, name: str) -> None:
    number = random.Random(name)
    for size in SIZES:
        call(compiled, name, size, number, number.randrange(8), lambda values: values)


@pytest.mark.parametrize("name", [name for name in PLAIN if "i1[]" in arguments(name)])
def test_masks_from_every_bit(compiled: Compiled, name: str) -> None:
    number = random.Random(name)
    for bit, size in itertools.product(range(8), (1, 7, 8, 9, 31, 64, 65)):
        call(compiled, name, size, number, bit, lambda values: values)


@pytest.mark.parametrize("name", ["vadd_1d_int32_t", "vdiv_1d_float", "vdiv_1d_half", "vcmp_lt_1d_float"])
def test_every_pair_of_edges(compiled: Compiled, name: str) -> None:
    kind = name.partition("_1d_")[2]
    pairs = np.array(list(itertools.product(edges(kind), repeat=2)))
    left, right = (Vector(kind, len(pairs)).set(pairs[:, column]) for column in (0, 1))
    result: Any = Packed(len(pairs)) if name.startswith("vcmp") else Vector(kind, len(pairs))
    compiled(name, left, right, result, *([] if name.startswith("vcmp") else [Vector(kind, 8)]))
    with np.errstate(all="ignore"):
        assert same(result.values, model(name, (left.values, right.values)))


@pytest.mark.parametrize("name", ["vadd_1d_int32_t", "vsub_1d_half", "vand_1d_int64_t", "vdiv_sv_1d_float"])
def test_one_element_stands_for_all(compiled: Compiled, name: str) -> None:
    kind = name.rpartition("1d_")[2]
    for size in (2, 31, 65):
        one, many, result = Vector(kind, 1, 3).set(edges(kind)[4:5]), Vector(kind, size), Vector(kind, size)
        many.set(np.resize(edges(kind), size))
        single = np.full(size, edges(kind)[4])
        with np.errstate(all="ignore"):
            if "_sv_" in name:
                compiled(name, many.values[1], one, result, Vector(kind, 8))
                assert same(result.values, model(name, (many.values[1], single)))
            else:
                compiled(name, one, many, result, Vector(kind, 8))
                assert same(result.values, model(name, (single, many.values)))
                compiled(name, many, one, result, Vector(kind, 8))
                assert same(result.values, model(name, (many.values, single)))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("reduce")])
def test_reductions(compiled: Compiled, name: str) -> None:
    kind, number = name.rpartition("_r_")[2], random.Random(name)
    operation = {"sum": lambda values: np.sum(values, dtype=np.int64), "min": np.min, "max": np.max}[name.split("_")[1]]
    (neutral,) = neutral_of(name)
    for size in SIZES:
        source = Vector(kind, size, *layouts(size)).set(drawn(kind, size, number))
        result, temporary = Vector(kind, 1, 2), Vector(kind, 20)
        untouched = result.values.copy()
        assert compiled(name, source, result, temporary, neutral) == []
        expected = operation(source.values).astype(dtype(kind)) if size else untouched[0]
        assert result.values[0] == expected, (size, source.values)
        assert result.rest().all()
        assert source.rest().all()
        assert (temporary.values.view(np.uint8) == POISON).all()


def neutral_of(name: str) -> list[int]:
    info = np.iinfo(dtype(name.rpartition("_r_")[2]))
    return [{"sum": 0, "min": int(info.max), "max": int(info.min)}[name.split("_")[1]]]


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("gather")])
def test_gathers(compiled: Compiled, name: str) -> None:
    kind, number = name.removeprefix("gather_1d_"), random.Random(name)
    for size in SIZES:
        held = 1 + size * 7 % 40
        source = Vector(kind, held, *layouts(size)[:1]).set(drawn(kind, held, number))
        chosen = np.array(
            [number.choice([*range(held), -1, held, -(2**31), 2**31 - 1]) for _ in range(size)], dtype=np.int64
        )
        indices = Vector("int32_t", size, *layouts(size + 1)).set(chosen)
        result, temporary = Vector(kind, size, *layouts(size + 2)), Vector("int32_t", size + 1)
        told = compiled(name, source, indices, result, temporary)
        address = source.values.ctypes.data
        if held == 1 and address % 32 == 0:  # copied, whatever the indices are
            chosen = np.zeros(size, dtype=np.int64)
        stray = (chosen < 0) | (chosen >= held)
        assert told == [(address, held, int(each), STRAY) for each in chosen[stray]]
        assert same(result.values[~stray], source.values[chosen[~stray]])
        assert (np.ascontiguousarray(result.values[stray]).view(np.uint8) == POISON).all()
        for each in (result, source, indices):
            assert each.rest().all()
        assert (temporary.values.view(np.uint8) == POISON).all()


@pytest.mark.parametrize("mode", [0, 2])
@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("load")])
def test_loads_and_what_they_pad(compiled: Compiled, name: str, mode: int) -> None:
    """The rest of the last block is filled, but after a few elements in the middle of one, which are moved singly."""
    kind, number = name.removeprefix("load_gm_to_ubuf_1d_"), random.Random(name)
    width = dtype(kind).itemsize
    for size, offset, apart in itertools.product((0, 1, 3, 7, 8, 9, 31, 32, 33, 65), (0, 2, 5), (1, 2)):
        source = Vector(kind, size, offset, apart).set(drawn(kind, size, number))
        result = Vector(kind, size, offset)
        value = edges(kind)[3]
        assert compiled(name, source, result, mode, value, 0) == []
        assert same(result.values, source.values)
        head, length = -offset * width % 32, size * width
        filled = -(offset * width + length) % 32 // width if length > head and apart == 1 else 0
        padding = result.memory[offset + size : offset + size + filled]
        expected = np.full(filled, value if mode == 2 else 0, dtype=dtype(kind))
        assert same(padding, expected), (size, offset)
        assert result.rest(size + filled).all(), (size, offset)


def test_a_load_of_a_block_each_is_not_known(compiled: Compiled) -> None:
    source, result = Vector("int32_t", 4).set(np.arange(4)), Vector("int32_t", 4, 0, 8)
    told = compiled("load_gm_to_ubuf_1d_int32_t", source, result, 0, 0, 0)
    assert [each[3] for each in told] == [LAYOUT]
    assert result.rest(0).all()


@pytest.mark.parametrize("name", NARROWING)
@pytest.mark.parametrize("offsets", [(0, 1), (1, 0)])
def test_a_narrowing_cast_of_a_buffer_that_is_not_aligned_is_not_known(
    compiled: Compiled, name: str, offsets: tuple[int, int]
) -> None:
    source, target = name.removeprefix("vcast_").removesuffix("_1d_with_mode").split("_to_")
    given, result = Vector(source, 4, offsets[0]).set(np.arange(4)), Vector(target, 4, offsets[1])
    assert [each[3] for each in compiled(name, given, result, 0)] == [LAYOUT]
    assert result.rest(0).all()


def test_the_only_element_is_gathered_whatever_indices_are(compiled: Compiled) -> None:
    chosen = np.array([0, 1, -1, 5])
    for offset, strays in ((0, 0), (1, 3)):
        source, indices = Vector("int32_t", 1, offset).set(np.array([9])), Vector("int32_t", 4).set(chosen)
        result = Vector("int32_t", 4)
        told = compiled("gather_1d_int32_t", source, indices, result, Vector("int32_t", 4))
        assert [each[3] for each in told] == [STRAY] * strays
        assert strays or (result.values == 9).all()


def test_a_gather_from_elements_apart_is_not_known(compiled: Compiled) -> None:
    source, indices, result = Vector("float", 4, 0, 2), Vector("int32_t", 4).set(np.arange(4)), Vector("float", 4)
    told = compiled("gather_1d_float", source, indices, result, Vector("int32_t", 4))
    assert [each[3] for each in told] == [LAYOUT]
    assert result.rest(0).all()


# Outside


@pytest.mark.parametrize(
    ("name", "short", "kind"),
    [
        ("vadd_1d_int32_t", 0, READ),
        ("vadd_1d_int32_t", 1, READ),
        ("vadds_vs_1d_float", 0, READ),
        ("vnot_1d_int16_t", 0, READ),
        ("vcmp_eq_1d_float", 1, READ),
        ("vcmp_eq_1d_float", 2, WRITE),
        ("vcmps_ne_1d_int32_t", 2, WRITE),
        ("vand_1d_bool", 0, READ),
        ("vnot_1d_bool", 0, READ),
        ("vsel_vv_1d_bool_int32_t", 0, READ),
        ("vsel_vs_1d_int64_t", 1, READ),
        ("vcast_int32_t_to_float_1d_with_mode", 1, WRITE),
        ("vcast_int64_t_to_int32_t_1d_with_overflow", 1, WRITE),
        ("vcast_bool_to_int32_t_1d_with_temp", 0, READ),
        ("copy_ubuf_to_ubuf_1d_int32_t", 1, WRITE),
        ("store_ubuf_to_gm_1d_int64_t", 1, WRITE),
        ("load_gm_to_ubuf_1d_int32_t", 1, WRITE),
        ("gather_1d_float", 2, WRITE),
        ("reduce_sum_r_int32_t", 1, WRITE),
    ],
)
def test_nothing_outside_a_buffer_is_touched(compiled: Compiled, name: str, short: int, kind: int) -> None:
    given: list[Any] = []
    for index, each in enumerate(arguments(name)):
        element, brackets, _ = each.strip("~").partition("[]")
        size = (0 if name.startswith("reduce") else 5) if index == short else 9
        if brackets and element == "i1":
            given.append(Packed(size, 3).set(np.zeros(size, dtype=bool)))
        elif brackets:
            given.append(Vector(element, size, 2).set(np.zeros(size)))
        else:
            given.append(0)
    told = compiled(name, *given)
    size = given[short].size
    assert [each[1:] for each in told] == [(size, 0 if name.startswith("reduce") else 8, kind)]
    memory = given[short].memory
    if isinstance(given[short], Vector):
        assert told[0][0] == memory.ctypes.data + 2 * memory.itemsize
    else:
        assert told[0][0] == memory.ctypes.data
    assert all(each.rest().all() for each in given if isinstance(each, Vector | Packed))


@pytest.mark.parametrize("undefined", [0x5A, 0xA5])
def test_temporaries_are_poison_before_a_call_and_after_it(
    compiled: Compiled, monkeypatch: pytest.MonkeyPatch, undefined: int
) -> None:
    """A plan that puts one on a source or on the result shows."""
    monkeypatch.setattr(compiled, "undefined", undefined)
    one, two, result = (Vector("int32_t", 9).set(np.arange(9)) for _ in range(3))
    poison = np.full(36, undefined, dtype=np.uint8).view(np.int32)
    compiled("vadd_1d_int32_t", one, two, result, result)
    assert np.array_equal(result.values, poison)
    compiled("vadd_1d_int32_t", one, two, result, two)
    assert np.array_equal(result.values, poison + np.arange(9))


# Rounding


@pytest.mark.parametrize(("rounding", "toward"), [(Rounding.LOW, -np.inf), (Rounding.HIGH, np.inf)])
def test_quotients_one_unit_off(rounding: Rounding, toward: float) -> None:
    names = ["vdiv_1d_float", "vdiv_vs_1d_float", "vdiv_sv_1d_float", "vdiv_1d_half", "vadd_1d_float"]
    functions = Compiled(names, rounding)
    pairs = np.array(list(itertools.product(edges("float"), repeat=2)), dtype=np.float32)

    def moved(values: Values) -> Values:
        stays = ~np.isfinite(values) | (values == 0)
        return np.where(stays, values, np.nextafter(values, np.float32(toward)))

    left, right = (Vector("float", len(pairs)).set(pairs[:, column]) for column in (0, 1))
    result = Vector("float", len(pairs))
    functions("vdiv_1d_float", left, right, result, Vector("float", 8))
    with np.errstate(all="ignore"):
        assert same(result.values, moved(left.values / right.values))
    for name in names:  # of anything but a float32 division, nothing moves
        off = moved if re.search("vdiv.*float", name) else (lambda values: values)
        for size in (1, 17, 65):
            call(functions, name, size, random.Random(size), 0, off)


# What is known


def test_every_function_of_the_table_is_tried() -> None:
    tried = {function for function in TABLE for name in NAMES if function.pattern.fullmatch(name)}
    assert tried == set(TABLE)
    assert len(set(NAMES)) == len(NAMES)
    for name in NAMES:
        assert sum(bool(function.pattern.fullmatch(name)) for function in TABLE) == 1, name


@pytest.mark.parametrize("function", TABLE, ids=lambda function: function.pattern.pattern)
def test_every_function_says_what_it_means_and_from_where(function: Any) -> None:
    assert function.meaning
    assert re.search(r"\b(?:Vector|DMA)/\S+\.cpp", function.source)


@pytest.mark.parametrize(
    "name",
    [
        "vmod_1d_int32_t",
        "vmin_1d_float",
        "reduce_sum_r_float",
        "vcmp_lt_1d_int32_t",
        "vadd_2d_int32_t",
        "vadd_1d_int64_t",
        "arange_1d_float",
        "gather_1d_int64_t",
        "vcast_int32_t_to_int8_t_1d_with_overflow",
        "load_gm_to_ubuf_1d_bfloat16_t",
        "vadd_1d_int32_t_more",
    ],
)
def test_another_function_is_not_guessed(name: str) -> None:
    with pytest.raises(Unsupported, match=f"library function {name} is not known"):
        body(name, types("vadd_1d_int32_t"))
    with pytest.raises(Unsupported, match=name):
        check_call(name, {})


def test_a_function_declared_otherwise_is_not_guessed() -> None:
    known = types("vadd_1d_int32_t")
    for declared in (known[:3], [*known, "i32"], [*known[:2], "i32", known[3]], types("vadd_1d_float")):
        with pytest.raises(Unsupported, match="library function vadd_1d_int32_t: declared with"):
            body("vadd_1d_int32_t", declared)


def test_a_temporary_that_some_declarations_leave_out() -> None:
    declared = types("vsel_vs_1d_int64_t")
    assert "%a4" in body("vsel_vs_1d_int64_t", declared)
    assert "%a4" not in body("vsel_vs_1d_int64_t", declared[:4])


@pytest.mark.parametrize(
    ("name", "given", "wrong"),
    [
        ("vcast_float_to_int32_t_1d_with_mode", {2: "4"}, {2: "0"}),
        ("vcast_int32_t_to_float_1d_with_mode", {2: "0"}, {2: "4"}),
        ("vcast_half_to_float_1d_with_mode", {2: "0"}, {2: "5"}),
        ("vcast_int64_t_to_int32_t_1d_with_overflow", {3: "6"}, {3: "0"}),
        ("vcast_bool_to_int32_t_1d_with_temp", {3: "0"}, {3: "1"}),
        ("load_gm_to_ubuf_1d_int64_t", {2: "2", 3: "7", 4: "0"}, {2: "1", 4: "0"}),
        ("load_gm_to_ubuf_1d_int64_t", {2: "0", 4: "0"}, {2: "0", 4: "3"}),
        ("store_ubuf_to_gm_1d_int32_t", {2: "0"}, {2: "1"}),
        ("copy_ubuf_to_ubuf_1d_int32_t", {2: "0"}, {2: "2"}),
        ("reduce_min_r_int32_t", {3: "2147483647"}, {3: "0"}),
        ("reduce_max_r_int16_t", {3: "-32768"}, {3: "-32767"}),
        ("reduce_sum_r_int32_t", {3: "0"}, {3: "1"}),
    ],
)
def test_modes(name: str, given: dict[int, str], wrong: dict[int, str]) -> None:
    check_call(name, given)
    with pytest.raises(Unsupported, match=f"{name}: argument . is "):
        check_call(name, wrong)
    with pytest.raises(Unsupported, match=f"{name}: argument . is not a constant"):
        check_call(name, {})


def test_a_function_without_modes_takes_any_arguments() -> None:
    check_call("vadds_vs_1d_int32_t", {1: "7"})
