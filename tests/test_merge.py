"""Several report folders as one: each failure once, everything counted, and what cannot be read said by name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from conformance import shards
from reference.case import Launch
from reference.fields import CaseError
from reference.verdict import CRASH, Verdict
from reports import coverage, failure, files, summary
from reports.__main__ import main
from reports.diagnosis import UNKNOWN, Diagnosis
from reports.failure import FailureReport
from reports.files import json_lines, write_text
from reports.merging import junit, merge, summaries
from reports.merging.counts import added
from reports.summary import NOT_RUN, STILL_FAILS, Known, Summary, Tally
from tests.commands import ROOT
from tests.test_coverage import CASE as DRAWN
from tests.test_coverage import LAUNCH as BOUND
from tests.test_reports import CASE, REPORT

RUN = {"folder": "f", "lane": "lowered", "cases": 1, "failures": 0, "seconds": 1.0, "seed": 1}
OTHER_CASE = replace(CASE, positions=(4, 5, 0))
KNOWN = Known("kernels.v1", "mismatch", "owner", "", "why", STILL_FAILS, 3)


def folder_of(
    path: Path,
    *reports: FailureReport,
    tallies: Mapping[str, tuple[int, tuple[str, ...]]] | None = None,
    **fields: object,
) -> Path:
    """The report folder of a run that found ``reports``; ``tallies``: cases and specializations."""
    given = tallies or {"vllm-ascend.dcp": (100, ("a", "b"))}
    files = [failure.write(each, path)[0] for each in reports]
    found = {name: sum(f"{each.subject}.{each.entry_point}" == name for each in reports) for name in given}
    made = Summary(
        subjects=("vllm-ascend",),
        lane="lowered",
        seconds=10.0,
        entry_points={name: Tally(cases, len(ids), found[name], cases - 1) for name, (cases, ids) in given.items()},
        reports=tuple(map(str, files)),
        seed=17,
        environment={"python": "CPython 3.11.7"},
        compiled={name: ids for name, (_, ids) in given.items()},
    )
    summary.write(replace(made, **fields), path)  # type: ignore[arg-type]
    counted = coverage.Coverage()
    counted.of("vllm-ascend.dcp").count(DRAWN, BOUND, 0.25)
    coverage.write(counted, path)
    return path


def summary_in(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_what_two_runs_found_is_there_once(tmp_path: Path) -> None:
    """The same case with the same cause is the same failure, however it was launched and whoever found it."""
    again = replace(REPORT, launch=Launch("int32"), test="another", seed=18)
    other = replace(REPORT, case=OTHER_CASE, verdict=Verdict(CRASH), on_device=True)  # a command more
    one = folder_of(tmp_path / "1", REPORT)
    two = folder_of(tmp_path / "2", again, other)
    done = merge(tmp_path / "all", [one, two])
    assert not done.problems
    found = summary_in(tmp_path / "all")
    assert found["failures"] == found["entry_points"]["vllm-ascend.dcp"]["failures"] == 2
    assert found["reports"] == [str(tmp_path / "all" / f"{each.name}.json") for each in (REPORT, other)]
    for name in found["reports"]:
        file = Path(name)
        assert json.loads(file.read_text())["seed"] == 17, "not the first one"
        for ending in (".json", ".md"):
            text = file.with_suffix(ending).read_text()
            assert str(tmp_path / "all") in text, "the command that replays it names another folder"
            assert str(one) not in text
            assert str(two) not in text
        assert file.with_suffix(".py").exists()
    html = (tmp_path / "all" / "index.html").read_text(encoding="utf-8")
    assert html.count('class="failure"') == html.count(f'id="{REPORT.name}"') * 2 == 2


@pytest.mark.parametrize(
    "other",
    [
        replace(REPORT, subject="vllm"),
        replace(REPORT, entry_point="v1"),
        replace(REPORT, case=OTHER_CASE),
        replace(REPORT, diagnosis=Diagnosis("local offset", "", "slot_mapping")),
        replace(REPORT, diagnosis=Diagnosis("owner", "", "block_table")),
        replace(REPORT, verdict=Verdict(CRASH, detail="x"), diagnosis=Diagnosis(UNKNOWN, "")),
    ],
    ids=["subject", "entry point", "case", "cause", "buffer", "unknown cause"],
)
def test_what_differs_is_kept(tmp_path: Path, other: FailureReport) -> None:
    """Also where both have the name of one file."""
    names = {f"{each.subject}.{each.entry_point}": (1, ("a",)) for each in (REPORT, other)}
    one = folder_of(tmp_path / "1", REPORT, tallies=names)
    two = folder_of(tmp_path / "2", other, tallies=names)
    assert not merge(tmp_path / "all", [one, two]).problems
    reports = summary_in(tmp_path / "all")["reports"]
    assert len(set(reports)) == 2
    for name, each in zip(reports, (REPORT, other), strict=True):
        document = json.loads(Path(name).read_text())
        assert (document["subject"], document["entry_point"]) == (each.subject, each.entry_point)
        assert document["diagnosis"]["cause"] == each.diagnosis.cause
        assert name in document["replay"]
    assert summary_in(tmp_path / "all")["failures"] == 2


def test_figures_are_added_and_specializations_are_united(tmp_path: Path) -> None:
    one = folder_of(
        tmp_path / "1", shard="1/2", tallies={"kernels.v1": (10, ("a", "b")), "kernels.dcp": (5, ("x",))}, seconds=10.0
    )
    two = folder_of(tmp_path / "2", shard="2/2", tallies={"kernels.v1": (7, ("b", "c"))}, seconds=4.5)
    done = merge(tmp_path / "all", [one, two])
    assert not done.problems
    assert not done.notes
    found = summary_in(tmp_path / "all")
    assert found["entry_points"] == {
        "kernels.v1": {"cases": 17, "specializations": 3, "failures": 0, "compared": 15, "unsupported": 0},
        "kernels.dcp": {"cases": 5, "specializations": 1, "failures": 0, "compared": 4, "unsupported": 0},
    }
    assert (found["cases"], found["specializations"]) == (22, 4)
    assert (found["seconds"], found["seconds_total"], found["seed"], found["shard"]) == (10.0, 14.5, 17, "")
    assert [(each["folder"], each["shard"], each["cases"]) for each in found["runs"]] == [
        (str(one), "1/2", 15),
        (str(two), "2/2", 7),
    ]
    assert done.summary is not None
    assert "22 cases of 2 entry points, 4 specializations, 0 failures, 10.0 s (2 runs, 14.5 s together)" in (
        done.summary.line()
    )
    counted = json.loads((tmp_path / "all" / "coverage.json").read_text())["entry_points"]["vllm-ascend.dcp"]
    alone = json.loads((one / "coverage.json").read_text())["entry_points"]["vllm-ascend.dcp"]
    assert counted["cases"] == 2
    assert counted["seconds"]["launch"] == 0.5
    assert counted["pairs"] == {
        name: [[*pair, 2 * number] for *pair, number in rows] for name, rows in alone["pairs"].items()
    }
    assert counted["shapes"] == {name: 2 * number for name, number in alone["shapes"].items()}
    assert counted["positions"] == [[key, 2 * number] for key, number in alone["positions"]]
    html = (tmp_path / "all" / "index.html").read_text(encoding="utf-8")
    assert "<dt>seconds of all runs</dt><dd>14.5</dd>" in html
    assert str(two) in html


def test_different_machines_seeds_and_lanes_are_all_named(tmp_path: Path) -> None:
    one = folder_of(tmp_path / "1", environment={"python": "3.11", "torch": "1"})
    two = folder_of(tmp_path / "2", environment={"python": "3.12", "torch": "1"}, seed=18, lane="npu")
    merge(tmp_path / "all", [one, two])
    found = summary_in(tmp_path / "all")
    assert found["environment"] == {"python": "3.11; 3.12", "torch": "1"}
    assert (found["seed"], found["lane"]) == (None, "lowered, npu")
    assert "<dt>seed</dt><dd>several</dd>" in (tmp_path / "all" / "index.html").read_text(encoding="utf-8")


def test_what_became_of_known_failures_is_told_once(tmp_path: Path) -> None:
    other = replace(KNOWN, cause="local offset")
    one = folder_of(tmp_path / "1", known_failures=(KNOWN, replace(other, status=NOT_RUN, cases=0)))
    two = folder_of(tmp_path / "2", known_failures=(replace(KNOWN, status="passes now", cases=4), other))
    merge(tmp_path / "all", [one, two])
    found = summary_in(tmp_path / "all")["known_failures"]
    assert found == [{**KNOWN.to_json(), "status": "passes now", "cases": 7}, other.to_json()]


def test_merging_what_was_merged_is_merging_it_all(tmp_path: Path) -> None:
    folders = [
        folder_of(tmp_path / "1", REPORT, seconds=3.0),
        folder_of(tmp_path / "2", replace(REPORT, case=OTHER_CASE), seconds=4.0),
        folder_of(tmp_path / "3", REPORT, seconds=5.0),
    ]
    merge(tmp_path / "two", folders[:2])
    merge(tmp_path / "steps", [tmp_path / "two", folders[2]])
    merge(tmp_path / "once", folders)
    steps, once = summary_in(tmp_path / "steps"), summary_in(tmp_path / "once")
    assert [Path(each).name for each in steps.pop("reports")] == [Path(each).name for each in once.pop("reports")]
    assert steps == once
    assert (tmp_path / "steps" / "coverage.json").read_text() == (tmp_path / "once" / "coverage.json").read_text()


def test_a_shard_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = folder_of(tmp_path / "1", shard="1/3")
    three = folder_of(tmp_path / "3", shard="3/3")
    assert main(["merge", "--into", str(tmp_path / "all"), str(one), str(three)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1:] == ["not among these runs: shard 2/3", f"page: {tmp_path / 'all' / 'index.html'}"]


def test_the_shards_that_are_merged_are_those_that_there_can_be(tmp_path: Path) -> None:
    assert summaries.MOST_SHARDS == shards.MOST
    for shard in ("1/1", "1/10000", "10000/10000"):
        folder = folder_of(tmp_path / shard.replace("/", "-"), shard=str(shards.parse(shard)))
        done = merge(tmp_path / "all", [folder])
        assert not done.problems
        assert len(done.notes) == (shard != "1/1")


def test_seconds_and_counts_of_many_runs_can_be_added(tmp_path: Path) -> None:
    """Each is a number, and together they would be none."""
    one = folder_of(tmp_path / "1", seconds=1e12)
    two = folder_of(tmp_path / "2", seconds=1e12)
    for each in (one, two):
        (each / "coverage.json").write_text('{"schema": 1, "entry_points": {"kernels.v1": {"seconds": 1e308}}}')
    (problem,) = merge(tmp_path / "all", [one, two]).problems
    assert problem.endswith("1e+308 in one run and 1e+308 in another cannot be added")
    assert summary_in(tmp_path / "all")["seconds_total"] == 2e12


XML = """<?xml version="1.0" encoding="utf-8"?><testsuites name="pytest tests"><testsuite name="pytest" errors="0"
failures="1" skipped="0" tests="1" time="1.5"><testcase classname="c" name="{name}" time="1.5"><properties>
<property name="report" value="r"/></properties><failure message="m">text</failure></testcase></testsuite></testsuites>
"""


def test_junit_has_the_tests_of_every_run(tmp_path: Path) -> None:
    folders = [folder_of(tmp_path / name) for name in "12"]
    for each in folders:
        (each / "results.xml").write_text(XML.format(name=f"t{each.name}"))
    merge(tmp_path / "all", folders)
    root = ET.parse(tmp_path / "all" / junit.NAME).getroot()
    assert root.tag == "testsuites"
    assert [each.get("name") for each in root] == ["pytest 1", "pytest 2"]
    assert [each.get("name") for each in root.iter("testcase")] == ["t1", "t2"]
    assert len(root.findall(".//failure[@message='m']")) == 2
    merge(tmp_path / "again", [tmp_path / "all"])
    assert (tmp_path / "again" / junit.NAME).read_text() == (tmp_path / "all" / junit.NAME).read_text()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("summary.json", None, "No such file or directory"),
        ("summary.json", "{", "line 1 column 2: not JSON"),
        ("summary.json", "[]", "expected an object, got a list of 0"),
        ("summary.json", '{"schema": 2}', "schema: expected 1, got 2"),
        ("summary.json", '{"schema": 1}', "subject: missing"),
        ("summary.json", '{"schema": 1, "subject": "x", "lane": 5}', "lane: expected a text, got 5"),
        ("summary.json", b"\xff", "not UTF-8"),
        ("summary.json", {"seconds": 1e12 + 1}, "seconds: expected a number within 0..1e+12, got 1000000000001.0"),
        ("summary.json", {"seconds": 10**400}, "seconds: expected a number within 0..1e+12, got an integer of 1329"),
        ("summary.json", '{"schema": 1, "seconds": 1e999}', "the number 1e999 is too large"),
        ("audit.json", '{"schema": 1, "a": -1e999}', "the number -1e999 is too large"),
        *(
            ("summary.json", {"shard": shard}, f'shard: expected I/N of at most 10000 shards, got "{shard[:40]}')
            for shard in ("1/x", "1", "0/2", "3/2", "1/30000000", "1/10001", f"1/{'9' * 5000}")
        ),
        ("summary.json", {"shard": 5}, "shard: expected a text, got 5"),
        ("summary.json", {"runs": [{**RUN, "shard": "1/x"}]}, 'shard: expected I/N of at most 10000 shards, got "1/x"'),
        ("coverage.json", "nothing", "not JSON"),
        ("coverage.json", '{"schema": 7}', "schema: expected one up to 1, got 7"),
        ("coverage.json", '{"schema": 1, "entry_points": {"vllm-ascend.dcp": 5}}', "cannot be added"),
        ("results.xml", "<a", "not XML"),
        ("results.xml", "<html/>", "not JUnit XML"),
        (f"{REPORT.name}.json", None, "No such file or directory"),
        (f"{REPORT.name}.json", "{}", "schema: expected one up to 2, got null"),
        (f"{REPORT.name}.json", '{"schema": 3}', "schema: expected one up to 2, got 3"),
        (f"{REPORT.name}.json", '{"schema": 2, "subject": "s"}', "entry_point: missing"),
    ],
)
def test_what_cannot_be_read_is_named_and_the_rest_is_merged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str | bytes | dict | None, message: str
) -> None:
    good = folder_of(tmp_path / "good", replace(REPORT, case=OTHER_CASE))
    bad = folder_of(tmp_path / "bad", REPORT)
    if text is None:
        (bad / name).unlink()
    elif isinstance(text, dict):
        (bad / name).write_text(json.dumps(summary_in(bad) | text))
    else:
        (bad / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    assert main(["merge", "--into", str(tmp_path / "all"), str(good), str(bad)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith(f"warning: {bad / name}: ")
    assert message in said[0]
    found = summary_in(tmp_path / "all")
    assert f"{replace(REPORT, case=OTHER_CASE).name}.json" in [Path(each).name for each in found["reports"]]
    # A failure that a run has counted is counted, whether its file can be read or not.
    assert found["failures"] == (1 if name == "summary.json" else 2)
    assert (tmp_path / "all" / "index.html").exists()


@pytest.mark.parametrize("kind", ["pipe", "endless"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, kind: str) -> None:
    """A merge that opened the one would wait for ever, and one that read the other too."""
    names = ["summary.json", "coverage.json", "audit.json", "junit.xml"]
    names += [f"{REPORT.name}.{ending}" for ending in ("json", "md", "py")]
    bad = [folder_of(tmp_path / str(number), REPORT) / name for number, name in enumerate(names)]
    for file in bad:
        file.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to("/dev/zero")
    script = "import sys; from reports.__main__ import main\n"
    script += "for each in sys.argv[2:]: assert main(['merge', '--into', sys.argv[1], each]) == 1"
    words = [str(tmp_path / "all"), *(str(file.parent) for file in bad)]
    done = subprocess.run([sys.executable, "-c", script, *words], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if line.startswith("warning: ")]
    assert len(said) == len(bad)
    for file, line in zip(bad, said, strict=True):
        assert line.startswith(f"warning: {file}: ")
        assert line.endswith("it is no regular file")


def test_a_file_without_end_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    monkeypatch.setattr(files, "MOST_BYTES", 5)
    assert files.read_text(tmp_path / "file") == "12345"
    monkeypatch.setattr(files, "MOST_BYTES", 4)
    with pytest.raises(CaseError, match="more than 0 MiB"):
        files.read_bytes(tmp_path / "file")


@pytest.mark.parametrize("name", ["audit.json", "coverage.json", junit.NAME])
def test_what_an_earlier_merge_has_left_is_not_of_these_runs(tmp_path: Path, name: str) -> None:
    one, two = folder_of(tmp_path / "1"), folder_of(tmp_path / "2")
    (one / "audit.json").write_text('{"schema": 1}')
    (one / "results.xml").write_text(XML.format(name="t"))
    (two / "coverage.json").unlink()
    merge(tmp_path / "all", [one])
    assert (tmp_path / "all" / name).exists()
    assert not merge(tmp_path / "all", [two]).problems
    assert not (tmp_path / "all" / name).exists()


def test_folders_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, into = folder_of(tmp_path / "good"), tmp_path / "all"
    (tmp_path / "file").write_text("")
    given = [good, tmp_path / "nowhere", tmp_path / "file", good, into]
    assert main(["merge", "--into", str(into), *map(str, given)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"warning: {tmp_path / 'nowhere'}: there is no such folder",
        f"warning: {tmp_path / 'file'}: is no folder",
        f"warning: {good}: left out: it is named twice",
        f"warning: {into}: left out: it is the folder to merge into",
    ]
    assert len(summary_in(into)["runs"]) == 1
    assert main(["merge", "--into", str(tmp_path / "none"), str(tmp_path / "nowhere")]) == 1
    assert "nothing was merged: none of the folders can be read" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert main(["merge", "--into", str(tmp_path / "file"), str(folder_of(tmp_path / "1", REPORT))]) == 1
    assert capsys.readouterr().err.startswith(f"cannot write {tmp_path / 'file'}/")


def test_a_folder_that_was_moved_is_read_where_it_is(tmp_path: Path) -> None:
    """Continuous integration downloads each into a folder of another name."""
    was = folder_of(tmp_path / "was", REPORT)
    shutil.move(was, tmp_path / "is")
    assert not merge(tmp_path / "all", [tmp_path / "is"]).problems
    (name,) = summary_in(tmp_path / "all")["reports"]
    assert json.loads(Path(name).read_text())["replay"].split()[3] == name


def test_launches_outside_the_contract_are_copied_and_counted(tmp_path: Path) -> None:
    folders = []
    for name in "12":
        folder = tmp_path / name
        document = {
            "schema": 1,
            "subject": "vllm-ascend",
            "entry_point": "dcp",
            "verdict": {"kind": "crash"},
            "case": {"a": 1},
        }
        file = write_text(folder / "boundary-vllm-ascend-dcp-1.json", json_lines(document))
        tallies = {"vllm-ascend.dcp": Tally(1, 1, 1)}
        folders.append(folder_of(folder, entry_points=tallies, outside_the_contract=(str(file),)))
    assert not merge(tmp_path / "all", folders).problems
    found = summary_in(tmp_path / "all")
    assert found["outside_the_contract"] == [str(tmp_path / "all" / "boundary-vllm-ascend-dcp-1.json")]
    assert found["failures"] == 1


def test_counts_of_one_run_stay_as_they_are(tmp_path: Path) -> None:
    document = json.loads((folder_of(tmp_path / "1") / "coverage.json").read_text())
    total = added([document])
    assert total["started"] == document["started"]
    assert total["entry_points"] == document["entry_points"]
