"""One array on the host and on the device, with the names of vLLM's CpuGpuBuffer."""

from __future__ import annotations

import torch


class HostDeviceBuffer:
    """``cpu``, its NumPy view ``np``, and ``gpu``: two memories on a machine without a device too, where what was not
    copied has not arrived either.
    """

    def __init__(
        self, *shape: int, dtype: torch.dtype, device: torch.device | str, pin_memory: bool = False, fill: int = 0
    ) -> None:
        """Both sides hold ``fill``. ``pin_memory``: copies to the device do not make the host wait."""
        self.cpu = torch.full(shape, fill, dtype=dtype, device="cpu")
        self.np = self.cpu.numpy()
        self.gpu = torch.full(shape, fill, dtype=dtype, device=device)
        self._pins = pin_memory and self.gpu.device.type != "cpu"

    def fill(self, value: int) -> None:
        """``value`` in every element of both sides."""
        self.cpu.fill_(value)
        self.gpu.fill_(value)

    def copy_to_gpu(self, count: int | None = None) -> torch.Tensor:
        """Copy the first ``count`` elements of the first dimension (None: all) to the device; returns them there."""
        source, target = (self.cpu, self.gpu) if count is None else (self.cpu[:count], self.gpu[:count])
        if self._pins:
            # A copy of its own: the host may change its rows for the next step while this transfer still runs.
            source = source.pin_memory()
        return target.copy_(source, non_blocking=self._pins)

    def copy_to_cpu(self, count: int | None = None) -> torch.Tensor:
        """The same the other way. Waits for the device."""
        source, target = (self.gpu, self.cpu) if count is None else (self.gpu[:count], self.cpu[:count])
        return target.copy_(source)
