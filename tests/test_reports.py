"""Failure reports and summaries: what they hold, that they replay, and that nothing in them can break the page."""

from __future__ import annotations

import json
import os
import re
import shlex
from dataclasses import replace

import pytest

from reference.__main__ import main
from reference.case import Case, ContextParallel, Group, Launch, load
from reference.verdict import CRASH, GUARD, UNWRITTEN, Guard, Verdict, compare, expected_output
from reports import environment, failure, markdown, summary
from reports.diagnosis import Diagnosis
from reports.failure import MAX_TRACES, FailureReport
from reports.files import ReportError
from reports.summary import Summary, Tally

CASE = Case(
    query_start_loc=(0, 2, 3),
    positions=(4, 5, 1),
    num_tokens=3,
    max_num_tokens=4,
    groups=(Group(((7, 3), (9, 1)), 2, 2),),
    cp=ContextParallel(2, 1, 1),
)
LAUNCH = Launch("int64", 6, "before", {"TILE_BLOCK_SIZE": 16})
EXPECTED = [[-1, 6, 18, -1, UNWRITTEN, UNWRITTEN]]
VERDICT = compare(EXPECTED, [[-1, 2, 18, 0, UNWRITTEN, 7]])
REPORT = FailureReport(
    subject="vllm-ascend",
    entry_point="dcp",
    lane="lowered",
    test="conformance/test_dcp.py::test_dcp[vllm-ascend.dcp]",
    case=CASE,
    launch=LAUNCH,
    verdict=VERDICT,
    version="0.23.0",
    source="/tmp/the wheel",
    seed=17,
    examples=57,
    environment={"python": "CPython 3.11.7", "torch": "2.13.0"},
    diagnosis=Diagnosis("owner", "Token 1 is on rank 0 * 1.", "slot_mapping"),
)

HOSTILE = [
    "two\nlines",
    "| a | b |",
    "`` ` ```",
    "`",
    "`starts",
    "ends`",
    " edge ",
    "<script>alert(1)</script>",
    "@everyone #1 ![x](http://x) [x](y)",
    "\x1b[31mred\x00\r\x85",
    "\u202egnp.exe\u2028",
    "\ud800",
    "```\n# title\n```",
    "~~~",
    "x" * 100_000,
]


def hostile_report(text):
    guard = Guard(text, "read", 4096, 4, text)
    verdict = Verdict(GUARD, VERDICT.differences, VERDICT.total_differences, (guard,), text)
    launch, environment = Launch(constants={text or "X": 1}), {text or "X": text}
    diagnosis = Diagnosis(text, text, text)
    return FailureReport(text, text, text, text, CASE, launch, verdict, text, text, 1, 1, environment, diagnosis)


def outside_code(page):
    """The page without its code: fenced blocks first, then spans, as CommonMark pairs them."""
    kept, fence = [], None
    for line in page.split("\n"):
        ticks = re.fullmatch("(`{3,})[^`]*", line)
        if fence is None and ticks:
            fence = ticks[1]
        elif fence is not None:
            if line == fence:
                fence = None
        else:
            kept.append(line)
    assert fence is None, "a fenced block does not end"
    return re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "CODE", "\n".join(kept))


# JSON


def test_json_has_every_field_of_schema_1(tmp_path):
    path, _ = failure.write(REPORT, tmp_path)
    found = json.loads(path.read_text())
    assert list(found) == [
        "schema",
        "subject",
        "version",
        "source",
        "entry_point",
        "lane",
        "test",
        "verdict",
        "summary",
        "diagnosis",
        "case",
        "launch",
        "traces",
        "environment",
        "seed",
        "examples",
        "replay",
    ]
    assert found["schema"] == 1
    assert found["case"] == CASE.to_json()
    assert found["launch"] == LAUNCH.to_json()
    assert found["verdict"] == VERDICT.to_json()
    assert found["diagnosis"] == {"cause": "owner", "summary": "Token 1 is on rank 0 * 1.", "buffer": "slot_mapping"}
    assert found["summary"] == "mismatch: 3 elements differ, first group 0 [1]: expected 6, got 2"
    assert (found["subject"], found["version"], found["source"]) == ("vllm-ascend", "0.23.0", "/tmp/the wheel")
    assert (found["entry_point"], found["lane"], found["test"]) == ("dcp", "lowered", REPORT.test)
    assert (found["seed"], found["examples"], found["environment"]) == (17, 57, REPORT.environment)


def test_traces_explain_what_may_be_written():
    """Of the three differing elements one is a token, one padding, and one lies past max_num_tokens."""
    assert [each.index for each in VERDICT.differences] == [1, 3, 5]
    assert [(each.token, each.rule, each.slot) for each in REPORT.traces()] == [(1, "sharded", 6), (3, "padding", -1)]


