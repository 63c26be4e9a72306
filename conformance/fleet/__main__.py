"""``python -m conformance.fleet --minutes N``: the suite on all machines of a Ray cluster, for so long."""

from __future__ import annotations

import argparse
import os
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from conformance import lanes, required, subjects
from conformance.corpus import Corpus, counted
from conformance.execution.session import Session, SubjectError
from conformance.fleet.harvest import Harvest
from conformance.fleet.orders import FleetError, Lost, Order, Source, source, suite_version
from reference.fields import printable
from reports.summary import Summary

_NO_STATISTICS = {"RAY_USAGE_STATS_ENABLED": "0"}
_LOCAL = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # what makes Ray use no other address than this machine's own, 127.0.0.1
    "RAY_memory_monitor_refresh_ms": "0",  # where others take memory, Ray would end rounds that take little
}
_LOOK = 2.0  # seconds between two looks at the cluster
_SAY = 30.0  # seconds between two lines that say how far it is
_ENDING = 90.0  # seconds for the rounds to come back once their time is up
_USELESS = {pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR}
_TRIES = 3  # rounds of a shard that may bring nothing back and are given again
_LEAST = 5.0  # seconds that a round is started for


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status as pytest's: 0, 1 (something fails, or was not tested), 2 (interrupted), 3 and 4 of a round, 5 where
    no shard has a test.
    """
    options, rest = _parser().parse_known_args(arguments)
    try:
        return Fleet(options, rest).run()
    except FleetError as error:
        print(f"fleet: {error}", file=sys.stderr)
        return int(pytest.ExitCode.USAGE_ERROR)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m conformance.fleet",
        description="The suite on all machines of a Ray cluster. Other options are pytest's, given to every round.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--minutes", type=float, required=True, metavar="N", help="how long it goes on")
    add("--address", default="local", help="auto, or the address of a cluster; local (default): this machine alone")
    add("--rounds", type=int, metavar="N", help="at most so many of each shard (default: as time allows)")
    add("--shards", type=int, metavar="N", help="parts that the suite is divided into (default: one a device)")
    add("--subject", action="append", default=[], metavar="NAME", help="as of pytest; repeatable")
    add("--source", action="append", default=[], metavar="[NAME=]PATH", help="a tree of kernels, sent to every machine")
    add("--lane", default="auto", metavar="NAME", help="as of pytest; npu and cuda take one device a round")
    add("--known-failures", action="append", default=[], type=Path, metavar="FILE", help="sent to every machine")
    add("--require", action="append", default=[], metavar="LIST", help="entry points that all rounds together must run")
    add("--hypothesis-seed", type=int, metavar="N", help="of the first round; each one after it has the next")
    add("--corpus", type=Path, metavar="FOLDER", help="failing cases: every round replays them, and new ones are added")
    add("--report-dir", type=Path, default=Path("reports/output/fleet"), metavar="DIR", help="the merged reports")
    return parser


class Fleet:
    """One fleet. Raises FleetError for options that cannot be meant."""

    def __init__(self, options: argparse.Namespace, rest: Sequence[str]) -> None:
        if not 0 < options.minutes <= 60 * 24 * 365:
            raise FleetError(f"--minutes: {options.minutes} is not above 0 and below a year")
        for name in ("shards", "rounds"):
            if (number := getattr(options, name)) is not None and number < 1:
                raise FleetError(f"--{name}: {number} is not above 0")
        if options.corpus is not None and options.corpus.exists() and not options.corpus.is_dir():
            raise FleetError(f"--corpus: {printable(options.corpus)} is no folder")
        self._options = options
        self._lane = lanes.automatic().name if options.lane == "auto" else options.lane
        given = options.hypothesis_seed
        self._seed = random.SystemRandom().randrange(2**31) if given is None else given
        chosen = self._subjects = tuple(dict.fromkeys(options.subject)) or ("kernels",)
        self._required = required.names(options.require)
        self._shards = 0
        self._arguments = (*(word for name in chosen for word in ("--subject", name)), "--lane", self._lane, *rest)
        self._sources = tuple(_source(item, chosen) for item in options.source)
        self._known = tuple(_text(file) for file in options.known_failures)
        self._suite, self._host = suite_version(), socket.gethostname()
        self._started = time.monotonic()
        self._told: set[str] = set()
        self._failed: Counter[int] = Counter()  # rounds of each shard that brought nothing back

    def run(self) -> int:
        self._check_required()
        for name, value in (_NO_STATISTICS | (_LOCAL if self._options.address == "local" else {})).items():
            os.environ.setdefault(name, value)  # which Ray reads when it is imported
        try:
            from conformance.fleet import cluster
        except ImportError as error:
            raise FleetError(f"it needs Ray: pip install -r requirements/fleet.txt ({error})") from error
        corpus = None if self._options.corpus is None else Corpus(self._options.corpus)
        harvest = Harvest(self._options.report_dir, corpus, _say)
        with cluster.connected(self._options.address), _terminating():
            fleet = cluster.Cluster(self._lane, harvest.start, self._options.minutes * 60)
            shards = self._options.shards or fleet.devices()
            if not fleet.devices():
                raise FleetError(f"--lane {self._lane}: no machine of the cluster has a {fleet.resource}")
            _say(
                f"{counted(shards, 'shard')} on {fleet.devices()} of {fleet.resource}, {self._options.minutes:g} min, "
                f"seed {self._seed}, {counted(len(harvest.start), 'case')} to replay"
            )
            try:
                interrupted = self.go_on(fleet, harvest, shards)
            except Exception as error:  # a cluster that breaks must not cost what it has brought
                _say(f"warning: this fleet ends here: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
                harvest.statuses.add(pytest.ExitCode.INTERNAL_ERROR)
                interrupted = False
        return self.status(harvest.finish(), harvest, interrupted)

    def go_on(self, fleet: Any, harvest: Harvest, shards: int) -> bool:
        """Give each shard one round after the other until the time is up; True: somebody ended it before."""
        self._started, self._shards = time.monotonic(), shards
        end = self._started + self._options.minutes * 60
        interrupted = False
        try:
            for shard in range(1, shards + 1):
                fleet.give(self._order(shard, shards, 1))
            self._until(end, fleet, harvest, again=True)
        except KeyboardInterrupt:
            interrupted = True
            _say("interrupted: waiting for what the rounds have found")
        fleet.stop()
        try:
            self._until(time.monotonic() + _ENDING, fleet, harvest, again=False)
        except KeyboardInterrupt:
            interrupted = True
        for lost in fleet.give_up():
            _say(f"warning: {lost.order.name} brings nothing back: {lost.reason}")
            harvest.lose(lost)
        harvest.keep(fleet.news(()).cases)
        return interrupted

    def _until(self, end: float, fleet: Any, harvest: Harvest, *, again: bool) -> None:
        said = time.monotonic()
        while fleet.running and (now := time.monotonic()) < end:
            for done in fleet.ended(min(_LOOK, end - now)):
                order = done.order
                if isinstance(done, Lost):
                    _say(f"warning: {order.name} brings nothing back: {done.reason}")
                    self._failed[order.shard] += 1
                    if again and self._failed[order.shard] <= _TRIES and end - time.monotonic() > _LEAST:
                        fleet.give(order)
                        continue
                    harvest.lose(done)
                else:
                    harvest.take(done)
                    if done.status is not None:
                        _say(f"{order.name} on {done.host}: status {done.status}; {self._so_far(fleet, harvest)}")
                    if done.status in _USELESS:
                        again = False  # it would be the same again
                        fleet.stop()
                    elif done.status == pytest.ExitCode.NO_TESTS_COLLECTED:
                        continue  # this shard would have none again; others have some
                if again and end - time.monotonic() > _LEAST and order.round != self._options.rounds:
                    fleet.give(self._order(order.shard, order.shards, order.round + 1))
            self._tell(fleet, harvest)
            if time.monotonic() - said > _SAY:
                said = time.monotonic()
                _say(self._so_far(fleet, harvest))

    def _tell(self, fleet: Any, harvest: Harvest) -> None:
        """What the rounds have said meanwhile."""
        news = fleet.news(harvest.found)
        for name, host, process in news.started:
            again = ", once more: its worker was lost" if name in self._told else ""
            self._told.add(name)
            _say(f"{name} begins on {host}, process {process}{again}")
        if new := harvest.keep(news.cases):
            _say(f"{counted(new, 'new failing case')}, sent to all")

    def _order(self, shard: int, shards: int, number: int) -> Order:
        seed = self._seed + number - 1
        return Order(shard, shards, number, seed, self._suite, self._host, self._arguments, self._sources, self._known)

    def _so_far(self, fleet: Any, harvest: Harvest) -> str:
        minutes = (time.monotonic() - self._started) / 60
        return (
            f"{minutes:.1f} of {self._options.minutes:g} min, {counted(harvest.rounds, 'round')}, "
            f"{counted(harvest.cases, 'case')}, {counted(len(harvest.found), 'new failing case')}, "
            f"{counted(len(fleet.running), 'shard')} running"
        )

    def status(self, summary: Summary | None, harvest: Harvest, interrupted: bool) -> int:
        """The exit status of the fleet, once all is merged."""
        for wrong in harvest.wrong:
            _say(f"{wrong}, so this fleet fails")
        worst = max(harvest.statuses & _USELESS, default=0)
        if worst:
            return int(worst)
        if interrupted:
            return int(pytest.ExitCode.INTERRUPTED)
        if harvest.is_empty(self._shards):
            _say("no shard has a test")
            return int(pytest.ExitCode.NO_TESTS_COLLECTED)
        failed = bool(harvest.found or harvest.wrong) or pytest.ExitCode.TESTS_FAILED in harvest.statuses
        for complaint in self._complaints(summary, harvest):
            _say(f"{complaint}, so this fleet fails")
            failed = True
        failed = failed or (summary is not None and summary.failures > 0)
        return int(pytest.ExitCode.TESTS_FAILED if failed else pytest.ExitCode.OK)

    def _complaints(self, summary: Summary | None, harvest: Harvest) -> Iterator[str]:
        """What was not tested."""
        yield from harvest.unfinished(self._shards)
        if summary is None or not summary.cases:
            yield "no case was run"
        yield from required.missing(self._required, self._subjects, {} if summary is None else summary.entry_points)

    def _check_required(self) -> None:
        """Raises FleetError for a name in ``--require`` that nobody has. Where the subjects cannot be loaded on this
        machine, they may be on the others.
        """
        if not self._required or not set(self._subjects) <= set(subjects.NAMES):
            return
        there: list[str] = []
        paths = {each.subject: each.path for each in self._sources}
        try:
            for name in self._subjects:
                with (
                    tempfile.TemporaryDirectory() as cache,
                    Session(lanes.automatic(), name, paths.get(name), cache=Path(cache)) as found,
                ):
                    there += [entry.id for entry in found.entries.values()]
        except (SubjectError, lanes.LaneUnavailable, OSError):
            return
        for problem in required.unknown(self._required, there):
            raise FleetError(problem)


def _source(item: str, chosen: Sequence[str]) -> Source:
    name, equals, path = item.partition("=")
    if not equals or name not in subjects.NAMES:
        if len(chosen) > 1:
            raise FleetError(f"--source {item}: with several subjects write --source NAME=PATH")
        name, path = chosen[0], item
    if not Path(path).is_dir():
        raise FleetError(f"--source: {path} is no folder")
    return source(name, Path(path).resolve())


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FleetError(f"--known-failures: {printable(file)}: {error}") from error


@contextmanager
def _terminating() -> Iterator[None]:
    """SIGTERM taken for Ctrl-C. Ray has a handler of its own, which ends the process and all that it has found."""

    def terminated(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    before = signal.signal(signal.SIGTERM, terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
