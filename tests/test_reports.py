"""Failure reports and summaries: what they hold, that they replay, and that nothing in them can break the page."""

from __future__ import annotations

import ast
import json
import os
import platform
import re
import shlex
import subprocess
from dataclasses import replace

import pytest

from reference.__main__ import main
from reference.case import Case, ContextParallel, Group, Launch, load
from reference.verdict import CRASH, GUARD, UNWRITTEN, Guard, Verdict, compare, expected_output
from reports import environment, failure, files, issue, markdown, summary
from reports.call import Buffer, Call
from reports.diagnosis import UNKNOWN, Diagnosis
from reports.failure import MAX_TRACES, FailureReport
from reports.files import ReportError
from reports.shrinking import Shrinking
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
TABLE = Buffer("block_table", "int32", (2, 2), (3, 1), 6, (7, 3, 0, 9, 1, 0))
CALL = Call(
    kind="kernel",
    module="kernels.some",
    function="_kernel",
    file="/kernels/some.py",
    line=7,
    grid=(3, 1),
    arguments={
        "num_tokens": 3,
        "tables": Buffer("addresses", "uint64", (1,), None, 1, addresses_of=(TABLE,)),
        "out": Buffer("slot_mapping", "int64", (6,), None, 6, writable=True),
        "enabled": None,
        "TILE_BLOCK_SIZE": 16,
    },
    constants=("TILE_BLOCK_SIZE",),
)
LARGER = replace(CASE, query_start_loc=(0, 2, 3, 4), positions=(4, 5, 1, 0), num_tokens=4)
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
    commit="1234abcd",
    settings={"tile": 16, "window": None},
    call=CALL,
    expected=EXPECTED,
    shrinking=Shrinking(57, 321, LARGER),
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


def test_json_has_every_field_of_schema_2(tmp_path):
    path, _ = failure.write(REPORT, tmp_path)
    found = json.loads(path.read_text())
    assert list(found) == [
        "schema",
        "subject",
        "version",
        "commit",
        "source",
        "entry_point",
        "lane",
        "test",
        "verdict",
        "summary",
        "diagnosis",
        "case",
        "launch",
        "settings",
        "call",
        "specialization",
        "property",
        "traces",
        "environment",
        "seed",
        "examples",
        "shrinking",
        "script",
        "script_note",
        "replay",
        "replay_on_host",
    ]
    assert found["schema"] == 2
    assert found["case"] == CASE.to_json()
    assert found["launch"] == LAUNCH.to_json()
    assert found["verdict"] == VERDICT.to_json()
    assert found["diagnosis"] == {"cause": "owner", "summary": "Token 1 is on rank 0 * 1.", "buffer": "slot_mapping"}
    assert found["summary"] == "mismatch: 3 elements differ, first group 0 [1]: expected 6, got 2"
    assert (found["subject"], found["version"], found["source"]) == ("vllm-ascend", "0.23.0", "/tmp/the wheel")
    assert (found["entry_point"], found["lane"], found["test"]) == ("dcp", "lowered", REPORT.test)
    assert (found["seed"], found["examples"], found["environment"]) == (17, 57, REPORT.environment)
    assert (found["commit"], found["settings"]) == ("1234abcd", {"tile": 16, "window": None})
    size = {"groups": 1, "requests": 2, "tokens": 3, "max_num_tokens": 4, "block_table_cells": 4}
    first = {**size, "requests": 3, "tokens": 4}
    assert found["shrinking"] == {"examples": 57, "launches": 321, "before": first, "after": size}


def test_json_has_the_launch_as_it_was_bound(tmp_path):
    path, _ = failure.write(REPORT, tmp_path)
    found = json.loads(path.read_text())
    table = {"buffer": "block_table", "dtype": "int32", "shape": [2, 2], "strides": [3, 1], "writable": False}
    flat = {"dtype": "int64", "strides": [1]}
    assert found["call"] == {
        "kind": "kernel",
        "module": "kernels.some",
        "function": "_kernel",
        "file": "/kernels/some.py",
        "line": 7,
        "launches": True,
        "grid": [3, 1],
        "compile_time": {"TILE_BLOCK_SIZE": 16},
        "run_time": {
            "num_tokens": 3,
            "tables": {
                "buffer": "addresses",
                "dtype": "uint64",
                "shape": [1],
                "strides": [1],
                "writable": False,
                "addresses_of": [table],
            },
            "out": {"buffer": "slot_mapping", **flat, "shape": [6], "writable": True},
            "enabled": None,
        },
    }
    assert found["specialization"] == {
        "constants": {"TILE_BLOCK_SIZE": 16},
        "dtypes": {"tables": "uint64", "out": "int64"},
        "absent": ["enabled"],
    }


