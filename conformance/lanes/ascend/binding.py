"""The arguments of a launch, sorted the way a device's launch sorts them: that decides what code is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from conformance.lanes.errors import Unsupported

_LAUNCH_OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "stream", "debug", "grid", "warmup"})
_POINTERS = {
    "bool": "*i1",
    "int8": "*i8",
    "uint8": "*u8",
    "int16": "*i16",
    "int32": "*i32",
    "uint32": "*u32",
    "int64": "*i64",
    "uint64": "*u64",
    "float16": "*fp16",
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "float64": "*fp64",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """The arguments of one launch, sorted the way a device's launch sorts them.

    ``types`` and ``values`` hold what is passed at run time, ``constants`` what is compiled in: ``tl.constexpr``
    parameters, absent pointers, and integers equal to 1 unless the kernel lists them in ``do_not_specialize``.
    ``multiples`` are the parameters compiled with the promise that they are divisible by 16. Pointers get no such
    promise: a guarded buffer ends where memory ends, so its start is aligned to its elements only.
    """

    types: dict[str, str]
    constants: dict[str, object]
    multiples: tuple[str, ...]
    values: list[Any]

    @property
    def kinds(self) -> list[str]:
        """What native code is passed for each run-time argument: "pointer" or an LLVM integer type."""
        return ["pointer" if kind.startswith("*") else "i" + kind.lstrip("iu") for kind in self.types.values()]


def bind(kernel: Any, arguments: Mapping[str, Any]) -> Bound:
    """The arguments of ``kernel`` by name, sorted. Raises TypeError for one too many or too few, Unsupported for a type
    that no pointer or number has.
    """
    unknown = set(arguments) - set(kernel.arg_names) - _LAUNCH_OPTIONS
    if unknown:
        raise TypeError(f"{kernel.fn.__name__}() got unexpected arguments {', '.join(sorted(unknown))}")
    bound = Bound({}, {}, (), [])
    multiples = []
    for parameter in kernel.params:
        name = parameter.name
        if name not in arguments and not parameter.has_default:
            raise TypeError(f"{kernel.fn.__name__}() misses the argument {name}")
        value = arguments.get(name, parameter.default)
        number = isinstance(value, int) and not isinstance(value, bool)
        if parameter.is_constexpr or value is None or (number and value == 1 and not parameter.do_not_specialize):
            bound.constants[name] = value
            continue
        if number and value % 16 == 0 and not (parameter.do_not_specialize or parameter.do_not_specialize_on_alignment):
            multiples.append(name)
        bound.types[name] = _type_of(name, value)
        bound.values.append(value)
    return Bound(bound.types, bound.constants, tuple(multiples), bound.values)


def _type_of(name: str, value: Any) -> str:
    """Triton's type of a run-time argument."""
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64" if value < 2**63 else "u64"
    if hasattr(value, "data_ptr"):
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype in _POINTERS:
            return _POINTERS[dtype]
        raise Unsupported(f"parameter {name}: a pointer to {dtype}")
    raise Unsupported(f"parameter {name}: an argument of type {type(value).__name__}")
