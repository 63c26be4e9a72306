"""The seeded faults, each a few exact replacements in the source of ``kernels/``.

A fault is a mistake that real implementations made or could have made; ``write_variant`` writes a package ``kernels``
that has it, for ``--source kernels=FOLDER``. The replaced text must occur exactly once, so a fault cannot silently
stop being one when the kernel changes: it then fails to apply, and has to be written anew.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "kernels"
V1 = "slot_mapping.py"
WINDOW = "window.py"
DCP = "torch_dcp.py"


class FaultError(ValueError):
    """A fault that does not fit the source it is meant for."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``name`` is its id, ``kind`` the family of mistakes, ``summary`` what is wrong, in a sentence.

    ``replacements`` are (old, new) texts in ``kernels/<file>``. ``tokens`` is the size that a shrunk case need not
    exceed.
    """

    name: str
    kind: str
    summary: str
    file: str
    replacements: tuple[tuple[str, str], ...]
    tokens: int = 3

    @property
    def entry_point(self) -> str:
        """The suite's name of the function that is wrong."""
        return {V1: "v1", WINDOW: "v1", DCP: "dcp"}[self.file]


def faulty_source(fault: Fault, source: str) -> str:
    """``source`` with the fault. Raises FaultError unless every old text occurs exactly once when its turn comes."""
    for old, new in fault.replacements:
        found = source.count(old)
        if found != 1:
            raise FaultError(f"fault {fault.name}: {old!r} occurs {found} times in kernels/{fault.file}, expected once")
        source = source.replace(old, new)
    return source


def write_variant(fault: Fault, folder: Path) -> Path:
    """Write ``folder/kernels``, a copy of the package with the fault, and return ``folder``."""
    source = faulty_source(fault, (PACKAGE / fault.file).read_text(encoding="utf-8"))
    copy = folder / "kernels"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / fault.file).write_text(source, encoding="utf-8")
    return folder