def test_script_lies_beside_the_report_and_in_it(tmp_path):
    path, page = failure.write(REPORT, tmp_path)
    script = path.with_suffix(".py").read_text()
    assert json.loads(path.read_text())["script"] == script
    assert f"```python\n{script}```" in page.read_text()
    ast.parse(script)


def test_a_report_without_a_call_says_that_it_has_no_script(tmp_path):
    path, page = failure.write(replace(REPORT, call=None), tmp_path)
    note = "No script: it is not known how the function was called."
    assert (json.loads(path.read_text())["script"], json.loads(path.read_text())["script_note"]) == (None, note)
    assert note in page.read_text()
    assert not path.with_suffix(".py").exists()


def test_a_long_script_is_left_out_of_the_page(tmp_path):
    rows = tuple(tuple(range(0, 60_000, 7)) for _ in range(2))
    values = tuple(number for row in rows for number in row)
    table = replace(TABLE, values=values, size=len(values), shape=(2, len(rows[0])), strides=None)
    report = replace(REPORT, call=replace(CALL, arguments={**CALL.arguments, "tables": table}))
    path, page = failure.write(report, tmp_path)
    assert len(path.with_suffix(".py").read_text()) > 60_000
    assert len(page.read_text()) < 60_000
    assert "It is too long for this page and lies beside it." in page.read_text()


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


def test_a_crash_on_a_device_says_which_lane_names_the_buffer(tmp_path):
    crashed = replace(REPORT, lane="npu", lane_options=("--some", "option"), on_device=True, verdict=Verdict(CRASH))
    path, markdown = failure.write(crashed, tmp_path)
    command = json.loads(path.read_text())["replay_on_host"]
    words = ["--replay", str(path), "--lane", "lowered", "--subject", "vllm-ascend"]
    assert shlex.split(command) == ["pytest", "conformance", *words, "--source", "vllm-ascend=/tmp/the wheel"]
    assert command in markdown.read_text()
    for other in (replace(crashed, on_device=False), replace(crashed, verdict=VERDICT)):
        assert (
            other.host_command(path)
            == json.loads(failure.write(other, tmp_path)[0].read_text())["replay_on_host"]
            == ""
        )
        assert issue.ON_HOST not in other.to_markdown(path)


def test_replay_command_is_one_line_that_a_shell_reads_back():
    """Whatever the folders are called: a control character would reach the terminal, a new line be a command to CI."""
    names = [
        text[:200]
        for text in (*HOSTILE, "::error file=x::y", "a\nb's \\x41\x07f", "\udcff\udc80", "a b")
        if "\0" not in text
    ]
    names.remove("\ud800")  # no file system has it
    commands = [replace(REPORT, source=f"/{name}").replay_command(f"/{name}/x.json") for name in names]
    assert all(command.isprintable() for command in commands)
    assert replace(REPORT, source="\ud800\0").replay_command("x").isprintable()
    script = "\n".join(f"printf '%s\\0' {command}" for command in commands)
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, timeout=20)
    read = [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]
    words = ["--lane", "lowered", "--subject", "vllm-ascend", "--source"]
    assert read == [
        word
        for name in names
        for word in ("pytest", "conformance", "--replay", f"/{name}/x.json", *words, f"vllm-ascend=/{name}")
    ]


def test_a_tree_without_a_version_is_called_that():
    for version in ("", "source tree"):
        shown = replace(REPORT, version=version).to_markdown("x.json")
        assert "`vllm-ascend` `1234abcd` (a source tree without a version) read from `/tmp/the wheel`, entry" in shown
    assert "without a version" not in REPORT.to_markdown("x.json")


# File names


