"""What somebody types: the options do what they say; what is wrong ends in one line and status 4, not in a trace."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import lanes
from reference.case import Case, Group
from tests.commands import USAGE_ERROR, Done, in_few_processes, pytest_
from tests.faults.catalogue import DCP, Fault, by_name, write_variant

ROOT = Path(__file__).parents[1]
BROKEN = Path(__file__).parent / "data" / "broken"
CASE = Case((0, 3), (0, 1, 2), 3, 5, (Group(((4, 2),), 2, 2),))
SOURCES = {
    "not-python": ("def compute_dcp_slot_mapping(", "def ("),
    "unknown-parameter": (
        "    cp_interleave: int,\n    pad_id",
        "    cp_interleave: int,\n    warp_count: int,\n    pad_id",
    ),
    "endless": ("    output = slot_mapping[:num_tokens]\n", "    while True:\n        pass\n"),
}


def test_a_run_stands_beside_plugins_that_warn(tmp_path: Path) -> None:
    """pytest-benchmark warns while pytest is configured as soon as there are workers."""
    (tmp_path / "warns.py").write_text("import warnings\ndef pytest_configure():\n    warnings.warn('no benchmarks')\n")
    paths = {"PYTHONPATH": str(tmp_path)}
    done = pytest_("-p", "warns", "conformance/test_plain.py", "--collect-only", "-n", "2", variables=paths)
    assert done.status == 0, done.tail
    assert "no benchmarks" in done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty source, wrong ones, and cases that fit nobody."""
    folder = tmp_path_factory.mktemp("command-line")
    (folder / "empty").mkdir()
    for name, replacement in SOURCES.items():
        write_variant(Fault(name, "source", "for a test of the command line", DCP, (replacement,), ()), folder / name)
    for name, whom in {"nobody": {"entry_points": ["no-such"]}, "other": {"subject": "vllm-ascend"}}.items():
        (folder / f"{name}.json").write_text(json.dumps({"case": CASE.to_json(), **whom}))
    (folder / "case.json").write_text(json.dumps(CASE.to_json()))
    return folder


def other_lane() -> str:
    return next(name for name in lanes.names() if lanes.by_name(name).unavailable() is not None)


