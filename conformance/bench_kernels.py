"""``make bench-kernels LANE=cuda``: how fast the kernels are, next to the two published designs, in one run on one GPU.

A kernel of two microseconds cannot be timed from the host, so each is captured into a CUDA graph many times over and
the replay is timed; what a launch costs then is the device's share alone. All implementations of a batch take turns,
and figures are medians over the turns. What is timed is checked first. The result is printed and written to
``bench-kernels.json``; the aims it is held against are those of :func:`aims`.
"""

from __future__ import annotations

import argparse
import datetime as dt
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch

from kernels import published_designs
from kernels.arguments import Geometry
from kernels.fused_groups import compute_slot_mapping_fused_groups
from kernels.group_tables import GroupTables
from kernels.replay import pad_replayed_slot_mapping
from kernels.slot_mapping import compute_slot_mapping
from kernels.slot_mappings_v2 import compute_slot_mappings
from kernels.tiled import compute_slot_mapping_tiled
from kernels.torch_dcp import compute_dcp_slot_mapping, place_tokens
from kernels.window import block_table_window_size
from reports.environment import environment
from reports.files import json_lines, write_text

SCHEMA = 1
ROOT = Path(__file__).parents[1]
DEVICE = "cuda"
PAD = -1

SHAPES = ((1, 131072), (1, 4096), (2, 2048), (8, 512), (64, 1), (64, 128), (256, 32), (1024, 1), (1, 1048576))
"""Requests and tokens of each."""
PADDED = 8192
"""What a batch is padded to, unless it is longer."""
ONE_GROUP = (128,)
SIX_GROUPS = (128, 128, 64, 64, 32, 32)
"""Block sizes."""
CP_SIZE, CP_RANK, CP_INTERLEAVE = 4, 1, 1
CONTEXT = 8192
"""Decoding requests stand somewhere below this position."""

POSITION_BYTES, SLOT_BYTES = 8, 4
TILE = 1024
"""Of the published designs, in production."""
PUBLISHED = ("published direct", "published window")

ROUNDS = 15
SECONDS_PER_REPLAY = 0.002