def test_name_is_stable_and_says_who(tmp_path):
    assert re.fullmatch(r"failure-vllm-ascend-dcp-[0-9a-f]{10}", REPORT.name)
    first = failure.write(REPORT, tmp_path)
    again = replace(REPORT, seed=18, examples=1, environment={}, test="elsewhere", verdict=compare([[1]], [[2]]))
    assert failure.write(again, tmp_path) == first
    assert sorted(tmp_path.iterdir()) == sorted([*first, first[0].with_suffix(".py")])


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
    assert lines[0] == "# mismatch, `owner`: `vllm-ascend` `dcp`"
    assert lines[2] == "`/kernels/some.py:7 _kernel`"
    assert lines[4] == "Token 1 is on rank 0 \\* 1."
    assert lines[6] == (
        "`vllm-ascend` `0.23.0` `1234abcd` read from `/tmp/the wheel`, entry point `dcp`, lane `lowered`: "
        "`mismatch: 3 elements differ, first group 0 [1]: expected 6, got 2`. "
        "Example 57 of `conformance/test_dcp.py::test_dcp[vllm-ascend.dcp]`, seed 17."
    )
    assert lines[8:13] == [
        "| group | element | expected | got | request | position | row | virtual block | virtual offset | owner "
        "| local offset | block index | block number | offset | why |",
        "| --- " * 15 + "|",
        "| 0 | 1 | 6 | 2 | 0 | 5 | 0 | 1 | 1 | 1 | 0 | 1 | 3 | 0 | a slot |",
        "| 0 | 3 | -1 | 0 | - | - | - | - | - | - | - | - | - | - | PAD: past the 3 tokens of the batch |",
        "| 0 | 5 | nothing written | 7 |  |  |  |  |  |  |  |  |  |  | not to be written |",
    ]
    assert "2. `owner: (o // I) % W = (1 // 1) % 2 = 1; R = 1: local`" in lines
    assert any(line.startswith("`p` is the position") and line.endswith("`bt[i]` cell i of row 0.") for line in lines)
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
    assert text.startswith("# crash, ")
    assert "What it said:\n\n```\nsignal 11\n  at line 3\n```" in text
    assert "| group |" not in text


def test_page_of_an_element_without_steps_says_what_it_should_be():
    case = Case((0, 0), (), 0, 2, (Group(((5, 6),), 2, 2),))
    report = replace(REPORT, case=case, launch=Launch(), verdict=compare([[-1, -1]], [[-1, 0]]))
    text = report.to_markdown("x.json")
    assert "What element 1 of group 0 should be: `PAD: past the 0 tokens of the batch`.\n" in text
    assert "should come about" not in text


def test_page_of_an_unknown_cause_says_what_it_could_be():
    report = replace(REPORT, diagnosis=Diagnosis(UNKNOWN, "it could be this or that"))
    lines = report.to_markdown("x.json").splitlines()
    assert lines[0] == "# mismatch: `vllm-ascend` `dcp`"
    assert lines[4] == "It could be this or that"


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
    entry_points={"kernels.v1": Tally(5000, 40, 0, 4900), "vllm-ascend.dcp": Tally(1200, 1, 1)},
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
        "unsupported": 0,
        "failures": 1,
        "seconds": 41.235,
        "seconds_total": 41.235,
        "entry_points": {
            "kernels.v1": {"cases": 5000, "specializations": 40, "failures": 0, "compared": 4900, "unsupported": 0},
            "vllm-ascend.dcp": {"cases": 1200, "specializations": 1, "failures": 1, "compared": 0, "unsupported": 0},
        },
        "reports": [f"{REPORT.name}.json"],
        "outside_the_contract": [],
        "known_failures": [],
        "seed": 17,
        "shard": "",
        "compiled": {},
        "runs": [],
        "environment": {"python": "CPython 3.11.7"},
    }


def test_summary_line():
    assert SUMMARY.line() == (
        "kernels, vllm-ascend on lane lowered: 6,200 cases of 2 entry points, 41 specializations, 1 failure, 41.2 s"
    )


def test_environment_names_what_is_installed():
    found = environment.environment(("pytest", "no-such-package"))
    assert [name for name in found if name != "processor"] == ["python", "platform", "pytest"]
    assert found["pytest"] == pytest.__version__


def test_environment_names_the_processor(tmp_path):
    file = tmp_path / "cpuinfo"
    assert environment._processor(file) == ""
    file.write_text("processor\t: 0\nmodel name\t: Some Processor 3\nflags\t\t: fpu\n")
    assert environment._processor(file) == "Some Processor 3"
    file.write_text("processor\t: 0\n")
    assert environment._processor(file) == platform.machine()


def test_what_is_written_replaces_no_link_and_no_device(tmp_path):
    kept, link, pipe = tmp_path / "kept", tmp_path / "link", tmp_path / "pipe"
    kept.write_text("old")
    link.symlink_to(kept)
    files.write_text(link, "new")
    assert (link.is_symlink(), kept.read_text()) == (True, "new")
    os.mkfifo(pipe)
    with pytest.raises(ReportError, match="pipe: it is no regular file"):
        files.write_text(pipe, "new")
    assert pipe.is_fifo()
