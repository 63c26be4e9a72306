"""A stand-in for torch_npu whose NPU is this host: tensors on device ``npu`` are host tensors, kernels become native
code as on lane ``lowered``.

It is as asynchronous as a device: launches and copies that do not wait are queued, and done when somebody waits. So who
reads an output too early reads what was there before, and an error shows where the device is waited for, and from then
on always. Like torch_npu it is loaded by ``import torch``.

``STAND_IN_NPU_LOG`` names a file that gets a line for each thing done. ``STAND_IN_NPU_FAULTS`` is a JSON list of
[fault, least, most]: launches with ``max_num_tokens`` in that range do not work. The fault is "error", "hang" or
"out of memory". ``STAND_IN_NPU_BYTES`` is how much memory there is.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

__version__ = "2.10.0"
_FAULTS = json.loads(os.environ.get("STAND_IN_NPU_FAULTS", "[]"))
_BYTES = int(os.environ.get("STAND_IN_NPU_BYTES", 1 << 40))


def _note(what: str) -> None:
    if "STAND_IN_NPU_LOG" in os.environ:
        with open(os.environ["STAND_IN_NPU_LOG"], "a") as file:
            file.write(f"{what}\n")


class _Stream:
    def __init__(self) -> None:
        self.queued: list[Callable[[], object]] = []
        self.error = ""

    def catch_up(self) -> None:
        """Do what is queued, in its order: an operation on tensors comes behind it."""
        while self.queued and not self.error:
            self.queued.pop(0)()

    def synchronize(self) -> None:
        _note("synchronize")
        self.catch_up()
        if self.error:
            raise RuntimeError(self.error)

    def fail(self) -> None:
        self.error = "The Inner error is reported as above. error code is 507015\nEZ9999: aicore exception"


_stream = _Stream()


def _autoload() -> None:
    import torch
    from torch.overrides import TorchFunctionMode
    from triton.runtime.jit import JITFunction

    class OnThisHost(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            kwargs.pop("pin_memory", None)  # torch would ask for a device that it knows
            if str(kwargs.get("device", "")).startswith("npu"):
                kwargs["device"] = "cpu"
                _allocate(args)
            if function is torch.Tensor.copy_:
                to, source = args
                if kwargs.pop("non_blocking", False):
                    _note("copy")
                    _stream.queued.append(lambda: torch.Tensor.copy_(to, source))
                    return to
            _stream.catch_up()
            return function(*args, **kwargs)

    npu = ModuleType("torch.npu")
    npu.is_available = lambda: True  # type: ignore[attr-defined]
    npu.synchronize = _stream.synchronize  # type: ignore[attr-defined]
    npu.get_device_name = lambda: "stand-in"  # type: ignore[attr-defined]
    torch.utils.rename_privateuse1_backend("npu")
    torch.npu = npu  # type: ignore[attr-defined]
    JITFunction.run = _run
    OnThisHost().__enter__()


def _allocate(size: tuple[Any, ...]) -> None:
    nbytes = size[0] if size and isinstance(size[0], int) else 0
    if nbytes > _BYTES:
        raise RuntimeError(f"NPU out of memory. Tried to allocate {nbytes >> 20} MiB")


_launchers: list[Any] = []
_compiled: set[object] = set()


def _run(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
    """What triton-ascend does for ``kernel[grid](...)``: compile what this process has not met, queue the launch."""
    from conformance.lanes.ascend.binding import bind
    from conformance.lanes.lowered.launcher import Launcher

    if not _launchers:
        _launchers.append(Launcher(Path(os.environ["TRITON_CACHE_DIR"])))
    launcher = _launchers[0]
    arguments = dict(zip(kernel.arg_names, args, strict=False), **kwargs)
    bound = bind(kernel, arguments)
    key = (kernel, str(bound.types), str(bound.constants), bound.multiples)
    if key not in _compiled:
        _compiled.add(key)
        for hook in filter(None, [type(kernel).cache_hook]):
            hook(key=key)
        _note("compile" if launcher.precompile(kernel, arguments) else "found compiled")
        for hook in filter(None, [type(kernel).compiled_hook]):
            hook(key=key)
    if warmup:
        return
    size = arguments.get("max_num_tokens", 0)
    fault = next((fault for fault, least, most in _FAULTS if least <= size <= most), "")
    if fault == "out of memory":
        raise RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB")
    _note("launch")
    faulty = {"error": _stream.fail, "hang": signal.pause}
    _stream.queued.append(faulty.get(fault) or (lambda: launcher.launch(kernel, grid, arguments)))
