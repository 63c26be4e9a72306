"""Lane ``npu`` in its processes, with a stand-in for torch_npu: what a launch and a batch wait for, what is compiled
when, and what an error, a hang and too little memory leave.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import llvmlite
import pytest

from conformance import lanes
from conformance.engine import Engine, Options
from conformance.execution import red_zones
from conformance.execution.session import Invocation, Session, SubjectError
from conformance.subjects.binding import bind
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from reference.case import Case, Group, Launch
from reference.oracle import slot_mapping
from tests.commands import ROOT, pytest_

STAND_IN = ROOT / "tests" / "stand_in_npu"
SETTINGS = Settings(tile=16)
ONE_LAUNCH = ["copy", "launch", "copy", "synchronize"]

pytestmark = pytest.mark.skipif(
    lanes.by_name("lowered").unavailable() is not None, reason="the stand-in runs kernels as lane lowered does"
)


ERROR, HANG, NO_MEMORY = 20, 21, 22
"""Launches with that many padded tokens do so."""


def done(log: Path) -> list[str]:
    """What the stand-in has done in all processes, and has not been asked for."""
    lines = log.read_text().splitlines()
    log.write_text("")
    return lines


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What the stand-in writes down. Processes that are started meanwhile have it."""
    folder = tmp_path_factory.mktemp("npu")
    any_library = next(Path(llvmlite.__file__).parent.glob("binding/*.so"))
    (folder / "libascendcl.so").symlink_to(any_library)
    (folder / "log").touch()
    faults = [("error", ERROR, ERROR), ("hang", HANG, HANG), ("out of memory", NO_MEMORY, NO_MEMORY)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(STAND_IN))
        patch.setenv("LD_LIBRARY_PATH", str(folder))
        patch.setenv("STAND_IN_NPU_LOG", str(folder / "log"))
        patch.setenv("STAND_IN_NPU_FAULTS", json.dumps(faults))
        yield folder / "log"