def test_traces_are_limited():
    many = replace(CASE, query_start_loc=(0, 2, 12), positions=(4, 5, *[1] * 10), num_tokens=12, max_num_tokens=12)
    verdict = compare(expected_output(many, 12), [[0] * 12])
    assert len(verdict.differences) == 12
    assert len(replace(REPORT, case=many, verdict=verdict).traces()) == MAX_TRACES


def test_a_case_without_an_answer_is_reported_all_the_same(tmp_path):
    broken = replace(REPORT, case=replace(CASE, positions=(4, 99, 1)))
    path, page = failure.write(broken, tmp_path)
    assert json.loads(path.read_text())["traces"] == []
    assert "3 elements differ" in page.read_text()


def test_a_report_is_a_case_file(tmp_path, capsys):
    path, _ = failure.write(REPORT, tmp_path)
    assert load(path) == (CASE, LAUNCH)
    assert main([str(path)]) == 0
    assert json.loads(capsys.readouterr().out) == {"slot_mappings": [EXPECTED[0][:4]]}


def test_replay_command_names_file_lane_subject_and_source(tmp_path):
    path, _ = failure.write(REPORT, tmp_path / "a folder")
    command = json.loads(path.read_text())["replay"]
    words = ["--replay", str(path), "--lane", "lowered", "--subject", "vllm-ascend"]
    assert shlex.split(command) == ["pytest", "conformance", *words, "--source", "vllm-ascend=/tmp/the wheel"]
    assert "--source" not in replace(REPORT, source="").replay_command(path)


# File names


def test_name_is_stable_and_says_who(tmp_path):
    assert re.fullmatch(r"failure-vllm-ascend-dcp-[0-9a-f]{10}", REPORT.name)
    first = failure.write(REPORT, tmp_path)
    again = replace(REPORT, seed=18, examples=1, environment={}, test="elsewhere", verdict=compare([[1]], [[2]]))
    assert failure.write(again, tmp_path) == first
    assert sorted(tmp_path.iterdir()) == sorted(first)


def test_name_tells_failures_apart():
    others = [
        replace(REPORT, case=replace(CASE, pad_id=-2)),
        replace(REPORT, launch=Launch()),
        replace(REPORT, verdict=Verdict(CRASH)),
        replace(REPORT, entry_point="draft"),
        replace(REPORT, subject="kernels"),
    ]
    assert len({each.name for each in [REPORT, *others]}) == 6


@pytest.mark.parametrize("text", [*HOSTILE, "", "../../etc/passwd", "a/b", "."], ids=ascii)
def test_name_of_anything_is_one_plain_file_name(text, tmp_path):
    path, page = failure.write(hostile_report(text), tmp_path)
    assert path.parent == page.parent == tmp_path
    assert re.fullmatch(r"failure-[A-Za-z0-9._-]*-[0-9a-f]{10}\.json", path.name)


# Markdown


def test_page_shows_paragraph_table_steps_command_and_case(tmp_path):
    path, page = failure.write(REPORT, tmp_path)
    lines = page.read_text().splitlines()
    assert lines[0] == "# mismatch: `vllm-ascend` `dcp`"
    assert lines[2] == "Token 1 is on rank 0 \\* 1. (Cause: `owner`)"
    assert lines[4] == (
        "`vllm-ascend` `0.23.0` read from `/tmp/the wheel`, entry point `dcp`, lane `lowered`: "
        "`mismatch: 3 elements differ, first group 0 [1]: expected 6, got 2`. "
        "Example 57 of `conformance/test_dcp.py::test_dcp[vllm-ascend.dcp]`, seed 17."
    )
    assert lines[6:11] == [
        "| group | element | expected | got | request | position | row | virtual block | virtual offset | owner "
        "| local offset | block index | block number | offset | why |",
        "| --- " * 15 + "|",
        "| 0 | 1 | 6 | 2 | 0 | 5 | 0 | 1 | 1 | 1 | 0 | 1 | 3 | 0 | a slot |",
        "| 0 | 3 | -1 | 0 | - | - | - | - | - | - | - | - | - | - | PAD: past the 3 tokens of the batch |",
        "| 0 | 5 | nothing written | 7 |  |  |  |  |  |  |  |  |  |  | not to be written |",
    ]
    assert "2. `owner: (o // I) % W = (1 // 1) % 2 = 1; R = 1: local`" in lines
    assert REPORT.replay_command(path) in lines
    assert json.dumps(CASE.to_json()) in lines
    assert json.dumps(LAUNCH.to_json()) in lines
    assert lines[-1] == "`python` `CPython 3.11.7`, `torch` `2.13.0`"


