"""The parts of vLLM that the code under test touches, as the smallest things that let it run. Used where vLLM is not
installed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

given = SimpleNamespace(world_size=1, rank=0)
"""The context-parallel group that the next constructor shall see."""


def _decode_group() -> SimpleNamespace:
    return SimpleNamespace(world_size=given.world_size, rank_in_group=given.rank)


def _prefill_group() -> SimpleNamespace:
    """All ranks are decode ranks."""
    return SimpleNamespace(world_size=1, rank_in_group=0)


class HostAndDevice:
    """CpuGpuBuffer around one tensor: ``cpu``, ``gpu`` and ``np`` are the same elements where the tensor is a host's,
    else ``cpu`` and ``np`` are a copy of it.
    """

    def __init__(self, *size: int, dtype: torch.dtype, **_: object) -> None:
        import torch

        self.hold(torch.zeros(*size, dtype=dtype))

    def hold(self, tensor: torch.Tensor) -> None:
        """Use this memory from now on."""
        self.gpu = tensor
        self.cpu = tensor.cpu()
        self.np = self.cpu.numpy()

    def copy_to_gpu(self, count: int | None = None) -> torch.Tensor:
        """Where it is one memory, it is there already."""
        if self.cpu is not self.gpu:
            self.gpu[:count].copy_(self.cpu[:count])
        return self.gpu[:count]


def known() -> dict[str, object]:
    """Real values by "module.attribute"."""
    import triton
    import triton.language as tl

    from conformance.subjects.device import load_pointer

    values: dict[str, Any] = {
        "vllm.distributed.get_dcp_group": _decode_group,
        "vllm.distributed.get_pcp_group": _prefill_group,
        "vllm.utils.math_utils.cdiv": lambda a, b: -(-a // b),
        "vllm.utils.cdiv": lambda a, b: -(-a // b),
        "vllm.v1.attention.backends.utils.PAD_SLOT_ID": -1,
        "vllm.v1.utils.CpuGpuBuffer": HostAndDevice,
        "*._load_ptr": load_pointer,
        "vllm.triton_utils.triton": triton,
        "vllm.triton_utils.tl": tl,
    }
    return values
