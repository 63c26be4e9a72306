"""Many machines: each does its part, all replay what any of them has found, and nothing found is lost with one of
them.
"""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

import conformance.fleet
from conformance.corpus import Corpus, text_of
from conformance.fleet import __main__ as program
from conformance.fleet import orders, rounds
from conformance.fleet.exchange import Exchange, News
from conformance.fleet.harvest import Harvest
from conformance.fleet.orders import FleetError, Lost, Order, Result
from conformance.saved import SavedCase
from conformance.subjects.launching import Settings
from reference.case import Case, Group, Launch
from reports.files import ReportError
from tests.commands import ROOT
from tests.disks import may_mount, on_a_disk
from tests.faults.catalogue import by_name, write_variant

ORDER = Order(1, 2, 3, 17, "of the suite", "this-host")
REQUIRED = "FLEET_REQUIRED"
"""The variable that says that Ray must be there: then a test without it fails and does not skip."""
_LONG = 400.0  # seconds; a cluster on a busy machine


def text(number: int) -> str:
    """The file of a failing case."""
    case = Case((0, 1), (0,), 1, 1, (Group(((number,),), 2, 2),))
    return text_of(SavedCase(Path(), case, Launch(), "", ("v1",), Settings(16, 16)))


# --- what they tell one another ---------------------------------------------------------------------------------------


def test_what_one_round_has_found_the_next_ones_replay() -> None:
    exchange = Exchange([text(0)], time.time() + 60)
    assert exchange.begin("shard 1/2, round 1", "here", 1)[0] == [text(0)]
    assert 0 < exchange.tell([text(0), text(1)]) <= 60
    assert exchange.begin("shard 2/2, round 1", "there", 2)[0] == [text(0), text(1)]
    news = exchange.news()
    assert news.cases == [text(1)]
    assert news.started == [("shard 1/2, round 1", "here", 1), ("shard 2/2, round 1", "there", 2)]
    assert exchange.news().cases == []


def test_stopped_means_that_no_time_is_left() -> None:
    exchange = Exchange([], time.time() + 60)
    exchange.stop()
    assert exchange.tell([]) <= 0


class Told:
    """An exchange for one round."""

    def __init__(self, left: float) -> None:
        self.left, self.cases = left, set[str]()

    def begin(self, name: str, host: str, process: int) -> tuple[list[str], float]:
        return [], self.left

    def tell(self, cases: Iterable[str]) -> float:
        self.cases |= set(cases)
        return self.left


def test_a_round_for_which_no_time_is_left_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("it was started"))
    order = replace(ORDER, suite=orders.suite_version())
    assert rounds.run(order, Told(0)).status is None


def test_a_round_ends_when_its_time_is_up_and_has_told_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "POLL", 0.05)
    (tmp_path / "v1-1.json").write_text(text(1))
    told = Told(0)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        assert rounds._watch(process, told, tmp_path, set(), 600)
        assert process.returncode == -signal.SIGTERM
    assert told.cases == {text(1)}


def test_what_a_killed_round_has_left_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    gone, mine = (tmp_path / f"slot-mapping-round-{number}-x" for number in (process.pid, os.getpid()))
    for folder in (gone, mine):
        folder.mkdir()
    rounds._clean_up(tmp_path)
    assert list(tmp_path.iterdir()) == [mine]


def test_a_machine_with_another_version_of_the_suite_says_so() -> None:
    with pytest.raises(FleetError, match="has another version of this project"):
        rounds.run(ORDER, Told(60))


def test_a_tree_of_kernels_is_sent_to_where_it_is_not(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name, content in {"kernels/a.py": "a = 1\n", "kernels/b.so": "binary", ".git/HEAD": "x", "b.toml": ""}.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(content)
    source = orders.source("kernels", tree)
    assert orders.is_there(source)
    orders.unpack(source.packed, tmp_path / "copy")
    copied = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*.*")}
    assert copied == {"kernels/a.py", "b.toml"}
    (tree / "kernels" / "a.py").write_text("a = 2\n")
    assert not orders.is_there(source)
    assert not orders.is_there(replace(source, path=str(tmp_path / "nowhere")))


def test_what_is_unpacked_stays_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "outside").write_text("x")
    data = orders.packed(tmp_path / "inner", [])
    assert data
    with pytest.raises(ReportError, match="cannot write"):
        orders.unpack(b"no archive", tmp_path / "there")


# --- what they bring back ---------------------------------------------------------------------------------------------