# Arguments, and how the line goes on after "ERROR: ". {folder} is the folder above.
USAGE_ERRORS = {
    "subject": ("--subject nope", "--subject: unknown subject 'nope', choose among kernels, vllm-ascend"),
    "lane": ("--lane nope", "--lane: unknown lane 'nope': choose one of auto, npu, cuda, lowered, hivm, interpreter"),
    "lane-not-here": ("--lane {other_lane}", "--lane {other_lane}: "),
    "profile": ("--hypothesis-profile nope", "--hypothesis-profile: unknown profile 'nope', choose among quick, gate"),
    "no-examples": ("--max-examples 0", "--max-examples: 0 is not above 0"),
    "no-compilations": ("--compile-budget -3", "--compile-budget: -3 is not above 0"),
    "no-time": ("--case-timeout 0", "--case-timeout: 0.0 is not above 0"),
    "time-that-is-no-number": ("--case-timeout nan", "--case-timeout: nan is not above 0"),
    "endless-time": ("--case-timeout inf", "--case-timeout: inf is above 86400 seconds, a day"),
    "source-empty": ("--source ''", "--source: it is empty; is a variable not set?"),
    "source-of-a-subject-empty": ("--source kernels=", "--source: it is empty; is a variable not set?"),
    "require-empty": ("--require ''", "--require: it is empty; is a variable not set?"),
    "require-nothing": ("--require ,", "--require: ',' names no entry point"),
    "corpus-empty": ("--corpus ''", "--corpus: it is empty; is a variable not set?"),
    "known-failures-empty": ("--known-failures ''", "--known-failures: it is empty; is a variable not set?"),
    "list-empty": ("--write-known-failures ''", "--write-known-failures: it is empty; is a variable not set?"),
    "replay-empty": ("--replay ''", "--replay: it is empty; is a variable not set?"),
    "profile-of-hypothesis": (
        "--hypothesis-profile default",
        "--hypothesis-profile: unknown profile 'default', choose",
    ),
    "seed-of-another-script": ("--hypothesis-seed ²", "--hypothesis-seed: '²' is no integer"),
    "seed-with-two-signs": ("--hypothesis-seed=--5", "--hypothesis-seed: '--5' is no integer"),
    "source-missing": ("--source kernels={folder}/none", "--source: {folder}/none does not exist"),
    "source-of-nobody": (
        "--source vllm-ascend={folder}",
        "--source: 'vllm-ascend' is not a subject of this run (kernels)",
    ),
    "source-of-which": (
        "--subject kernels --subject vllm-ascend --source {folder}",
        "--source {folder}: with several subjects write --source NAME=PATH",
    ),
    "source-without-kernels": (
        "--source kernels={folder}/empty",
        "subject 'kernels' cannot be loaded on lane '{lane}': FileNotFoundError: {folder}/empty holds no package "
        "kernels",
    ),
    "source-without-vllm-ascend": (
        "--subject vllm-ascend --source vllm-ascend={folder}/empty",
        "subject 'vllm-ascend' cannot be loaded on lane '{lane}': FileNotFoundError: {folder}/empty holds no folder "
        "vllm_ascend",
    ),
    "source-not-python": (
        "--source kernels={folder}/not-python",
        "subject 'kernels' cannot be loaded on lane '{lane}': SyntaxError: invalid syntax (torch_dcp.py, line ",
    ),
    "parameter": (
        "--source kernels={folder}/unknown-parameter",
        "compute_dcp_slot_mapping has a parameter 'warp_count' that the suite does not know "
        "({folder}/unknown-parameter/kernels/torch_dcp.py:",
    ),
    "replay-missing": ("--replay {folder}/none.json", "--replay: {folder}/none.json: No such file or directory"),
    "replay-not-json": ("--replay {broken}/truncated.json", "--replay: {broken}/truncated.json: line "),
    "replay-not-legal": (
        "--replay {broken}/clause_rank_range.json",
        "--replay: {broken}/clause_rank_range.json: rank-range: rank ",
    ),
    "replay-for-nobody": (
        "--replay {folder}/nobody.json",
        "--replay: {folder}/nobody.json: concerns any subject.no-such, and this run has kernels.v1, ",
    ),
    "replay-for-another": (
        "--replay {folder}/other.json",
        "--replay: {folder}/other.json: concerns vllm-ascend, and this run has kernels.v1, ",
    ),
}


@pytest.fixture(scope="module")
def refused(folder: Path) -> dict[str, tuple[Done, str]]:
    """Every wrong command line: what came of it, and how its line must begin."""
    given = {"folder": folder, "broken": BROKEN, "lane": lanes.automatic().name, "other_lane": other_lane()}
    reports = ("--report-dir", folder / "refused")
    typed = [shlex.split(arguments.format(**given)) for arguments, _ in USAGE_ERRORS.values()]
    messages = [message.format(**given) for _, message in USAGE_ERRORS.values()]
    done = in_few_processes([("conformance", *arguments, *reports) for arguments in typed])
    return dict(zip(USAGE_ERRORS, zip(done, messages, strict=True), strict=True))


@pytest.mark.parametrize("name", USAGE_ERRORS)
def test_what_is_wrong_is_said_in_one_line(name: str, refused: dict[str, tuple[Done, str]]) -> None:
    done, message = refused[name]
    assert done.status == USAGE_ERROR, done.tail
    errors = [line for line in done.lines if line.startswith("ERROR")]
    assert [error[: len("ERROR: " + message)] for error in errors] == [f"ERROR: {message}"]
    assert "Traceback" not in done.output
    assert not re.search(r"^(INTERNALERROR|E  )", done.output, re.MULTILINE)
    assert len(done.lines) <= 10


def test_a_run_that_was_refused_leaves_no_summary(folder: Path, refused: dict[str, tuple[Done, str]]) -> None:
    assert refused
    assert not (folder / "refused").exists()