@dataclass(frozen=True)
class Batch:
    """``num_reqs`` requests of ``length`` tokens each, in groups of these block sizes, on rank 1 of ``cp_size``.

    A request of many tokens starts at position 0, one of few stands anywhere: prefill and decoding. Blocks are
    scattered over the cache.
    """

    num_reqs: int
    length: int
    block_sizes: tuple[int, ...] = ONE_GROUP
    cp_size: int = 1

    @property
    def name(self) -> str:
        return f"{self.num_reqs}x{self.length}"

    @property
    def num_tokens(self) -> int:
        return self.num_reqs * self.length

    @property
    def max_num_tokens(self) -> int:
        return max(self.num_tokens, PADDED)

    @property
    def cp_rank(self) -> int:
        return CP_RANK if self.cp_size > 1 else 0

    @cached_property
    def first_positions(self) -> torch.Tensor:
        latest = max(CONTEXT - self.length, 0)
        return torch.randint(0, latest + 1, (self.num_reqs,), generator=torch.Generator().manual_seed(0))

    @cached_property
    def positions(self) -> torch.Tensor:
        each = self.first_positions[:, None] + torch.arange(self.length)
        return _padded(each.flatten(), self.max_num_tokens).to(DEVICE)

    @cached_property
    def query_start_loc(self) -> torch.Tensor:
        return torch.arange(0, self.num_tokens + 1, self.length, dtype=torch.int32, device=DEVICE)

    @cached_property
    def rows(self) -> torch.Tensor:
        return torch.arange(self.num_reqs, dtype=torch.int32, device=DEVICE)

    @cached_property
    def req_indices(self) -> torch.Tensor:
        return torch.repeat_interleave(self.rows, self.length)

    @cached_property
    def block_tables(self) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(1)
        end = int(self.first_positions.max()) + self.length
        tables = []
        for block_size in self.block_sizes:
            width = -(-end // (block_size * self.cp_size))
            numbers = torch.randperm(self.num_reqs * width, generator=generator, dtype=torch.int32)
            tables.append(numbers.view(self.num_reqs, width).to(DEVICE))
        return tables

    @cached_property
    def groups(self) -> GroupTables:
        return GroupTables(
            self.block_tables,
            self.block_sizes,
            cp_size=self.cp_size,
            cp_rank=self.cp_rank,
            cp_interleave=CP_INTERLEAVE,
        )

    @cached_property
    def slot_mappings(self) -> torch.Tensor:
        return torch.zeros(len(self.block_sizes), self.max_num_tokens, dtype=torch.int32, device=DEVICE)

    @cached_property
    def slot_mapping_addresses(self) -> torch.Tensor:
        return torch.tensor([row.data_ptr() for row in self.slot_mappings], dtype=torch.uint64, device=DEVICE)

    def expected(self) -> torch.Tensor:
        """What the output must hold, by the formula, on the host."""
        slots = torch.full((len(self.block_sizes), self.max_num_tokens), PAD, dtype=torch.int32)
        position, row = self.positions[: self.num_tokens].cpu(), self.req_indices.cpu()
        for group, block_size in enumerate(self.block_sizes):
            geometry = Geometry(block_size, block_size, self.cp_size, self.cp_rank, CP_INTERLEAVE)
            place = place_tokens(position, geometry)
            table = self.block_tables[group].cpu()
            number = table[row, torch.where(place.is_local, place.block_index, 0)]
            slot = number * block_size + place.offset
            slots[group, : self.num_tokens] = torch.where(place.is_local, slot, PAD).to(torch.int32)
        return slots


def _padded(values: torch.Tensor, length: int) -> torch.Tensor:
    return torch.nn.functional.pad(values, (0, length - values.numel()))


Launch = Callable[[], object]


def implementations(batch: Batch) -> Mapping[str, Launch]:
    """Everything that can do this batch: name -> one launch into ``batch.slot_mappings``."""
    groups, output = batch.groups, batch.slot_mappings
    found: dict[str, Launch] = {
        "tiled": lambda: compute_slot_mapping_tiled(groups, batch.query_start_loc, batch.positions, output),
        "v2": lambda: compute_slot_mappings(groups, batch.rows, batch.query_start_loc, batch.positions, output),
    }
    if batch.cp_size == 1:
        found["fused"] = lambda: compute_slot_mapping_fused_groups(
            len(groups),
            batch.num_reqs,
            batch.num_tokens,
            batch.max_num_tokens,
            batch.query_start_loc,
            batch.positions,
            groups.addresses,
            batch.slot_mapping_addresses,
            groups.strides,
            groups.block_sizes,
            min(batch.block_sizes),
            pad_id=PAD,
        )
    if len(batch.block_sizes) == 1:
        (block_size,), (table,) = batch.block_sizes, batch.block_tables
        found["v1"] = lambda: compute_slot_mapping(
            batch.query_start_loc,
            batch.positions,
            table,
            output[0],
            num_tokens=batch.num_tokens,
            block_size=block_size,
            cp_size=batch.cp_size,
            cp_rank=batch.cp_rank,
            cp_interleave=CP_INTERLEAVE,
        )
        found["dcp"] = lambda: compute_dcp_slot_mapping(
            batch.req_indices,
            batch.positions[: batch.num_tokens],
            table,
            output[0],
            block_size=block_size,
            kv_cache_block_size=block_size,
            cp_size=batch.cp_size,
            cp_rank=batch.cp_rank,
            cp_interleave=CP_INTERLEAVE,
        )
    found["published direct"] = lambda: published(batch, 0)
    found["published window"] = lambda: published(batch, block_table_window_size(TILE, min(batch.block_sizes)))
    return found


def published(batch: Batch, window: int) -> None:
    """One launch of a published design: the kernel for one group where there is one."""
    constants = {
        "CP_SIZE": batch.cp_size,
        "CP_RANK": batch.cp_rank,
        "CP_INTERLEAVE": CP_INTERLEAVE,
        "PAD_ID": PAD,
        "TILE": TILE,
        "WINDOW": window,
    }
    if len(batch.block_sizes) == 1:
        (block_size,), (table,) = batch.block_sizes, batch.block_tables
        published_designs.one_group[(batch.num_reqs + 1,)](
            batch.num_tokens,
            batch.max_num_tokens,
            batch.query_start_loc,
            batch.positions,
            table,
            table.stride(0),
            block_size,
            batch.slot_mappings,
            **constants,
        )
    else:
        published_designs.all_groups[(len(batch.block_sizes), batch.num_reqs + 1)](
            batch.max_num_tokens,
            batch.rows,
            batch.query_start_loc,
            batch.positions,
            batch.groups.addresses,
            batch.groups.strides,
            batch.groups.block_sizes,
            batch.slot_mappings,
            batch.slot_mappings.stride(0),
            **constants,
        )


def replay(batch: Batch) -> Launch:
    """Takes back the slots of the second half of every request, in every group."""
    starts = (batch.first_positions + batch.length // 2).clamp(min=1).to(DEVICE, torch.int32)
    cacheable = torch.arange(len(batch.block_sizes), dtype=torch.int32, device=DEVICE)
    return lambda: pad_replayed_slot_mapping(
        batch.num_reqs,
        batch.query_start_loc,
        batch.positions,
        starts,
        batch.slot_mapping_addresses,
        cacheable,
        batch.length,
        pad_id=PAD,
    )


class WrongSlotsError(RuntimeError):
    """What was to be timed is wrong."""


def check(batch: Batch, name: str, launch: Launch) -> None:
    """Launch once into an output full of another value, and compare all of it."""
    tail_is_left = name == "dcp"
    batch.slot_mappings.fill_(PAD if tail_is_left else -7)
    launch()
    wrong = (batch.slot_mappings.cpu() != batch.expected()).nonzero()
    if len(wrong):
        raise WrongSlotsError(f"{name} on {batch}: {len(wrong)} elements are wrong, the first is {wrong[0].tolist()}")


class Replay:
    """A launch captured into a graph, as often as fills SECONDS_PER_REPLAY."""

    def __init__(self, launch: Launch) -> None:
        self._start, self._end = (torch.Event(DEVICE, enable_timing=True) for _ in range(2))
        for _ in range(3):  # compiles, and warms up
            launch()
        self._count = 5
        once = self._capture(launch)
        self._count = min(max(round(SECONDS_PER_REPLAY / once), 5), 400)
        self._capture(launch)

    def _capture(self, launch: Launch) -> float:
        """Seconds a launch, after one replay."""
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            for _ in range(self._count):
                launch()
        self.seconds()
        return self.seconds()

    def seconds(self) -> float:
        self._start.record()
        self._graph.replay()
        self._end.record()
        self._end.synchronize()
        milliseconds: float = self._start.elapsed_time(self._end)
        return milliseconds / 1e3 / self._count


def medians(launches: Mapping[str, Launch]) -> dict[str, float]:
    """Microseconds a launch, taken in turns."""
    replays = {name: Replay(launch) for name, launch in launches.items()}
    times: dict[str, list[float]] = {name: [] for name in replays}
    for _ in range(ROUNDS):
        for name, replay in replays.items():
            times[name].append(replay.seconds())
    return {name: statistics.median(values) * 1e6 for name, values in times.items()}


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds a launch of each implementation on one batch."""

    batch: str
    tokens: int
    padded: int
    cp_size: int
    groups: int
    us: dict[str, float]

    @property
    def best_published(self) -> float:
        return min(self.us[name] for name in PUBLISHED)


def batches() -> Iterator[Batch]:
    for num_reqs, length in SHAPES:
        yield Batch(num_reqs, length)
    for num_reqs, length in SHAPES:
        yield Batch(num_reqs, length, cp_size=CP_SIZE)
    for num_reqs, length in SHAPES:
        yield Batch(num_reqs, length, SIX_GROUPS)


def measure_rows() -> Iterator[Row]:
    for batch in batches():
        found = implementations(batch)
        for name, launch in found.items():
            check(batch, name, launch)
        if batch.cp_size == 1:
            found = {**found, "replay": replay(batch)}
        times = {name: round(value, 2) for name, value in medians(found).items()}
        groups = len(batch.block_sizes)
        yield Row(batch.name, batch.num_tokens, batch.max_num_tokens, batch.cp_size, groups, times)


def measure_floor() -> dict[str, float]:
    """Microseconds of the smallest launch there is, and bytes a second of copies, read and written counted alike: one
    of as many bytes as 1,048,576 tokens move, which the cache holds, and one that it does not.
    """
    tiny = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    sizes = 1048576 * (POSITION_BYTES + SLOT_BYTES) // 2, 1 << 30
    small, large = (torch.empty(2, size, dtype=torch.uint8, device=DEVICE) for size in sizes)
    times = medians(
        {
            "floor": lambda: tiny.fill_(1),
            "small": lambda: small[0].copy_(small[1]),
            "large": lambda: large[0].copy_(large[1]),
        }
    )
    return {
        "floor_us": round(times["floor"], 3),
        "copy_in_cache_tb_per_s": round(small.numel() / times["small"] / 1e6, 3),
        "copy_tb_per_s": round(large.numel() / times["large"] / 1e6, 3),
    }


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure should be. ``limit`` is the most it may be, or the least where ``at_least``."""

    name: str
    limit: float
    measured: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        return f"{'met   ' if self.met else 'missed'} {self.name}: {self.measured:.3g} (aim {sign} {self.limit:g})"


def aims(rows: Sequence[Row], floor: Mapping[str, float]) -> list[Aim]:
    """All aims, from the figures of one run: of ``tiled``, and of the launches over six groups."""
    found = []
    for row in rows:
        where = f"{row.batch}, W={row.cp_size}, {row.groups} group{'s' * (row.groups > 1)}"
        tiled = row.us["tiled"]
        found.append(Aim(f"tiled over the best published, {where}", 1.10, tiled / row.best_published))
        if row.groups > 1:
            continue
        if row.batch == "1x131072":
            found.append(Aim(f"the best published over tiled, {where}", 50, row.best_published / tiled, True))
        if row.padded == PADDED:
            found.append(Aim(f"tiled over the empty launch, {where}", 2.5, tiled / floor["floor_us"]))
        if row.batch == "1x1048576" and row.cp_size == 1:
            moved = row.tokens * POSITION_BYTES + row.padded * SLOT_BYTES
            copy = max(floor["copy_tb_per_s"], floor["copy_in_cache_tb_per_s"])
            share = moved / tiled / 1e6 / copy
            found.append(Aim(f"bandwidth of tiled over that of the faster copy, {where}", 0.5, share, True))
    one = {row.batch: row.us for row in rows if row.groups == 1 and row.cp_size == 1}
    for row in rows:
        if row.groups > 1:
            for name in ("tiled", "fused"):
                ratio = row.us[name] / one[row.batch][name]
                found.append(Aim(f"{row.groups} groups over one, {name}, {row.batch}", 1.5, ratio))
    return found


def table(rows: Sequence[Row]) -> str:
    """All rows as text, microseconds."""
    names = list(dict.fromkeys(name for row in rows for name in row.us))
    lines = [f"{'batch':>10} {'padded':>8} {'W':>2} {'groups':>6} " + " ".join(f"{name:>16}" for name in names)]
    for row in rows:
        cells = (f"{row.us[name]:16.2f}" if name in row.us else f"{'':16}" for name in names)
        lines.append(f"{row.batch:>10} {row.padded:8} {row.cp_size:2} {row.groups:6} " + " ".join(cells))
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.bench_kernels", description=__doc__)
    parser.add_argument("--lane", default=DEVICE, help="where the kernels run: cuda")
    parser.add_argument("--report-dir", type=Path, default=ROOT / "reports" / "output")
    options = parser.parse_args(arguments)
    if options.lane != DEVICE:
        print(f"kernels are timed on a GPU: LANE=cuda, not {options.lane}", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("torch finds no CUDA GPU", file=sys.stderr)
        return 2
    floor = measure_floor()
    rows = list(measure_rows())
    judged = aims(rows, floor)
    figures: dict[str, object] = {
        "schema": SCHEMA,
        "lane": options.lane,
        "device": torch.cuda.get_device_name(),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        **floor,
        "microseconds": [asdict(row) for row in rows],
        "aims": [{**asdict(aim), "measured": round(aim.measured, 4), "met": aim.met} for aim in judged],
        "environment": environment(),
    }
    print(f"{figures['device']}, {figures['date']}")
    print(f"{floor}\n{table(rows)}\n" + "\n".join(map(str, judged)))
    print(f"written to {write_text(options.report_dir / 'bench-kernels.json', json_lines(figures))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
