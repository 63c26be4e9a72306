"""Lanes ``cuda`` and ``npu``: kernels as their own compiler makes them, on the device.

Both are the same lane on another :class:`Device`. Only the process that launches ever touches the device: it is a
fork, and a device that was in use before a fork is of no use after it.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from conformance.execution.buffer import Buffer
from conformance.execution.red_zones import Mirror
from conformance.lanes.base import Lane
from conformance.lanes.environment import installed
from conformance.lanes.errors import DeviceError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Device:
    """What tells one kind of device from another, and all that is asked of one. ``torch_name`` is torch's word for it,
    ``driver_library`` what the driver is loaded from, ``packages`` what has to be installed, ``plugin`` the module that
    teaches torch about it ("" where torch knows), ``driver`` the file that says which driver is loaded, ``environment``
    what its processes start with, ``cache_variable`` the one that says where its compiler keeps what it has compiled,
    ``visible_variable`` the one that lists the devices which a process may use.

    There is no reset: an error outlasts everything but its process, so the process ends and a fresh one goes on.
    """

    torch_name: str
    driver_library: str
    packages: tuple[str, ...]
    driver: Path
    plugin: str = ""
    environment: Mapping[str, str] | None = None
    cache_variable: str = "TRITON_CACHE_DIR"
    visible_variable: str = ""

    def module(self) -> Any:
        """``torch.cuda`` or ``torch.npu``: both have the same functions."""
        import torch

        if self.plugin:
            importlib.import_module(self.plugin)
        return getattr(torch, self.torch_name)

    def memory(self, nbytes: int) -> torch.Tensor:
        """Bytes on the device. Raises RuntimeError where there are not that many."""
        import torch

        self.module()
        return torch.empty(nbytes, dtype=torch.uint8, device=self.torch_name)

    def staging(self, nbytes: int) -> torch.Tensor:
        """Bytes on the host that the device reads and writes while the host does something else."""
        import torch

        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def synchronize(self) -> None:
        """Wait until everything queued is done. Raises RuntimeError for what the device reports, now and ever after."""
        self.module().synchronize()

    def driver_version(self) -> str:
        """The first version number in the driver's file, "unknown" where there is none."""
        text = self.driver.read_text(errors="replace") if self.driver.is_file() else ""
        found = re.search(r"[0-9]+(\.[0-9]+)+", text)
        return found[0] if found else "unknown"


CUDA = Device(
    "cuda",
    "libcuda.so.1",
    ("llvmlite", "torch", "triton"),
    Path("/proc/driver/nvidia/version"),
    # Asking whether there is a device must not bring the driver up before the fork.
    environment={"PYTORCH_NVML_BASED_CUDA_CHECK": "1"},
    visible_variable="CUDA_VISIBLE_DEVICES",
)
NPU = Device(
    "npu",
    "libascendcl.so",
    ("llvmlite", "torch", "torch-npu", "triton-ascend"),
    Path("/usr/local/Ascend/driver/version.info"),
    plugin="torch_npu",
    visible_variable="ASCEND_RT_VISIBLE_DEVICES",
)


