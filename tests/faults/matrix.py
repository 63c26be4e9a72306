"""The matrix: every fault against every seed, as many at once as there are cores, what is known already left out."""

from __future__ import annotations

import multiprocessing
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from itertools import takewhile
from pathlib import Path
from typing import Any, TextIO

from conformance.execution.server import die_with_parent
from conformance.subjects.own import PLACES as ENTRY_PLACES
from tests.faults import catalogue
from tests.faults.equivalents import Untold, equivalents
from tests.faults.further import FURTHER
from tests.faults.killing import CONFORMANCE, INVALID, ROOT, Hunt, Result, Target
from tests.faults.mutants import mutants
from tests.faults.preloaded import fork_servers
from tests.faults.results import Key, Results, subject_digest
from tests.faults.trials import KEYS

CACHE = ROOT / ".cache" / "faults"
RESULTS = CACHE / "results.jsonl"

_MODULES = {place.entry: place.module for place in ENTRY_PLACES}
_SHARED = ("CP_", "cp_", "_cp", "owner", "virtual", "interleave", "shard", "turn", "run ", "is_own", "dcp")
_FIRST_OF_KIND = {"context parallelism": ("cp",), "compilation": (KEYS,)}
_RING = ("circular", "CIRCULAR", "is_paged", "ring")


@dataclass(frozen=True, slots=True)
class Fault:
    """One row: its ``name``, where it is looked for, and how to write it. ``kind`` is its operator, or the catalogue's
    kind of mistake; ``summary`` says what is wrong; ``equivalent`` why no launch can tell, if none can, and ``test``
    the other test that does.
    """

    name: str
    entry_point: str
    kind: str
    summary: str
    first: tuple[str, ...]
    is_mutation: bool
    file: str
    text: str
    equivalent: str = ""
    test: str = ""

    def texts(self) -> dict[str, str]:
        """The package with the fault: source by module."""
        return {**_texts(), self.file.removesuffix(".py"): self.text}

    def digest(self) -> str:
        """Of what the entry point runs, with the fault."""
        right = subject_digest(_texts(), _MODULES[self.entry_point])
        return sha256(f"{right}{self.file}{self._changed()}".encode()).hexdigest()[:16]

    def _changed(self) -> str:
        """The lines that differ, from the first to the last: what is around them may move."""
        before, after = _texts()[self.file.removesuffix(".py")].splitlines(), self.text.splitlines()
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(before, after, strict=False)))
        left = zip(reversed(before[same:]), reversed(after[same:]), strict=False)
        behind = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], left))
        end = len(after) - behind
        return "\n".join([*before[same : len(before) - behind], "=>", *after[same:end]])


@lru_cache(maxsize=1)
def _texts() -> dict[str, str]:
    """The package as it was when this process began to look at it: a run does not notice that somebody works on it."""
    return {path.stem: path.read_text(encoding="utf-8") for path in catalogue.PACKAGE.glob("*.py")}


def faults() -> list[Fault]:
    """The catalogue's, then the mutations."""
    found = []
    for each in (*catalogue.CATALOGUE, *FURTHER):
        text = catalogue.faulty_source(each, _texts()[each.file.removesuffix(".py")])
        first = _FIRST_OF_KIND.get(each.kind, ("plain",))
        found.append(Fault(each.name, each.entry_point, each.kind, each.summary, first, False, each.file, text))
    for mutant in mutants():
        first, untold = _first_kinds(mutant.name), equivalents().get(mutant.name, Untold(""))
        what = (mutant.name, mutant.entry_point, mutant.operator, "", first, True, mutant.file, mutant.source)
        found.append(Fault(*what, untold.reason, untold.test))
    return found


def _first_kinds(name: str) -> tuple[str, ...]:
    """Where to look first: a change of what only ranks, or only rings, do shows in no other case."""
    if any(word in name for word in _RING):
        return ("circular", "plain")
    return ("cp",) if any(word in name.partition(": ")[2] for word in _SHARED) else ("plain",)


@dataclass(frozen=True, slots=True)
class Job:
    """A fault, the seeds to look for it with, by which suite, and ``texts``, the package that has it. ``runs``: it has
    run with another seed, so that being refused is being found.
    """

    fault: Fault
    seeds: tuple[int, ...]
    suite: str
    texts: Mapping[str, str] = field(repr=False)
    runs: bool


