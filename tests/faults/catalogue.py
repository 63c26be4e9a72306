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
V2 = "slot_mappings_v2.py"
TILED = "tiled.py"
FUSED = "fused_groups.py"
REPLAY = "replay.py"
WINDOW = "window.py"
DCP = "torch_dcp.py"
TABLES, TABLE, ROWS = "block_table.py", "group_block_table.py", "block_rows.py"


class FaultError(ValueError):
    """A fault that does not fit the source it is meant for."""


@dataclass(frozen=True, slots=True)
class Fault:
    """``name`` is its id, ``kind`` the family of mistakes, ``summary`` what is wrong, in a sentence.

    ``replacements`` are (old, new) texts in ``kernels/<file>``. ``causes`` are those that a diagnosis may name: one,
    unless what can be observed is as true of another. ``tokens`` is the size that a shrunk case need not exceed.
    ``entry`` is the entry point that shows it, where it is not the file's first.
    """

    name: str
    kind: str
    summary: str
    file: str
    replacements: tuple[tuple[str, str], ...]
    causes: tuple[str, ...]
    tokens: int = 3
    entry: str = ""

    @property
    def entry_point(self) -> str:
        """The suite's name of the function that is wrong."""
        first = {V1: "v1", V2: "v2", TILED: "tiled", FUSED: "parallel", REPLAY: "replay", WINDOW: "v1", DCP: "dcp"}
        return self.entry or first[self.file]

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of case to look for it in. Others cannot show it, and would be drawn in vain."""
        return ("cp",) if self.kind == "context parallelism" else ("plain", "circular", "cp")


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
        ("virtual block", "out of bounds read before"),
    ),
    Fault(
        "interleave-and-world-size-swapped",
        "context parallelism",
        "runs as long as there are ranks are dealt to as many ranks as a run has tokens",
        V1,
        (
            (
                "quotient_and_remainder(virtual_offset, CP_KV_CACHE_INTERLEAVE_SIZE)",
                "quotient_and_remainder(virtual_offset, TOTAL_CP_WORLD_SIZE)",
            ),
            (
                "quotient_and_remainder(run, TOTAL_CP_WORLD_SIZE)",
                "quotient_and_remainder(run, CP_KV_CACHE_INTERLEAVE_SIZE)",
            ),
            (
                "turn * CP_KV_CACHE_INTERLEAVE_SIZE + offset_in_run",
                "turn * TOTAL_CP_WORLD_SIZE + offset_in_run",
            ),
        ),
        ("ownership",),
    ),
    Fault(
        "even-ranks-by-mask",
        "context parallelism",
        "the owner is masked out wherever the number of ranks is even: right for 2, 4 and 8",
        V1,
        (
            (
                "turn, owner = quotient_and_remainder(run, TOTAL_CP_WORLD_SIZE)",
                "turn = run // TOTAL_CP_WORLD_SIZE\n                "
                "owner = run & (TOTAL_CP_WORLD_SIZE - 1) if TOTAL_CP_WORLD_SIZE % 2 == 0 "
                "else run - turn * TOTAL_CP_WORLD_SIZE",
            ),
        ),
        ("ownership",),
    ),
    Fault(
        "torch-even-ranks-by-mask",
        "context parallelism",
        "the same on torch",
        DCP,
        (
            (
                "owner = virtual_offset // interleave % size",
                "owner = virtual_offset // interleave & size - 1 if size % 2 == 0 "
                "else virtual_offset // interleave % size",
            ),
        ),
        ("ownership",),
    ),
    Fault(
        "laps-of-the-first-tile",
        "ring",
        "every tile of a ring is divided from the least position of the request's first tile on",
        V1,
        (
            (
                "    for tile_start in range(start, end, TILE_BLOCK_SIZE):\n",
                "    head = tl.load(positions_ptr + start + lane, mask=start + lane < end, other=BEHIND).to(tl.int32)\n"
                "    lowest = tl.maximum(tl.min(head, axis=0), 0)\n"
                "    for tile_start in range(start, end, TILE_BLOCK_SIZE):\n",
            ),
            (
                "position -= tl.maximum(tl.min(loaded, axis=0), 0) // block_size * block_size",
                "position -= lowest // block_size * block_size",
            ),
        ),
        ("block offset", "int32 overflow"),
        8,
    ),
    Fault(
        "reciprocal-for-division",
        "float32",
        "distances are multiplied by the float32 that is nearest to 1/b, which for 880 is too small",
        WINDOW,
        (
            (
                "block = distance // block_size",
                "block = (distance.to(tl.float32) * (1.0 / block_size)).to(tl.int32)",
            ),
        ),
        ("kernel block index", "float32"),
    ),
    Fault(
        "padding-starts-late",
        "padding",
        "the element after the last token is not padded",
        V1,
        (
            (
                "range(first, max_num_tokens, TILE_BLOCK_SIZE)",
                "range(first + 1, max_num_tokens, TILE_BLOCK_SIZE)",
            ),
        ),
        ("padding start",),
    ),
    Fault(
        "request-mask-one-too-far",
        "bounds",
        "`<=` for `<`: each request also handles the token after its last",
        V1,
        (("in_request = token < end", "in_request = token <= end"),),
        (
            "foreign request",
            "out of bounds read past",
        ),
    ),
    Fault(
        "every-later-request-written",
        "bounds",
        "each request also handles the tokens of all later ones, which repair it only if they run later",
        V1,
        (("in_request = token < end", "in_request = token < num_tokens"),),
        ("foreign request",),
    ),
    Fault(
        "table-row-off-by-one",
        "table",
        "request r reads row r + 1",
        V1,
        (("request.to(tl.int64) * block_table_stride", "(request + 1).to(tl.int64) * block_table_stride"),),
        (
            "table row",
            "out of bounds read past",
        ),
    ),
    Fault(
        "circular-without-negative-test",
        "negative positions",
        "a negative position of a ring gets a slot",
        V1,
        (("slots = tl.where(is_local, slot, padding)", "slots = slot"),),
        ("sign",),
    ),
    Fault(
        "circular-as-paged",
        "table",
        "a ring is looked up like a growing row (vLLM PR 56469)",
        V1,
        (("if IS_CIRCULAR:", "if IS_CIRCULAR and not IS_CIRCULAR:"),),
        ("circular",),
    ),
    Fault(
        "rank-ignored",
        "context parallelism",
        "every rank takes what is rank 0's",
        V1,
        (("(owner == TOTAL_CP_RANK)", "(owner == 0)"),),
        ("ownership",),
    ),
    Fault(
        "runs-not-packed",
        "context parallelism",
        "the other ranks' runs leave gaps in this rank's blocks",
        V1,
        (("turn * CP_KV_CACHE_INTERLEAVE_SIZE + offset_in_run", "run * CP_KV_CACHE_INTERLEAVE_SIZE + offset_in_run"),),
        ("local offset",),
    ),
    Fault(
        "hybrid-factor-forgotten",
        "context parallelism",
        "an allocated block advances the row by one kernel block, whatever it holds",
        V1,
        (("virtual_block * KV_CACHE_BLOCK_SIZE + local_offset", "virtual_block * block_size + local_offset"),),
        ("kernel block index",),
    ),
    Fault(
        "window-base-over-foreign-tokens",
        "window",
        "other ranks' tokens pull the only window away from this rank's",
        WINDOW,
        (
            (
                "first = tl.min(pending, axis=0)\n    while first < row_end:",
                # A lane without a token has position 0.
                "first = tl.min(tl.where(is_local | (position > 0), position - 1, NOTHING_PENDING), axis=0)\n"
                "    if first < row_end:",
            ),
        ),
        ("window",),
    ),
    Fault(
        "only-one-window",
        "window",
        "tokens whose block lies past the first window get no slot",
        WINDOW,
        (("while first < row_end:", "if first < row_end:"),),
        ("window",),
    ),
    Fault(
        "only-one-tile",
        "bounds",
        "tokens past a request's first tile are left out",
        V1,
        (("range(start, end, TILE_BLOCK_SIZE)", "range(start, tl.minimum(end, start + 1), TILE_BLOCK_SIZE)"),),
        ("tile",),
        tokens=3,
    ),
    Fault(
        "row-end-unguarded",
        "bounds",
        "the window is read past the row, and past the table behind the last row (vLLM PR 54296)",
        WINDOW,
        (("tl.load(row_ptr + cell, mask=cell < row_stride)", "tl.load(row_ptr + cell)"),),
        ("out of bounds read past",),
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
        (
            "sign",
            "window",
            "out of bounds read before",
            "crash",
        ),
    ),
    Fault(
        "negative-position-as-zero",
        "negative positions",
        "a negative position gets the slot of position 0 (vllm-ascend PR 17529)",
        V1,
        (("is_local = loaded >= 0", "is_local = in_request"),),
        ("sign",),
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
        ("sign",),
    ),
    Fault(
        "slot-in-float32",
        "arithmetic",
        "the slot is computed before the gathered number is converted back: wrong above 2**24 even for small blocks",
        WINDOW,
        (
            ("window.to(tl.float32, bitcast=True)", "window.to(tl.float32)"),
            ("carried.to(tl.int32, bitcast=True)", "carried"),
            (
                "(block_number - block).to(padding.dtype) * block_size + distance",
                "((block_number - block) * block_size + distance).to(padding.dtype)",
            ),
        ),
        ("float32",),
    ),
    Fault(
        "slot-in-int32",
        "arithmetic",
        "slots of an int64 output wrap at 2**31",
        WINDOW,
        (("(block_number - block).to(padding.dtype) * block_size", "(block_number - block) * block_size"),),
        ("int32 overflow",),
    ),
    Fault(
        "pad-hard-coded",
        "padding",
        "what gets no slot holds -1, whatever PAD_ID is",
        V1,
        (("tl.full((TILE_BLOCK_SIZE,), PAD_ID, slot_type)", "tl.full((TILE_BLOCK_SIZE,), -1, slot_type)"),),
        ("padding value",),
    ),
    Fault(
        "padding-stops-early",
        "padding",
        "the last element of the padded length is not padded",
        V1,
        (("mask=token < max_num_tokens)", "mask=token < max_num_tokens - 1)"),),
        ("padding end",),
    ),
    Fault(
        "padding-one-too-far",
        "padding",
        "`<=` for `<`: the element at max_num_tokens is written",
        V1,
        (("mask=token < max_num_tokens)", "mask=token <= max_num_tokens)"),),
        (
            "padding end",
            "out of bounds write past",
        ),
    ),
    Fault(
        "torch-kernel-block-for-virtual-block",
        "context parallelism",
        "ranks share the kernel block where they share the allocated one (vllm-ascend PR 10442)",
        DCP,
        (("virtual_block_size = geometry.kv_cache_block_size * size", "virtual_block_size = b * size"),),
        ("virtual block", "refused"),  # its own validation, when that is asked for, meets columns that are not there
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
        ("out of bounds read past", "out of bounds read before"),
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
        ("row stride",),
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
        ("padding end",),
    ),
    Fault(
        "v2-row-of-the-request",
        "table",
        "request r reads row r, whatever idx_mapping says",
        V2,
        (("row = tl.load(idx_mapping + request)", "row = request"),),
        ("idx_mapping", "out of bounds read past"),
    ),
    Fault(
        "v2-replicated-group-sharded",
        "context parallelism",
        "context parallelism is applied to groups whose state every rank has (vLLM PR 57260)",
        V2,
        (("is_sharded = tl.load(dcp_sharded + group) != 0", "is_sharded = tl.load(dcp_sharded + group) >= 0"),),
        ("replicated group sharded",),
    ),
    Fault(
        "v2-replicated-group-keeps-the-rank",
        "context parallelism",
        "a replicated group has one rank and is still asked for this rank's tokens",
        V2,
        (("group_cp_rank = tl.where(is_sharded, cp_rank, 0)", "group_cp_rank = cp_rank"),),
        ("replicated group sharded",),
    ),
    Fault(
        "v2-disabled-group-gets-slots",
        "groups",
        "slot_mapping_enabled is not looked at",
        V2,
        (("(tl.load(slot_mapping_enabled + group) != 0)", "(tl.load(slot_mapping_enabled + group) >= 0)"),),
        ("disabled group", "out of bounds read past"),
    ),
    Fault(
        "v2-kernel-block-for-virtual-block",
        "context parallelism",
        "ranks share the kernel block where they share the allocated one (vLLM PR 51031)",
        V2,
        (
            (
                "position, kv_cache_block_size, group_cp_size, group_cp_rank, CP_INTERLEAVE",
                "position, block_size, group_cp_size, group_cp_rank, CP_INTERLEAVE",
            ),
        ),
        ("virtual block",),
    ),
    Fault(
        "v2-block-size-of-the-first-group",
        "groups",
        "every group is divided into blocks of the first group's size",
        V2,
        (("tl.load(kernel_block_sizes + group)", "tl.load(kernel_block_sizes)"),),
        ("foreign group",),
    ),
    Fault(
        "v2-table-of-the-first-group",
        "groups",
        "every group is looked up in the first group's table",
        V2,
        (("tl.load(block_table_ptrs + group)", "tl.load(block_table_ptrs)"),),
        ("foreign group", "out of bounds read past"),
    ),
    Fault(
        "v2-turns-not-counted",
        "context parallelism",
        "only the place in the run is left of the place among the rank's own tokens",
        V2,
        (
            (
                "local_offset = turn * CP_INTERLEAVE + offset_in_run",
                "local_offset = offset_in_run",
            ),
        ),
        ("local offset",),
    ),
    Fault(
        "v2-padding-to-the-end-of-the-tile",
        "padding",
        "the last tile of the padding is stored without a mask",
        V2,
        (
            (
                "tl.store(slot_mapping_ptr + token, padding, mask=token < max_num_tokens)",
                "tl.store(slot_mapping_ptr + token, padding)",
            ),
        ),
        ("padding end", "out of bounds write past"),
    ),
    Fault(
        "tiled-request-begins-late",
        "bounds",
        "`<` for `<=` in the search: the first token of a request is given to the one before it",
        TILED,
        (
            (
                "request = tl.where(start <= token, request + half, request)",
                "request = tl.where(start < token, request + half, request)",
            ),
        ),
        ("foreign request",),
    ),
    Fault(
        "tiled-tail-gets-slots",
        "padding",
        "what stands behind the last position is mapped like a token of the first request",
        TILED,
        (("is_local = (request < num_reqs) & (loaded >= 0)", "is_local = loaded >= 0"),),
        ("foreign request",),
    ),
    Fault(
        "tiled-foreign-tokens-looked-up",
        "table",
        "the cell of another rank's token is read, in a row that may not have it",
        TILED,
        (
            ("cell = tl.where(found, ", "cell = tl.where(block_index >= 0, "),
            ("tl.load(table_ptr + cell, mask=found, other=0)", "tl.load(table_ptr + cell)"),
        ),
        ("out of bounds read past",),
    ),
    Fault(
        "tiled-row-of-the-request",
        "table",
        "request r reads row r, whatever idx_mapping says",
        TILED,
        (("row = tl.load(idx_mapping + row)", "row = row + 0"),),
        ("idx_mapping", "out of bounds read past"),
    ),
    Fault(
        "tiled-slot-in-int32",
        "arithmetic",
        "slots of an int64 output wrap at 2**31",
        TILED,
        (("mask=found, other=0).to(slot_type)", "mask=found, other=0)"),),
        ("int32 overflow",),
    ),
    Fault(
        "tiled-sharded-flag-inverted",
        "context parallelism",
        "groups that ranks share are taken for replicated ones, and the reverse",
        TILED,
        (("is_sharded = tl.load(dcp_sharded + group) != 0", "is_sharded = tl.load(dcp_sharded + group) == 0"),),
        # A group of either kind shows one half of it.
        ("replicated group sharded", "sharded group replicated", "out of bounds read past"),
    ),
    Fault(
        "fused-ring-as-paged",
        "table",
        "a ring is looked up like a growing row (vLLM PR 56469)",
        FUSED,
        (("padding, WINDOW, is_paged)", "padding, WINDOW)"),),
        ("circular",),
    ),
    Fault(
        "fused-block-size-of-the-first-group",
        "groups",
        "every group is divided into blocks of the first group's size",
        FUSED,
        (("tl.load(block_sizes_ptr + group)", "tl.load(block_sizes_ptr)"),),
        ("foreign group",),
    ),
    Fault(
        "fused-stride-of-the-first-group",
        "groups",
        "the rows of every group are taken to be as far apart as those of the first",
        FUSED,
        (("tl.load(block_table_strides_ptr + group)", "tl.load(block_table_strides_ptr)"),),
        ("foreign group", "out of bounds read past"),
    ),
    Fault(
        "fused-output-of-the-first-group",
        "groups",
        "every group is written into the output of the first",
        FUSED,
        (("tl.load(slot_mapping_addrs_ptr + tl.program_id(0))", "tl.load(slot_mapping_addrs_ptr)"),),
        ("foreign group",),
    ),
    Fault(
        "fused-programs-begin-alike",
        "bounds",
        "all programs of a request begin with its first tile, and then skip those of the others",
        FUSED,
        (("range(start + tl.program_id(2) * TILE, end,", "range(start, end,"),),
        ("tile",),
    ),
    Fault(
        "fused-negative-position-as-zero",
        "negative positions",
        "a negative position gets the slot of position 0 (vllm-ascend PR 17529)",
        FUSED,
        (("position, loaded >= 0, block_size", "position, in_request, block_size"),),
        ("sign",),
    ),
    Fault(
        "fused-later-requests-written",
        "bounds",
        "each request also handles the tokens of all later ones",
        FUSED,
        (
            (
                "end = tl.load(query_start_loc_ptr + request + 1)",
                "end = tl.load(query_start_loc_ptr + tl.num_programs(1) - 1)",
            ),
        ),
        ("foreign request",),
    ),
    Fault(
        "adaptive-long-request-cut",
        "bounds",
        "a request longer than the small tile gets one large tile",
        FUSED,
        (
            (
                "    else:\n        _map_tiles(\n            start,\n            end,\n",
                "    else:\n        end = tl.minimum(end, start + TILE_BLOCK_SIZE)\n"
                "        _map_tiles(\n            start,\n            end,\n",
            ),
        ),
        ("tile",),
        entry="adaptive",
    ),
    Fault(
        "fused-host-without-the-last-program",
        "bounds",
        "the grid has one program less: the last request's only pads",
        FUSED,
        (("(group_count, num_reqs + 1, _programs", "(group_count, max(num_reqs, 1), _programs"),),
        ("stale element",),
        entry="fused",
    ),
    Fault(
        "replay-window-one-too-long",
        "replay",
        "`<=` for `<`: the token behind the window loses its slot",
        REPLAY,
        (("(position - replay_start < window)", "(position - replay_start <= window)"),),
        ("replay window",),
    ),
    Fault(
        "replay-first-token-kept",
        "replay",
        "`>` for `>=`: the first replayed token keeps its slot",
        REPLAY,
        (("is_replayed = (position >= replay_start)", "is_replayed = (position > replay_start)"),),
        ("replay window",),
    ),
    Fault(
        "replay-start-of-zero",
        "replay",
        "a start of 0, which means that nothing is replayed, is taken for a position",
        REPLAY,
        (("if replay_start > 0:", "if replay_start >= 0:"),),
        ("replay window",),
    ),
    Fault(
        "replay-of-the-first-groups",
        "replay",
        "cacheable groups are counted, not named",
        REPLAY,
        (("group = tl.load(cacheable_groups_ptr + tl.program_id(0))", "group = tl.program_id(0)"),),
        ("foreign group",),
    ),
    Fault(
        "replay-by-the-first-start",
        "replay",
        "every request is replayed from where the first is",
        REPLAY,
        (("tl.load(replay_start_ptr + request)", "tl.load(replay_start_ptr)"),),
        ("foreign request",),
    ),
    Fault(
        "replay-pads-the-request",
        "replay",
        "a tile with a replayed token loses all of its slots",
        REPLAY,
        (("tl.where(is_replayed, PAD_ID, slot)", "tl.where(in_request, PAD_ID, slot)"),),
        ("replay window",),
    ),
    Fault(
        "table-width-rounded-down",
        "allocation",
        "rows have a block only for as many tokens as fill it",
        TABLES,
        (
            (
                "return -(-max_model_len // (block_size * world_size))",
                "return max(max_model_len // (block_size * world_size), 1)",
            ),
        ),
        ("refused",),
        entry="block_table",
    ),
    Fault(
        "table-room-for-one-draft",
        "allocation",
        "the output has room for one draft token a request, however many there are (vllm-ascend PR 14024)",
        TABLE,
        (("max(num_speculative_tokens - 1, 0) * max_num_reqs", "min(num_speculative_tokens, 1) * max_num_reqs"),),
        ("refused", "stale element", "out of bounds write past"),
        entry="block_table",
    ),
    Fault(
        "table-without-rows-for-drafts",
        "context parallelism",
        "where ranks share a group, draft tokens have no rows of their own",
        TABLE,
        (("max_num_reqs * (1 + num_speculative_tokens if dcp_world_size > 1 else 1),", "max_num_reqs,"),),
        ("refused",),
        entry="block_table",
    ),
    Fault(
        "table-counts-stay-when-rows-swap",
        "table",
        "two rows change places, and the numbers of their blocks do not",
        ROWS,
        (("        self.num_blocks_per_row[there] = self.num_blocks_per_row[back]\n", ""),),
        ("refused",),
        entry="block_table",
    ),
    Fault(
        "table-row-lost-when-moved",
        "table",
        "a row that is moved is emptied, and the row that it is moved to stays as it was",
        ROWS,
        (
            (
                "            self._empty(target)\n            self.swap_row(source, target)\n",
                "            self._empty(source)\n",
            ),
        ),
        ("refused",),
        entry="block_table",
    ),
    Fault(
        "table-fused-groups-not-padded",
        "bounds",
        "the launch over all groups is told that the output ends with the positions",
        TABLES,
        (("            len(fused.tables[0].slot_mapping.np),\n", "            positions.numel(),\n"),),
        ("stale element",),
        entry="block_table",
    ),
    Fault(
        "table-one-group-not-padded",
        "bounds",
        "the launch over one group is told that the output ends with the positions",
        TABLE,
        (
            (
                "            num_tokens=positions.numel(),\n",
                "            num_tokens=positions.numel(),\n            max_num_tokens=positions.numel(),\n",
            ),
        ),
        ("stale element",),
        entry="block_table",
    ),
    Fault(
        "table-tokens-of-an-earlier-step",
        "context parallelism",
        "the requests of the tokens are found out once for all batches of a size",
        TABLE,
        (
            (
                "            self._compute_dcp_slot_mapping(*_by_token(num_reqs, query_start_loc, positions))\n",
                "            rows, places = _by_token(num_reqs, query_start_loc, positions)\n"
                "            size = num_reqs, positions.numel()\n"
                "            if getattr(self, '_size', None) != size:\n"
                "                self._size, self._rows = size, rows\n"
                "            self._compute_dcp_slot_mapping(self._rows, places)\n",
            ),
        ),
        ("table row", "foreign request"),
        entry="block_table",
    ),
)


def by_name(name: str) -> Fault:
    """The fault of that name. Raises FaultError with the names there are."""
    for fault in CATALOGUE:
        if fault.name == name:
            return fault
    raise FaultError(f"no fault {name!r}; there are {', '.join(fault.name for fault in CATALOGUE)}")
