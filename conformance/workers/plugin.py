"""The pytest side of ``-n N``: what the controller does, and what each worker does beside running tests."""

from __future__ import annotations

import fcntl
import json
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from conformance import gate, interrupts, options, plugin, progress
from conformance.engine import Engine
from conformance.known import KnownFailure
from conformance.outputs import Shown
from conformance.recording import Recorded
from conformance.stash import (
    ACCEPTED,
    COMPILED,
    DRAWN,
    ENGINE,
    PLACE,
    RECORDER,
    SAID,
    is_controller,
    is_worker,
    target_of,
)
from conformance.ticker import Ticker
from conformance.workers import results
from conformance.workers.order import cost
from conformance.workers.places import Place, TooManyError, most, places
from conformance.workers.pulse import Line, Pulse, Pulses
from conformance.workers.results import Results
from reference.fields import printable
from reports.summary import specialization_id

_GIVEN = "conformance"
"""What the controller gives a worker, among what pytest-xdist gives it."""
_SHOWN = "conformance"
"""Of a test report on its way to the controller: what the suite found."""
_ENDED = "conformance"
"""Of what pytest-xdist brings from a worker that has ended: why it refused, and why its results are not there."""
_CONTROLLER = "conformance-controller"
PATIENCE = 3.0
"""Seconds that workers get to write what they have when a run is ended: it has five in all, and the page is drawn in
what is left.
"""
_LAST = 0.5
"""Seconds that they get after that, when all is written, before pytest-xdist kills those that are still there."""


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Tests are few and long: each worker gets one when it has done one."""
    number = getattr(config.option, "numprocesses", None)
    if isinstance(number, int) and number < 0:
        raise pytest.UsageError(f"-n: {number} workers are none")
    if number and config.option.maxschedchunk is None:
        config.option.maxschedchunk = 1


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    return most(options.lane(config)) if plugin.concerns_suite(config) else None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    if is_worker(config) and _GIVEN in config.workerinput:  # type: ignore[attr-defined]
        config.pluginmanager.register(Worker(config), "conformance-worker")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Before the workers start: refuse what cannot be, and make what they need."""
    config = session.config
    if is_controller(config) and plugin.concerns_suite(config):
        config.pluginmanager.register(Controller(config), _CONTROLLER)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(
    config: pytest.Config, report: pytest.CollectReport | pytest.TestReport
) -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """What the suite found is shown by the controller as it would be without workers."""
    data = yield
    if data is not None and is_worker(config) and isinstance(report.longrepr, Shown):
        data[_SHOWN] = pickle.dumps(report.longrepr.recorded)
    return data


@pytest.hookimpl(wrapper=True)
def pytest_report_from_serializable(
    data: dict[str, Any],
) -> Generator[None, pytest.CollectReport | pytest.TestReport | None, pytest.CollectReport | pytest.TestReport | None]:
    recorded = data.pop(_SHOWN, None)
    report = yield
    if report is not None and recorded is not None:
        report.longrepr = Shown(pickle.loads(recorded))
    return report