def brought(folder: Path, compared: int = 5, **fields: object) -> Result:
    """A round with a report folder, as far as merging needs one."""
    folder.mkdir()
    tally = {"cases": 5, "specializations": 1, "failures": 0}
    summary = {"schema": 1, "subject": "kernels", "lane": "lowered", "seconds": 1.0, "seed": 1, "shard": "1/2", **tally}
    lists = {"reports": [], "outside_the_contract": [], "known_failures": []}
    summary |= {"entry_points": {"kernels.v1": {**tally, "compared": compared}}, "environment": {}, **lists}
    (folder / "summary.json").write_text(json.dumps(summary))
    return Result(ORDER, "host", 0, orders.packed(folder), **fields)  # type: ignore[arg-type]


def test_reports_come_back_and_are_merged(tmp_path: Path) -> None:
    said: list[str] = []
    harvest = Harvest(tmp_path / "reports", Corpus(tmp_path / "corpus"), said.append)
    harvest.take(brought(tmp_path / "round", cases=(text(1),)))
    harvest.take(Result(ORDER, "host"))  # it had no time
    summary = harvest.finish()
    assert summary is not None
    assert (summary.cases, harvest.rounds, harvest.cases) == (5, 1, 5)
    assert (tmp_path / "reports" / "index.html").exists()
    assert not (tmp_path / "reports" / "rounds").exists()
    assert [path.read_text() for path in (tmp_path / "corpus").iterdir()] == [text(1)]
    assert said[-1] == f"corpus {tmp_path / 'corpus'}: 0 cases, 1 added"


def test_where_nothing_can_be_written_the_cases_are_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = brought(tmp_path / "round", cases=(text(1), text(2)), output="the end of it")
    said: list[str] = []
    harvest = Harvest(tmp_path / "reports", Corpus(tmp_path / "corpus"), said.append)

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "mkdir", full)
    harvest.take(result)
    harvest.finish()
    for number in (1, 2):
        line = json.dumps(json.loads(text(number)))
        assert any("No space left on device" in each and each.endswith(f"; the case: {line}") for each in said)
        assert f"a failing case: {line}" in said
    assert f"warning: cannot write {tmp_path}/reports/rounds/shard-1-round-3: No space left on device" in said


def test_a_damaged_file_of_the_corpus_is_named_and_the_rest_is_sent(tmp_path: Path) -> None:
    for number in (1, 2):
        Corpus(tmp_path).keep(text(number))
    (tmp_path / "damaged.json").write_text(text(3)[:100])
    said: list[str] = []
    harvest = Harvest(tmp_path / "reports", Corpus(tmp_path), said.append)
    assert harvest.start == sorted([text(1), text(2)])
    (line,) = said
    assert line.startswith(f"warning: corpus: {tmp_path}/damaged.json: not replayed: line 3 column")


def test_a_file_says_the_same_wherever_it_is_read(tmp_path: Path) -> None:
    Corpus(tmp_path).keep(text(1))
    assert [text_of(case) for case in Corpus(tmp_path).cases()] == [text(1)]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--minutes 0", "--minutes: 0.0 is not above 0"),
        ("--minutes nan", "--minutes: nan is not above 0"),
        ("--minutes 1 --shards 0", "--shards: 0 is not above 0"),
        ("--minutes 1 --rounds -1", "--rounds: -1 is not above 0"),
        ("--minutes 1 --source nowhere", "--source: nowhere is no folder"),
        ("--minutes 1 --known-failures nowhere", "--known-failures: nowhere: "),
        ("--minutes 1 --corpus pyproject.toml", "--corpus: pyproject.toml is no folder"),
    ],
    ids=["no-time", "no-number", "no-shards", "no-rounds", "no-tree", "no-known", "no-corpus"],
)
def test_wrong_options_are_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(words.split()) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"fleet: {message}")


# --- one round after the other ----------------------------------------------------------------------------------------


class Scripted:
    """A cluster on which the rounds end as they are told to, one after the other."""

    def __init__(self, *endings: Result | Lost) -> None:
        self.endings, self.given, self.running = list(endings), list[Order](), list[Order]()
        self.stopped = False

    def give(self, order: Order) -> None:
        self.given.append(order)
        self.running.append(order)

    def ended(self, seconds: float) -> list[Result | Lost]:
        order = self.running.pop(0)
        ending = self.endings.pop(0) if self.endings else Result(order, "host")
        return [replace(ending, order=order)]

    def news(self, found: Iterable[str]) -> News:
        return News()

    def stop(self) -> None:
        self.stopped = True

    def give_up(self) -> list[Lost]:
        return []


