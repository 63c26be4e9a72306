"""Starts the ranks, waits for all of them, and ends all of them when one goes wrong or none gets any further."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

from conformance.ranks.rank import Orders, RankError

ROOT = Path(__file__).parents[2]
_POLL = 0.05  # seconds between looks at whether a rank has ended


@dataclass(frozen=True, slots=True)
class Told:
    """What the ranks said of one batch of an entry point, put together."""

    entry: str
    lane: str
    batch: int
    mine: tuple[int, ...]
    partition: str
    difference: float
    where: str

    def wrong(self, tolerance: float) -> list[str]:
        """What is wrong with it, in sentences; none where nothing is."""
        found = [self.partition] if self.partition else []
        if not self.difference <= tolerance:
            unwritten = self.difference == float("inf")
            what = "reads what nobody wrote" if unwritten else f"differs by {self.difference:.3g}"
            found.append(f"attention of {self.where} {what}")
        return found


def ask(orders: Orders) -> list[Told]:
    """Run all ranks to their end. ``orders`` are those of rank 0, its ``store`` is made here.

    Raises RankError, one line, for what any of them could not do, and leaves no process behind.
    """
    with tempfile.TemporaryDirectory(prefix="slot-mapping-ranks-") as folder:
        store = str(Path(folder, "store"))
        told = [Path(folder, f"rank-{rank}.jsonl") for rank in range(orders.ranks)]
        said = [Path(folder, f"rank-{rank}.txt") for rank in range(orders.ranks)]
        processes: list[subprocess.Popen[bytes]] = []
        try:
            for rank in range(orders.ranks):
                with told[rank].open("wb") as out, said[rank].open("wb") as err:
                    own = replace(orders, rank=rank, store=store, parent=os.getpid())
                    processes.append(_start(own, out, err))
            states = _wait(processes, told, orders.timeout)
        finally:
            _end(processes)
        answers = [_answers(rank, file) for rank, file in enumerate(told)]
        for rank, state in enumerate(states):
            if state:  # and no word of why
                raise RankError(
                    f"rank {rank} {_ending(state)}: {said[rank].read_text(errors='replace')[-400:].strip()}"
                )
    return [_together(of_batch) for of_batch in zip(*answers, strict=True)]


def _start(orders: Orders, out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "conformance.ranks.rank", json.dumps(asdict(orders))],
        cwd=ROOT,
        env={**os.environ, **_environment(orders)},
        stdin=subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,  # with everything that a rank starts, it can be ended at once
    )


def _environment(orders: Orders) -> Mapping[str, str]:
    """A GPU of its own for each rank; on hosts the interface that is always there, whatever the host is called."""
    if orders.backend == "nccl":
        devices = (
            os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if os.environ.get("CUDA_VISIBLE_DEVICES") else []
        )
        return {"CUDA_VISIBLE_DEVICES": devices[orders.rank] if devices else str(orders.rank)}
    has_loopback = Path("/sys/class/net/lo").exists()
    return {"GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo")} if has_loopback else {}


def _wait(processes: Sequence[subprocess.Popen[bytes]], told: Sequence[Path], timeout: float) -> Sequence[int | None]:
    """Until all have ended well, or one has not, or none has said anything for ``timeout`` seconds.

    Returns how each has ended; None: it has not.
    """
    sizes, since = [0] * len(told), time.monotonic()
    while True:
        states = [process.poll() for process in processes]
        if all(state == 0 for state in states) or any(states):
            return states
        now = [file.stat().st_size for file in told]
        if now != sizes:
            sizes, since = now, time.monotonic()
        if time.monotonic() - since > timeout:
            waiting = ", ".join(str(rank) for rank, state in enumerate(states) if state is None)
            raise RankError(f"ranks {waiting} said nothing for {timeout:g} s and were ended")
        time.sleep(_POLL)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _answers(rank: int, told: Path) -> list[Mapping[str, Any]]:
    """What a rank said. Raises RankError where it said what went wrong."""
    answers: list[Mapping[str, Any]] = [json.loads(line) for line in told.read_text(encoding="utf-8").splitlines()]
    for answer in answers:
        if "error" in answer:
            raise RankError(f"rank {rank}: {answer['error']}")
    return answers


def _ending(state: int) -> str:
    return f"was ended by {signal.Signals(-state).name}" if state < 0 else f"ended itself with status {state}"


def _together(answers: Sequence[Mapping[str, Any]]) -> Told:
    worst = max(answers, key=lambda answer: answer["difference"])
    first = answers[0]
    return Told(
        entry=first["entry"],
        lane=first["lane"],
        batch=first["batch"],
        mine=tuple(answer["mine"] for answer in answers),
        partition=next((answer["partition"] for answer in answers if answer["partition"]), ""),
        difference=worst["difference"],
        where=worst["where"],
    )
