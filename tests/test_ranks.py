"""All ranks at once: right kernels share every token and give the attention of the whole sequences, wrong ones do not,
and nothing is left behind when a rank goes wrong.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import IO

import pytest
import torch

from conformance import lanes
from conformance.ranks import together
from conformance.ranks.attention import attention, weights
from conformance.ranks.batches import GEOMETRIES, Batch, draw, launch_of, local_tokens
from conformance.ranks.rank import Orders, RankError
from conformance.subjects.entry import EntryPoint
from reference.contract import violations
from reference.oracle import slot_mapping
from tests.commands import ROOT, Done, own_entry_points, run
from tests.faults.catalogue import DCP, Fault, write_variant

BATCHES = len(GEOMETRIES)

WRONG = Fault(
    "torch-wrong-by-block-size",
    "context parallelism",
    "with blocks of 16 tokens all ranks take rank 0's, with blocks of 4 two tokens share each slot",
    DCP,
    (
        ("(owner == geometry.cp_rank)", "(owner == (0 if b == 16 else geometry.cp_rank))"),
        ("offset=local_offset % b,", "offset=local_offset % b // 2 * 2 if b == 4 else local_offset % b,"),
    ),
    (),
)


def ranks(*arguments: str | Path) -> Done:
    return run(sys.executable, "-m", "conformance.ranks", "--batches", str(BATCHES), *arguments)


def test_two_cp_ranks_share_every_token_and_attend_as_one() -> None:
    entries = ("dcp", "v2") if lanes.automatic().name == "lowered" else ("dcp",)
    done = ranks(*(word for name in entries for word in ("--entry", name)))
    assert done.status == 0, done.tail
    for name in entries:
        assert f"kernels.{name}: {BATCHES} batches, " in done.output, done.tail
    assert done.output.count("each on exactly one rank; attention as over the whole sequences") == len(entries)


def test_wrong_cp_slots_are_seen_in_the_partition_and_in_the_attention(tmp_path: Path) -> None:
    done = ranks("--source", write_variant(WRONG, tmp_path))
    assert done.status == 1, done.tail
    said = {number: [line for line in done.lines if f": batch {number}: " in line] for number in range(BATCHES)}
    for number, (block_size, _, _) in enumerate(GEOMETRIES):
        shared = any("has a slot on" in line for line in said[number])
        attended = any("attention of position" in line for line in said[number])
        assert (shared, attended) == (block_size == 16, block_size in (4, 16)), done.tail
    assert "kernels.dcp: 4 of 6 batches wrong (2 ranks, gloo, " in done.output, done.tail


# What a rank does that goes wrong, as a program that stands for it; the other rank waits for it.
WAITS = "import time; time.sleep(600)"
SAYS_WHY = 'print(\'{"error": "RankError: no slots"}\'); raise SystemExit(1)'
DIES = "import os, sys; print('last words', file=sys.stderr, flush=True); os.kill(os.getpid(), 9)"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (SAYS_WHY, "rank 1: RankError: no slots"),
        (DIES, "rank 1 was ended by SIGKILL: last words"),
        (WAITS, "ranks 0, 1 said nothing for 0.5 s and were ended"),
    ],
    ids=["says-why", "dies", "waits"],
)
def test_a_rank_that_goes_wrong_ends_all_of_them(
    program: str, message: str, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(orders: Orders, out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", program if orders.rank else WAITS]
        started.append(subprocess.Popen(command, stdout=out, stderr=err, start_new_session=True))
        return started[-1]

    monkeypatch.setattr(together, "_start", start)
    timeout = 0.5 if program == WAITS else 300.0
    with pytest.raises(RankError, match=message):
        together.ask(Orders(0, 2, "gloo", "", "kernels", None, ("dcp",), "auto", 1, 0, timeout, ""))
    assert [process.poll() is None for process in started] == [False, False]


def entries() -> list[EntryPoint]:
    return [entry for entry in own_entry_points() if "cp" in entry.declaration.features and entry.name != "draft"]


def batches(entry: EntryPoint) -> Iterator[Batch]:
    return (draw(7, number, world, entry) for world in (2, 3, 4) for number in range(2 * BATCHES))


def test_batches_are_inside_what_entry_points_promise() -> None:
    for entry in entries():
        for batch in batches(entry):
            for rank in range(batch.world):
                for step in range(len(batch.steps)):
                    case = batch.case(step, rank, entry)
                    assert entry.cannot_take(case, launch_of(entry)) is None
                    assert violations(case) == ()


def test_batches_differ_in_all_that_matters() -> None:
    found = list(batches(next(entry for entry in entries() if entry.name == "v2")))
    assert {(batch.group.block_size, batch.group.kv_cache_block_size, batch.interleave) for batch in found} == {
        *GEOMETRIES
    }
    assert {len(batch.steps) for batch in found} == {1, 2, 3}
    assert {1, 4} <= {len(batch.lengths) for batch in found}
    assert any(batch.rows != tuple(range(len(batch.rows))) for batch in found)
    assert any(
        length > 2 * batch.group.kv_cache_block_size * batch.world for batch in found for length in batch.lengths
    )


def test_a_rank_reads_as_many_tokens_as_it_has_slots() -> None:
    entry = next(entry for entry in entries() if entry.name == "dcp")
    for batch in batches(entry):
        for rank in range(batch.world):
            for request, length in enumerate(batch.lengths):
                whole = Batch(0, batch.group, batch.world, batch.interleave, (length,), ((length,),), (request,))
                slots = slot_mapping(whole.case(0, rank, entry))[0]
                have = sum(slot >= 0 for slot in slots)
                assert local_tokens(length, batch.world, rank, batch.interleave) == have


def test_parts_weigh_what_makes_the_whole() -> None:
    generator = torch.Generator().manual_seed(3)
    query = torch.randn((2, 8), dtype=torch.float64, generator=generator)
    keys, values = torch.randn((2, 30, 2, 8), dtype=torch.float64, generator=generator)
    whole, total = attention(query, keys, values)
    for cuts in ((0, 30), (0, 1, 30), (0, 0, 12, 30, 30)):
        parts = [attention(query, keys[a:b], values[a:b]) for a, b in pairwise(cuts)]
        totals = torch.stack([part[1] for part in parts])
        merged = sum(part[0] * weights(totals, rank)[:, None] for rank, part in enumerate(parts))
        assert torch.allclose(merged, whole, rtol=0, atol=1e-14)
        assert torch.allclose(torch.logsumexp(totals, dim=0), total, rtol=0, atol=1e-14)
    direct = torch.softmax(torch.einsum("hs,ths->ht", query, keys) / math.sqrt(8), dim=1)
    assert torch.allclose(whole, torch.einsum("ht,ths->hs", direct, values), rtol=0, atol=1e-14)


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=["term", "int", "kill"])
def test_no_rank_outlives_the_command(number: int, tmp_path: Path) -> None:
    """Told to end or killed, and while the ranks are still importing torch."""
    command = [sys.executable, "-m", "conformance.ranks", "--ranks", "3", "--batches", "1000000"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, start_new_session=True)

    def alive() -> int:
        found = 0
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                found += str(tmp_path).encode() in each.read_bytes()
        return found

    try:
        wait_until(lambda: alive() == 3)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == (-number if number == signal.SIGKILL else 2)
        stopped = "python -m conformance.ranks: stopped, with all ranks\n"
        assert said.decode() == ("" if number == signal.SIGKILL else stopped)
        wait_until(lambda: alive() == 0)
    finally:
        process.kill()
        process.wait()


def test_more_ranks_than_a_machine_holds_are_refused() -> None:
    done = run(sys.executable, "-m", "conformance.ranks", "--ranks", "999999")
    assert (done.status, done.lines[-1]) == (2, "python -m conformance.ranks: error: --ranks: 999999 is above 64")