def fleet(words: str, cluster: Scripted, folder: Path, said: list[str] | None = None) -> int:
    """The exit status of a fleet with these options on this cluster."""
    options, rest = program._parser().parse_known_args(words.split())
    started = program.Fleet(options, rest)
    harvest = Harvest(folder / "reports", None, (said if said is not None else []).append)
    interrupted = started.go_on(cluster, harvest, options.shards or 1)
    return started.status(harvest.finish(), harvest, interrupted)


def seeds(cluster: Scripted) -> list[tuple[int, int, int]]:
    return [(order.shard, order.round, order.seed) for order in cluster.given]


def test_rounds_follow_each_other_with_another_seed_each(tmp_path: Path) -> None:
    good = brought(tmp_path / "round")
    cluster = Scripted(good, good, good, good)
    assert fleet("--minutes 5 --shards 2 --rounds 2 --hypothesis-seed 7", cluster, tmp_path) == 0
    assert seeds(cluster) == [(1, 1, 7), (2, 1, 7), (1, 2, 8), (2, 2, 8)]
    assert cluster.stopped


def test_a_round_that_brings_nothing_back_is_given_again(tmp_path: Path) -> None:
    cluster = Scripted(Lost(ORDER, "a reason"), brought(tmp_path / "round"))
    assert fleet("--minutes 5 --rounds 1 --hypothesis-seed 7", cluster, tmp_path) == 0
    assert seeds(cluster) == [(1, 1, 7), (1, 1, 7)]


def test_one_that_never_does_is_given_up(tmp_path: Path) -> None:
    cluster = Scripted(*[Lost(ORDER, "a reason")] * 9)
    assert fleet("--minutes 5 --rounds 1 --hypothesis-seed 7", cluster, tmp_path) == 1
    assert seeds(cluster) == [(1, 1, 7)] * 4


@pytest.mark.parametrize("status", [3, 4, 5])
def test_what_would_be_the_same_again_is_not_given_again(status: int, tmp_path: Path) -> None:
    cluster, said = Scripted(replace(brought(tmp_path / "round"), status=status, output="the end of it")), list[str]()
    assert fleet("--minutes 5", cluster, tmp_path, said) == status
    assert len(cluster.given) == 1
    assert said[:2] == [f"shard 1/1, round 1 on host ended with status {status}:", "  the end of it"]


def test_a_shard_without_a_test_does_not_end_the_others(tmp_path: Path) -> None:
    good, empty = brought(tmp_path / "good"), replace(brought(tmp_path / "empty"), status=5, reports=b"")
    cluster = Scripted(empty, good, good)
    assert fleet("--minutes 5 --shards 2 --rounds 2 --hypothesis-seed 7", cluster, tmp_path) == 0
    assert seeds(cluster) == [(1, 1, 7), (2, 1, 7), (2, 2, 8)]
    assert fleet("--minutes 5 --shards 2", Scripted(empty, empty), tmp_path / "none") == 5