@pytest.fixture(scope="module")
def opened(log: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    cache = tmp_path_factory.mktemp("cache")
    with Session(lanes.by_name("npu"), "kernels", None, cache=cache, case_timeout=60.0) as opened:
        yield opened


@pytest.fixture
def session(opened: Session, log: Path) -> Session:
    """A process that launches, its one specialization compiled, nothing noted yet."""
    assert statuses(opened, 3) == ["ok"]
    done(log)
    return opened


def case(max_num_tokens: int) -> Case:
    return Case((0, 3), (4, 5, 6), 3, max_num_tokens, (Group(((5, 3, 8, 1),), 2, 2),))


def bound(session: Session, max_num_tokens: int) -> tuple[Invocation, Launch]:
    return bind(session.entries["v1"], case(max_num_tokens), Launch(output_length=24), SETTINGS)


def statuses(session: Session, *sizes: int) -> list[str]:
    """How launches together end; those that end well have right outputs."""
    outcomes = session.launch_all([bound(session, size) for size in sizes])
    for size, outcome in zip(sizes, outcomes, strict=True):
        if outcome.status == "ok":
            (output,) = outcome.outputs.values()
            assert output[:size] == slot_mapping(case(size))[0]
    return [outcome.status for outcome in outcomes]


def test_a_launch_waits_once(session: Session, log: Path) -> None:
    invocation, launch = bound(session, 7)
    outcome = session.launch(invocation, launch.fence)
    assert outcome.status == "ok"
    assert next(iter(outcome.outputs.values()))[:7] == slot_mapping(case(7))[0]
    assert done(log) == ONE_LAUNCH
    assert session.hardware["device"] == "stand-in"


def test_the_device_launches_although_the_environment_asks_for_the_interpreter(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with Session(lanes.by_name("npu"), "kernels", None, cache=tmp_path, case_timeout=60.0) as session:
        assert statuses(session, 3) == ["ok"]
        assert session.specializations == 1
    assert "launch" in done(log)


def test_a_batch_waits_once_and_copies_once_each_way(
    session: Session, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert statuses(session, 3, 4, 5, 6, 7) == ["ok"] * 5
    assert done(log) == ["copy", *["launch"] * 5, "copy", "synchronize"]
    monkeypatch.setattr(type(session.lane), "batch", 2)
    assert statuses(session, 3, 4, 5) == ["ok"] * 3
    assert done(log) == ["copy", "launch", "launch", "copy", "synchronize", *ONE_LAUNCH]


def test_an_error_in_a_batch_is_that_of_its_launch(session: Session) -> None:
    first = session._runner_pid
    assert statuses(session, 3, 4, ERROR, 6) == ["ok", "ok", "crash", "ok"]
    assert session._runner_pid != first, "a device that has reported an error is of no use to its process"
    (outcome,) = session.launch_all([bound(session, ERROR)])
    assert outcome.message == "npu: The Inner error is reported as above. error code is 507015"


def test_a_launch_that_hangs_takes_its_process_with_it_and_no_other_launch(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "case_timeout", 4.0)
    invocation, launch = bound(session, HANG)
    outcome = session.launch(invocation, launch.fence)
    assert (outcome.status, outcome.message) == ("hang", "no answer within 4 s")
    monkeypatch.undo()
    assert statuses(session, 6) == ["ok"]


@pytest.mark.parametrize(
    ("seconds", "patience"),
    [(0.001, 0.2), (0.012, 0.6), (0.12, 1.6), (3.0, 10.0)],
    ids=["least", "50x", "1+5x", "most"],
)
def test_a_hang_is_shrunk_with_less_patience_whatever_a_first_launch_takes(
    session: Session, monkeypatch: pytest.MonkeyPatch, seconds: float, patience: float
) -> None:
    monkeypatch.setattr(session, "case_timeout", 10.0)
    monkeypatch.setattr(session, "_recent", [seconds] * 3)
    assert session._patience() == 10.0
    monkeypatch.setattr(session, "hurried", True)
    assert session._patience() == pytest.approx(patience)


def test_a_launch_without_memory_is_refused_and_the_process_goes_on(session: Session) -> None:
    first = session._runner_pid
    outcomes = session.launch_all([bound(session, size) for size in (4, NO_MEMORY, 6)])
    assert [each.status for each in outcomes] == ["ok", "raised", "ok"]
    assert outcomes[1].message.startswith("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB")
    assert session._runner_pid == first


def test_launches_that_do_not_fit_together_are_launched_apart(
    session: Session, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(red_zones, "CAPACITY", 100_000)  # on the suite's side; a launch takes 34,000
    assert statuses(session, 3, 4, 5, 6, 7) == ["ok"] * 5
    waits = done(log).count("synchronize")
    assert 1 < waits < 5
    monkeypatch.setattr(red_zones, "CAPACITY", 10_000)
    assert statuses(session, 3, 4) == ["unsupported"] * 2


def test_a_device_without_memory_for_the_buffers_ends_the_run_in_one_line(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_NPU_BYTES", "1000000")
    with (
        Session(lanes.by_name("npu"), "kernels", None, cache=tmp_path) as session,
        pytest.raises(SubjectError, match="RuntimeError: NPU out of memory"),
    ):
        session.be_ready()


def engine(cache: Path) -> Engine:
    lane = lanes.by_name("npu")
    return Engine(lane, Options(("kernels",), {}, 3, 60.0, cache, 2))


def compiled(log: Path, cache: Path) -> list[str]:
    """What a run with a budget of 3 compiles, and then finds compiled where it launches."""
    started = engine(cache)
    try:
        entry: EntryPoint = started.session("kernels").entries["v1"]
        assert started.compile(entry, lambda done, total: None) == []
        return [each for each in done(log) if "compile" in each]
    finally:
        started.close()


def test_the_budget_is_kept_and_what_was_compiled_is_found_by_the_next_run(log: Path, tmp_path: Path) -> None:
    done(log)
    assert compiled(log, tmp_path) == ["compile"] * 3
    assert (tmp_path / "npu").is_dir()
    assert compiled(log, tmp_path) == ["found compiled"] * 3


def test_a_run_on_an_npu_compiles_first_keeps_the_case_of_an_error_and_goes_on(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAND_IN_NPU_FAULTS", json.dumps([("error", 6, 2**40)]))
    finished = pytest_(
        *("conformance", "--lane", "npu", "-k", "(plain and v1 and not host) or dcp_slots", "--max-examples", "25"),
        *("--compile-budget", "3", "--report-dir", tmp_path / "reports", "--hypothesis-seed", "1"),
    )
    assert finished.status == 1, finished.tail
    compiling = next(index for index, line in enumerate(finished.lines) if "ready on lane npu after" in line)
    testing = next(index for index, line in enumerate(finished.lines) if line.startswith("conformance/test_plain.py"))
    assert compiling < testing
    assert "507015" in finished.output
    (report,) = (tmp_path / "reports").glob("failure-kernels-v1-*.json")
    saved = json.loads(report.read_text())
    assert saved["case"]["max_num_tokens"] == 6, "shrunk, with a fresh process for each launch that fails"
    assert (saved["lane"], saved["environment"]["device"]) == ("npu", "stand-in")


def test_the_npu_lane_compiles_no_more_than_48_settings_unless_it_is_told_otherwise() -> None:
    assert lanes.by_name("npu").compile_budget == 48
