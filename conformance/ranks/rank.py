"""One rank: a process that computes its own slots, keeps its part of the cache, and meets the others in collectives.

Program: one JSON object with its orders as argument; prints one JSON line an entry point and batch, or one with what
went wrong.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from conformance import lanes
from conformance.engine import Engine, Options
from conformance.execution.server import die_with_parent
from conformance.ranks.attention import attention, weights
from conformance.ranks.batches import HEADS, SIZE, Batch, draw, launch_of, local_tokens
from conformance.subjects.entry import TESTABLE, EntryPoint
from conformance.subjects.launching import Settings
from reference import verdict as v

TILE = 64


class RankError(RuntimeError):
    """This rank has no slots to go on with. The message says why."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What all ranks are told alike, but for ``rank``. ``parent`` is the process that started them."""

    rank: int
    ranks: int
    backend: str
    store: str
    subject: str
    source: str | None
    entries: tuple[str, ...]
    lane: str
    batches: int
    seed: int
    timeout: float
    cache: str
    parent: int = 0

    @classmethod
    def from_json(cls, text: str) -> Orders:
        found = json.loads(text)
        return cls(**{**found, "entries": tuple(found["entries"])})


class Rank:
    """The process' part of a batch: ``keys`` and ``values`` [slots, heads, size], NaN where nothing was written."""

    def __init__(self, engine: Engine, entry: EntryPoint, batch: Batch, rank: int, device: torch.device) -> None:
        self._engine, self._entry, self._batch = engine, entry, batch
        self._rank, self._device = rank, device
        slots = batch.num_blocks * batch.group.block_size
        self.keys = torch.full((slots, HEADS, SIZE), torch.nan, dtype=torch.float64, device=device)
        self.values = self.keys.clone()

    def slots(self, step: int) -> list[int]:
        """Those of the tokens of ``step``, by the code under test. Raises RankError where it leaves none."""
        case, launch = self._batch.case(step, self._rank, self._entry), launch_of(self._entry)
        tail = case.num_tokens if not self._entry.writes_tail else case.max_num_tokens
        free: list[list[int | None]] = [[None] * tail + [v.UNWRITTEN] * (case.max_num_tokens - tail)]
        finding = self._engine.run(self._entry, case, launch, Settings(TILE), free)
        if not finding.verdict.passed:
            raise RankError(f"{self._entry.id} on rank {self._rank}, step {step}: {finding.verdict.summary()}")
        return finding.actual[0][: case.num_tokens]

    def write(self, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Keep keys and values of the tokens that have a slot, as a cache kernel does: [tokens, heads, size]."""
        if len(slots) and int(slots.max()) >= len(self.keys):
            raise RankError(f"{self._entry.id} on rank {self._rank}: slot {int(slots.max())} is outside the cache")
        mine = slots >= 0
        self.keys[slots[mine]] = keys[mine]
        self.values[slots[mine]] = values[mine]

    def read(self, request: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The first of this rank's tokens of a request, those among its first ``length``, through the block table."""
        group = self._batch.group
        count = local_tokens(length, self._batch.world, self._rank, self._batch.interleave)
        place = torch.arange(count, device=self._device)
        row = torch.tensor(group.block_table[self._batch.rows[request]], device=self._device)
        slots = row[place // group.block_size] * group.block_size + place % group.block_size
        return self.keys[slots], self.values[slots]


def owners(slots: torch.Tensor) -> torch.Tensor:
    """On how many ranks each token has a slot."""
    count = (slots >= 0).to(torch.int64)
    dist.all_reduce(count)
    return count


def of_batch(rank: Rank, batch: Batch, orders: Orders, device: torch.device) -> dict[str, object]:
    """Every step of a batch written, then the tokens of the last step asked for everything before them. What is said of
    it: ``tokens`` and those that are this rank's, what is wrong with the ``partition``, and the largest ``difference``
    from attention over the whole sequences, with the query that has it.
    """
    generator = torch.Generator().manual_seed(orders.seed * 1_000_003 + batch.number)
    sequences = [
        torch.randn((3, length, HEADS, SIZE), dtype=torch.float64, generator=generator).to(device)
        for length in batch.lengths
    ]
    wrong, mine = "", 0
    before = (0,) * len(batch.lengths)
    for step, after in enumerate(batch.steps):
        slots = torch.tensor(rank.slots(step), dtype=torch.int64, device=device)
        tokens = [(r, p) for r, (first, last) in enumerate(zip(before, after, strict=True)) for p in range(first, last)]
        count = owners(slots).tolist()
        odd = [(token, ranks) for token, ranks in zip(tokens, count, strict=True) if ranks != 1]
        if odd and not wrong:
            (request, position), ranks = odd[0]
            on = f"{ranks} ranks" if ranks else "no rank"
            wrong = f"position {position} of request {request} has a slot on {on} ({len(odd)} such tokens)"
        mine += int((slots >= 0).sum())
        if tokens:
            _, keys, values = torch.cat([sequences[r][:, p : p + 1] for r, p in tokens], dim=1)
            rank.write(slots, keys, values)
        before = after
    first = batch.steps[-2] if len(batch.steps) > 1 else (0,) * len(batch.lengths)
    queries = [(r, p) for r, (a, b) in enumerate(zip(first, batch.lengths, strict=True)) for p in range(a, b)]
    parts = [attention(sequences[r][0, p], *rank.read(r, p + 1)) for r, p in queries]
    difference, where = _difference(parts, queries, sequences, orders.rank)
    return {
        "batch": batch.number,
        "tokens": sum(batch.lengths),
        "mine": mine,
        "partition": wrong,
        "difference": difference,
        "where": where,
    }


def _difference(
    parts: list[tuple[torch.Tensor, torch.Tensor]],
    queries: list[tuple[int, int]],
    sequences: list[torch.Tensor],
    rank: int,
) -> tuple[float, str]:
    """The parts of all ranks put together, against the whole: the largest difference and the query that has it."""
    if not queries:
        return 0.0, ""
    outputs, totals = (torch.stack(each) for each in zip(*parts, strict=True))
    of_all = [torch.empty_like(totals) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, totals)
    merged = outputs * weights(torch.stack(of_all), rank)[..., None]
    dist.all_reduce(merged)
    whole = torch.stack([attention(sequences[r][0, p], *sequences[r][1:, : p + 1])[0] for r, p in queries])
    found = (merged - whole).abs().flatten(1).amax(dim=1)
    found = torch.where(found.isnan(), torch.inf, found)
    worst = int(found.argmax())
    return float(found[worst]), "position {1} of request {0}".format(*queries[worst])


def run(orders: Orders) -> Iterator[Mapping[str, object]]:
    """One answer an entry point and batch. Raises what ends the rank."""
    device = torch.device("cuda", 0) if orders.backend == "nccl" else torch.device("cpu")
    timeout = timedelta(seconds=orders.timeout)
    store = f"file://{orders.store}"
    own = device if device.type == "cuda" else None
    dist.init_process_group(orders.backend, store, timeout, world_size=orders.ranks, rank=orders.rank, device_id=own)
    lane = lanes.automatic() if orders.lane == "auto" else lanes.by_name(orders.lane)
    sources = {} if orders.source is None else {orders.subject: orders.source}
    engine = Engine(lane, Options((orders.subject,), sources, 8, orders.timeout, Path(orders.cache), 1))
    try:
        entries = {entry.name: entry for entry in engine.entries()}
        for name in orders.entries:
            entry = entries.get(name)
            if entry is None or entry.status != TESTABLE:
                raise RankError(f"{orders.subject} has no {name}: {entry.status if entry else ', '.join(entries)}")
            if "cp" not in entry.declaration.features:
                raise RankError(f"{entry.id} {entry.version} does not have context parallelism")
            for number in range(orders.batches):
                batch = draw(orders.seed, number, orders.ranks, entry)
                rank = Rank(engine, entry, batch, orders.rank, device)
                yield {"entry": entry.id, "lane": lane.name, **of_batch(rank, batch, orders, device)}
    finally:
        engine.close()
    dist.barrier()
    dist.destroy_process_group()


def main() -> int:
    orders = Orders.from_json(sys.argv[1])
    die_with_parent()
    if os.getppid() != orders.parent:  # it ended while torch was imported
        return 1
    torch.set_num_threads(1)
    answer: Mapping[str, Any]
    try:
        for answer in run(orders):
            print(json.dumps(answer), flush=True)
    except Exception as error:  # said on one line; whoever started the ranks ends the others
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
