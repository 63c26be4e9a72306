"""``python -m conformance.stability``: many runs, none of them twice, stopped by the first that is not green."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conformance import stability
from conformance.runs import figures
from tests.commands import ROOT
from tests.faults.catalogue import by_name, write_variant

# A test that compiles nothing.
ONE_TEST = ("conformance/test_dcp.py", "--max-examples", "20")


def test_runs_that_passed_are_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each draws other cases, on a CI machine too."""
    drawn: list[object] = []

    def noting(folder: Path) -> dict[str, object]:
        drawn.append(json.loads((folder / "coverage.json").read_text())["entry_points"]["kernels.dcp"]["pairs"])
        return figures(folder)

    monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(stability, "figures", noting)
    arguments = ("--runs", "2", "--first-seed", "7", "--report-dir", str(tmp_path), *ONE_TEST)
    assert stability.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "2/2 runs passed" in printed
    assert "2 runs passed, 40 cases" in printed
    assert json.loads((tmp_path / "stability.json").read_text())["passed"] == {"7": 20, "8": 20}
    assert not list(tmp_path.glob("seed-*"))
    assert drawn[0] != drawn[1]
    assert stability.main(arguments) == 0
    assert capsys.readouterr().out.splitlines()[0] == "2 of 2 runs have passed before"


def test_what_is_stopped_leaves_no_run_behind_and_goes_on_another_time(tmp_path: Path) -> None:
    """By SIGTERM, as whoever ends a job sends it."""
    words = ("-m", "conformance.stability", "--runs", "2", "--jobs", "1", "--report-dir", str(tmp_path), ONE_TEST[0])
    with subprocess.Popen(
        [sys.executable, *words, "--max-examples", "1000000"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        output = tmp_path / "seed-1" / "output.txt"
        while process.poll() is None and not (output.exists() and "test_dcp.py" in output.read_text()):
            time.sleep(0.05)
        process.terminate()
        printed, _ = process.communicate()
    assert (process.returncode, printed) == (1, "stopped; the same command goes on from here\n")
    assert (tmp_path / "seed-1" / "summary.json").exists()
    assert "KeyboardInterrupt" in output.read_text()


def test_the_first_run_that_fails_ends_it_and_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_variant(by_name("torch-kernel-block-for-virtual-block"), tmp_path / "wrong")
    folder = tmp_path / "reports"
    options = ("--runs", "50", "--jobs", "1", "--first-seed", "3", "--report-dir", str(folder))
    assert stability.main([*options, *ONE_TEST, "--source", f"kernels={source}"]) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"seed 3 did not pass (exit status 1); reports: {folder / 'seed-3'}"
    assert list((folder / "seed-3").glob("failure-*.json"))
    assert [path.name for path in folder.glob("seed-*")] == ["seed-3"]


def test_other_runs_than_these_count_for_nothing(tmp_path: Path) -> None:
    passed = stability.Passed(tmp_path / "stability.json", {"arguments": ["conformance"], "commit": "1"})
    passed.add(4, 9)
    for asked, expected in ((passed.asked, {4: 9}), ({**passed.asked, "commit": "2"}, {})):
        again = stability.Passed(passed.file, asked)
        again.read()
        assert again.cases == expected
    passed.file.write_text("{")
    assert stability.main(["--runs", "1", "--report-dir", str(tmp_path)]) == 2


def test_a_number_that_cannot_be_meant_is_refused() -> None:
    with pytest.raises(SystemExit):
        stability.main(["--runs", "0"])


def test_more_runs_at_a_time_than_a_machine_holds_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        stability.main(["--jobs", "999999"])
    assert f"--jobs: 999999 is above {4 * stability.CORES}, 4 a core" in capsys.readouterr().err
