"""Kinds of mistakes beside the catalogue's, each of which needs something of its own to be seen: many batches over one
layout, an output with room for draft tokens, an int64 output, rows shorter than what is staged, hundreds of requests in
tiles of serving's size.
"""

from __future__ import annotations

from tests.faults.catalogue import TILED, V1, V2, Fault

BLOCK_TABLE = "group_block_table.py"

_CONSTANTS = "    num_tokens: tl.constexpr,\n    max_num_tokens: tl.constexpr,\n    query_start_loc_ptr,\n"

FURTHER: tuple[Fault, ...] = (
    Fault(
        "token-counts-compiled-in",
        "compilation",
        "counts that change with every step are compile-time constants (vllm-ascend issue 17527)",
        V1,
        (
            (
                "    num_tokens,\n    max_num_tokens,\n",
                "    num_tokens: tl.constexpr,\n    max_num_tokens: tl.constexpr,\n",
            ),
        ),
        ("unknown",),
    ),
    Fault(
        "token-counts-specialized-on",
        "compilation",
        "a count that changes with every step is told apart as 1, a multiple of 16 and any other",
        V2,
        (('    do_not_specialize=["max_num_tokens"],\n', ""),),
        ("unknown",),
    ),
    Fault(
        "output-without-room-for-drafts",
        "allocation",
        "the output is as long as a batch without draft tokens (vllm-ascend PR 14024)",
        BLOCK_TABLE,
        (
            (
                "            max_num_batched_tokens + max(num_speculative_tokens - 1, 0) * max_num_reqs,\n",
                "            max_num_batched_tokens,\n",
            ),
        ),
        ("unknown",),
        entry="block_table",
    ),
    Fault(
        "int64-output-written-as-int32",
        "output type",
        "slots are stored four bytes apart, whatever the output's type (vllm-ascend PR 16775)",
        V2,
        (
            (
                "slot_mapping_ptr = slot_mappings_ptr + group.to(tl.int64) * slot_mappings_stride",
                "slot_mapping_ptr = (slot_mappings_ptr + group.to(tl.int64) * slot_mappings_stride).to("
                "tl.pointer_type(tl.int32))",
            ),
        ),
        ("unknown",),
    ),
    Fault(
        "whole-row-staged",
        "bounds",
        "4096 cells are staged of every row, however long it is",
        V2,
        (
            (
                "    row_cells = tl.minimum(row_stride, 2147483647).to(tl.int32)\n",
                "    row_cells = tl.minimum(row_stride, 2147483647).to(tl.int32)\n"
                "    staged = tl.load(row_ptr + tl.arange(0, 4096))\n"
                "    row_cells = tl.where(tl.max(staged, axis=0) < -2147483647, 0, row_cells)\n",
            ),
        ),
        ("unknown",),
    ),
    Fault(
        "search-ends-at-the-sample",
        "bounds",
        "requests between the last sampled offset before a tile's end and that end are not searched",
        TILED,
        (
            (
                "left = tl.minimum(((counts >> 16) + 1) * step - 1, num_reqs) - first",
                "left = tl.minimum((counts >> 16) * step, num_reqs) - first",
            ),
        ),
        ("unknown",),
    ),
)
