"""A Hypothesis state machine for block tables: what their rows hold, against lists of blocks, and the slots that
follow, against the oracle. It runs in a process of its own, on the lane that this environment has.

Every block is handed out once, so that a slot tells whose it is and how old: a stale or foreign one is a wrong one.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from conformance import lanes
from reference.case import Case, ContextParallel, Group
from reference.oracle import slot_mapping

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache"
PAD_ID = -7
MAX_NUM_REQS, MAX_MODEL_LEN, MAX_NUM_BATCHED_TOKENS = 3, 24, 12
NULL_BLOCK = 0


class MambaSpec:
    """Has the name by which recurrent state is known."""


@dataclass(frozen=True)
class KVCacheGroup:
    kv_cache_spec: object


@dataclass(frozen=True)
class GroupLayout:
    """A group as its table is made: allocated block, what is offered as kernel block, and the kernel block of that."""

    allocated: int
    kernel_sizes: tuple[int, ...]
    kernel: int
    circular: bool = False
    sharded: bool = True
    state: bool = False


@dataclass(frozen=True)
class Layout:
    """Tables that are made alike. ``path``: how slots of a batch are computed."""

    path: str
    groups: tuple[GroupLayout, ...]
    cp: ContextParallel = field(default_factory=ContextParallel)
    num_speculative_tokens: int = 0
    use_cp_kernel: bool = False

    @property
    def rows(self) -> int:
        return MAX_NUM_REQS * (1 + self.num_speculative_tokens if self.cp.size > 1 else 1)

    @property
    def capacity(self) -> int:
        return MAX_NUM_BATCHED_TOKENS + max(self.num_speculative_tokens - 1, 0) * MAX_NUM_REQS

    def width(self, group: GroupLayout) -> int:
        """Allocated blocks in a row."""
        if group.circular:
            return 1
        width = -(-MAX_MODEL_LEN // (group.allocated * self.cp.size))
        return width if group.sharded and not group.state else width * self.cp.size


HYBRID, PLAIN, THIRDS = GroupLayout(4, (3, 2), 2), GroupLayout(4, (0,), 4), GroupLayout(6, (4, 3), 3)
RING, STATE = GroupLayout(4, (4,), 4, circular=True), GroupLayout(8, (0,), 8, state=True)
REPLICATED = GroupLayout(6, (3,), 3, sharded=False)

LAYOUTS = (
    Layout("kernel", (HYBRID,)),
    Layout("kernel", (RING, STATE)),
    Layout("fused", (HYBRID, PLAIN, THIRDS), num_speculative_tokens=3),
    Layout("fused", (RING, HYBRID, STATE)),
    Layout("fused", (REPLICATED, REPLICATED), ContextParallel(2, 1, 2), num_speculative_tokens=1),
    Layout("torch", (HYBRID, REPLICATED, STATE), ContextParallel(2, 1, 2), num_speculative_tokens=2),
    Layout("kernel", (HYBRID, REPLICATED), ContextParallel(2, 0, 4), use_cp_kernel=True),
    Layout("kernel", (HYBRID,), ContextParallel(3, 2, 1), num_speculative_tokens=1, use_cp_kernel=True),
)


def tables(module: ModuleType, layout: Layout) -> Any:
    groups = layout.groups
    return module.MultiGroupBlockTable(
        MAX_NUM_REQS,
        MAX_MODEL_LEN,
        MAX_NUM_BATCHED_TOKENS,
        False,
        "cpu",
        [group.allocated for group in groups],
        layout.num_speculative_tokens,
        kernel_sizes=[list(group.kernel_sizes) for group in groups],
        cp_kv_cache_interleave_size=layout.cp.interleave,
        kv_cache_groups=[KVCacheGroup(MambaSpec() if group.state else None) for group in groups],
        dcp_world_size=layout.cp.size,
        dcp_rank=layout.cp.rank,
        circular=[group.circular for group in groups],
        sharded=[group.sharded for group in groups],
        pad_id=PAD_ID,
        use_cp_kernel=layout.use_cp_kernel,
    )


def machine(module: ModuleType, layouts: tuple[Layout, ...]) -> type[RuleBasedStateMachine]:
    """The machine for the ``MultiGroupBlockTable`` of ``module``."""

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.next_block = 1

        @initialize(layout=st.sampled_from(layouts))
        def make(self, layout: Layout) -> None:
            self.layout = layout
            self.tables = tables(module, layout)
            # held[row][group] is a list of allocated blocks; committed[row] what the device has of it.
            self.held = [self._nothing() for _ in range(layout.rows)]
            self.committed = [self._nothing() for _ in range(layout.rows)]
            self.changed: set[int] = set()
            self.slots = [[PAD_ID] * layout.capacity for _ in layout.groups]

        # Rows.

        @rule(data=st.data())
        def add_row(self, data: st.DataObject) -> None:
            row = self._row(data)
            blocks = self._new_blocks(data, self._nothing())
            self.tables.add_row(blocks, row)
            self._set(row, blocks)

        @rule(data=st.data())
        def append_row(self, data: st.DataObject) -> None:
            row = self._row(data)
            blocks = self._new_blocks(data, self.held[row])
            self.tables.append_row(blocks, row)
            self.held[row] = [old + new for old, new in zip(self.held[row], blocks, strict=True)]
            # Without slots of its own a group has no row that the device would have to know.
            if any(new for new, group in zip(blocks, self.layout.groups, strict=True) if not group.state):
                self.changed.add(row)

        @rule(data=st.data())
        def clear_row(self, data: st.DataObject) -> None:
            row = self._row(data)
            self.tables.clear_row(row)
            self._set(row, self._nothing())

        @rule(data=st.data())
        def move_row(self, data: st.DataObject) -> None:
            source, target = self._row(data), self._row(data)
            self.tables.move_row(source, target)
            if source != target:
                self._set(target, self.held[source])
                self._set(source, self._nothing())

        @rule(data=st.data())
        def swap_row(self, data: st.DataObject) -> None:
            source, target = self._row(data), self._row(data)
            self.tables.swap_row(source, target)
            here, there = self.held[source], self.held[target]
            self._set(source, there)
            self._set(target, here)

        @rule()
        def clear(self) -> None:
            self.tables.clear()
            self.held = [self._nothing() for _ in self.held]
            self.committed = list(self.held)
            self.changed.clear()

        @rule(data=st.data())
        def commit_block_table(self, data: st.DataObject) -> None:
            self._commit(data.draw(st.integers(0, self.layout.rows), label="num_reqs"))

        @rule(data=st.data())
        def refuse_what_does_not_fit(self, data: st.DataObject) -> None:
            """One block too many for the last group: no group has changed."""
            row, last = self._row(data), len(self.layout.groups) - 1
            room = self.layout.width(self.layout.groups[last]) - len(self.held[row][last])
            blocks = [[1] if len(own) < self.layout.width(group) else [] for own, group in self._groups_of(row)]
            blocks[last] = [1] * (room + 1)
            with refused("row-width: "):
                self.tables.append_row(blocks, row)

        @rule(row=st.sampled_from((-1, MAX_NUM_REQS * 9)))
        def refuse_a_row_that_does_not_exist(self, row: int) -> None:
            for operation in (self.tables.clear_row, lambda row: self.tables.swap_row(0, row)):
                with refused("row-exists: "):
                    operation(row)

        # Slots.

        @rule(data=st.data())
        def compute_slot_mapping(self, data: st.DataObject) -> None:
            self._compute(data, most=4, positions_behind=0)

        @rule(data=st.data(), positions_behind=st.integers(1, 9))
        def compute_slot_mapping_of_fewer_tokens(self, data: st.DataObject, positions_behind: int) -> None:
            """Than there are positions, and than before: nothing of the step before is left behind them."""
            self._compute(data, most=1, positions_behind=positions_behind)

        def _compute(self, data: st.DataObject, *, most: int, positions_behind: int) -> None:
            lengths = data.draw(st.lists(st.integers(0, most), max_size=min(self.layout.rows, 3)), label="lengths")
            behind = self._positions(data, positions_behind)[: self.layout.capacity - sum(lengths)]
            positions = self._positions(data, sum(lengths))
            num_reqs, bounds = len(lengths), [0, *accumulate(lengths)]
            given = torch.tensor(positions + behind, dtype=torch.int64)
            batch = (num_reqs, torch.tensor(bounds, dtype=torch.int32), given)
            if self.changed & set(range(num_reqs)):
                with refused("block_table: row"):
                    self.tables.compute_slot_mapping(*batch)
                self._commit(num_reqs)
            self.tables.compute_slot_mapping(*batch)
            rows = [row for row, length in enumerate(lengths) for _ in range(length)]
            for g, group in enumerate(self.layout.groups):
                if not group.state:
                    pads = len(behind) if self.layout.path == "torch" else self.layout.capacity
                    self._expect(g, [row[g] for row in self.committed], rows, positions, pads=pads)

        @rule(data=st.data())
        def compute_slot_mapping_draft(self, data: st.DataObject) -> None:
            rows = data.draw(st.lists(st.integers(0, self.layout.rows - 1), max_size=6), label="req_indices")
            positions = self._positions(data, len(rows))
            self.tables.compute_slot_mapping_draft(np.array(rows, dtype=np.int32), np.array(positions, dtype=np.int64))
            for g, group in enumerate(self.layout.groups):
                if not group.state:
                    self._expect(g, [row[g] for row in self.held], rows, positions, pads=0)

        @rule(data=st.data(), as_tensors=st.booleans())
        def refuse_a_draft_token_without_a_row(self, data: st.DataObject, as_tensors: bool) -> None:
            """Of the first row before the table, or of one behind it: no slot has changed."""
            count = self.layout.rows
            rows = data.draw(st.lists(st.integers(0, count - 1), max_size=3), label="req_indices")
            rows.insert(data.draw(st.integers(0, len(rows)), label="where"), data.draw(st.sampled_from((-1, count))))
            arrays = np.array(rows, dtype=np.int64), np.array(self._positions(data, len(rows)), dtype=np.int64)
            draft = [torch.from_numpy(array) for array in arrays] if as_tensors else arrays
            if not all(group.state for group in self.layout.groups):
                with refused("row-exists: req_indices"):
                    self.tables.compute_slot_mapping_draft(*draft)

        @rule(data=st.data())
        @precondition(lambda self: self.layout.path != "torch")
        def refuse_a_token_without_a_block(self, data: st.DataObject) -> None:
            """With ``validate=True``."""
            row = self._row(data)
            paged = [(own, group) for own, group in self._groups_of(row) if not (group.circular or group.state)]
            if not paged or row >= MAX_NUM_REQS:
                return
            self._commit(row + 1)
            own, group = paged[0]
            behind = len(own) * group.allocated * (self.layout.cp.size if group.sharded else 1)
            # Of so many positions each rank has one.
            positions = torch.arange(behind, behind + group.allocated * self.layout.cp.size)[: self.layout.capacity]
            if self.layout.cp.size * self.layout.cp.interleave > len(positions):
                return
            bounds = torch.tensor([0] * (row + 1) + [len(positions)], dtype=torch.int32)
            with refused("row-width: "):
                self.tables.compute_slot_mapping(row + 1, bounds, positions, validate=True)

        @invariant()
        def rows_hold_what_was_put_there(self) -> None:
            if not hasattr(self, "layout"):
                return
            for g, group in enumerate(self.layout.groups):
                table = self.tables[g]
                assert table.get_numpy_array().tolist() == self._cells(g, self.held)
                assert table.get_device_tensor().tolist() == self._cells(g, self.committed)
                k = group.allocated // group.kernel
                assert table.num_blocks_per_row.tolist() == [len(row[g]) * k for row in self.held]

        @invariant()
        def slots_are_those_last_computed(self) -> None:
            if hasattr(self, "layout"):
                assert [table.slot_mapping.gpu.tolist() for table in self.tables.block_tables] == self.slots

        # What the rules are made of.

        def _nothing(self) -> list[list[int]]:
            return [[] for _ in self.layout.groups]

        def _groups_of(self, row: int) -> Iterator[tuple[list[int], GroupLayout]]:
            return zip(self.held[row], self.layout.groups, strict=True)

        def _row(self, data: st.DataObject) -> int:
            return data.draw(st.integers(0, self.layout.rows - 1), label="row")

        def _set(self, row: int, blocks: list[list[int]]) -> None:
            self.held[row] = blocks
            self.changed.add(row)

        def _commit(self, num_reqs: int) -> None:
            self.tables.commit_block_table(num_reqs)
            self.committed[:num_reqs] = self.held[:num_reqs]
            self.changed -= set(range(num_reqs))

        def _new_blocks(self, data: st.DataObject, held: list[list[int]]) -> list[list[int]]:
            """Blocks that nobody has had, as many for each group as still fit behind ``held``, or fewer."""
            share = data.draw(st.integers(0, 4), label="quarters of the room")
            blocks = []
            for own, group in zip(held, self.layout.groups, strict=True):
                count = (self.layout.width(group) - len(own)) * share // 4
                blocks.append(list(range(self.next_block, self.next_block + count)))
                self.next_block += count
            return blocks

        def _positions(self, data: st.DataObject, count: int) -> list[int]:
            """Anywhere in the longest request, whether its row has the block or not; sometimes negative."""
            position = st.integers(-1, MAX_MODEL_LEN - 1)
            return data.draw(st.lists(position, min_size=count, max_size=count), label="positions")

        def _cells(self, g: int, rows: list[list[list[int]]]) -> list[list[int]]:
            group = self.layout.groups[g]
            k, width = group.allocated // group.kernel, self.layout.width(group)
            cells = [[block * k + part for block in row[g] for part in range(k)] for row in rows]
            return [row + [NULL_BLOCK] * (width * k - len(row)) for row in cells]

        def _expect(self, g: int, blocks: list[list[int]], rows: list[int], positions: list[int], *, pads: int) -> None:
            """``slots`` are from now on what the oracle says of tokens in these rows, one request a token, and of as
            many elements behind them as are padded."""
            group, count, capacity = self.layout.groups[g], len(positions), self.layout.capacity
            table = self._cells(g, [[*[[]] * g, own] for own in blocks])
            case = Case(
                tuple(range(count + 1)),
                tuple(positions),
                count,
                capacity,
                (
                    Group(
                        tuple(map(tuple, table)),
                        group.kernel,
                        group.allocated,
                        kind="circular" if group.circular else "paged",
                        sharded=group.sharded,
                    ),
                ),
                self.layout.cp,
                PAD_ID,
                tuple(rows),
            )
            padded = min(count + pads, capacity)
            self.slots[g] = slot_mapping(case)[0][:padded] + self.slots[g][padded:]

    return Machine


@contextlib.contextmanager
def refused(start: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        if not str(error).startswith(start):
            raise
    else:
        raise AssertionError(f"was not refused: {start}")


def with_fault(file: str, old: str, new: str) -> ModuleType:
    """``kernels.block_table`` with ``old`` replaced by ``new`` in one of the files that it is made of."""
    for name in FILES:
        source = (ROOT / "kernels" / name).read_text(encoding="utf-8")
        if name == file:
            assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in kernels/{name}"
            source = source.replace(old, new)
        module = importlib.import_module(f"kernels.{Path(name).stem}")
        exec(compile(source, name, "exec"), module.__dict__)
    return module


FILES = ("host_device_buffer.py", "block_rows.py", "group_block_table.py", "block_table.py")
"""In the order of their imports."""


def main() -> None:
    """Answer orders, a line each: run the machine, perhaps with a fault, and say what it found."""
    lanes.by_name(sys.argv[1]).enter(str(CACHE))
    for line in sys.stdin:
        order = json.loads(line)
        fault = order["fault"]
        module = with_fault(*fault) if fault else with_fault("", "", "")
        chosen = settings(
            max_examples=order["examples"],
            stateful_step_count=order["steps"],
            deadline=None,
            database=None,
            derandomize=True,
            suppress_health_check=[*HealthCheck],
            phases=[Phase.generate] if fault else [Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
        )
        found = None
        with contextlib.redirect_stdout(sys.stderr):
            try:
                run_state_machine_as_test(machine(module, LAYOUTS), settings=chosen)
            except Exception as error:  # whatever a fault leads to
                found = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
        print(json.dumps(found), flush=True)


class OnLane:
    """The process, for as many orders as one likes."""

    def __init__(self) -> None:
        lane = lanes.automatic()
        environment: Mapping[str, str] = {**os.environ, **lane.environment()}
        command = [sys.executable, "-m", "tests.block_table_machine", lane.name]
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def __enter__(self) -> OnLane:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def __call__(self, examples: int, steps: int, fault: tuple[str, str, str] | None = None) -> str | None:
        """What the machine found in so many examples, or None."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"examples": examples, "steps": steps, "fault": fault}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the process ended"
        return json.loads(answer)


if __name__ == "__main__":
    main()