class Controller:
    """Starts a run, shows how far it is, and brings together what its workers have found."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.known: list[KnownFailure] = plugin.known_failures(config)
        lane = options.lane(config)
        try:
            self.places = places(lane, _number_of_workers(config))
        except TooManyError as error:
            raise pytest.UsageError(str(error)) from error
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="slot-mapping-"))
        except OSError as error:
            raise pytest.UsageError(f"-n: no folder for what workers find: {error}") from error
        config.add_cleanup(lambda: shutil.rmtree(self.folder, ignore_errors=True))
        self.engine = Engine(lane, options.of_run(config, lane))
        self._line = Line(self.folder, len(self.places))
        self._collected = 0
        self._down: set[str] = set()
        self._ran: defaultdict[str, set[str]] = defaultdict(set)  # tests that have ended, by the name of their worker
        self._showing = ExitStack()
        self._ticker: Ticker | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """A worker is about to start. One that takes the place of one that died has a number of its own."""
        place = self.places[int(node.gateway.id.removeprefix("gw")) % len(self.places)]
        given = {"folder": str(self.folder), "name": node.gateway.id, "place": place.to_json()}
        node.workerinput[_GIVEN] = json.dumps(given)
        node.workerinput["seed"] = self.config.stash[RECORDER].seed

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        """The run begins once the first worker has said what there is."""
        self._collected += 1
        told = self._results_of(node)
        if ENGINE not in self.config.stash and told is not None:
            self.engine.adopt(told.entries)
            plugin.begin(self.config, self.engine, self.known)
            lines = self.config.hook.pytest_report_collectionfinish(
                config=self.config, start_path=self.config.rootpath, items=[]
            )
            plugin.say(self.config, [line for some in reversed(lines) for line in _lines(some)])
        if self._collected == len(self.places) and self._ticker is not None:
            self._showing.enter_context(self._ticker.showing(self._line))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """All workers refuse what one does; its words are the run's. One that died is doing nothing any more."""
        if error is not None:
            (self.folder / f"{node.gateway.id}.pulse").unlink(missing_ok=True)
        told, output = self._results_of(node), getattr(node, "workeroutput", {})
        refused, unwritten = output.get(_ENDED, ("", ""))
        if refused:
            raise pytest.UsageError(refused)
        kept = told.tests if told is not None else 0
        is_last = error is not None or (told is not None and told.ended)
        if node.gateway.id not in self._down and (kept < len(self._ran[node.gateway.id]) or not is_last):
            why = f": {unwritten}" if unwritten else ""
            self.config.stash[gate.LOST].append(
                f"-n: not all that worker {node.gateway.id} did and found is counted here, so this run fails{why}"
            )
        self._down.add(node.gateway.id)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """The same ticker as of a run without workers."""
        file = progress.output(self.config)
        if file is None:
            return (yield)
        terminal = self.config.get_terminal_writer()
        self._ticker = Ticker(
            file,
            live=file.isatty(),
            width=terminal.fullwidth,
            current_line=lambda: str(getattr(terminal, "_current_line", "")),
        )
        self.config.pluginmanager.register(Beside(self._ticker))
        self._ticker.start()
        try:
            return (yield)
        finally:
            self._showing.close()
            self._ticker.stop()
            with suppress(OSError):
                file.close()

    def pytest_runtest_logstart(self) -> None:
        """Every worker has compiled its part when the first test starts."""
        if self._line.started is None:
            self._line.started = time.monotonic()
            plugin.say(self.config, results.together(results.read(self.folder)).said.values())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A failure is the run's as soon as its test has ended, whatever becomes of its worker."""
        if report.when == "teardown":
            self._ran[report.node.gateway.id].add(report.nodeid)
        if isinstance(report.longrepr, Shown):
            recorder = self.config.stash[RECORDER]
            for each in report.longrepr.recorded:
                if isinstance(each, Recorded):
                    recorder.recorded.setdefault(each.file, each)
                else:
                    recorder.outside.setdefault(each.file, each)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Before anybody looks at what was found. Workers of a run that was ended are ended."""
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
            _end(self.folder)
            distributed = self.config.pluginmanager.getplugin("dsession")
            if distributed is not None and distributed.nodemanager is not None:
                distributed.nodemanager.EXIT_TIMEOUT = _LAST
        if ENGINE not in self.config.stash:
            return
        found, stash = results.together(results.read(self.folder)), self.config.stash
        self.engine.tallies.update(found.tallies)
        self.engine.coverage.entry_points.update(found.coverage.entry_points)
        for file, recorded in found.recorded.items():
            stash[RECORDER].recorded.setdefault(file, recorded)
        for file, outside in found.outside.items():
            stash[RECORDER].outside.setdefault(file, outside)
        stash[ACCEPTED].adopt(found.outcomes, found.met)
        stash[DRAWN] = found.drawn
        stash[gate.FOUND] += found.found
        stash[gate.TESTED] |= found.tested
        stash[gate.CONCERNED] |= found.concerned
        stash[gate.VANISHED] += found.vanished

    def _results_of(self, node: Any) -> Results | None:
        return results.read_one(self.folder / f"{node.gateway.id}.results")


class Beside:
    """Takes the live line away while pytest writes of a test."""

    def __init__(self, ticker: Ticker) -> None:
        self._ticker = ticker

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self) -> Generator[None, object, object]:
        with self._ticker.hidden():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self) -> Generator[None, object, object]:
        with self._ticker.hidden():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logfinish(self) -> Generator[None, object, object]:
        with self._ticker.hidden():
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collectreport(self) -> Generator[None, object, object]:
        with self._ticker.hidden():
            return (yield)

    @pytest.hookimpl(optionalhook=True, wrapper=True, tryfirst=True)
    def pytest_testnodedown(self) -> Generator[None, object, object]:
        with self._ticker.hidden():
            return (yield)


class Worker:
    """Takes its place, and tells the controller what it has found."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        given = json.loads(config.workerinput[_GIVEN])  # type: ignore[attr-defined]
        self.folder, self.name = Path(given["folder"]), str(given["name"])
        self.place = config.stash[PLACE] = Place.from_json(given["place"])
        self.place.take()
        try:
            self._compiling = os.open(self.folder / "compiling", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        except FileNotFoundError:  # the folder goes with the run, which was ended before this process was there
            os._exit(pytest.ExitCode.INTERRUPTED)
        fcntl.lockf(self._compiling, fcntl.LOCK_EX, 1, self.place.number)
        config.stash[COMPILED] = self._compiled
        config.stash[progress.COMPILING] = self._compiles
        self._is_alone = True
        self._pulse = Pulse()
        self._before = self._weight = 0
        self._refused = self._unwritten = ""
        self._tests = 0
        self._pulses = Pulses(self.folder / f"{self.name}.pulse", self._now)
        if threading.current_thread() is threading.main_thread():
            # Ctrl-C reaches the whole group, and the controller ends its workers too: that is one interrupt.
            signal.signal(signal.SIGINT, interrupts.terminated)
        self._write()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        return (yield from self._refusing())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """The longest first, so that none is left over at the end; what is known comes before that."""
        items.sort(key=cost, reverse=True)

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Before the controller is told of it, which reads what there is to test."""
        self._pulse.expected = sum(map(progress.weight_of, session.items))
        self._write()
        if self._unwritten:
            raise pytest.UsageError(f"-n: {self._unwritten}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        part = self.place.part
        self._pulse.compiling = sum(sum(map(part.has, range(len(pool)))) for _, pool in plugin.pools(session))
        self._pulses.start()
        try:
            return (yield from self._refusing())
        finally:
            self._pulses.stop()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self._wait_for_others()
        target, self._weight = target_of(item), progress.weight_of(item)
        self._before = self._cases()
        self._pulse.test = item.name if target is not None else ""
        try:
            return (yield)
        finally:
            if self._cases() > self._before:
                self._pulse.done += self._weight
            else:  # it had nothing to run
                self._pulse.left_out += self._weight
            self._pulse.test, self._weight = "", 0
            self._tests += 1
            self._write()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._write(ended=True)
        self.config.workeroutput[_ENDED] = (self._refused, self._unwritten)  # type: ignore[attr-defined]

    def _refusing(self) -> Generator[None, object, object]:
        try:
            return (yield)
        except pytest.UsageError as error:
            self._refused = str(error)
            raise

    def _compiles(self, done: int, total: int) -> None:
        self._pulse.compiled += 1

    def _compiled(self) -> None:
        """The part of this worker is there."""
        self._write()
        fcntl.lockf(self._compiling, fcntl.LOCK_UN, 1, self.place.number)

    def _wait_for_others(self) -> None:
        """Until each has compiled its part, or has died. All have begun to when one is given a test: tests are given
        out when everybody has collected.
        """
        if self._is_alone:
            self._is_alone = False
            for number in range(self.place.count):
                fcntl.lockf(self._compiling, fcntl.LOCK_EX, 1, number)
                fcntl.lockf(self._compiling, fcntl.LOCK_UN, 1, number)

    def _cases(self) -> int:
        tallies = self.config.stash[ENGINE].tallies if ENGINE in self.config.stash else {}
        return sum(tally.cases for tally in list(tallies.values()))

    def _now(self) -> Pulse:
        """Read by the thread that tells it."""
        pulse, stash = self._pulse, self.config.stash
        tallies = list(stash[ENGINE].tallies.items()) if ENGINE in stash else []
        cases = self._cases()
        return Pulse(
            cases=cases,
            done=pulse.done + min(cases - self._before, self._weight),
            left_out=pulse.left_out,
            expected=pulse.expected,
            specializations=[
                f"{name} {specialization_id(each)}" for name, tally in tallies for each in list(tally.specializations)
            ],
            failures=[each.name for each in list(stash[RECORDER].recorded)],
            compiled=pulse.compiled,
            compiling=pulse.compiling,
            test=pulse.test,
        )

    def _write(self, ended: bool = False) -> None:
        """Tell what there is so far. Where it cannot be written, what the reports of tests say still reaches the
        controller, and at the end that the rest does not.
        """
        stash = self.config.stash
        told = Results(tests=self._tests, ended=ended)
        if ENGINE in stash:
            engine, recorder, accepted = stash[ENGINE], stash[RECORDER], stash[ACCEPTED]
            told.entries, told.said = engine.entries(), stash.get(SAID, {})
            told.tallies, told.coverage = engine.tallies, engine.coverage
            told.recorded, told.outside = recorder.recorded, recorder.outside
            told.outcomes, told.met = accepted.by_place(), accepted.met
            told.drawn = engine.explored.own if engine.explored is not None else {}
            told.found, told.tested = stash[gate.FOUND], stash[gate.TESTED]
            told.concerned, told.vanished = stash[gate.CONCERNED], stash[gate.VANISHED]
        file = self.folder / f"{self.name}.results"
        try:
            told.write(file)
        except OSError as error:
            self._unwritten = f"cannot write {printable(file)}: {error.strerror or error}"
        else:
            self._unwritten = ""  # all is in the last one


def _number_of_workers(config: pytest.Config) -> int:
    """Raises UsageError for workers on other machines, which have no folder in common with this one."""
    from xdist.workermanage import parse_tx_spec_config

    specifications = [str(each) for each in parse_tx_spec_config(config)]
    for each in specifications:
        if not each.startswith("popen"):
            raise pytest.UsageError(
                f"--tx {each}: workers run on this machine; for several machines there is --shard I/N"
            )
    return len(specifications)


def _lines(some: str | list[str]) -> list[str]:
    return [some] if isinstance(some, str) else list(some)


def _end(folder: Path) -> None:
    """End the workers that have not ended, and give them time to write what they have found."""
    deadline = time.monotonic() + PATIENCE
    waiting = [each.pid for each in results.read(folder) if not each.ended]
    for pid in waiting:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    while waiting and time.monotonic() < deadline:
        time.sleep(0.02)
        ended = {each.pid for each in results.read(folder) if each.ended}
        waiting = [pid for pid in waiting if pid not in ended and Path(f"/proc/{pid}").exists()]
