"""The host functions for all groups on the lane that this environment has, in a process of its own."""

from __future__ import annotations

import importlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from conformance import lanes
from kernels.group_tables import GroupTables
from reference.case import Case, ContextParallel, Group, Launch
from reference.steps import placing
from reference.verdict import UNWRITTEN, expected_output

ROOT = Path(__file__).resolve().parents[1]
FIELD_CASES = ROOT / "tests" / "data" / "field_cases"
CACHE = ROOT / ".cache" / "lowered"
BETWEEN_ROWS = 1234567
"""What the cells between a row's width and its stride hold."""
DEFAULTS = Launch()


@dataclass(frozen=True)
class Layout:
    """What a run of batches has in common, and so compiles once: groups as (b, B, sharded, enabled), the ranks."""

    groups: tuple[tuple[int, int, bool, bool], ...]
    cp: ContextParallel = field(default_factory=ContextParallel)
    pad_id: int = -1
    launch: Launch = field(default_factory=Launch)
    with_rows: bool = True


LAYOUTS = (
    Layout(((4, 4, True, True),), with_rows=False),
    Layout(((16, 48, True, True), (3, 3, True, True), (16, 16, True, True)), pad_id=-9, launch=Launch("int64")),
    Layout(((4, 12, True, True), (16, 16, False, True)), ContextParallel(2, 1, 6)),
    Layout(((16, 16, True, True), (16, 16, True, False), (3, 3, False, True)), ContextParallel(4, 2, 4)),
    Layout(((1, 8, True, True),), ContextParallel(3, 0, 1), launch=Launch("int64"), with_rows=False),
    Layout(((48, 48, True, True), (48, 96, True, True)), ContextParallel(8, 7, 48), pad_id=5),
)

# One token in its row, two in cells between the row's width and its stride, one past that, one far past it. Nothing is
# defined past the width, but nothing past the stride may be read, and what is not read gets padding.
PAST_THE_ROW = Case(
    (0, 5), (5, 8, 15, 16, 2**31 - 1), 5, 6, (Group(((7, 9), (3, 4)), 4, 4, row_stride=4),), idx_mapping=(1,)
)
SLOTS_PAST_THE_ROW = [[4 * 4 + 1, BETWEEN_ROWS * 4, BETWEEN_ROWS * 4 + 3, -1, -1, -1]]

WITHOUT_A_ROW = Case((0, 2, 4), (0, 1, 2, 3), 4, 4, (Group(((7, 9), (3, 4)), 4, 4),), idx_mapping=(-1, 0))
SLOTS_WITHOUT_A_ROW = [[-1, -1, 30, 31]]


def layout_id(layout: Layout) -> str:
    """Batches under context parallelism say so, and ``-k cp`` finds them."""
    sizes = "+".join(f"{b}in{kv}" for b, kv, _, _ in layout.groups)
    return sizes if layout.cp.size == 1 else f"{sizes}-cp{layout.cp.size}"


def field_cases(entry_point: str) -> list[dict[str, Any]]:
    """The documents of the field cases that name this entry point, each with the name of its file."""
    documents = [{"name": file.stem, **json.loads(file.read_text())} for file in sorted(FIELD_CASES.glob("*.json"))]
    return [document for document in documents if entry_point in document["entry_points"]]


def field_case_id(document: dict[str, Any]) -> str:
    world = document["case"]["cp"]["size"]
    return document["name"] if world == 1 else f"{document['name']}-cp{world}"