def test_page_without_sharing_leaves_its_steps_out(tmp_path):
    case = Case((0, 1), (3,), 1, 1, (Group(((5, 6),), 2, 2),))
    report = replace(REPORT, case=case, launch=Launch(), verdict=compare([[13]], [[11]]), examples=None, seed=None)
    text = report.to_markdown("x.json")
    assert "| 0 | 0 | 13 | 11 | 0 | 3 | 0 | 1 | 6 | 1 | a slot |" in text.splitlines()
    assert "| owner |" not in text
    assert ". A saved case of `conformance/test_dcp.py::test_dcp[vllm-ascend.dcp]`.\n" in text


def test_page_of_a_crash_says_how():
    text = replace(REPORT, verdict=Verdict(CRASH, detail="signal 11\n  at line 3")).to_markdown("x.json")
    assert text.startswith("# crash: ")
    assert "```\nsignal 11\n  at line 3\n```" in text
    assert "| group |" not in text


def test_page_counts_what_it_does_not_show():
    report = replace(REPORT, verdict=compare([[UNWRITTEN] * 40], [[0] * 40]))
    assert "\n\n24 more differ.\n" in report.to_markdown("x.json")


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_page_holds_hostile_content_as_code(text, tmp_path):
    path, page = failure.write(hostile_report(text), tmp_path)
    assert json.loads(path.read_text())["subject"] == text
    shown = page.read_text(encoding="utf-8")
    assert len(shown) < 60_000
    assert all(c == "\n" or c.isprintable() for c in shown)
    assert outside_code(shown) == outside_code(hostile_report("`harmless`").to_markdown(path))


@pytest.mark.parametrize("text", [each for each in HOSTILE if len(each) < 100], ids=ascii)
def test_code_span_shows_its_text(text):
    span = markdown.code(text)
    assert outside_code(span) == "CODE"
    assert "\n" not in span


def test_code_span_of_nothing_says_so():
    assert markdown.code("") == "(empty)"


def test_table_cells_keep_their_pipes():
    assert markdown.table(["a"], [["`x|y`"]]) == "| a |\n| --- |\n| `x\\|y` |"


# Where they cannot be written


def test_missing_folder_is_made(tmp_path):
    path, page = failure.write(REPORT, tmp_path / "a" / "b")
    assert path.exists()
    assert page.exists()


def test_folder_that_is_a_file(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(ReportError) as caught:
        failure.write(REPORT, tmp_path / "taken")
    assert str(caught.value) == f"cannot write {tmp_path}/taken/{REPORT.name}.json: File exists"
    with pytest.raises(ReportError, match=r"^cannot write .*/taken/sub/summary\.json: Not a directory$"):
        summary.write(SUMMARY, tmp_path / "taken" / "sub")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write into a read-only folder")
def test_read_only_folder(tmp_path):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(ReportError, match=r"^cannot write .*\.json: Permission denied$"):
            failure.write(REPORT, tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_report_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path):
    (tmp_path / f"{REPORT.name}.json").mkdir()
    with pytest.raises(ReportError, match="Is a directory"):
        failure.write(REPORT, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{REPORT.name}.json"]


# Summary


SUMMARY = Summary(
    subjects=("kernels", "vllm-ascend"),
    lane="lowered",
    seconds=41.23456,
    entry_points={"kernels.v1": Tally(5000, 40, 0), "vllm-ascend.dcp": Tally(1200, 1, 1)},
    reports=(f"{REPORT.name}.json",),
    seed=17,
    environment={"python": "CPython 3.11.7"},
)


def test_summary_file(tmp_path):
    path = summary.write(SUMMARY, tmp_path / "new")
    assert path == tmp_path / "new" / "summary.json"
    assert json.loads(path.read_text()) == {
        "schema": 1,
        "subject": "kernels,vllm-ascend",
        "lane": "lowered",
        "cases": 6200,
        "specializations": 41,
        "failures": 1,
        "seconds": 41.235,
        "entry_points": {
            "kernels.v1": {"cases": 5000, "specializations": 40, "failures": 0},
            "vllm-ascend.dcp": {"cases": 1200, "specializations": 1, "failures": 1},
        },
        "reports": [f"{REPORT.name}.json"],
        "seed": 17,
        "environment": {"python": "CPython 3.11.7"},
    }


def test_summary_line():
    assert SUMMARY.line() == (
        "kernels, vllm-ascend on lane lowered: 6,200 cases of 2 entry points, 41 specializations, 1 failure, 41.2 s"
    )


def test_environment_names_what_is_installed():
    found = environment.environment(("pytest", "no-such-package"))
    assert list(found) == ["python", "platform", "pytest"]
    assert found["pytest"] == pytest.__version__
