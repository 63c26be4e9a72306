"""The host functions that take groups by their addresses, on the lane that this environment has, in a process of its
own.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Timer
from typing import Any

import torch

from conformance import lanes
from reference.case import Case, Group, Replay
from reference.verdict import UNWRITTEN

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache"
BETWEEN_ROWS = 1234567
"""What the cells between a row's width and its stride hold."""
PATIENCE = 60
"""Seconds that an order may take, most of them spent in the compiler."""
OUTPUT_TAIL = 3
"""Elements behind max_num_tokens, which nobody may write."""


def draw(rng: random.Random, kinds: Iterable[tuple[int, str]], pad_id: int) -> Case:
    """A batch for groups of these block sizes and kinds: short requests and long ones, consecutive, sparse and negative
    positions, more of them than tokens; rows just wide enough.
    """
    bounds, positions = [0], []
    for _ in range(rng.randint(0, 4)):
        length = rng.choice((0, 1, 2, 16, 17, rng.randint(3, 70)))
        first = rng.randint(0, 300)
        positions += rng.choice((_consecutive, _sparse, _some_negative, _all_negative))(rng, first, length)
        bounds.append(bounds[-1] + length)
    num_reqs, num_tokens = len(bounds) - 1, bounds[-1]

    def group(block_size: int, kind: str) -> Group:
        width = 1 if kind == "circular" else max(positions, default=0) // block_size + 1
        rows = [tuple(rng.randrange(1 << 20) for _ in range(max(width, 1))) for _ in range(num_reqs + 1)]
        return Group(tuple(rows), block_size, block_size, kind=kind, row_stride=max(width, 1) + rng.choice((0, 3)))

    return Case(
        tuple(bounds),
        tuple(positions + [rng.randint(-9, 300) for _ in range(rng.choice((0, 5)))]),
        num_tokens,
        num_tokens + rng.choice((0, 1, 40)),
        tuple(group(*each) for each in kinds),
        pad_id=pad_id,
    )


def _consecutive(rng: random.Random, first: int, length: int) -> list[int]:
    return list(range(first, first + length))


def _sparse(rng: random.Random, first: int, length: int) -> list[int]:
    return [rng.randint(0, 10 * first) for _ in range(length)]


def _some_negative(rng: random.Random, first: int, length: int) -> list[int]:
    return [rng.choice((p, p, -1, -(1 << 31))) for p in range(first, first + length)]


def _all_negative(rng: random.Random, first: int, length: int) -> list[int]:
    return [rng.randint(-(1 << 31), -1) for _ in range(length)]


