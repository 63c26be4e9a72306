"""``python -m conformance.stability``: many runs of the suite with different seeds, on kernels that should pass.

Each run is a process of its own, as many at a time as there are cores. The first that is not green ends it: its seed is
told, and its reports are kept. What has passed is written down, so that the same command goes on where it was stopped.
Exit status 0: every run passed; 1: one did not, or it was stopped; 2: the command cannot be meant.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from conformance.checkout import commit_of
from conformance.runs import ROOT, ended_by_itself, figures, interruptible, started, tail
from reference.fields import CaseError, printable, read_json
from reports.files import ReportError, json_lines, write_text

SCHEMA = 1
CORES = len(os.sched_getaffinity(0))
MOST_A_CORE = 4
"""Runs at a time. Each is several processes of several hundred megabytes."""


@dataclass(slots=True)
class Passed:
    """The seeds that have passed, with the cases that each ran, in ``file``; of other runs than ``asked`` nothing is
    taken from it.
    """

    file: Path
    asked: dict[str, object]
    cases: dict[int, int] = field(default_factory=dict)

    def read(self) -> None:
        """Raises CaseError where ``file`` is no JSON."""
        found = read_json(self.file) if self.file.exists() else None
        if isinstance(found, dict) and found.get("schema") == SCHEMA and found.get("asked") == self.asked:
            self.cases = {int(seed): int(cases) for seed, cases in found["passed"].items()}

    def add(self, seed: int, cases: int) -> None:
        self.cases[seed] = cases
        document = {"schema": SCHEMA, "asked": self.asked, "passed": dict(sorted(self.cases.items()))}
        write_text(self.file, json_lines(document))


class Runs:
    """The runs with ``seeds``, ``jobs`` at a time, with reports in ``folder``. One that fails stops all others."""

    def __init__(self, arguments: Sequence[str], folder: Path, jobs: int) -> None:
        self._arguments, self._folder, self._jobs = arguments, folder, jobs
        self._stop = threading.Event()

    def of(self, seeds: Sequence[int]) -> Iterator[tuple[int, int | None]]:
        """(seed, exit status) of each, as they end; None for one that another one's failure stopped."""
        with ThreadPoolExecutor(self._jobs) as pool:
            waiting = {pool.submit(self._run, seed): seed for seed in seeds}
            try:
                for each in as_completed(waiting):
                    yield waiting[each], each.result()
            finally:
                self._stop.set()

    def folder_of(self, seed: int) -> Path:
        return self._folder / f"seed-{seed}"

    def _run(self, seed: int) -> int | None:
        if self._stop.is_set():
            return None
        folder = self.folder_of(seed)
        shutil.rmtree(folder, ignore_errors=True)
        with started([*self._arguments, "--hypothesis-seed", str(seed)], folder) as process:
            if not ended_by_itself(process, self._stop.is_set):
                return None
            if process.returncode != 0:
                self._stop.set()
            return process.returncode


def run(options: argparse.Namespace, arguments: list[str]) -> int:
    folder: Path = options.report_dir
    asked: dict[str, object] = {"arguments": arguments, "commit": commit_of(__file__)}
    passed = Passed(folder / "stability.json", asked)
    passed.read()
    seeds = range(options.first_seed, options.first_seed + options.runs)
    left = [seed for seed in seeds if seed not in passed.cases]
    if len(left) < len(seeds):
        print(f"{len(seeds) - len(left)} of {len(seeds)} runs have passed before", flush=True)
    runs, began = Runs(arguments, folder, options.jobs), time.monotonic()
    failed: list[tuple[int, int]] = []
    for seed, status in runs.of(left):
        if status is None:
            continue
        if status != 0:
            failed.append((seed, status))
            continue
        passed.add(seed, int(str(figures(runs.folder_of(seed)).get("cases", 0))))
        shutil.rmtree(runs.folder_of(seed), ignore_errors=True)
        done = sum(each in passed.cases for each in seeds)
        pace = (time.monotonic() - began) / (done - len(seeds) + len(left))
        print(f"{done}/{len(seeds)} runs passed, about {(len(seeds) - done) * pace:.0f} s left", flush=True)
    for seed, status in failed:
        print(tail(runs.folder_of(seed)))
        print(f"seed {seed} did not pass (exit status {status}); reports: {printable(runs.folder_of(seed))}")
    if failed:
        return 1
    cases = sum(passed.cases[seed] for seed in seeds)
    print(f"{len(seeds)} runs passed, {cases:,} cases, {time.monotonic() - began:.0f} s for {len(left)} of them")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.stability",
        description="Many runs of the suite with different seeds, until one does not pass. "
        "What is not listed here is handed to pytest: --subject, --source, --lane, -k ...",
    )
    parser.add_argument("--runs", type=_positive, default=200, help="how many (default 200)")
    parser.add_argument("--first-seed", type=int, default=1, metavar="N", help="the seeds are N, N+1, ... (default 1)")
    parser.add_argument("--jobs", type=_jobs, default=CORES, help="runs at a time (default: one a core)")
    parser.add_argument(
        "--hypothesis-profile", dest="profile", metavar="NAME", default="quick", help="of each run (default quick)"
    )
    parser.add_argument(
        "--report-dir",
        type=Path,
        default=ROOT / "reports" / "output" / "stability",
        metavar="DIR",
        help="what has passed, and the reports of what has not (default reports/output/stability)",
    )
    options, others = parser.parse_known_args(arguments)
    options.report_dir = options.report_dir.absolute()
    if not any(each.partition("::")[0].startswith("conformance") for each in others):
        others.insert(0, "conformance")
    try:
        with interruptible():
            return run(options, [*others, "--hypothesis-profile", options.profile])
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here")
        return 1
    except (CaseError, ReportError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number


def _jobs(text: str) -> int:
    number = _positive(text)
    if number > CORES * MOST_A_CORE:
        raise argparse.ArgumentTypeError(f"{number} is above {CORES * MOST_A_CORE}, {MOST_A_CORE} a core")
    return number


if __name__ == "__main__":
    sys.exit(main())