@pytest.mark.parametrize(
    ("status", "stopped", "wrong"),
    [
        (-9, False, "status -9, SIGKILL"),
        (-11, False, "status -11, SIGSEGV"),
        (2, False, "status 2"),
        (-9, True, "status -9, SIGKILL"),
        (137, False, "status 137"),
        (-15, True, ""),
        (2, True, ""),
    ],
)
@pytest.mark.parametrize("rounds", [1, 2], ids=["its-only-round", "the-next-is-good"])
def test_a_round_that_did_not_end_as_a_run_does_is_no_success(
    status: int, stopped: bool, wrong: str, rounds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = brought(tmp_path / "round")
    cluster = Scripted(good, replace(good, status=status, stopped=stopped, reports=b""), good, good)
    assert fleet(f"--minutes 5 --shards 2 --rounds {rounds}", cluster, tmp_path) == int(bool(wrong) or rounds == 1)
    lines = [f"shard 2/2, round 1 on host ended with {wrong}"] if wrong else []
    lines += ["shard 2/2: there is no report of any round"] if rounds == 1 else []
    fails = [line for line in capsys.readouterr().out.splitlines() if line.endswith(", so this fleet fails")]
    assert fails == [f"{line}, so this fleet fails" for line in lines]


def test_a_round_that_was_stopped_counts_with_its_report(tmp_path: Path) -> None:
    cluster = Scripted(replace(brought(tmp_path / "round"), status=2, stopped=True))
    assert fleet("--minutes 5 --rounds 1", cluster, tmp_path) == 0


def test_a_shard_that_was_given_up_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class GivenUp(Scripted):
        def give_up(self) -> list[Lost]:
            return [Lost(replace(ORDER, shard=1), "it did not end in time")]

    good, lost = brought(tmp_path / "round"), Lost(ORDER, "another version of this project")
    cluster = Scripted(good, lost, good, *[lost] * 9)
    assert fleet("--minutes 5 --shards 2 --rounds 2", cluster, tmp_path / "lost") == 1
    out = capsys.readouterr().out.splitlines()
    assert "shard 2/2: there is no report of any round, so this fleet fails" in out
    assert "shard 2/2, round 1 brought nothing back, so this fleet fails" in out
    assert fleet("--minutes 5 --rounds 1", GivenUp(good), tmp_path / "late") == 1
    assert "shard 1/2, round 3 brought nothing back, so this fleet fails" in capsys.readouterr().out.splitlines()


def test_what_is_required_is_meant_as_a_run_means_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bare name of every subject, and only what left an output that could be compared."""
    two = "--minutes 5 --rounds 1 --subject kernels --subject vllm-ascend --require "
    assert fleet(two + "v1", Scripted(brought(tmp_path / "a")), tmp_path / "bare") == 1
    assert "--require v1: ran no case, so this fleet fails" in capsys.readouterr().out.splitlines()
    assert fleet(two + "kernels.v1", Scripted(brought(tmp_path / "b")), tmp_path / "named") == 0
    nothing = Scripted(brought(tmp_path / "c", compared=0))
    assert fleet("--minutes 5 --rounds 1 --require v1", nothing, tmp_path / "nothing") == 1
    said = "--require v1: left no output that could be compared, so this fleet fails"
    assert said in capsys.readouterr().out.splitlines()


def test_a_name_that_nobody_has_is_refused_at_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main("--minutes 5 --require v1,nosuch".split()) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fleet: --require nosuch: no such entry point; this run has kernels.v1, ")


def test_the_status_says_what_failed(tmp_path: Path) -> None:
    found = Scripted(brought(tmp_path / "a", cases=(text(1),)))
    assert fleet("--minutes 5 --rounds 1", found, tmp_path / "found") == 1
    missing = Scripted(brought(tmp_path / "b"))
    assert fleet("--minutes 5 --rounds 1 --require v1,v2", missing, tmp_path / "missing") == 1
    there = Scripted(brought(tmp_path / "c"))
    assert fleet("--minutes 5 --rounds 1 --require kernels.v1,v1", there, tmp_path / "there") == 0
    assert fleet("--minutes 5 --rounds 1", Scripted(), tmp_path / "nothing") == 1


def test_no_round_is_started_when_the_time_is_nearly_up(tmp_path: Path) -> None:
    cluster = Scripted(brought(tmp_path / "round"))
    assert fleet("--minutes 0.05", cluster, tmp_path) == 0
    assert len(cluster.given) == 1


def test_interrupted_it_waits_for_what_the_rounds_bring(tmp_path: Path) -> None:
    class Interrupted(Scripted):
        def ended(self, seconds: float) -> list[Result | Lost]:
            if not self.stopped:
                raise KeyboardInterrupt
            return super().ended(seconds)

    cluster = Interrupted(brought(tmp_path / "round", cases=(text(1),)))
    assert fleet("--minutes 5", cluster, tmp_path) == 2
    assert json.loads((tmp_path / "reports" / "summary.json").read_text())["cases"] == 5


def test_a_cluster_that_breaks_costs_nothing_that_it_has_brought(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Breaking(Scripted):
        resource = "CPU"

        def devices(self) -> int:
            return 1

        def ended(self, seconds: float) -> list[Result | Lost]:
            if not self.endings:
                raise ConnectionError("it is gone\nfor good")
            return super().ended(seconds)

    cluster = Breaking(brought(tmp_path / "round"))
    module = SimpleNamespace(connected=lambda address: nullcontext(), Cluster=lambda *_: cluster)
    monkeypatch.setattr(conformance.fleet, "cluster", module, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    assert program.main(["--minutes", "5", "--report-dir", str(tmp_path / "reports")]) == 3
    assert signal.getsignal(signal.SIGTERM) == before
    assert "warning: this fleet ends here: ConnectionError: it is gone for good" in capsys.readouterr().out.splitlines()
    assert json.loads((tmp_path / "reports" / "summary.json").read_text())["cases"] == 5


# --- a cluster --------------------------------------------------------------------------------------------------------


class Running:
    """A fleet in a process of its own, on a cluster of this machine alone."""

    def __init__(self, folder: Path, command: list[str]) -> None:
        self._output = folder / "output"
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "RAY_"))}
        # Ray keeps what it needs in the home directory.
        environment |= {"RAY_USAGE_STATS_ENABLED": "0", "HOME": str(folder)}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def lines(self) -> list[str]:
        return self._output.read_text(encoding="utf-8", errors="replace").splitlines()

    def wait_for(self, words: str) -> str:
        """The first line with these words in it."""
        deadline = time.monotonic() + _LONG
        while True:
            for line in self.lines:
                if words in line:
                    return line
            assert self.process.poll() is None, "\n".join(self.lines)
            assert time.monotonic() < deadline, "\n".join(self.lines)
            time.sleep(0.05)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], int]:
    """A fleet on wrong kernels, whose corpus is on a full disk and has a damaged file in it, and which loses a worker:
    its folder, what it printed, and its exit status.
    """
    if importlib.util.find_spec("ray") is None:
        if os.environ.get(REQUIRED):
            pytest.fail("Ray is not installed: make environment-fleet")
        pytest.skip("Ray is not installed (make environment-fleet)")
    folder = tmp_path_factory.mktemp("fleet")
    wrong = write_variant(by_name("row-end-unguarded"), folder / "wrong")
    (folder / "corpus").mkdir()
    (folder / "corpus" / "damaged.json").write_text(text(1)[:100])
    command = [sys.executable, "-m", "conformance.fleet", "--minutes", "60", "--shards", "2", "--rounds", "1"]
    command += ["--source", str(wrong), "--corpus", str(folder / "corpus"), "--report-dir", str(folder / "reports")]
    command += ["-k", "test_plain_slots or corpus", "--compile-budget", "4", "--max-examples", "60"]
    fleet = Running(folder, on_a_disk(folder / "corpus", "full", command) if may_mount() else command)
    try:
        process = int(fleet.wait_for("shard 1/2, round 1 begins on").rpartition(" ")[2])
        os.kill(process, signal.SIGKILL)
        status = fleet.process.wait(_LONG)
    finally:
        fleet.process.terminate()
        fleet.process.wait(_LONG)
    return folder, fleet.lines, status


def test_a_fleet_finds_the_fault_and_reports_it_once(ended: tuple[Path, list[str], int]) -> None:
    folder, lines, status = ended
    assert status == 1, "\n".join(lines)
    summary = json.loads((folder / "reports" / "summary.json").read_text())
    assert (summary["failures"], len(summary["reports"])) == (1, 1)
    assert sorted(run["shard"] for run in summary["runs"]) == ["1/2", "2/2"]
    report = json.loads(Path(summary["reports"][0]).read_text())
    assert report["diagnosis"]["cause"] == "out of bounds read past"
    assert (folder / "reports" / "index.html").exists()


def test_the_shard_of_a_lost_worker_is_run_again(ended: tuple[Path, list[str], int]) -> None:
    _, lines, _ = ended
    begun = [line for line in lines if line.startswith("shard 1/2, round 1 begins on")]
    assert [line.endswith(", once more: its worker was lost") for line in begun] == [False, True], "\n".join(lines)
    assert not any("brings nothing back" in line for line in lines)  # it is Ray that has run it again
    assert any(line.startswith("shard 1/2, round 1 on ") and ": status 1; " in line for line in lines)


def test_nothing_is_lost_with_the_corpus(ended: tuple[Path, list[str], int]) -> None:
    folder, lines, _ = ended
    damaged = f"warning: corpus: {folder}/corpus/damaged.json: not replayed: "
    assert sum(line.startswith(damaged) for line in lines) == 1
    if not may_mount():
        return
    unkept = [line for line in lines if line.startswith(f"warning: corpus: cannot write {folder}/corpus/v1-")]
    assert unkept, "\n".join(lines)
    assert all("No space left on device; the case: {" in line for line in unkept)
    (report,) = (json.loads(path.read_text()) for path in (folder / "reports").glob("failure-*.json"))
    cases = [json.loads(line.partition("; the case: ")[2]) for line in unkept]
    assert report["case"] in [case["case"] for case in cases]