def tensors_of(case: Case) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The arguments of ``compute_slot_mapping_fused_groups`` for a case, and all that lives behind their addresses: one
    output a group, then the tables.
    """
    tables = []
    for group in case.groups:
        tables.append(torch.full((len(group.block_table), group.stride), BETWEEN_ROWS, dtype=torch.int32))
        tables[-1][:, : group.row_width] = torch.tensor(group.block_table, dtype=torch.int32)
    length = case.max_num_tokens + OUTPUT_TAIL
    outputs = [torch.full((length,), UNWRITTEN, dtype=torch.int32) for _ in case.groups]
    is_circular = [group.kind == "circular" for group in case.groups]
    arguments = {
        "group_count": len(case.groups),
        "num_reqs": case.num_reqs,
        "num_tokens": case.num_tokens,
        "max_num_tokens": case.max_num_tokens,
        "query_start_loc_ptr": torch.tensor(case.query_start_loc, dtype=torch.int32),
        "positions_ptr": torch.tensor(case.positions, dtype=torch.int64),
        "block_table_addrs_ptr": torch.tensor([table.data_ptr() for table in tables], dtype=torch.uint64),
        "slot_mapping_addrs_ptr": torch.tensor([output.data_ptr() for output in outputs], dtype=torch.uint64),
        "block_table_strides_ptr": torch.tensor([group.stride for group in case.groups], dtype=torch.int64),
        "block_sizes_ptr": torch.tensor([group.block_size for group in case.groups], dtype=torch.int32),
        "min_block_size": min(group.block_size for group in case.groups),
        "pad_id": case.pad_id,
        "is_circular_ptr": torch.tensor(is_circular, dtype=torch.int32) if any(is_circular) else None,
    }
    return arguments, [*outputs, *tables]


def batch_of(num_reqs: int, num_tokens: int, max_num_tokens: int, *, circular: bool) -> Case:
    """Requests as equal as they can be, of consecutive positions; two groups of blocks of 16."""
    bounds = tuple(num_tokens * r // num_reqs if num_reqs else 0 for r in range(num_reqs + 1))
    positions = tuple(token - start for start, end in pairwise(bounds) for token in range(start, end))
    longest = max((end - start for start, end in pairwise(bounds)), default=0)
    row = tuple(range(longest // 16 + 1))
    group = Group((row,) * max(num_reqs, 1), 16, 16)
    ring = replace(group, block_table=((0,),) * max(num_reqs, 1), kind="circular")
    return Case(bounds, positions, num_tokens, max_num_tokens, (group, ring if circular else group))


class OnLane:
    """A process on the lane that this environment has, for as many orders as one likes: importing takes longer. It runs
    the kernels of ``source``, or this project's own; ``environment`` is added to its variables.
    """

    def __init__(self, source: Path | None = None, environment: Mapping[str, str] | None = None) -> None:
        lane = lanes.automatic()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fused_launches", lane.name, str(source or ROOT)],
            cwd=ROOT,
            env={**os.environ, **lane.environment(), **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a compiler that hangs is killed with it
        )

    def __enter__(self) -> OnLane:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self._process.communicate()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _ask(self, **order: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        patience = Timer(PATIENCE, self._kill)
        patience.start()
        try:
            print(json.dumps(order), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        finally:
            patience.cancel()
        assert answer, f"{order['do']}: the process ended, or had to be after {PATIENCE} s"
        return json.loads(answer)

    def map(self, case: Case, *, validate: bool = False) -> list[list[int]]:
        """The whole outputs after slot mapping, OUTPUT_TAIL elements behind ``max_num_tokens`` included."""
        return self._ask(do="map", case=case.to_json(), validate=validate)

    def replay(self, case: Case, *, validate: bool = False) -> list[list[int]]:
        """The same after ``pad_replayed_slot_mapping``, where an output held its index in every element."""
        return self._ask(do="replay", case=case.to_json(), validate=validate)

    def prewarm(self, max_num_batched_tokens: int, *, circular: bool) -> None:
        """For the batches of ``sweep``."""
        self._ask(do="prewarm", max_num_batched_tokens=max_num_batched_tokens, circular=circular)

    def sweep(self, shapes: list[tuple[int, int, int]], limit: int, *, circular: bool) -> int:
        """Map batches of these (num_reqs, num_tokens, max_num_tokens) until more than ``limit`` specializations are
        loaded; returns how many are.
        """
        return self._ask(do="sweep", shapes=shapes, limit=limit, circular=circular)

    def forget(self) -> None:
        """Unload every specialization."""
        self._ask(do="forget")

    def lower(self) -> int:
        """Take every kernel that serving can reach through the front end, without running it; returns how many."""
        return self._ask(do="lower")


class _Orders:
    """What the process does for each order."""

    def __init__(self, lane: str) -> None:
        from kernels import fused_groups, replay  # not sooner: the lane and the source are chosen now

        self._fused, self._replay = fused_groups, replay
        if lane == "lowered":
            from conformance.lanes.lowered.launcher import Launcher

            self._launcher = Launcher(CACHE / "lowered")
            self._launcher.install()
        else:
            lanes.by_name(lane).enter(str(CACHE))

    def map(self, case: dict[str, Any], validate: bool) -> list[list[int]]:
        arguments, memory = tensors_of(Case.from_json(case))
        self._fused.compute_slot_mapping_fused_groups(**arguments, validate=validate)
        return [output.tolist() for output in memory[: arguments["group_count"]]]

    def replay(self, case: dict[str, Any], validate: bool) -> list[list[int]]:
        read = Case.from_json(case)
        assert read.replay is not None
        arguments, memory = tensors_of(read)
        outputs = memory[: len(read.groups)]
        for output in outputs:
            output.copy_(torch.arange(len(output)))
        self._replay.pad_replayed_slot_mapping(
            read.num_reqs,
            arguments["query_start_loc_ptr"],
            arguments["positions_ptr"],
            torch.tensor(read.replay.starts, dtype=torch.int32),
            arguments["slot_mapping_addrs_ptr"],
            torch.tensor(read.replay.cacheable_groups, dtype=torch.int32),
            read.replay.window,
            pad_id=read.pad_id,
            validate=validate,
        )
        return [output.tolist() for output in outputs]

    def prewarm(self, max_num_batched_tokens: int, circular: bool) -> None:
        flags = torch.tensor([0, 1], dtype=torch.int32) if circular else None
        self._fused.prewarm_fused_slot_mapping_kernels(16, max_num_batched_tokens, -1, "cpu", flags)

    def sweep(self, shapes: list[list[int]], limit: int, circular: bool) -> int:
        for shape in shapes:
            arguments, memory = tensors_of(batch_of(*shape, circular=circular))
            self._fused.compute_slot_mapping_fused_groups(**arguments)
            del memory
            if len(self._launcher._loaded) > limit:
                break
        return len(self._launcher._loaded)

    def forget(self) -> None:
        self._launcher._loaded.clear()

    def lower(self) -> int:
        from conformance.lanes.ascend import binding, frontend

        lowered = []

        def launch(kernel: Any, grid: tuple[int, ...], arguments: Mapping[str, Any]) -> None:
            bound = binding.bind(kernel, arguments)
            lowered.append(frontend.linalg(kernel, bound.types, bound.constants, bound.multiples))

        self._launcher.launch = launch
        for circular in (False, True):
            self.prewarm(1 << 20, circular)
        replayed = replace(batch_of(1, 1, 1, circular=False), replay=Replay((1,), 1, (0,)))
        self.replay(replayed.to_json(), validate=False)
        return len(lowered)


def main() -> None:
    lane, source = sys.argv[1:]
    sys.path.insert(0, source)
    orders = _Orders(lane)
    for line in sys.stdin:
        order = json.loads(line)
        print(json.dumps(getattr(orders, order.pop("do"))(**order)), flush=True)


if __name__ == "__main__":
    main()