CATALOGUE: tuple[Fault, ...] = (
    Fault(
        "kernel-block-for-virtual-block",
        "context parallelism",
        "ranks share the kernel block where they share the allocated one (vllm-ascend PR 10442, vLLM PR 51031)",
        V1,
        (
            (
                "virtual_block_size: tl.constexpr = KV_CACHE_BLOCK_SIZE * TOTAL_CP_WORLD_SIZE",
                "virtual_block_size = block_size * TOTAL_CP_WORLD_SIZE",
            ),
        ),
    ),
    Fault(
        "interleave-and-world-size-swapped",
        "context parallelism",
        "runs as long as there are ranks are dealt to as many ranks as a run has tokens",
        V1,
        (
            ("run = virtual_offset // CP_KV_CACHE_INTERLEAVE_SIZE", "run = virtual_offset // TOTAL_CP_WORLD_SIZE"),
            ("turn = run // TOTAL_CP_WORLD_SIZE", "turn = run // CP_KV_CACHE_INTERLEAVE_SIZE"),
            ("owner = run - turn * TOTAL_CP_WORLD_SIZE", "owner = run - turn * CP_KV_CACHE_INTERLEAVE_SIZE"),
            ("virtual_offset - run * CP_KV_CACHE_INTERLEAVE_SIZE", "virtual_offset - run * TOTAL_CP_WORLD_SIZE"),
            (
                "turn * CP_KV_CACHE_INTERLEAVE_SIZE + offset_in_run",
                "turn * TOTAL_CP_WORLD_SIZE + offset_in_run",
            ),
        ),
    ),
    Fault(
        "padding-starts-late",
        "padding",
        "the element after the last token is not padded",
        V1,
        (
            (
                "range(num_tokens, max_num_tokens, TILE_BLOCK_SIZE)",
                "range(num_tokens + 1, max_num_tokens, TILE_BLOCK_SIZE)",
            ),
        ),
    ),
    Fault(
        "request-mask-one-too-far",
        "bounds",
        "`<=` for `<`: each request also handles the token after its last",
        V1,
        (("in_request = token < end", "in_request = token <= end"),),
    ),
    Fault(
        "every-later-request-written",
        "bounds",
        "each request also handles the tokens of all later ones, which repair it only if they run later",
        V1,
        (("in_request = token < end", "in_request = token < num_tokens"),),
    ),
    Fault(
        "table-row-off-by-one",
        "table",
        "request r reads row r + 1",
        V1,
        (("request.to(tl.int64) * block_table_stride", "(request + 1).to(tl.int64) * block_table_stride"),),
    ),
    Fault(
        "circular-without-negative-test",
        "negative positions",
        "a negative position of a ring gets a slot",
        V1,
        (("slots = tl.where(is_local, slot, padding)", "slots = slot"),),
    ),
    Fault(
        "circular-as-paged",
        "table",
        "a ring is looked up like a growing row (vLLM PR 56469)",
        V1,
        (("if IS_CIRCULAR:", "if IS_CIRCULAR and not IS_CIRCULAR:"),),
    ),
    Fault(
        "rank-ignored",
        "context parallelism",
        "every rank takes what is rank 0's",
        V1,
        (("(owner == TOTAL_CP_RANK)", "(owner == 0)"),),
    ),
    Fault(
        "runs-not-packed",
        "context parallelism",
        "the other ranks' runs leave gaps in this rank's blocks",
        V1,
        (("turn * CP_KV_CACHE_INTERLEAVE_SIZE + offset_in_run", "run * CP_KV_CACHE_INTERLEAVE_SIZE + offset_in_run"),),
    ),
    Fault(
        "hybrid-factor-forgotten",
        "context parallelism",
        "an allocated block advances the row by one kernel block, whatever it holds",
        V1,
        (("virtual_block * BLOCKS_PER_KV_BLOCK + kernel_block", "virtual_block + kernel_block"),),
    ),
    Fault(
        "window-base-over-foreign-tokens",
        "window",
        "other ranks' tokens pull the only window away from this rank's",
        WINDOW,
        (
            (
                "base = tl.min(pending, axis=0)\n    while base < row_stride:",
                # A lane without a token has position 0: block 0, offset 0.
                "base = tl.min(tl.where(is_local | (block_index + offset > 0), block_index, NOTHING_PENDING), axis=0)\n"
                "    if base < row_stride:",
            ),
        ),
    ),
    Fault(
        "only-one-window",
        "window",
        "tokens whose block lies past the first window get no slot",
        WINDOW,
        (("while base < row_stride:", "if base < row_stride:"),),
    ),
    Fault(
        "only-one-tile",
        "bounds",
        "tokens past a request's first tile are left out",
        V1,
        (("range(start, end, TILE_BLOCK_SIZE)", "range(start, tl.minimum(end, start + 1), TILE_BLOCK_SIZE)"),),
        tokens=17,  # the smallest tile of the pool and one more
    ),
    Fault(
        "row-end-unguarded",
        "bounds",
        "the window is read past the row, and past the table behind the last row (vLLM PR 54296)",
        WINDOW,
        (("tl.load(row_ptr + cell, mask=cell < row_stride)", "tl.load(row_ptr + cell)"),),
    ),
    Fault(
        "negative-position-moves-window",
        "negative positions",
        "a negative position pulls the window to before the row (vllm-ascend PR 16537)",
        V1,
        (
            ("is_local = loaded >= 0", "is_local = in_request"),
            ("position = tl.maximum(loaded, 0)", "position = loaded"),
        ),
    ),
    Fault(
        "negative-position-as-zero",
        "negative positions",
        "a negative position gets the slot of position 0 (vllm-ascend PR 17529)",
        V1,
        (("is_local = loaded >= 0", "is_local = in_request"),),
    ),
    Fault(
        "sign-of-the-quotient",
        "arithmetic",
        "the sign is tested after a division that truncates: -1 // 16 is 0 there, not -1",
        V1,
        (
            ("is_local = loaded >= 0", "is_local = loaded // block_size >= 0"),
            ("position = tl.maximum(loaded, 0)", "position = loaded"),
        ),
    ),
    Fault(
        "slot-in-float32",
        "arithmetic",
        "the slot is computed before the gathered number is converted back: wrong above 2**24 even for small blocks",
        WINDOW,
        (
            ("window.to(tl.float32, bitcast=True)", "window.to(tl.float32)"),
            ("carried.to(tl.int32, bitcast=True).to(padding.dtype)", "carried"),
            (
                "tl.where(found, block_number * block_size + offset, slots)",
                "tl.where(found, (block_number * block_size + offset).to(padding.dtype), slots)",
            ),
        ),
    ),
    Fault(
        "slot-in-int32",
        "arithmetic",
        "slots of an int64 output wrap at 2**31",
        WINDOW,
        (("carried.to(tl.int32, bitcast=True).to(padding.dtype)", "carried.to(tl.int32, bitcast=True)"),),
    ),
    Fault(
        "pad-hard-coded",
        "padding",
        "what gets no slot holds -1, whatever PAD_ID is",
        V1,
        (("tl.full((TILE_BLOCK_SIZE,), PAD_ID, slot_type)", "tl.full((TILE_BLOCK_SIZE,), -1, slot_type)"),),
    ),
    Fault(
        "padding-stops-early",
        "padding",
        "the last element of the padded length is not padded",
        V1,
        (("mask=token < max_num_tokens)", "mask=token < max_num_tokens - 1)"),),
    ),
    Fault(
        "padding-one-too-far",
        "padding",
        "`<=` for `<`: the element at max_num_tokens is written",
        V1,
        (("mask=token < max_num_tokens)", "mask=token <= max_num_tokens)"),),
    ),
    Fault(
        "torch-kernel-block-for-virtual-block",
        "context parallelism",
        "ranks share the kernel block where they share the allocated one (vllm-ascend PR 10442)",
        DCP,
        (("virtual_block_size = geometry.kv_cache_block_size * size", "virtual_block_size = b * size"),),
    ),
    Fault(
        "torch-foreign-tokens-looked-up",
        "table",
        "the cell of another rank's token is read, in a row that may not have it",
        DCP,
        (
            (
                "block_table[torch.where(found, req_indices, 0), torch.where(found, block_index, 0)]",
                "block_table[req_indices, block_index]",
            ),
        ),
    ),
    Fault(
        "torch-stride-taken-for-width",
        "table",
        "the table is flattened as if its rows were as far apart as they are wide (vllm-ascend PR 10112)",
        DCP,
        (
            (
                "block_table[torch.where(found, req_indices, 0), torch.where(found, block_index, 0)]",
                "block_table.as_strided((block_table.numel(),), (1,))[\n"
                "        torch.where(found, req_indices * width + block_index, 0)\n"
                "    ]",
            ),
        ),
    ),
    Fault(
        "torch-pads-the-tail",
        "padding",
        "what lies behind the tokens is overwritten",
        DCP,
        (
            (
                "output = slot_mapping[:num_tokens]\n",
                "output = slot_mapping[:num_tokens]\n    slot_mapping.fill_(pad_id)\n",
            ),
        ),
    ),
)


def by_name(name: str) -> Fault:
    """The fault of that name. Raises FaultError with the names there are."""
    for fault in CATALOGUE:
        if fault.name == name:
            return fault
    raise FaultError(f"no fault {name!r}; there are {', '.join(fault.name for fault in CATALOGUE)}")
