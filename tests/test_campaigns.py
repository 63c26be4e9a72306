"""Runs of hours: what they have found is there when they are stopped, and when nothing can be written."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from _pytest._code.code import ExceptionChainRepr

from conformance import interrupts, outputs, recording, verdicts
from conformance.corpus import Corpus
from conformance.outputs import Shown
from conformance.recording import Recorded, Recorder
from conformance.stash import ENGINE, RECORDER
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from conformance.verdicts import ConformanceFailure, Finding, failure_of
from reference import verdict as v
from reference.case import Case, Group, Launch
from reports.diagnosis import Diagnosis
from reports.failure import FailureReport
from reports.files import unwritable
from strategies.declaration import Declaration
from tests.commands import run
from tests.disks import on_a_disk
from tests.ended_runs import Run
from tests.faults.catalogue import by_name, write_variant

MANY = 30
CASE = Case((0, 1), (0,), 1, 1, (Group(((0,),), 2, 2),))
V1 = EntryPoint("kernels", "1", "v1", "f", "v1", "", 1, (), (), Declaration(frozenset(), frozenset()))
FEW = ("-k", "test_plain_slots or corpus", "--compile-budget", "2")


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_variant(by_name("row-end-unguarded"), tmp_path_factory.mktemp("wrong"))


@pytest.fixture
def stopped(tmp_path: Path, wrong: Path) -> Iterator[Run]:
    """A run that has failed many times and draws; it is given the signal of whoever stops a job, twice."""
    corpus = Corpus(tmp_path / "corpus")
    for number in range(MANY):
        case = Case((0, 1), (0,), 1, 1, (Group(((number,),), 2, 2),))
        corpus.add(V1, case, Launch(), Settings(16, 16))
    options = ("--source", f"kernels={wrong}", "--corpus", corpus.folder, "--max-examples", "100000")
    one = Run(tmp_path, "conformance", *FEW, *options)
    one.wait_until(lambda: "::test_plain" in one.output)
    for _ in range(2):
        one.process.terminate()
        time.sleep(0.05)  # so that they are two
    yield one
    for pid in one.processes():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    one.process.wait()


def test_a_run_that_is_stopped_writes_all_it_has_found(stopped: Run) -> None:
    assert stopped.ended(60) == pytest.ExitCode.INTERRUPTED, stopped.output[-2000:]
    assert "! KeyboardInterrupt" in stopped.output
    summary = json.loads((stopped.reports / "summary.json").read_text())
    assert summary["failures"] >= MANY
    assert all(Path(name).exists() for name in summary["reports"])
    assert len(summary["reports"]) == summary["failures"]
    assert f"{summary['failures']} failures" in (stopped.reports / "index.html").read_text(encoding="utf-8")


@pytest.fixture
def kept() -> Iterator[None]:
    undo = interrupts.keep_interrupts()
    yield
    undo()


@pytest.mark.usefixtures("kept")
def test_a_second_signal_does_not_cut_short_what_the_first_has_begun() -> None:
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):  # a person who will not wait
        os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.usefixtures("kept")
def test_what_is_being_ended_takes_no_first_signal_either() -> None:
    interrupts.ending()
    os.kill(os.getpid(), signal.SIGTERM)


class _Dropping:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)


def _drop_and_wait() -> None:
    one = _Dropping()
    del one
    time.sleep(60)  # ended by what is sent again


@pytest.mark.usefixtures("kept")
def test_a_signal_that_python_drops_is_not_the_only_one_that_counts() -> None:
    """As in a worker, where what is sent again comes to the same handler."""
    before = signal.signal(signal.SIGINT, interrupts.terminated)
    try:
        with pytest.raises(KeyboardInterrupt, match="SIGINT"):
            _drop_and_wait()
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_end_begins_before_pytest_looks_at_the_interrupt() -> None:
    hook = outputs.pytest_keyboard_interrupt
    assert hook.pytest_impl["tryfirst"]  # type: ignore[attr-defined]


def test_reports_are_written_before_workers_are_waited_for() -> None:
    hook = outputs.pytest_sessionfinish
    assert hook.pytest_impl["tryfirst"]  # type: ignore[attr-defined]


def _interrupted(frames: int) -> None:
    if frames:
        _interrupted(frames - 1)
    try:
        raise ValueError
    except ValueError:
        raise KeyboardInterrupt("SIGTERM")  # noqa: B904  (with what it came out of, as signals do)


def test_of_an_interrupt_no_frame_is_parsed_but_the_one_that_is_shown() -> None:
    """The others lie in large files: seconds in which nothing is written yet."""
    with pytest.raises(KeyboardInterrupt) as raised:
        _interrupted(20)
    whole = raised.getrepr(funcargs=True)
    outputs.LastFrame().pytest_keyboard_interrupt(raised)
    short = raised.getrepr(funcargs=True)
    assert isinstance(whole, ExceptionChainRepr)
    assert isinstance(short, ExceptionChainRepr)
    assert len(whole.chain) == 2
    [(frames, crash, _)] = short.chain
    assert len(frames.reprentries) == 1
    assert vars(crash) == vars(whole.reprcrash)


@pytest.mark.parametrize("full_trace", [False, True])
def test_a_full_trace_is_full(full_trace: bool) -> None:
    names: list[str] = []
    manager = SimpleNamespace(register=lambda plugin, name: names.append(name))
    outputs.pytest_configure(SimpleNamespace(option=SimpleNamespace(fulltrace=full_trace), pluginmanager=manager))  # type: ignore[arg-type]
    assert ("conformance-last-frame" in names) is not full_trace


@pytest.mark.usefixtures("kept")
def test_a_signal_while_reports_are_written_leaves_none_out() -> None:
    recorded: list[ConformanceFailure] = []

    def record(engine: Any, nodeid: str, failure: ConformanceFailure) -> None:
        if failure not in recorded:
            recorded.append(failure)
            os.kill(os.getpid(), signal.SIGTERM)

    def record_in_haste(engine: Any, nodeid: str, failures: list[ConformanceFailure]) -> None:
        for each in failures:
            record(engine, nodeid, each)

    failures = [_failure(number) for number in range(4)]
    stash = {ENGINE: None, RECORDER: SimpleNamespace(record=record, record_in_haste=record_in_haste)}
    with pytest.raises(KeyboardInterrupt):
        outputs._recorded(SimpleNamespace(config=SimpleNamespace(stash=stash), nodeid="test"), failures)  # type: ignore[arg-type]
    assert recorded == failures


def test_what_is_told_to_end_is_written_before_it_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To explain a large batch takes longer than whoever ends a run waits."""
    slow, first, quick = _failure(0), _failure(1), _failure(2)
    for number, each in enumerate((slow, first, quick)):
        each.finding = replace(each.finding, case=replace(CASE, max_num_tokens=1 + number))
    there: list[int] = []

    def explain(case: Case, *_: object) -> Diagnosis:
        there.append(len(list(tmp_path.glob("*.json"))))
        while case.max_num_tokens == 1:
            with suppress(Exception):  # as the diagnosis does
                time.sleep(0.01)
        return Diagnosis("window", "explained")

    monkeypatch.setattr(verdicts, "diagnose", explain)
    monkeypatch.setattr(recording, "_EXPLAINING", 0.3)
    monkeypatch.setattr(recording, "call_of", lambda *_: None)
    monkeypatch.setattr(recording, "bind", lambda *_: (None, None))
    engine: Any = SimpleNamespace(
        lane=SimpleNamespace(name="lowered", options=tuple, on_device=False),
        options=SimpleNamespace(sources={}),
        session=lambda subject: SimpleNamespace(hardware={}),
    )
    recorder = Recorder(tmp_path, 17)
    recorder.record(engine, "test", first)
    recorder.record_in_haste(engine, "test", [first, quick, slow])
    assert there == [0, 3, 3]  # that of the first was not lost, and not made again
    causes = {each.report.case.max_num_tokens: each.report.diagnosis.cause for each in recorder.recorded.values()}
    assert causes == {1: "unknown", 2: "window", 3: "window"}
    for file, each in recorder.recorded.items():
        assert json.loads(file.read_text())["diagnosis"] == each.report.diagnosis.to_json()
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def _failure(number: int) -> ConformanceFailure:
    verdict = v.compare([[0]], [[number + 1]])
    return failure_of(Finding(V1, CASE, Launch(), verdict, [[0]], [[number + 1]]), 1)


