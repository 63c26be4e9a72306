"""``kernel[grid](...)`` on the lowered lane: bind, find or compile the specialization, call its native code."""

from __future__ import annotations

import ctypes
import importlib.metadata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from triton.runtime.jit import JITFunction

from conformance.lanes.errors import Unsupported
from conformance.lanes.lowered import frontend, mlir, native
from conformance.lanes.lowered.cache import CodeCache

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
_PACKAGES = ("triton-ascend", "ascendnpu-ir", "llvmlite")


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


class Launcher:
    """Replaces Triton's launch in this process. Code comes from memory, else from the cache on disk, else from the
    compiler.
    """

    def __init__(self, folder: Path) -> None:
        versions = [f"{package} {importlib.metadata.version(package)}" for package in _PACKAGES]
        # The lane's own text too: while one works on it, code compiled a minute ago must not answer for it.
        own = [Path(str(module.__file__)).read_text(encoding="utf-8") for module in (frontend, mlir, native)]
        self._cache = CodeCache(folder, "\n".join([*versions, *own, *mlir.PASSES, native.host()]))
        self._loaded: dict[tuple[Any, ...], native.Loaded] = {}
        self.announce: Callable[[str], None] = lambda event: None
        self.backwards = False

    def install(self) -> None:
        """Make every ``kernel[grid](...)`` of this process come here."""

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
            arguments = dict(zip(kernel.arg_names, args, strict=False), **kwargs)
            if warmup:
                self.precompile(kernel, arguments)
            else:
                self.launch(kernel, grid(arguments) if callable(grid) else grid, arguments)

        JITFunction.run = run

    def launch(self, kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> None:
        """Run ``kernel`` over ``grid``, one program after the other."""
        bound = bind(kernel, arguments)
        kinds = tuple(map(type, bound.constants.values()))  # 1 == True == 1.0, and three different programs
        key = (kernel, tuple(bound.types.values()), tuple(bound.constants.items()), kinds, bound.multiples)
        loaded = self._loaded.get(key)
        if loaded is None:
            loaded = self._loaded[key] = native.Loaded(self._code(kernel, bound)[0])
        words = (ctypes.c_int64 * (2 * len(bound.values)))()
        for index, value in enumerate(bound.values):
            if isinstance(value, int):
                words[2 * index] = value if value < 2**63 else value - 2**64
            else:
                words[2 * index] = value.data_ptr()
                words[2 * index + 1] = value.numel()
        if not 1 <= len(grid) <= 3:
            raise TypeError(f"{kernel.fn.__name__}[{grid}]: a grid has one to three dimensions")
        x, y, z = (*grid, 1, 1)[:3]
        loaded.call(ctypes.addressof(words), x, y, z, self.backwards)

    @property
    def specializations(self) -> int:
        """How many this process has launched."""
        return len(self._loaded)

    def precompile(self, kernel: Any, arguments: Mapping[str, Any]) -> bool:
        """Put the code for these arguments into the cache on disk; False when it was there."""
        return self._code(kernel, bind(kernel, arguments))[1]

    def _code(self, kernel: Any, bound: Bound) -> tuple[bytes, bool]:
        """Native code, and whether it had to be compiled. Specializations that lower to the same module share it."""
        constants = [
            (name, _text_of(value) if isinstance(value, JITFunction) else value)
            for name, value in bound.constants.items()
        ]
        key = self._cache.key(_text_of(kernel), list(bound.types.items()), constants, bound.multiples)
        code = self._cache.load(key)
        if code is not None:
            return code, False
        self.announce("compiling")
        module = mlir.upstream(frontend.linalg(kernel, bound.types, bound.constants, bound.multiples))
        kinds = ["pointer" if kind.startswith("*") else "i" + kind.lstrip("iu") for kind in bound.types.values()]
        shared = self._cache.key("module", module, kinds)
        code = self._cache.load(shared)
        fresh = code is None
        if code is None:
            code = native.object_code(mlir.llvm_ir(module), kernel.fn.__name__, kinds)
            self._cache.store(shared, code)
        self._cache.store(key, code)
        self.announce("launching")
        return code, fresh


def _text_of(kernel: Any) -> tuple[object, ...]:
    """Everything in the source that code depends on: the kernel, its helpers, and the global constants of both, which
    Triton's own ``cache_key`` leaves out.
    """
    text = kernel.cache_key  # finds the globals on the way
    return text, sorted((name, repr(value)) for (name, _), (value, _) in kernel.used_global_vals.items())


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
