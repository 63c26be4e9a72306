"""vllm-ascend's class of one group's table: the torch path for W > 1 and the NumPy path for drafts."""

import numpy as np
import torch
from vllm.distributed import get_dcp_group
from vllm.logger import init_logger
from vllm.v1.kv_cache_interface import KVCacheGroupSpec
from vllm.v1.utils import CpuGpuBuffer

logger = init_logger(__name__)


class BlockTable:
    def __init__(
        self,
        block_size: int,
        max_num_reqs: int,
        max_num_blocks_per_req: int,
        max_num_batched_tokens: int,
        pin_memory: bool,
        device: torch.device,
        kernel_sizes: list[int],
        cp_kv_cache_interleave_size: int = 1,
        num_speculative_tokens: int = 0,
        kv_cache_group: KVCacheGroupSpec | None = None,
    ) -> None:
        self.kv_cache_block_size, self.block_size = block_size, kernel_sizes[0]
        self.interleave = cp_kv_cache_interleave_size
        self.group = get_dcp_group()
        width = max_num_blocks_per_req * (block_size // kernel_sizes[0])
        self.block_table = CpuGpuBuffer(max_num_reqs, width, dtype=torch.int32, device=device, pin_memory=pin_memory)
        self.slot_mapping = CpuGpuBuffer(
            max_num_batched_tokens, dtype=torch.int32, device=device, pin_memory=pin_memory
        )

    def compute_slot_mapping_draft(self, req_indices: np.ndarray, positions: np.ndarray) -> None:
        block, offset = np.divmod(positions, self.block_size)
        numbers = self.block_table.np[req_indices, block]
        self.slot_mapping.np[: len(positions)] = numbers * self.block_size + offset

    def _compute_dcp_slot_mapping(self, req_indices: torch.Tensor, positions: torch.Tensor) -> None:
        size, virtual_size = self.group.world_size, self.kv_cache_block_size * self.group.world_size
        block, offset = positions // virtual_size, positions % virtual_size
        run = offset // self.interleave
        own = block * self.kv_cache_block_size + run // size * self.interleave + offset % self.interleave
        is_local = run % size == self.group.rank_in_group
        slots = torch.full_like(positions, -1)
        requests, own = req_indices[is_local].long(), own[is_local]
        numbers = self.block_table.gpu[requests, own // self.block_size].long()
        slots[is_local] = numbers * self.block_size + own % self.block_size
        self.slot_mapping.gpu[: positions.numel()] = slots.to(torch.int32)
