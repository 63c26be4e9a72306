"""``-n N``: what a run with workers does, finds and says is what it does, finds and says without."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree as ET

import pytest

from conformance import accepted
from conformance.accepted import Outcome
from conformance.engine import Tally
from conformance.explored import Explored
from conformance.lanes import by_name
from conformance.lanes.ascend.cache import CodeCache
from conformance.recording import Recorded
from conformance.workers import order, places, results
from conformance.workers.places import Place, TooManyError
from conformance.workers.pulse import Line, Pulse, Pulses, compiling
from conformance.workers.results import Results
from reports.coverage import Coverage
from strategies.specializations import Specialization
from tests.commands import ROOT, USAGE_ERROR, Done, in_few_processes, pytest_, together
from tests.commands import run as run_
from tests.disks import on_a_disk
from tests.hostile import tree
from tests.test_coverage import CASE, LAUNCH
from tests.test_interruption import Run, run  # noqa: F401  (a fixture)
from tests.test_reports import REPORT

LOWERED, CUDA, NPU = by_name("lowered"), by_name("cuda"), by_name("npu")
CORES = sorted(os.sched_getaffinity(0))


# Places.


def test_workers_share_the_cores_and_nothing_else() -> None:
    found = places.places(LOWERED, len(CORES))
    assert sorted(core for each in found for core in each.cores) == CORES
    assert [len(each.cores) for each in found] == [1] * len(CORES)
    assert [(each.number, each.count, each.variable) for each in found] == [
        (n, len(CORES), "") for n in range(len(CORES))
    ]
    (alone,) = places.places(LOWERED, 1)
    assert list(alone.cores) == CORES
    assert alone.compile_workers == len(CORES)
    many = places.places(LOWERED, len(CORES) + 1)
    assert {each.cores for each in many} == {()}, "kept to cores although there are too few"
    assert {each.compile_workers for each in many} == {1}


@pytest.mark.parametrize(
    ("lane", "variable"), [(CUDA, "CUDA_VISIBLE_DEVICES"), (NPU, "ASCEND_RT_VISIBLE_DEVICES")], ids=["cuda", "npu"]
)
def test_each_worker_has_one_of_the_visible_devices(
    lane: object, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "3, GPU-7f,5")
    found = places.places(lane, 2)
    assert [(each.variable, each.device) for each in found] == [(variable, "3"), (variable, "GPU-7f")]
    assert places.most(lane) == 3
    there = (
        rf"-n 4: each worker needs a device of its own, and lane {lane.name} has 3 devices \({variable}=3, GPU-7f,5\)"
    )
    with pytest.raises(TooManyError, match=there):
        places.places(lane, 4)
    monkeypatch.setenv(variable, "-1")
    with pytest.raises(TooManyError, match="has 0 devices"):
        places.places(lane, 1)
    monkeypatch.delenv(variable)
    monkeypatch.setattr(type(lane.device), "module", lambda self: SimpleNamespace(device_count=lambda: 2))
    assert [each.device for each in places.places(lane, 2)] == ["0", "1"]
    with pytest.raises(TooManyError, match=rf"has 2 devices \({variable} is not set\)"):
        places.places(lane, 3)


def test_a_place_is_taken_by_the_process_and_what_it_starts(tmp_path: Path) -> None:
    place = Place(1, 2, (CORES[-1],), "CUDA_VISIBLE_DEVICES", "7")
    assert Place.from_json(json.loads(json.dumps(place.to_json()))) == place
    script = (
        "import json, os, subprocess, sys; from conformance.workers.places import Place\n"
        "Place.from_json(json.loads(sys.argv[1])).take()\n"
        "inside = 'import os; print(sorted(os.sched_getaffinity(0)), os.environ[\"CUDA_VISIBLE_DEVICES\"])'\n"
        "subprocess.run([sys.executable, '-c', inside])"
    )
    command = [sys.executable, "-c", script, json.dumps(place.to_json())]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == f"[{CORES[-1]}] 7\n", done.stderr


# What is compiled is compiled once.


def test_each_worker_compiles_its_part_of_every_pool() -> None:
    parts = [each.part for each in places.places(LOWERED, 3)]
    assert [[part.has(number) for part in parts].count(True) for number in range(7)] == [1] * 7


def test_two_processes_are_never_alone_with_the_same_key_at_once(tmp_path: Path) -> None:
    """And they may be with different ones, one inside the other."""
    keys = [CodeCache(tmp_path, "").key(name) for name in "ab"]
    inner = CodeCache(tmp_path, "")
    with inner.alone(keys[0]):
        child = os.fork()
        if child == 0:
            with CodeCache(tmp_path, "").alone(keys[1]):
                (tmp_path / "other").touch()
            with CodeCache(tmp_path, "").alone(keys[0]):
                status = 0 if (tmp_path / "left").exists() else 1
            os._exit(status)
        while not (tmp_path / "other").exists():
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
        with inner.alone(keys[1]):
            (tmp_path / "left").touch()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_key_is_free_again_when_its_process_was_killed(tmp_path: Path) -> None:
    cache = CodeCache(tmp_path, "")
    child = os.fork()
    if child == 0:
        with cache.alone(cache.key(1)):
            (tmp_path / "held").touch()
            signal.pause()
    while not (tmp_path / "held").exists():
        assert os.waitpid(child, os.WNOHANG) == (0, 0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with cache.alone(cache.key(1)):
        pass


def test_where_a_folder_has_no_locks_everybody_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "lockf", refuses)
    cache = CodeCache(tmp_path, "")
    with cache.alone(cache.key(1)):
        cache.store(cache.key(1), b"code")
    assert cache.load(cache.key(1)) == b"code"


# What workers tell.


def told(**fields: object) -> Results:
    made = Results()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def tally(cases: int, compared: int, *specializations: str) -> Tally:
    return Tally(cases, compared, set(specializations), Counter({"pass": compared}))


def test_results_are_added_and_the_same_failure_is_one(tmp_path: Path) -> None:
    first, second = Coverage(), Coverage()
    first.of("kernels.v1").count(CASE, LAUNCH, 0.25)
    second.of("kernels.v1").count(CASE, LAUNCH, 0.5)
    second.of("kernels.v1").count_compiled(CASE, LAUNCH)
    lost, kept = Recorded(REPORT, Path("f.json"), "disk full"), Recorded(REPORT, Path("f.json"))
    other = Recorded(replace(REPORT, seed=1), Path("g.json"))
    one = told(
        tallies={"kernels.v1": tally(3, 2, "a", "b")},
        coverage=first,
        recorded={lost.file: lost, other.file: other},
        met=Counter({"here": 1}),
        drawn={"kernels.v1": Counter({Specialization(16): 2}), "kernels.v2": Counter()},
        outcomes={"here": Outcome(accepted.NOT_RUN), "there": Outcome(accepted.FIXED)},
        tested={"kernels"},
        vanished=["gone"],
        said={"kernels.v1": "first", "x": "x"},
    )
    two = told(
        tallies={"kernels.v1": tally(4, 4, "b"), "kernels.v2": tally(1, 1, "c")},
        coverage=second,
        recorded={kept.file: kept},
        met=Counter({"here": 2}),
        drawn={"kernels.v1": Counter({Specialization(16): 3, Specialization(3): 1})},
        outcomes={"here": Outcome(accepted.STILL_FAILS), "there": Outcome(accepted.STILL_FAILS)},
        concerned={"vllm"},
        vanished=["gone"],
        said={"kernels.v1": "second"},
    )
    one.write(tmp_path / "gw0.results")
    two.write(tmp_path / "gw10.results")
    (tmp_path / "gw1.part").write_bytes(b"half")
    total = results.together(results.read(tmp_path))
    assert total.tallies == {"kernels.v1": tally(7, 6, "a", "b"), "kernels.v2": tally(1, 1, "c")}
    counted = total.coverage.to_json()["entry_points"]["kernels.v1"]  # type: ignore[index]
    assert (counted["cases"], counted["seconds"]["launch"], counted["shapes"]["mixed"]) == (2, 0.75, 2)
    assert {file: each.problem for file, each in total.recorded.items()} == {kept.file: "", other.file: ""}
    assert total.met == Counter({"here": 3})
    assert total.drawn == {"kernels.v1": {Specialization(16): 5, Specialization(3): 1}, "kernels.v2": {}}
    assert {where: each.status for where, each in total.outcomes.items()} == {
        "here": accepted.STILL_FAILS,
        "there": accepted.FIXED,
    }
    assert (total.tested, total.concerned, total.vanished) == ({"kernels"}, {"vllm"}, ["gone"])
    assert total.said == {"kernels.v1": "first", "x": "x"}


def test_results_that_cannot_be_replaced_stay_whole(tmp_path: Path) -> None:
    file = tmp_path / "gw0.results"
    told(tests=1).write(file)
    file.with_suffix(".part").mkdir()
    with pytest.raises(OSError, match="part"):
        told(tests=2).write(file)
    (found,) = results.read(tmp_path)
    assert found.tests == 1
    assert results.read_one(tmp_path / "nothing") is None


def test_the_longest_tests_start_first_and_known_cases_before_them() -> None:
    def item(path: str, weight: int, *features: str) -> SimpleNamespace:
        return SimpleNamespace(path=Path(path), weight=weight, features=features)

    items = [item("test_plain.py", 100), item("test_known.py", 1), item("test_fused.py", 100, "groups")]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(order, "weight_of", lambda item: item.weight)
        patched.setattr(order, "draws", lambda item: True)
        entry = SimpleNamespace
        patched.setattr(order, "target_of", lambda item: entry(entry=entry(declaration=entry(features=item.features))))
        assert [each.path.stem for each in sorted(items, key=order.cost, reverse=True)] == [
            "test_known",
            "test_fused",
            "test_plain",
        ]


def test_the_live_line_is_of_all_workers(tmp_path: Path) -> None:
    one = Pulse(100, 90, 10, 400, ["v1 a", "v1 b"], ["f.json"], 5, 5, "test_a")
    two = Pulse(50, 45, 0, 400, ["v1 b"], ["f.json", "g.json"], 3, 7, "test_b")
    assert compiling([one, two]) == f"compiling [{'#' * 20}{'.' * 10}] 8/12"
    for name, pulse in (("gw0", one), ("gw1", two)):
        made = Pulses(tmp_path / f"{name}.pulse", lambda pulse=pulse: pulse)
        made.start()
        while not (tmp_path / f"{name}.pulse").exists():
            pass
        made.stop()
    line = Line(tmp_path, 2)
    assert line() == compiling([one, two])
    line.started = 0.0
    pattern = r"150 cases, 0/s, specializations 2, failures 2, [0-9,]+ (s|min) left: gw0 test_a, gw1 test_b"
    assert re.fullmatch(pattern, line())


# Whole runs.

CHOSEN = ("conformance", "-k", "test_plain_slots or test_dcp_slots_exist", "--compile-budget", "2")
DRAWING = (*CHOSEN, "--max-examples", "30", "--hypothesis-seed", "3")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Done]]:
    """The same run of two wrong functions without workers and with two; what --require asks for is not all there."""
    folder = tmp_path_factory.mktemp("both")
    source = tree(folder / "source", host="slot_mapping.fill_(-77)", kernel="tl.store(slot_mapping_ptr, 5)")
    words = [*DRAWING, "--source", source, "--require", "v2,dcp"]
    commands = []
    for number in ("0", "2"):
        written = ["--junit-xml", folder / f"{number}.xml", "--write-known-failures", folder / f"{number}.toml"]
        written += ["-p", "conformance.exploring", "--explored", folder / f"{number}.json", "--compile-budget", "3"]
        commands.append([*words, "-n", number, "--report-dir", folder / number, *written])
    return folder, together(commands)


def plain(text: str, folder: Path) -> list[str]:
    """The lines that do not hang on time, folder and order. How far it has come, a run says after 30 s."""
    text = re.sub(rf"{re.escape(str(folder))}/[02]\b", "FOLDER", text)
    lines = (line for line in text.splitlines() if not re.match(r"[0-9,]+ cases, [0-9,.]+/s, ", line))
    return sorted(re.sub(r"[0-9.]+ s\b", "TIME", line) for line in lines)


def test_workers_find_and_say_what_one_process_does(both: tuple[Path, list[Done]]) -> None:
    folder, (alone, two) = both
    assert alone.status == two.status == pytest.ExitCode.TESTS_FAILED, two.output
    said = [
        [line for line in plain(done.output, folder) if "kernels" in line and not line.startswith("conformance/test_")]
        for done in (alone, two)
    ]
    assert said[0] == said[1]
    assert any(line.startswith("--require v2: ran no case") for line in two.lines)
    assert "2 failures, 2 unexplained (in 2 tests)" in two.lines
    assert two.lines[-1].strip("= ").startswith("2 failed in ")
    names = [{path.name for path in (folder / number).iterdir()} for number in "02"]
    assert names[0] == names[1]
    summaries = [json.loads((folder / number / "summary.json").read_text()) for number in "02"]
    for each in summaries:
        assert len(each["reports"]) == 2
        for name in ("seconds", "seconds_total", "reports"):
            del each[name]
    assert summaries[0] == summaries[1]
    counted = [json.loads((folder / number / "coverage.json").read_text())["entry_points"] for number in "02"]
    for each in counted:
        for entry in each.values():
            del entry["seconds"]
    assert counted[0] == counted[1]
    known = [sorted(map(str.strip, (folder / f"{number}.toml").read_text().split("\n\n"))) for number in "02"]
    assert known[0] == known[1]
    explored = [Explored(folder / f"{number}.json") for number in "02"]
    for file in explored:
        file.read()
    assert explored[0].drawn == explored[1].drawn
    assert sum(explored[0].drawn["kernels.v1"].values()) > 10
    assert explored[0].spaces == explored[1].spaces
    properties = [
        sorted(
            re.sub(rf"{re.escape(str(folder))}/[02]\b", "FOLDER", str(each.get("value")))
            for each in ET.parse(folder / f"{number}.xml").iter("property")
            if each.get("name") in ("report", "cause", "replay")
        )
        for number in "02"
    ]
    assert properties[0] == properties[1]
    assert len(properties[0]) == 6


def test_known_failures_are_known_to_every_worker(both: tuple[Path, list[Done]], tmp_path: Path) -> None:
    """And one that no longer fails makes the run red, wherever it was found."""
    folder, _ = both
    known, source = tmp_path / "known.toml", tmp_path / "source"
    known.write_text((folder / "2.toml").read_text().replace('reason = ""', 'reason = "why"'))
    shutil.copytree(folder / "source", source)
    shutil.copy(ROOT / "kernels" / "slot_mapping.py", source / "kernels")  # v1 is right again
    words = ["-n", "2", "--known-failures", known, "--strict-known", "--report-dir", tmp_path / "reports"]
    done = pytest_("conformance", "-k", "test_known_failure", *words, "--source", source)
    assert done.status == pytest.ExitCode.TESTS_FAILED, done.output
    (still,) = (line for line in done.lines if line.startswith("known failure still fails: "))
    assert still.startswith("known failure still fails: kernels.dcp: mismatch")
    (strict,) = (line for line in done.lines if line.startswith("--strict-known: "))
    assert strict.startswith("--strict-known: kernels.v1: mismatch")
    summary = json.loads((tmp_path / "reports" / "summary.json").read_text())
    assert summary["failures"] == 0, done.output
    assert {each["entry_point"]: each["status"] for each in summary["known_failures"]} == {
        "kernels.dcp": accepted.STILL_FAILS,
        "kernels.v1": accepted.FIXED,
    }


def test_what_is_refused_is_refused_in_one_line(tmp_path: Path) -> None:
    """By the controller, or by a worker that knows what there is."""
    refused = {
        ("-n", "2", "--lane", "npu"): "ERROR: --lane npu: ",
        ("-n", "-1"): "ERROR: -n: -1 workers are none",
        ("--tx", "ssh=somewhere", "-d"): "ERROR: --tx ssh=somewhere: workers run on this machine",
    }
    answers = in_few_processes([[*CHOSEN, *words, "--report-dir", tmp_path] for words in refused])
    answers.append(pytest_(*CHOSEN, "-n", "2", "--require", "nothing", "--report-dir", tmp_path))
    messages = [*refused.values(), "ERROR: --require nothing: no such entry point; this run has kernels.v1, "]
    for done, message in zip(answers, messages, strict=True):
        assert done.status == USAGE_ERROR, done.output
        (said,) = (line for line in done.lines if line.startswith("ERROR: "))
        assert said.startswith(message), done.output
    assert not list(tmp_path.iterdir())


WRONG = "slot_mapping.fill_(-77)"


@pytest.mark.parametrize("host", [None, WRONG], ids=["right", "wrong"])
def test_what_workers_cannot_tell_makes_the_run_fail(tmp_path: Path, host: str | None) -> None:
    """Also where nothing else is wrong: without what they did nobody knows. Nor does anybody that it was not done."""
    source = ("--source", tree(tmp_path / "source", host=host)) if host else ()
    known = tmp_path / "known.toml"
    words = ("-k", "test_dcp_slots_exist", "--max-examples", "30", "-n", "1", "--require", "dcp")
    written = ("--report-dir", tmp_path / "reports", "--write-known-failures", known, *source)
    done = pytest_("conformance", *words, *written, "-p", "tests.full_workers")
    assert done.status == pytest.ExitCode.TESTS_FAILED, done.output
    begun = "-n: not all that worker gw0 did and found is counted here, so this run fails: cannot write "
    (lost,) = (line for line in done.lines if line.startswith(begun))
    assert lost.endswith("gw0.results: No space left on device")
    assert not [line for line in done.lines if line.startswith("--require") or "every test was skipped" in line]
    assert "--write-known-failures: not written: not all that was found is known" in done.lines
    assert not known.exists()
    assert len(json.loads((tmp_path / "reports" / "summary.json").read_text())["reports"]) == (host is not None)


def test_a_disk_without_room_for_what_workers_tell_first_is_refused(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ("-k", "test_dcp_slots_exist", "-n", "1", "--report-dir", str(tmp_path / "reports"))
    command = ["env", f"TMPDIR={disk}", sys.executable, "-m", "pytest", "conformance", *words]
    done = run_(*on_a_disk(disk, "small", command))
    assert done.status == USAGE_ERROR, done.output
    (said,) = (line for line in done.lines if line.startswith("ERROR: "))
    assert re.fullmatch(r"ERROR: -n: cannot write .*/gw0\.results: No space left on device", said)


def test_a_run_that_is_ended_reports_what_its_workers_have_found(run: Callable[..., Run], tmp_path: Path) -> None:  # noqa: F811
    """SIGTERM, with which a job is cancelled, reaches the controller alone."""
    always_wrong = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end:\n    pass\n"
    source = tree(tmp_path / "source", host=f"{always_wrong}slot_mapping.fill_(-77)")
    words = ("conformance/test_dcp.py", "conformance/test_draft.py", "-k", "dcp_slots or draft_slots")
    one = run(*words, "--source", source, "--max-examples", "100000", "-n", "2", "-p", "tests.patient_workers")
    one.wait_until(lambda: len(one.runners()) == 2 and all(used >= 0.5 for used in one.runners().values()))
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(200) == pytest.ExitCode.INTERRUPTED, one.output
    assert one.gone_after(20), one.processes()
    summary = json.loads((one.reports / "summary.json").read_text())
    assert summary["failures"] == 1, one.output
    assert {name for name, each in summary["entry_points"].items() if each["cases"]} == {"kernels.dcp", "kernels.draft"}
    assert f"report: {Path(summary['reports'][0]).with_suffix('.md')}" in one.output.splitlines()
    assert (one.reports / "index.html").exists()