def test_a_word_for_a_number_is_named_with_its_option() -> None:
    options = ("--max-examples", "--compile-budget", "--case-timeout")
    for option, done in zip(
        options, in_few_processes([("conformance", option, "many") for option in options]), strict=True
    ):
        assert done.status == USAGE_ERROR
        assert f"argument {option}: invalid " in done.output
        assert "Traceback" not in done.output


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text(encoding="utf-8"))


def test_max_examples_and_compile_budget_bound_a_run(tmp_path: Path) -> None:
    options = ("--max-examples", "7", "--compile-budget", "5", "--report-dir", tmp_path / "new")
    done = pytest_("conformance", "-k", "test_plain_slots or test_circular_slots_wrap or test_dcp_slots", *options)
    assert done.status == 0, done.tail
    assert "kernels.v1: 5 specializations (" in done.output
    entry_points = summary(tmp_path / "new")["entry_points"]
    assert entry_points["kernels.v1"]["cases"] == 2 * 7  # plain and circular
    assert entry_points["kernels.v1"]["specializations"] <= 5
    assert entry_points["kernels.dcp"]["cases"] == 7


def test_the_summary_line_says_cases_specializations_lane_and_seconds(tmp_path: Path) -> None:
    done = pytest_("conformance", "-k", "test_dcp_slots", "--max-examples", "3", "--report-dir", tmp_path)
    found = summary(tmp_path)
    lane = lanes.automatic().name
    line = rf"^kernels on lane {lane}: 3 cases of 1 entry point, \d specializations?, 0 failures, (\d+\.\d) s$"
    said = re.search(line, done.output, re.MULTILINE)
    assert said, done.tail
    assert float(said[1]) == pytest.approx(found["seconds"], abs=0.06)
    assert (found["cases"], found["failures"], found["lane"]) == (3, 0, lane)


def test_a_launch_that_does_not_end_is_a_hang_after_the_time_given(folder: Path, tmp_path: Path) -> None:
    source = ("--source", f"kernels={folder / 'endless'}", "--report-dir", tmp_path)
    done = pytest_("conformance", "-k", "dcp", "--replay", folder / "case.json", "--case-timeout", "0.3", *source)
    assert done.status == 1, done.tail
    assert "kernels.dcp: hang: no answer within 0.3 s" in done.output
    assert summary(tmp_path)["seconds"] < 9  # the default would have been 10 for this one launch


def test_a_report_that_cannot_be_written_is_printed(tmp_path: Path) -> None:
    """The finding is worth more than the file: what would have been in it is on the terminal."""
    (tmp_path / "file").write_text("in the way")
    source = write_variant(by_name("torch-pads-the-tail"), tmp_path / "wrong")
    (tmp_path / "case.json").write_text(json.dumps({"case": CASE.to_json(), "entry_points": ["dcp"]}))
    arguments = ("--replay", tmp_path / "case.json", "--source", f"kernels={source}")
    done = pytest_("conformance", *arguments, "--report-dir", tmp_path / "file" / "reports")
    assert done.status == 1, done.tail
    assert "mismatch: 2 elements differ, first group 0 [3]: expected nothing written, got -1" in done.output
    assert f"cannot write {tmp_path / 'file' / 'reports'}/failure-kernels-dcp-" in done.output
    assert json.dumps(CASE.to_json()) in done.output
    assert f"cannot write {tmp_path / 'file' / 'reports'}/summary.json" in done.output
    assert "1 failed" in done.output
    assert "INTERNALERROR" not in done.output


def test_without_room_for_guarded_buffers_one_line_says_so() -> None:
    too_little = {8 << 20: "cannot map ", 2 << 30: "cannot reserve "}  # KiB: less than the buffers, than their gaps
    for limit, said in too_little.items():
        command = f"ulimit -v {limit}; exec {sys.executable} -m pytest conformance -k dcp -q"
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == USAGE_ERROR
        assert said in done.stderr
        assert "Traceback" not in done.stderr + done.stdout
