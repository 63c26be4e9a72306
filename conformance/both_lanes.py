"""The same drawn cases on lanes of two environments: what comparing lanes, in speed or in results, is made of.

An environment has one lane (``triton`` and ``triton-ascend`` exclude each other), so the other lane is another Python
that runs this module as a program: one JSON line for each question and each answer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from conformance import lanes
from conformance.engine import Engine, Options
from conformance.execution.server import die_with_parent
from conformance.execution.session import Outcome
from conformance.subjects.binding import bind, settings_of
from conformance.subjects.entry import EntryPoint
from conformance.under_test import Drawn, UnderTest
from reference.case import Case, Launch
from reference.verdict import Guard

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache"
INTERPRETER = ROOT / ".venv-interpreter" / "bin" / "python"
CASE_TIMEOUT = 60.0  # seconds; both lanes at once on a busy machine are slow, not hanging

Item = Mapping[str, Any]  # a case and its launch as JSON, like a file that ``--replay`` takes


class LaneError(RuntimeError):
    """The other environment is not there, or its process ended."""


@dataclass(frozen=True, slots=True)
class Who:
    """Whose kernels: a subject, and where it is read from (None: where it is installed)."""

    subject: str = "kernels"
    source: str | None = None

    def engine(self, lane: lanes.Lane, budget: int, workers: int) -> Engine:
        sources = {} if self.source is None else {self.subject: self.source}
        return Engine(lane, Options((self.subject,), sources, budget, CASE_TIMEOUT, CACHE, workers))


def draw(target: UnderTest, count: int, number: int) -> list[Drawn]:
    """The first ``count`` examples of seed ``number``, of every kind."""
    drawn: list[Drawn] = []

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(target.cases())
    def collect(each: Drawn) -> None:
        drawn.append(each)

    collect()
    return drawn


def item_of(entry: EntryPoint, drawn: Drawn) -> Item:
    """A drawn case as it travels: its settings are the constants of its launch."""
    case, launch, chosen = drawn
    return {"case": case.to_json(), "launch": bind(entry, case, launch, chosen)[1].to_json()}


def drawn_of(entry: EntryPoint, item: Item) -> Drawn:
    launch = Launch.from_json(item["launch"])
    return Case.from_json(item["case"]), launch, settings_of(entry, launch)


def outcomes(engine: Engine, entry: EntryPoint, drawn: Drawn, times: int = 1) -> list[Outcome]:
    """What ``times`` launches of one case did."""
    case, launch, chosen = drawn
    invocation, launch = bind(entry, case, launch, chosen)
    session = engine.session(entry.subject)
    return [session.launch(invocation, launch.fence, launch.open_buffers) for _ in range(times)]


class OtherLane:
    """A lane in an environment of its own. Use as a context manager; nothing of it is left afterwards.

    ``ask`` and ``answer`` are two calls so that this process can do the same work meanwhile. Both raise LaneError.
    """

    def __init__(self, name: str, python: Path, who: Who) -> None:
        self.name = name
        if not python.exists():
            raise LaneError(f"lane {name}: {python} does not exist (`make environment-{name}` creates the environment)")
        command = [
            str(python),
            "-m",
            "conformance.both_lanes",
            name,
            who.subject,
            *([who.source] if who.source else []),
        ]
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            start_new_session=True,  # Ctrl-C is the caller's to handle
        )

    def __enter__(self) -> OtherLane:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # its own children die with it
        self._process.communicate()
        self._stderr.close()

    def ask(self, entry: EntryPoint, items: Sequence[Item], times: int = 1) -> None:
        """Have every case launched ``times`` times."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"entry": entry.name, "items": items, "times": times}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self) -> list[list[Outcome]]:
        """The outcomes of the launches asked for, one list a case."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._ended()
        return [[_outcome(each) for each in launched] for launched in json.loads(line)]

    def _ended(self) -> LaneError:
        self._process.wait()
        self._stderr.seek(0)
        said = self._stderr.read()[-2000:].decode(errors="replace").strip()
        last = said.splitlines()[-1] if said else f"status {self._process.returncode}"
        return LaneError(f"lane {self.name}: its process ended: {last}")


def _outcome(item: dict[str, Any]) -> Outcome:
    return Outcome(**{**item, "guards": tuple(Guard(**each) for each in item["guards"])})


def _serve(lane: str, who: Who) -> None:
    """Answer questions until there are no more."""
    engine = who.engine(lanes.by_name(lane), budget=1, workers=1)
    try:
        entries = {entry.name: entry for entry in engine.entries()}
        for line in sys.stdin:
            question = json.loads(line)
            entry = entries[question["entry"]]
            launched = [
                [asdict(each) for each in outcomes(engine, entry, drawn_of(entry, item), question["times"])]
                for item in question["items"]
            ]
            print(json.dumps(launched), flush=True)
    finally:
        engine.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m conformance.both_lanes", description=__doc__)
    parser.add_argument("lane")
    parser.add_argument("subject")
    parser.add_argument("source", nargs="?")
    arguments = parser.parse_args()
    die_with_parent()
    _serve(arguments.lane, Who(arguments.subject, arguments.source))