Done = list[tuple[int, dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Search:
    """One cell of the matrix, and the seconds that it is likely to take."""

    fault: Fault
    seed: int
    key: Key
    seconds: float


def searches(chosen: Sequence[Fault], seeds: Sequence[int], suite: str, results: Results) -> list[Search]:
    """All of them, whether known or not. An equivalent is looked for with the first seed alone."""
    found = []
    for fault in chosen:
        digest, seconds = fault.digest(), results.likely_seconds(fault.name, suite)
        own = seeds[:1] if fault.equivalent else seeds
        found += [Search(fault, seed, Key(fault.name, digest, suite, seed), seconds) for seed in own]
    return found


def missing(wanted: Sequence[Search], results: Results) -> list[Search]:
    return [each for each in wanted if each.key not in results.known]


Tell = Callable[[int, int, float, str], None]
"""(searches done, searches in all, seconds that are likely to be left, the fault that was looked for last)."""


def run(
    chosen: Sequence[Fault],
    seeds: Sequence[int],
    results: Results,
    *,
    workers: int,
    suite: str = CONFORMANCE,
    tell: Tell = lambda done, total, left, name: None,
) -> dict[str, dict[int, Any]]:
    """Results by fault and seed. What is known is not run again; what is found out is written at once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted = searches(chosen, seeds, suite, results)
    keys = {(each.fault.name, each.seed): each.key for each in wanted}
    left = {each.key: each for each in missing(wanted, results)}
    pace = Pace(sum(each.seconds for each in left.values()), workers)

    def done(fault: Fault, found: Done) -> None:
        for seed, result in found:
            search = left.pop(keys[fault.name, seed])
            results.add(search.key, result)
            pace.did(search.seconds)
        tell(len(wanted) - len(left), len(wanted), pace.left(), fault.name)

    tell(len(wanted) - len(left), len(wanted), pace.left(), "")
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        # What is likely to be found is looked for first: an equivalent takes as long as many that are killed.
        for part, untold in ((seeds[:1], False), (seeds[1:], False), (seeds[:1], True)):
            jobs = []
            for fault in chosen:
                own = tuple(seed for seed in part if keys.get((fault.name, seed)) in left)
                if not own or bool(fault.equivalent) != untold:
                    continue
                first = results.known.get(keys[fault.name, seeds[0]], {})
                if part != seeds[:1] and first.get("status") == INVALID:  # nor does it run with another seed
                    done(fault, [(seed, dict(first)) for seed in own])
                else:
                    jobs.append(Job(fault, own, suite, fault.texts(), runs=part != seeds[:1]))
            for job, found in _each(jobs, Path(scratch), workers):
                done(job.fault, found)
    answer: dict[str, dict[int, Any]] = {fault.name: {} for fault in chosen}
    for each in wanted:
        answer[each.fault.name][each.seed] = results.known[each.key]
    return answer


class Pace:
    """How long what is left takes: as long as was likely before, corrected by what the part that is done took."""

    def __init__(self, seconds: float, workers: int) -> None:
        self._left, self._done, self._workers, self._started = seconds, 0.0, workers, time.monotonic()

    def did(self, seconds: float) -> None:
        self._left, self._done = self._left - seconds, self._done + seconds

    def left(self) -> float:
        likely = max(self._left, 0.0) / self._workers
        return likely * (time.monotonic() - self._started) * self._workers / self._done if self._done else likely


def _each(jobs: Sequence[Job], scratch: Path, workers: int) -> Any:
    if not jobs:
        return
    # A process that has been forked shares Hypothesis's state and the terminal with this one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, initializer=_begin) as pool:
        waiting = iter(jobs)
        running: dict[Future[Done], Job] = {}
        try:
            while True:
                for job in waiting:
                    running[pool.submit(hunt, job, str(scratch))] = job
                    if len(running) > workers:
                        break
                if not running:
                    return
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    yield running.pop(future), future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _begin() -> None:
    """In a worker: it ends with whoever waits for it, and starts servers as forks of itself."""
    die_with_parent()
    fork_servers()


def hunt(job: Job, scratch: str) -> Done:
    """All seeds of one job, in one process of the subject."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    (folder / "kernels").mkdir()
    for module, text in job.texts.items():
        (folder / "kernels" / f"{module}.py").write_text(text, encoding="utf-8")
    search = Hunt(Target(job.fault.name, job.fault.entry_point, str(folder), job.fault.first), CACHE, runs=job.runs)
    try:
        found: Done = []
        for seed in job.seeds:
            found.append((seed, _searched(search, job, seed).to_json()))
        return found
    finally:
        search.close()
        shutil.rmtree(folder, ignore_errors=True)


def _searched(search: Hunt, job: Job, seed: int) -> Result:
    if job.suite != CONFORMANCE:
        return search.kill_with(job.suite, seed)
    equivalent = bool(job.fault.equivalent)
    return search.kill(seed, shrink=seed == 0 and not equivalent, quickly=equivalent)


class Bar:
    """How far it is, on a terminal in one line that is written over, elsewhere a line a minute."""

    def __init__(self, stream: TextIO = sys.stderr) -> None:
        self._stream, self._told = stream, 0.0

    def __call__(self, done: int, total: int, left: float, name: str) -> None:
        now = time.monotonic()
        line = f"{done}/{total} searches, {left / 60:.0f} min left  {name[:70]}"
        if self._stream.isatty():
            bar = "#" * (30 * done // max(total, 1))
            self._stream.write(f"\r\x1b[K[{bar:<30}] {line}")
            self._stream.flush()
        elif now - self._told > 60 or done == total:
            self._told = now
            self._stream.write(line + "\n")
            self._stream.flush()
