"""The workflows under ``ci/``: what a linter says of them, what a gate must not leave out, and the shell of the one
that needs no NPU, run in a fresh copy of the project beside a repository with kernels.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from conformance import lanes
from tests import published_trees as trees
from tests import workflow
from tests.commands import ROOT

FOLDER = ROOT / "ci"
NPU, WITHOUT = FOLDER / "ascend-gate.yml", FOLDER / "without-npu.yml"
FEW = {"MAX_EXAMPLES": "3", "COMPILE_BUDGET": "2", "AUDIT_SPECIALIZATIONS": "1"}
ACCEPTED = "ASC*  vllm-ascend.v1  *  *  for a test\n"
SUMMARY = "## Slot-mapping conformance"


def test_the_linter_of_workflows_has_nothing_to_say() -> None:
    command = Path(sys.executable).with_name("actionlint")
    if not command.exists() and workflow.REQUIRED not in os.environ:
        pytest.skip("actionlint is not installed: `make lint` installs it")
    files = sorted(FOLDER.glob("*.yml"))
    assert {NPU, WITHOUT} <= set(files)
    done = subprocess.run([command, "-config-file", FOLDER / "actionlint.yaml", *files], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", [NPU, WITHOUT], ids=["npu", "without"])
def test_a_gate_has_what_a_gate_needs(file: Path) -> None:
    read = workflow.read(file)
    (job,) = workflow.jobs(read)
    steps = {step["name"]: step for step in job["steps"]}
    assert read["permissions"] == {"contents": "read"}
    assert {"group", "cancel-in-progress"} == read["concurrency"].keys()
    assert "timeout-minutes" in job
    for step in steps.values():
        if "uses" in step:
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", step["uses"]), step["uses"]
        # What somebody else wrote (a branch's name, a title) comes as a variable, never as part of a script.
        assert "${{" not in step.get("run", "")
    assert re.fullmatch(r"[0-9a-f]{40}", read["env"]["SUITE_COMMIT"])
    assert steps["Suite"]["with"]["ref"] == "${{ env.SUITE_COMMIT }}"
    assert read["env"]["REQUIRE"]
    assert "--require" in steps["Slots"]["run"]
    assert "--known-failures" in steps["Slots"]["run"]
    assert "slot-mapping-corpus" in steps["What earlier runs compiled and found"]["with"]["path"]
    for name in ("Keep what was compiled and found", "Reports"):  # also of a run that is red
        assert steps[name]["if"] == "${{ always() }}"
    assert steps["Reports"]["with"]["path"] in steps["Slots"]["run"]


@pytest.mark.parametrize("file", [NPU, WITHOUT], ids=["npu", "without"])
def test_only_a_newer_push_to_a_pull_request_ends_a_run_or_makes_it_wait(file: Path) -> None:
    found = workflow.read(file)["concurrency"]
    assert found["group"].endswith("-${{ github.event_name == 'pull_request' && github.ref || github.run_id }}")
    assert found["cancel-in-progress"] == "${{ github.event_name == 'pull_request' }}"


def test_a_check_that_is_required_is_never_left_out() -> None:
    events = workflow.read(WITHOUT)[True]  # type: ignore[index]  # YAML takes `on` for that
    assert {"pull_request", "merge_group"} <= events.keys()
    assert events["pull_request"] is None  # no paths


def test_a_deep_run_has_the_time_whoever_asks_for_it() -> None:
    read = workflow.read(NPU)
    (job,) = workflow.jobs(read)
    assert read["env"]["PROFILE"] == "${{ github.event_name == 'schedule' && 'deep' || inputs.profile || 'gate' }}"
    deep = "github.event_name == 'schedule' || inputs.profile == 'deep'"
    assert job["timeout-minutes"] == f"${{{{ ({deep}) && 300 || 60 }}}}"


STEPS = [(NPU, "Slots"), (WITHOUT, "Slots"), (WITHOUT, "Compile audit")]
# `timeout` (coreutils 9.1) dies of a signal that comes between its fork and its noting whom it started: until it
# sleeps, nobody says that anything has begun.
STAND_IN = """#!/bin/sh
trap 'sleep 0.5; echo "$1 $2" >"$TOLD"; exit 2' INT TERM
until grep -q ') S ' "/proc/$PPID/stat"; do sleep 0.02; done
echo $$ >"$BEGUN.new" && mv "$BEGUN.new" "$BEGUN"
for second in $(seq 60); do for part in 1 2 3 4; do sleep 0.25; done; done
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
@pytest.mark.parametrize(("file", "name"), STEPS, ids=["npu-slots", "slots", "audit"])
def test_a_signal_to_the_shell_of_a_step_reaches_what_it_runs(
    file: Path, name: str, number: int, tmp_path: Path
) -> None:
    """A runner that cancels a step signals the process that it started, and no other."""
    read = workflow.read(file)
    (script,) = (step["run"] for job in workflow.jobs(read) for step in job["steps"] if step["name"] == name)
    script = "\n".join(line for line in script.splitlines() if not line.startswith("source /usr/local/"))
    for python in (tmp_path / ".venv" / "bin" / "python", tmp_path / "environment" / "bin" / "python"):
        python.parent.mkdir(parents=True)
        python.write_text(STAND_IN)
        python.chmod(0o755)
    begun, told = tmp_path / "begun", tmp_path / "told"
    names = {"RUNNER_TEMP": tmp_path, "GITHUB_WORKSPACE": tmp_path, "GITHUB_STEP_SUMMARY": tmp_path / "summary"}
    names |= {"BEGUN": begun, "TOLD": told}
    environment = {**read["env"], **{each: str(path) for each, path in names.items()}, "PATH": os.environ["PATH"]}
    # In a file, as a runner has it: of `-c`, bash puts the last command in its own place, with `exec` or without.
    (tmp_path / "script.sh").write_text(script)
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", tmp_path / "script.sh"]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not begun.exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(number)
        assert process.wait(90) != 0
        assert told.exists()  # the step is not over before what it runs is
    finally:
        process.kill()
        process.wait()
        if begun.exists():
            with suppress(ProcessLookupError):
                os.kill(int(begun.read_text()), signal.SIGKILL)
    assert told.read_text() in ("-m pytest\n", "-m conformance.audit\n")


