"""``compute_slot_mapping`` on the interpreter, in a process of its own: Triton asks when it is imported."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from kernels.slot_mapping import compute_slot_mapping
from reference.case import Case, Launch
from reference.verdict import UNWRITTEN

ROOT = Path(__file__).resolve().parents[1]
BETWEEN_ROWS = 1234567
"""What the cells between a row's width and its stride hold."""


def _triton_is_for_ascend() -> bool:
    triton = importlib.util.find_spec("triton")
    folders = triton.submodule_search_locations if triton else None
    return any(Path(folder, "backends", "ascend").is_dir() for folder in folders or ())


needs_interpreter = pytest.mark.skipif(
    _triton_is_for_ascend(),
    reason="the interpreter of triton-ascend has no tl.gather: this runs in the environment of the interpreter lane",
)


def interpret(launches: Iterable[tuple[Case, Launch]], *, validate: bool = False) -> list[list[int]]:
    """The whole output of every launch. A case has one group; its table has BETWEEN_ROWS where its rows are padded."""
    texts = [{"case": case.to_json(), "launch": launch.to_json(), "validate": validate} for case, launch in launches]
    done = subprocess.run(
        [sys.executable, "-m", "tests.interpreter"],
        input=json.dumps(texts),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def table_of(case: Case) -> torch.Tensor:
    """int32 [rows, width] of the only group, a view when its row stride exceeds the width."""
    (group,) = case.groups
    storage = torch.full((len(group.block_table), group.stride), BETWEEN_ROWS, dtype=torch.int32)
    table = storage[:, : group.row_width]
    table.copy_(torch.tensor(group.block_table, dtype=torch.int32))
    return table


def _launch(case: Case, launch: Launch, validate: bool) -> list[int]:
    (group,) = case.groups
    length = case.max_num_tokens if launch.output_length is None else launch.output_length
    slot_mapping = torch.full((length,), UNWRITTEN, dtype=getattr(torch, launch.output_dtype))
    compute_slot_mapping(
        torch.tensor(case.query_start_loc, dtype=torch.int32),
        torch.tensor(case.positions, dtype=torch.int64),
        table_of(case),
        slot_mapping,
        num_tokens=case.num_tokens,
        max_num_tokens=case.max_num_tokens,
        block_size=group.block_size,
        kv_cache_block_size=group.kv_cache_block_size,
        cp_size=case.cp.size,
        cp_rank=case.cp.rank,
        cp_interleave=case.cp.interleave,
        is_circular=group.kind == "circular",
        pad_id=case.pad_id,
        validate=validate,
    )
    return slot_mapping.tolist()


if __name__ == "__main__":
    answers = [
        _launch(Case.from_json(text["case"]), Launch.from_json(text["launch"]), text["validate"])
        for text in json.load(sys.stdin)
    ]
    json.dump(answers, sys.stdout)
