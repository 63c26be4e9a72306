"""A failure is written down, and its file alone brings it back: the same verdict and elements, until it is mended."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import lanes
from reference import verdict as v
from reference.case import Case, Group
from tests.commands import ROOT, Done, pytest_, run, together
from tests.faults.catalogue import PACKAGE, by_name, faulty_source, write_variant

FIELD_CASES = Path(__file__).parent / "data" / "field_cases"
WRONG_VALUES = by_name("torch-kernel-block-for-virtual-block")
READS_TOO_FAR = by_name("row-end-unguarded")
RING = Case((0, 3), (6, 7, -1), 3, 4, (Group(((5,),), 4, 4, kind="circular"),))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("replay")


@pytest.fixture(scope="module")
def wrong_kernels(folder: Path) -> Path:
    """Kernels with two faults: wrong slots from the torch path, and a read behind the table from v1."""
    source = write_variant(READS_TOO_FAR, folder / "wrong")
    other = (PACKAGE / WRONG_VALUES.file).read_text(encoding="utf-8")
    (source / "kernels" / WRONG_VALUES.file).write_text(faulty_source(WRONG_VALUES, other), encoding="utf-8")
    return source


@pytest.fixture(scope="module")
def first_run(folder: Path, wrong_kernels: Path) -> Done:
    options = ("--max-examples", "100", "--compile-budget", "6", "--report-dir", folder / "found")
    return pytest_("conformance", "-k", "test_plain or test_dcp", "--source", f"kernels={wrong_kernels}", *options)


@pytest.fixture(scope="module")
def reports(folder: Path, first_run: Done) -> list[Path]:
    found = sorted((folder / "found").glob("failure-*.json"))
    assert found, first_run.tail
    return found


@pytest.fixture(scope="module")
def boundaries(folder: Path, first_run: Done) -> list[Path]:
    """Launches outside the contract that failed in the same run."""
    found = sorted((folder / "found").glob("boundary-*.json"))
    assert found, first_run.tail
    return found


@pytest.fixture(scope="module")
def later_runs(folder: Path, wrong_kernels: Path, reports: list[Path], boundaries: list[Path]) -> dict[str, Done]:
    """The reports on the wrong kernels again and on the right ones, and cases that are no reports, on the right ones.

    Those are a field case, which names v1 and dcp; the same case alone, which names nobody; and one of a ring for v1
    and the torch path, which has no notion of rings.
    """
    field_case = FIELD_CASES / "dcp8_interleave1.json"
    bare, ring, both = folder / "bare.json", folder / "ring.json", replaying([*reports, *boundaries])
    bare.write_text(json.dumps(read(field_case)["case"]), encoding="utf-8")
    ring.write_text(json.dumps({"case": RING.to_json(), "entry_points": ["v1", "dcp"]}), encoding="utf-8")
    commands = {
        "wrong again": (*both, "--source", f"kernels={wrong_kernels}", "--report-dir", folder / "again"),
        "right": (*both, "--report-dir", folder / "right"),
        "no reports": (*replaying([field_case, bare, ring]), "-v", "-rs", "--report-dir", folder / "no-reports"),
    }
    return dict(zip(commands, together(commands.values()), strict=True))


def replaying(files: list[Path]) -> list[str | Path]:
    return ["conformance", *(argument for file in files for argument in ("--replay", file))]


def read(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def without_addresses(verdict: dict) -> dict:
    """Where memory lies differs from process to process; how far off an access was does not."""
    text = re.sub(r"address 0x[0-9a-f]+", "address", json.dumps(verdict))
    return {**json.loads(text), "guards": [{**guard, "address": 0} for guard in json.loads(text)["guards"]]}


def test_each_failure_is_reported_with_its_files(first_run: Done, reports: list[Path]) -> None:
    assert first_run.status == 1
    kinds = {(read(file)["entry_point"], read(file)["verdict"]["kind"]) for file in reports}
    assert kinds >= {("dcp", v.MISMATCH), ("v1", v.GUARD)}
    for file in reports:
        page = file.with_suffix(".md").read_text(encoding="utf-8")
        assert read(file)["summary"] in page
        assert read(file)["replay"] in page
        assert f"report: {file.with_suffix('.md')}" in first_run.lines
        assert f"replay: {read(file)['replay']}" in first_run.lines


def test_the_summary_counts_what_was_found(folder: Path, first_run: Done, reports: list[Path]) -> None:
    summary = read(folder / "found" / "summary.json")
    assert sorted(summary["reports"]) == [str(file) for file in reports]
    assert summary["failures"] == sum(each["failures"] for each in summary["entry_points"].values()) >= len(reports)
    assert f"{summary['failures']} failures" in first_run.output


def test_a_report_keeps_lane_and_settings(reports: list[Path]) -> None:
    """Without the tile and the window in it, another specialization would be replayed."""
    file = next(file for file in reports if read(file)["entry_point"] == "v1")
    assert {"TILE_BLOCK_SIZE", "BLOCK_TABLE_WINDOW_SIZE"} <= read(file)["launch"]["constants"].keys()
    assert read(file)["lane"] == lanes.automatic().name


def test_the_command_of_a_report_brings_the_failure_back(reports: list[Path]) -> None:
    """As it stands there, only the reports go elsewhere than the default; the report that it replays is left alone."""
    file = next(file for file in reports if read(file)["entry_point"] == "dcp")
    before = file.read_bytes()
    words = shlex.split(read(file)["replay"])
    assert words[0] == "pytest"
    done = run(sys.executable, "-m", *words, "--report-dir", file.parent)
    assert done.status == 1, done.tail
    assert read(file)["summary"] in done.output
    assert file.read_bytes() == before


def test_replaying_gives_the_same_verdict(
    folder: Path, reports: list[Path], boundaries: list[Path], later_runs: dict[str, Done]
) -> None:
    assert later_runs["wrong again"].status == 1, later_runs["wrong again"].tail
    for file in reports:
        first, second = read(file), read(folder / "again" / file.name)
        assert without_addresses(second["verdict"]) == without_addresses(first["verdict"])
        for name in ("case", "launch", "traces", "subject", "entry_point", "lane"):
            assert second[name] == first[name]
        assert second["examples"] is None  # nothing was drawn
    summary = read(folder / "again" / "summary.json")
    for file in boundaries:
        first, second = read(file), read(folder / "again" / file.name)
        for name in ("case", "launch", "settings", "subject", "entry_point", "lane", "broken", "verdict"):
            assert second[name] == first[name]
    # What tells causes apart is launched as well.
    assert summary["failures"] == len(reports) + len(boundaries) <= summary["cases"]


def test_on_right_kernels_the_same_files_pass(
    folder: Path, reports: list[Path], boundaries: list[Path], later_runs: dict[str, Done]
) -> None:
    assert later_runs["right"].status == 0, later_runs["right"].tail
    assert f"{len(reports) + len(boundaries)} passed" in later_runs["right"].output
    assert {path.name for path in (folder / "right").iterdir()} == {"summary.json", "coverage.json", "index.html"}


def test_a_case_without_a_report_runs_on_every_entry_point_that_it_concerns(later_runs: dict[str, Done]) -> None:
    done = later_runs["no reports"]
    assert done.status == 0, done.tail
    for name in ("dcp8_interleave1", "bare"):
        for entry_point in ("v1", "dcp"):
            assert f"test_saved.py::test_saved_case_agrees[{name}-kernels.{entry_point}] PASSED" in done.output


def test_a_case_that_an_entry_point_cannot_take_is_a_skip_with_its_reason(later_runs: dict[str, Done]) -> None:
    done = later_runs["no reports"]
    assert "[ring-kernels.v1] PASSED" in done.output
    assert "[ring-kernels.dcp] SKIPPED" in done.output
    assert "kernels.dcp does not have circular" in done.output


def test_the_reference_takes_a_report_as_a_case(reports: list[Path]) -> None:
    for file in reports:
        report = read(file)
        (row,) = json.loads(run(sys.executable, "-m", "reference", file).output)["slot_mappings"]
        for difference in report["verdict"]["differences"]:
            assert row[difference["index"]] == difference["expected"]
        for trace in report["traces"]:
            place = ("--trace", str(trace["group"]), str(trace["token"]))
            assert json.loads(run(sys.executable, "-m", "reference", file, *place).output) == trace


def test_a_replay_leaves_the_reports_of_the_run_before_it_as_they_are(tmp_path: Path) -> None:
    """Somebody reads the page that a failure was found on, and copies its replay line."""
    (tmp_path / "case.json").write_text(json.dumps({"case": RING.to_json(), "entry_points": ["v1"]}))
    output = tmp_path / "reports" / "output"
    output.mkdir(parents=True)
    (output / "index.html").write_text("of the run before")
    command = [sys.executable, "-m", "pytest", ROOT / "conformance", "--replay", "case.json", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]
    assert sorted(file.name for file in output.iterdir()) == ["index.html", "replay"]
    assert (output / "index.html").read_text() == "of the run before"
    assert {file.name for file in (output / "replay").iterdir()} >= {"index.html", "summary.json"}