def test_what_an_interrupted_test_could_not_write_is_shown(tmp_path: Path) -> None:
    """It is not among those that failed, which pytest shows."""
    recorder = Recorder(tmp_path, 17)
    for number, problem in enumerate(("", "cannot write it", "cannot write it")):
        report = FailureReport("kernels", "v1", "lowered", f"test_{number}", CASE, Launch(), v.compare([[0]], [[1]]))
        recorder.recorded[tmp_path / str(number)] = Recorded(report, tmp_path / str(number), problem)
    _, shown, interrupted = recorder.recorded.values()
    assert outputs._only_here(recorder, [SimpleNamespace(longrepr=Shown([shown]))]) == [interrupted]
    assert json.dumps(CASE.to_json()) in "\n".join(interrupted.lines())


def test_on_a_full_disk_all_is_on_the_terminal(tmp_path: Path, wrong: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["--report-dir", str(disk / "reports"), "--corpus", str(disk / "corpus"), "--max-examples", "60"]
    options += ["--junit-xml", str(disk / "reports" / "junit.xml")]
    command = [sys.executable, "-m", "pytest", "conformance", *FEW, "--source", f"kernels={wrong}", *options]
    done = run(*on_a_disk(disk, "full", command))
    assert done.status == 1, done.tail
    full = "No space left on device"
    said = f"cannot write {disk / 'reports'}: {full}: no reports will be there, what is found is printed at the end"
    assert said in done.lines
    assert f"cannot write {disk / 'reports' / 'summary.json'}: {full}" in done.lines
    assert f"--junit-xml: cannot write {disk / 'reports' / 'junit.xml'}: {full}" in done.lines
    (line,) = [line for line in done.lines if line.startswith(f"corpus: cannot write {disk / 'corpus'}/v1-")]
    case = json.loads(line.partition("; the case: ")[2])["case"]
    assert done.lines.count(json.dumps(case)) == 1  # in the page, of which nothing is left out
    assert any(line.startswith("pytest conformance --replay failure-kernels-v1-") for line in done.lines)


def test_a_folder_that_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    assert unwritable(tmp_path / "new" / "folder") is None
    assert list((tmp_path / "new" / "folder").iterdir()) == []
    (tmp_path / "file").write_text("")
    assert unwritable(tmp_path / "file") == f"cannot write {tmp_path}/file: File exists"