def draw(rng: random.Random, layout: Layout, requests: Iterable[int]) -> Case:
    """A legal batch of as many requests as one of ``requests`` says, many of them short or empty; consecutive, sparse
    and negative positions, more of them than tokens; rows just wide enough for this rank, in any order.
    """
    bounds, positions = [0], []
    for _ in range(rng.choice(tuple(requests))):
        length, first = rng.choice((0, 1, 1, 2, rng.randint(3, 40))), rng.randint(0, 200)
        positions += rng.choice((_consecutive, _sparse, _some_negative))(rng, first, length)
        bounds.append(bounds[-1] + length)
    num_reqs, num_tokens = len(bounds) - 1, bounds[-1]
    rows = num_reqs + rng.randint(1, 3)
    mapping = None
    if layout.with_rows:
        empty = [start == end for start, end in pairwise(bounds)]
        chosen = rng.sample(range(rows), num_reqs)
        mapping = tuple(-1 if empty[r] and rng.random() < 0.5 else row for r, row in enumerate(chosen))

    def group(b: int, kv: int, sharded: bool, enabled: bool, width: int) -> Group:
        table = tuple(tuple(rng.randrange(1 << 20) for _ in range(width)) for _ in range(rows))
        return Group(table, b, kv, sharded=sharded, enabled=enabled, row_stride=width + rng.choice((0, 3)))

    padded = num_tokens + rng.choice((0, 1, 300))
    case = Case(
        tuple(bounds),
        tuple(positions + [rng.randrange(-9, 300) for _ in range(rng.choice((0, 7)))]),
        num_tokens,
        padded,
        tuple(group(*sizes, width=sizes[1] // sizes[0]) for sizes in layout.groups),
        layout.cp,
        layout.pad_id,
        mapping,
    )
    widths = [_width(case, each) for each in case.groups]
    groups = tuple(group(*sizes, width=width) for sizes, width in zip(layout.groups, widths, strict=True))
    return replace(case, groups=groups)


def _width(case: Case, group: Group) -> int:
    """Columns that this rank's tokens need, in whole allocated blocks, at least one."""
    places = map(placing(case, replace(group, enabled=True)), (p for p in case.positions[: case.num_tokens] if p >= 0))
    needed = max((index for _, _, owner, _, index, _ in places if owner == case.cp.rank), default=0) + 1
    return -(-needed // group.blocks_per_kv_block) * group.blocks_per_kv_block


def _consecutive(rng: random.Random, first: int, length: int) -> list[int]:
    return list(range(first, first + length))


def _sparse(rng: random.Random, first: int, length: int) -> list[int]:
    return [rng.randint(0, 10 * first) for _ in range(length)]


def _some_negative(rng: random.Random, first: int, length: int) -> list[int]:
    return [rng.choice((p, p, -1, -(1 << 31))) for p in range(first, first + length)]


class OnLane:
    """A process on the lane that this environment has, for as many launches as one likes: importing takes longer."""

    def __init__(self) -> None:
        lane = lanes.automatic()
        environment = {**os.environ, **lane.environment()}
        command = [sys.executable, "-m", "tests.group_launches", lane.name]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> OnLane:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def __call__(
        self, function: Callable[..., None], case: Case, launch: Launch = DEFAULTS, *, validate: bool = False
    ) -> list[list[int]]:
        """The whole rows after one launch of a host function that takes GroupTables."""
        order = {
            "module": function.__module__,
            "function": function.__name__,
            "case": case.to_json(),
            "launch": launch.to_json(),
            "validate": validate,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the process ended"
        return json.loads(answer)


def expected(case: Case, launch: Launch = DEFAULTS) -> list[list[int]]:
    """The whole rows that a launch should leave."""
    return expected_output(case, case.max_num_tokens if launch.output_length is None else launch.output_length)


def tables_of(case: Case) -> GroupTables:
    """The tables of a case: views with BETWEEN_ROWS behind each row whose stride exceeds the width."""
    tables = []
    for group in case.groups:
        storage = torch.full((len(group.block_table), group.stride), BETWEEN_ROWS, dtype=torch.int32)
        tables.append(storage[:, : group.row_width])
        tables[-1].copy_(torch.tensor(group.block_table, dtype=torch.int32))
    return GroupTables(
        tables,
        [group.block_size for group in case.groups],
        [group.kv_cache_block_size for group in case.groups],
        cp_size=case.cp.size,
        cp_rank=case.cp.rank,
        cp_interleave=case.cp.interleave,
        sharded=[group.sharded for group in case.groups],
        enabled=[group.enabled for group in case.groups],
    )


def _launch(function: Callable[..., None], case: Case, launch: Launch, validate: bool) -> list[list[int]]:
    length = case.max_num_tokens if launch.output_length is None else launch.output_length
    # Rows of an output are views too: what lies between them is nobody's.
    storage = torch.full((len(case.groups), length + 5), UNWRITTEN, dtype=getattr(torch, launch.output_dtype))
    rows = range(case.num_reqs) if case.idx_mapping is None else case.idx_mapping
    arguments: dict[str, Any] = {
        "groups": tables_of(case),
        "query_start_loc": torch.tensor(case.query_start_loc, dtype=torch.int32),
        "positions": torch.tensor(case.positions, dtype=torch.int64),
        "slot_mappings": storage[:, :length],
        "max_num_tokens": case.max_num_tokens,
        "pad_id": case.pad_id,
        "validate": validate,
    }
    if case.idx_mapping is not None or "tiled" not in function.__name__:
        arguments["idx_mapping"] = torch.tensor(rows, dtype=torch.int32)
    function(**arguments)
    assert (storage[:, length:] == UNWRITTEN).all()
    return storage[:, :length].tolist()


def main() -> None:
    lanes.by_name(sys.argv[1]).enter(str(CACHE))
    for line in sys.stdin:
        order = json.loads(line)
        function = getattr(importlib.import_module(order["module"]), order["function"])
        case, launch = Case.from_json(order["case"]), Launch.from_json(order["launch"])
        print(json.dumps(_launch(function, case, launch, order["validate"])), flush=True)


if __name__ == "__main__":
    main()