@pytest.mark.parametrize("file", [NPU, WITHOUT], ids=["npu", "without"])
def test_cases_that_are_retired_are_not_run_again(file: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "slot-mapping-corpus"
    corpus.mkdir()
    for name in ("v1-1.json", "v1-2.json", "v1-3.json"):
        (corpus / name).touch()
    read = workflow.read(file)
    (script,) = (step["run"] for job in workflow.jobs(read) for step in job["steps"] if step["name"] == "Slots")
    (line,) = (line for line in script.splitlines() if "$RETIRED" in line)
    environment = {"RETIRED": "v1-1.json v1-3.json gone.json", "GITHUB_WORKSPACE": str(tmp_path)}
    subprocess.run(["bash", "-euc", line], env=environment | {"PATH": os.environ["PATH"]}, check=True)
    assert [path.name for path in corpus.iterdir()] == ["v1-2.json"]
    assert read["env"]["RETIRED"] == ""


def checkout(workspace: Path, kernel: str) -> None:
    """What the checkout steps leave: a repository with one kernel, and the suite in a folder of it, whose environment
    and compiled kernels an earlier run has left.
    """
    trees.write(workspace, {trees.V1: kernel, ".github/slot-mapping/accepted.txt": ACCEPTED})
    suite = workspace / "suite"
    left_out = shutil.ignore_patterns(".*", "__pycache__", "output", "build")
    shutil.copytree(ROOT, suite, ignore=left_out)
    environment = suite / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", environment)
    (environment / "lib").symlink_to(Path(sys.prefix) / "lib")
    (suite / ".cache").symlink_to(ROOT / ".cache")
    (environment / ".complete").touch()  # last: newer than what make would create it from


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    if lanes.by_name("lowered").unavailable() is not None:
        pytest.skip("the workflow runs the lowered lane")
    return tmp_path / "repository"


def test_the_shell_of_the_workflow_without_npu_passes_a_right_kernel(workspace: Path, tmp_path: Path) -> None:
    checkout(workspace, trees.source("v1_circular"))
    statuses, printed, summary = workflow.run(workflow.read(WITHOUT), workspace, tmp_path, {}, {**FEW, "REQUIRE": "v1"})
    assert statuses == {"Environment": 0, "What there is to test": 0, "Slots": 0, "Compile audit": 0}, printed
    assert SUMMARY in summary
    assert "0 failures" in summary
    assert "ASC003 float32-integer-division" in summary
    written = {file.name for file in (workspace / "slot-mapping-reports").iterdir()}
    assert {"summary.json", "index.html", "junit.xml", "audit.json", "audit.sarif"} <= written


def test_the_shell_of_the_workflow_without_npu_fails_a_wrong_kernel_and_one_that_is_not_there(
    workspace: Path, tmp_path: Path
) -> None:
    wrong = trees.replaced(trees.source("v1_circular"), "wanted = position >= 0", "wanted = position > 0")
    checkout(workspace, wrong)
    statuses, printed, summary = workflow.run(
        workflow.read(WITHOUT), workspace, tmp_path, {}, {**FEW, "REQUIRE": "v1,v2"}
    )
    assert statuses["Slots"] == 1, printed
    assert "--require v2: ran no case, so this run fails" in printed
    assert "::error file=vllm_ascend/ops/triton/compute_slot_mapping.py,line=" in printed
    assert "Compile audit" in statuses, "a red run is audited all the same"
    assert "| `vllm-ascend.v1` |" in summary
    assert list((workspace / "slot-mapping-reports").glob("failure-vllm-ascend-v1-*.md"))
    assert list((workspace / "slot-mapping-corpus").glob("*.json"))