class DeviceLane(Lane):
    """Kernels on ``device``, whose memory has red zones. A device that reports an error takes its process with it."""

    device: ClassVar[Device]
    on_device = True
    batch = 64

    def __init__(self) -> None:
        self._mirror: Mirror | None = None
        self._base = 0
        self._loaded = 0  # specializations that this process has compiled or found in the cache on disk

    def unavailable(self) -> str | None:
        missing = [package for package in self.device.packages if installed(package) is None]
        if missing:
            return f"{', '.join(missing)} not installed"
        try:
            ctypes.CDLL(self.device.driver_library)
        except OSError:
            return f"no driver here: {self.device.driver_library} cannot be loaded"
        return None if self.device.module().is_available() else f"torch finds no {self.device.torch_name} device"

    def environment(self) -> Mapping[str, str]:
        return {**super().environment(), **(self.device.environment or {})}

    def enter(self, cache: str) -> None:
        """Triton launches on the device by itself; what it compiles is kept beside what other lanes compile."""
        os.environ[self.device.cache_variable] = str(Path(cache) / self.name)
        _have_ready_for_forks()

    def open_memory(self, fd: int) -> int:
        self._mirror = Mirror(fd, self.device)
        self.device.synchronize()
        self._base = self._mirror.memory.data_ptr()
        return self._base

    def hardware(self) -> Mapping[str, str]:
        return {"device": self.device.module().get_device_name(), "driver": self.device.driver_version()}

    def pointer(self, buffer: Buffer) -> Any:
        return self.tensor(buffer) if self._mirror is not None else _Unplaced(buffer)

    def tensor(self, buffer: Buffer) -> torch.Tensor:
        import torch

        assert self._mirror is not None, "no process but one that launches has device memory"
        dtype = getattr(torch, buffer.dtype)
        start = buffer.address - self._base
        flat: torch.Tensor = self._mirror.memory[start : start + buffer.size * dtype.itemsize].view(dtype)
        return flat.view(buffer.shape) if buffer.strides is None else flat.as_strided(buffer.shape, buffer.strides)

    def upload(self, nbytes: int) -> None:
        assert self._mirror is not None
        with self._errors():
            self._mirror.upload(nbytes)

    def download(self, nbytes: int) -> None:
        assert self._mirror is not None
        with self._errors():
            self._mirror.download(nbytes)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """What the device reports comes as a RuntimeError; between launches there is nobody else to raise one."""
        try:
            yield
        except RuntimeError as error:
            said = str(error).strip() or type(error).__name__
            raise DeviceError(f"{self.device.torch_name}: {said.splitlines()[0]}") from error

    def precompile(self, kernel: Any, arguments: Mapping[str, Any]) -> bool:
        kernel.warmup(grid=(1,), **arguments)
        return True

    def on_compile(self, announce: Callable[[str], None]) -> None:
        """Triton tells before and after each compilation, and each time it finds one in its cache on disk."""

        def before(**_: Any) -> None:
            self._loaded += 1
            announce("compiling")

        def after(**_: Any) -> None:
            announce("launching")

        _set_compile_hooks(before, after)

    def specializations(self) -> int:
        return self._loaded

    def is_compile_error(self, error: BaseException) -> bool:
        return super().is_compile_error(error) or type(error).__module__.startswith("triton.")


class CudaLane(DeviceLane):
    """NVIDIA GPUs, with the machine's own torch and triton."""

    name = torch_device = CUDA.torch_name
    device = CUDA


class NpuLane(DeviceLane):
    """Ascend NPUs, with torch_npu, triton-ascend and CANN. Vectors of integers are divided in float32 there, so that
    positions stay below 2^24 unless an entry point promises more.
    """

    name = torch_device = NPU.torch_name
    compile_budget = 48
    compile_seconds = 5.0
    clauses = frozenset({"pos-f32"})
    device = NPU


class _Unplaced:
    """A buffer of a compilation, which has no memory: its element type, and an address as well aligned as any."""

    def __init__(self, buffer: Buffer) -> None:
        import torch

        self.dtype: torch.dtype = getattr(torch, buffer.dtype)

    @staticmethod
    def data_ptr() -> int:
        return 0


def _have_ready_for_forks() -> None:
    """What triton otherwise does in each process anew, at its first launch: read its own files and libraries, whose
    digest is part of the name of what it compiles, and import a second language. Together that is a second, and a
    search that shrinks a crash starts a process for each of its launches.
    """
    try:
        from triton.runtime.cache import triton_key
    except ImportError:  # before 3.5
        from triton.compiler.compiler import triton_key
    triton_key()
    with suppress(ImportError):  # older ones have no other language
        importlib.import_module("triton.experimental.gluon")


def _set_compile_hooks(before: Callable[..., None], after: Callable[..., None]) -> None:
    """Where triton has its hooks: among its knobs since 3.4, on the class of its functions before."""
    try:
        from triton.knobs import runtime
    except ImportError:
        from triton.runtime.jit import JITFunction

        JITFunction.cache_hook, JITFunction.compiled_hook = before, after
    else:
        runtime.jit_cache_hook, runtime.jit_post_compile_hook = before, after
