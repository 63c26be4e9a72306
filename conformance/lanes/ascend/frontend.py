"""From a ``@triton.jit`` function to linalg on tensors, with triton-ascend's own front end. No device and no CANN
needed.
"""

from __future__ import annotations

import math
import re
import resource
import subprocess
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from triton._C.libtriton import ir, llvm
from triton.backends.ascend import compiler as ascend
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend

from conformance.lanes.errors import CompileError

TARGET = GPUTarget("npu", "Ascend910B3", 0)
# triton-adapter-opt of 3.2.0 reads memory that it has freed: about once in two thousand runs it dies by SIGABRT or
# SIGSEGV, rarely it goes on for ever and takes a gigabyte every ten seconds. Asked again, it answers.
_ATTEMPTS = 3
_PROCESSOR_SECONDS = 20  # of one attempt; it takes a tenth of a second


@cache
def _backend() -> tuple[Any, Any]:
    backend = make_backend(TARGET)
    return backend, backend.parse_options({})


def linalg(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    multiples: Collection[str] = (),
    *,
    named_ops: bool = False,
) -> str:
    """Linalg text of ``kernel``. ``signature``: parameter -> "i32", "*i64", ...; ``constants``: parameter ->
    compile-time value; ``multiples``: integer parameters promised to be divisible by 16; ``named_ops``: elementwise
    operations by name, as Ascend's back end takes them, instead of ``linalg.generic`` bodies.

    Raises CompileError with the front end's message.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _linalg(kernel, signature, constants, multiples, named_ops)
        except Exception as error:
            if attempt == _ATTEMPTS or not _crashed(error):
                raise CompileError(_innermost(error)) from error
    raise AssertionError("unreachable")


def _linalg(
    kernel: Any,
    signature: Mapping[str, str],
    constants: Mapping[str, object],
    multiples: Collection[str],
    named_ops: bool,
) -> str:
    backend, options = _backend()
    metadata = dict(options.__dict__, target=TARGET)
    attributes = ascend.AscendAttrsDescriptor()
    attributes.arg_properties["tt.divisibility"] = [kernel.arg_names.index(name) for name in multiples]
    source = ASTSource(fn=kernel, signature=dict(signature), constants=dict(constants), attrs=attributes)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = source.make_ir(options, backend.get_codegen_implementation(), backend.get_module_map(), context)
    module = ascend.make_ttir(module, metadata, options)
    with _processor_time_limited():
        return str(ascend.ttir_to_linalg(module, metadata, options, named_ops=named_ops))


@contextmanager
def _processor_time_limited() -> Iterator[None]:
    """What starts a program in here gives it a limit, which holds even when nobody is left to end the program."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    own = resource.getrusage(resource.RUSAGE_SELF)
    limit = math.ceil(own.ru_utime + own.ru_stime) + _PROCESSOR_SECONDS  # a child's time begins at zero, this one's not
    if soft != resource.RLIM_INFINITY:
        limit = min(limit, soft)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, (soft, hard))


def _crashed(error: BaseException | None) -> bool:
    """Whether a program of the front end was ended by a signal, which says nothing about the kernel."""
    while error is not None:
        if isinstance(error, subprocess.CalledProcessError) and error.returncode < 0:
            return True
        error = error.__cause__
    return False


def translate(mlir_file: str) -> str:
    """LLVM IR text of a module in the LLVM dialect."""
    context = ir.context()
    ir.load_dialects(context)
    return str(llvm.to_module(ir.parse_mlir_module(mlir_file, context), llvm.context()))


def _innermost(error: BaseException) -> str:
    """The message closest to the cause: Triton wraps one error a nesting level."""
    messages = [_message(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        messages.append(_message(error))
    return "\n".join(dict.fromkeys(message for message in messages if message))


def _message(error: BaseException) -> str:
    if not isinstance(error, subprocess.CalledProcessError):
        return str(error)
    said = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else str(error.stderr or "")
    lines = [line for line in said.splitlines() if "error:" in line] or said.splitlines()[:5]
    return f"{Path(str(error.cmd[0])).name}: " + "\n".join(re.sub(r"/\S*/(?=kernel\.)", "", line) for line in lines)
