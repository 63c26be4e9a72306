"""Known failures: what a file may say, what an entry explains, and that nothing else is forgiven for it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from conformance import explained, known, lanes
from conformance.accepted import FAILS_DIFFERENTLY, FIXED, NOT_RUN, STILL_FAILS, Accepted, covers
from conformance.engine import Engine, Options
from conformance.execution.array import of_values
from conformance.execution.guard_pages import OPEN_BYTES, GuardPages
from conformance.execution.raised import raised_at
from conformance.execution.session import Outcome
from conformance.saved import read
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from conformance.under_test import UnderTest
from conformance.verdicts import Finding, judge
from reference import verdict as v
from reference.case import Case, CaseError, ContextParallel, Group, Launch
from reports.diagnosis import CAUSES
from strategies.declaration import Declaration
from tests.commands import ROOT, USAGE_ERROR, Done, in_few_processes, pytest_
from tests.faults.catalogue import PACKAGE, by_name, faulty_source, write_variant

LANE = lanes.automatic()
SHARED = by_name("torch-kernel-block-for-virtual-block")
TAIL = by_name("torch-pads-the-tail")
# b = 1, B = 2, W = 2: with b for B, position 2 is rank 0's and not rank 1's. Its output has a tail of one element.
CASE = Case((0, 1), (2,), 1, 2, (Group(((0, 1),), 1, 2),), cp=ContextParallel(2, 1, 2))
LAUNCH = Launch()
JSON = json.dumps({"case": CASE.to_json(), "launch": LAUNCH.to_json()})


def entry(**changes: str | None) -> str:
    """The text of one entry; None leaves a key out."""
    values = {
        "entry_point": "kernels.dcp",
        "kind": "mismatch",
        "cause": "virtual block",
        "reason": "for a test",
        "case": JSON,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in (values | changes).items() if value is not None]
    return "\n".join(["[[failure]]", *lines, ""])


def written(path: Path, *entries: str, schema: str = "schema = 1\n") -> Path:
    path.write_text("\n".join([schema, *entries]), encoding="utf-8")
    return path


# The file.


def test_an_entry_is_read_as_it_is_meant(tmp_path: Path) -> None:
    (tmp_path / "case.json").write_text(json.dumps(CASE.to_json()))
    file = written(
        tmp_path / "known.toml",
        entry(buffer="block_table", lane="lowered", reason=" because \n"),
        entry(entry_point="vllm-ascend.v2", case=None, case_file="case.json", kind="hang", cause="hang"),
    )
    first, second = known.read(file)
    assert (first.entry_point, first.kind, first.lane, first.reason) == (
        "kernels.dcp",
        "mismatch",
        "lowered",
        "because",
    )
    assert first.key == "virtual block block_table"
    assert (first.saved.case, first.saved.launch) == (CASE, LAUNCH)
    assert (second.entry_point, second.key, second.lane, second.saved.case) == ("vllm-ascend.v2", "hang", "", CASE)
    assert second.where == f"{file}: failure 2 (vllm-ascend.v2)"
    assert known.read(written(tmp_path / "empty.toml")) == ()


WRONG: dict[str, tuple[str, str]] = {
    "toml": ("schema = \n", r"not TOML: .*line 1"),
    "no-schema": (entry(), r"schema: missing"),
    "schema": ("schema = 2\n", r"schema: expected 1, got 2"),
    "schema-true": ("schema = true\n", r"schema: expected 1, got true"),
    "unknown-table": ("schema = 1\n[[failures]]\n", r"failures: unknown field; known are schema, failure"),
    "no-list": ("schema = 1\n[failure]\nreason = 'x'\n", r"failure: expected entries, .* got an object"),
    "no-table": ("schema = 1\nfailure = [1]\n", r"failure 1: entry: expected an object, got 1"),
    "no-reason": ("schema = 1\n" + entry(reason=None), r"failure 1: reason: missing"),
    "empty-reason": (
        "schema = 1\n" + entry() + entry(reason="  "),
        r"failure 2 \(kernels.dcp\): reason: it is empty; say why this failure is accepted",
    ),
    "empty-cause": ("schema = 1\n" + entry(cause=""), r"failure 1 \(kernels.dcp\): cause: it is empty"),
    "no-cause": (
        "schema = 1\n" + entry(cause="widnow"),
        r'\(kernels.dcp\): cause: expected one of those in docs/diagnosis.md, got "widnow", did you mean "window"$',
    ),
    "cause-like-nothing": ("schema = 1\n" + entry(cause="7"), r'cause: .* got "7"$'),
    "lane": ("schema = 1\n" + entry(lane="lowerd"), r'lane: expected .*"lowered" or .* got "lowerd"'),
    "unknown-key": ("schema = 1\n" + entry(issue="7"), r"failure 1: issue: unknown field; known are entry_point, "),
    "number": ("schema = 1\n" + entry(reason=None) + "reason = 3\n", r"failure 1: reason: expected a text, got 3"),
    "bare-name": ("schema = 1\n" + entry(entry_point="v2"), r"\(v2\): entry_point: expected one of kernels.NAME, .*v2"),
    "no-subject": ("schema = 1\n" + entry(entry_point="vlm.v2"), r"entry_point: expected one of .* got \"vlm.v2\""),
    "specializations": (
        "schema = 1\n" + entry(kind="crash", cause="crash", specializations="some"),
        r'specializations: expected "all", got "some"',
    ),
    "specializations of wrong values": (
        "schema = 1\n" + entry(specializations="all"),
        "specializations: of a crash or hang alone, a mismatch is compared by its cause",
    ),
    "kind": ("schema = 1\n" + entry(kind="pass"), r'kind: expected "mismatch" or .*, got "pass"'),
    "no-case": ("schema = 1\n" + entry(case=None), r"expected either case, a JSON text, or case_file, a path"),
    "two-cases": ("schema = 1\n" + entry(case_file="x.json"), r"expected either case"),
    "no-json": ("schema = 1\n" + entry(case="{"), r"failure 1 \(kernels.dcp\): case: line 1 column 2: not JSON"),
    "no-such-file": ("schema = 1\n" + entry(case=None, case_file="x.json"), r"x\.json: No such file"),
    "no-answer": (
        "schema = 1\n" + entry(case=json.dumps(replace(CASE, cp=ContextParallel(2, 2, 2)).to_json())),
        r"case: rank-range: rank 2 is outside 0\.\.1",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_with_a_file_is_said_in_one_line(name: str, tmp_path: Path) -> None:
    text, message = WRONG[name]
    file = tmp_path / "known.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(CaseError, match=message) as raised:
        known.read(file)
    assert str(raised.value).startswith(str(file.parent))
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["missing", "folder", "not-utf-8", "control"])
def test_a_file_that_cannot_be_read_is_an_error_of_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "not-utf-8").write_bytes(b"schema = 1 # \xff")
    (tmp_path / "control").write_bytes(b"schema = 1\x07")
    with pytest.raises(CaseError, match=re.escape(name)) as raised:
        known.read(tmp_path / name)
    assert "\n" not in str(raised.value)


def test_what_is_written_reads_the_same(tmp_path: Path) -> None:
    """Whatever a kernel's message held: it is part of the buffer of a crash. A constant says the settings better."""
    odd = "crash: a \"quote\", a \\ and \x1b[31m red\u2028 \U0001f600 ''' # \t"
    [plain] = known.read(written(tmp_path / "known.toml", entry()))
    named = replace(LAUNCH, constants={"it's": 1})
    many = [
        plain,
        replace(plain, kind="crash", cause="crash", buffer=odd, lane="lowered"),
        replace(plain, saved=replace(plain.saved, launch=named, settings=Settings(64, 9))),
        replace(plain, saved=replace(plain.saved, settings=Settings(64, None))),
    ]
    file = tmp_path / "again.toml"
    file.write_text(known.text_of(many), encoding="utf-8")
    again = known.read(file)
    assert [(each.kind, each.cause, each.buffer, each.lane, each.reason) for each in again] == [
        (each.kind, each.cause, each.buffer, each.lane, each.reason) for each in many
    ]
    assert [each.saved.launch for each in again] == [LAUNCH, LAUNCH, named, LAUNCH]
    assert [each.saved.settings for each in again] == [None, None, None, Settings(64, None)]
    assert len(tomllib.loads(file.read_text())["failure"]) == 4


def test_a_failure_that_was_found_is_written_with_its_settings_and_why() -> None:
    """A host function is given flags or none by its settings, which are in no constant of its launch."""
    finding = replace(ended_well(CASE, LAUNCH, *WRONG_VALUE), settings=Settings(16, 4))
    found = known.of_finding(finding, "lowered")
    assert found.saved.drawn(ENTRY)[2] == Settings(16, 4)
    lines = known.text_of([found, replace(found, reason="known", summary="not shown")]).splitlines()
    comment = lines[lines.index('reason = ""') - 1]
    assert comment == f"# {finding.diagnosis.summary}"
    assert len(comment) > 20
    assert "# not shown" not in lines
    odd = known.text_of([replace(found, summary="one \n two \x1b \ud800")])
    assert [entry["reason"] for entry in tomllib.loads(odd)["failure"]] == [""]


@pytest.mark.parametrize(
    ("version", "entry_points", "count"),
    [
        ("0.23.0", {"vllm-ascend.dcp", "vllm-ascend.v2"}, 6),
        ("0.26.0rc1", {"vllm-ascend.v1", "vllm-ascend.dcp", "vllm-ascend.v2"}, 7),
    ],
)
def test_the_lists_that_the_documentation_shows_are_complete(version: str, entry_points: set[str], count: int) -> None:
    """Runs on published wheels wrote them; their cases are legal, as reading says, and each is accepted."""
    entries = known.read(ROOT / "tests" / "data" / "known" / f"vllm_ascend_{version}.toml")
    assert {each.entry_point for each in entries} == entry_points
    assert len({(each.entry_point, each.kind, each.key) for each in entries}) == len(entries) == count
    assert all(each.key is not None and "docs/findings.md" in each.reason for each in entries)
    assert {each.cause for each in entries} <= CAUSES.keys()


# What is explained, on findings made for it.

ENTRY = EntryPoint("kernels", "1", "dcp", "f", "dcp", "f.py", 1, (), (), Declaration(features=frozenset({"cp"})))


def read_past(buffer: str, direction: str = "read") -> v.Guard:
    return v.Guard(buffer, direction, 4096, 0, f"{direction} {buffer} too far")


def ended_well(case: Case, launch: Launch, *values: int, guards: tuple[v.Guard, ...] = ()) -> Finding:
    return judge(ENTRY, case, launch, Outcome("ok", {"slot_mapping": list(values)}, guards))


RIGHT, WRONG_VALUE = (0, v.UNWRITTEN), (7, v.UNWRITTEN)


def test_what_is_wrong_is_looked_at_part_by_part() -> None:
    """An explained access excuses neither one to another buffer nor a wrong value."""
    guards = (read_past("block_table[0]"), read_past("block_table[1]"), read_past("slot_mapping", "write"))
    finding = ended_well(CASE, LAUNCH, *WRONG_VALUE, guards=guards)
    found = [(part.verdict.kind, [guard.buffer for guard in part.verdict.guards]) for part in explained.parts(finding)]
    assert found == [(v.GUARD, ["block_table[0]"]), (v.GUARD, ["slot_mapping"]), (v.MISMATCH, [])]

    def table(part: Finding) -> bool:
        return part.verdict.kind == v.GUARD and part.verdict.guards[0].buffer.startswith("block_table")

    assert explained.remainder(finding, table).verdict.guards == guards[2:]
    assert explained.remainder(finding, lambda part: part.verdict.kind == v.GUARD).verdict.kind == v.MISMATCH
    assert explained.remainder(finding, lambda part: False) is finding
    assert explained.remainder(finding, lambda part: True).verdict.passed
    assert explained.parts(ended_well(CASE, LAUNCH, *RIGHT)) == ()


@pytest.mark.parametrize("values", [RIGHT, WRONG_VALUE], ids=["right", "wrong"])
def test_behind_an_explained_over_read_values_are_compared(values: tuple[int, ...]) -> None:
    """The launch ends at its first read past the table; where poison can be read it goes on and fails, or does not."""
    launches = []

    def run(case: Case, launch: Launch) -> Finding:
        launches.append((launch.fence, launch.open_buffers))
        if "block_table" in launch.open_buffers:
            return ended_well(case, launch, *values)
        return judge(ENTRY, case, launch, Outcome("crash", guards=(read_past("block_table"),)))

    found = explained.beyond(run, CASE, LAUNCH, lambda part: part.verdict.kind == v.GUARD)
    assert launches == [("after", ()), ("after", ("block_table",))]
    assert found.verdict.passed == (values == RIGHT)
    assert explained.beyond(run, CASE, LAUNCH, lambda part: False).verdict.kind == v.GUARD


def test_behind_an_explained_over_read_those_of_other_buffers_are_looked_for() -> None:
    def run(case: Case, launch: Launch) -> Finding:
        reached = [
            name for name in ("block_table[1]", "positions") if name.partition("[")[0] not in launch.open_buffers
        ]
        if reached:
            return judge(ENTRY, case, launch, Outcome("crash", guards=(read_past(reached[0]),)))
        return ended_well(case, launch, *WRONG_VALUE)

    def explains(*causes: str) -> explained.Explains:
        return lambda part: part.diagnosis.key in causes

    table, positions = "out of bounds read past block_table", "out of bounds read past positions"
    assert explained.beyond(run, CASE, LAUNCH, explains(table)).diagnosis.key == positions
    both = explained.beyond(run, CASE, LAUNCH, explains(table, positions))
    assert (both.verdict.kind, both.launch.open_buffers) == (v.MISMATCH, ("block_table", "positions"))


def test_a_buffer_that_is_open_has_poison_on_either_side_and_the_others_have_none() -> None:
    arrays = [of_values(name, "int32", range(3)) for name in ("block_table[0]", "block_table[1]", "positions")]
    for fence in ("after", "before"):
        memory = GuardPages()
        try:
            placed = memory.place(arrays, fence, ("block_table",))
            for name, item in placed.items():
                room = item.start - item.room.start, item.room.stop - item.start - item.array.nbytes
                assert (min(room) >= OPEN_BYTES) == name.startswith("block_table")
                assert (room[fence == "after"] == 0) == (name == "positions")
        finally:
            memory.close()


def test_open_buffers_are_part_of_a_launch_s_json() -> None:
    launch = Launch(open_buffers=("block_table",))
    assert Launch.from_json(launch.to_json()) == launch
    assert "open_buffers" not in Launch().to_json()
    with pytest.raises(CaseError, match=r"^launch.open_buffers\[0\]: expected the name of a buffer, got 3$"):
        Launch.from_json({"open_buffers": [3]})


def test_behind_an_explained_exception_values_are_compared_on_wider_rows() -> None:
    case = replace(CASE, positions=(4,), groups=(Group(((0, 1),), 1, 2),))  # rank 0's, two columns further

    def run(case: Case, launch: Launch) -> Finding:
        if case.groups[0].row_width < 4:
            return judge(ENTRY, case, launch, Outcome("raised", message="IndexError: index 2 is out of bounds"))
        return ended_well(case, launch, *WRONG_VALUE)

    found = explained.beyond(run, case, LAUNCH, lambda part: part.verdict.kind == v.CRASH)
    assert found.verdict.kind == v.MISMATCH
    assert found.case.groups[0].row_width == 4


def test_what_stays_explained_ends_and_is_a_failure_as_long_as_nothing_was_compared() -> None:
    """An access further than the poison reaches ends the launch again: what comes out behind it nobody knows."""
    launches = []

    def run(case: Case, launch: Launch) -> Finding:
        launches.append(launch.open_buffers)
        return judge(ENTRY, case, launch, Outcome("crash", guards=(read_past("positions"),)))

    found = explained.beyond(run, CASE, LAUNCH, lambda part: True)
    assert (found.verdict.kind, launches) == (v.GUARD, [(), ("positions",)])
    assert explained.beyond(run, CASE, LAUNCH, lambda part: True, lambda part: True).verdict.passed

    def crashes(case: Case, launch: Launch) -> Finding:
        return judge(ENTRY, case, launch, Outcome("crash", message="SIGSEGV"))

    assert explained.beyond(crashes, CASE, LAUNCH, lambda part: True).verdict.passed


def test_behind_a_read_further_than_the_poison_values_are_compared_on_wider_rows() -> None:
    """Another rank's token may lie any distance behind the row."""
    case = replace(CASE, positions=(4,), groups=(Group(((0, 1),), 1, 2),))

    def run(case: Case, launch: Launch) -> Finding:
        if case.groups[0].row_width < 4:
            return judge(ENTRY, case, launch, Outcome("crash", guards=(read_past("block_table"),)))
        return ended_well(case, launch, *WRONG_VALUE)

    found = explained.beyond(run, case, LAUNCH, lambda part: part.verdict.kind == v.GUARD)
    assert (found.verdict.kind, found.launch.open_buffers) == (v.MISMATCH, ("block_table",))


def test_a_cause_that_many_failures_have_explains_its_own_case_or_others_in_the_same_place(tmp_path: Path) -> None:
    padded = replace(ENTRY, name="v1", family="v1", declaration=Declaration(features=frozenset({"cp", "tail"})))
    longer = replace(CASE, max_num_tokens=3)

    def left(case: Case, *values: int) -> Finding:
        return judge(padded, case, LAUNCH, Outcome("ok", {"slot_mapping": list(values)}))

    tail, token = left(CASE, 0, v.UNWRITTEN), left(longer, v.UNWRITTEN, -1, -1)
    both, other = left(longer, v.UNWRITTEN, -1, v.UNWRITTEN), left(longer, 0, -1, v.UNWRITTEN)
    assert {each.diagnosis.cause for each in (tail, token, both, other)} <= {"stale element", "padding end", "unknown"}
    [stale, column, window] = known.read(
        written(tmp_path / "known.toml", *(entry(cause=each) for each in ("stale element", "table column", "window")))
    )
    assert [covers(stale, each, tail) for each in (tail, other, token, both)] == [True, True, False, False]
    assert [covers(stale, each, both) for each in (token, other, both)] == [True, True, True]
    assert [covers(column, each, token) for each in (token, tail)] == [True, False]
    assert covers(window, other, token)


def test_a_known_compile_error_explains_no_other_message() -> None:
    """The lines that the compiler shows before it do not matter, and numbers do not."""

    def fails(message: str, line: int = 7) -> Finding:
        shown = f"at {line}:4:\n    x = {line}\n    tl.static_assert(x ^ 1)\n    ^\n{message}"
        return judge(ENTRY, CASE, LAUNCH, Outcome("compile", message=shown))

    [told] = {fails("out of registers: 300", line).diagnosis.key for line in (7, 8)}
    assert told == "compile error out of registers: N"
    assert explained.can_be(fails("out of registers: 400"), {told})
    assert not explained.can_be(fails("no such type"), {told})
    assert fails("").diagnosis.key == "compile error"


def test_a_known_end_explains_no_other_that_says_the_same(tmp_path: Path) -> None:
    """Not what another line raises, nor, of a death or a hang, what was compiled for something else."""
    longer = replace(CASE, max_num_tokens=3)
    wider = replace(CASE, groups=(Group(((0, 1),), 1, 1),))

    def ended(status: str, message: str = "", case: Case = CASE, tile: int = 16) -> Finding:
        return judge(ENTRY, case, Launch(constants={"TILE": tile}), Outcome(status, message=message))

    died = "the process was ended by SIGSEGV"
    for status, message, kind in (("crash", died, v.CRASH), ("hang", "", v.HANG)):
        [entry_] = known.read(written(tmp_path / "known.toml", entry(kind=kind, cause=kind, buffer=message)))
        own = ended(status, message)
        alike, others = ended(status, message, longer), [ended(status, message, tile=64), ended(status, message, wider)]
        assert all(map(entry_.is_about, (alike, *others)))
        assert [covers(entry_, each, own) for each in (own, alike, *others)] == [True, True, False, False]
        assert not covers(entry_, alike, None)
        everywhere = entry(kind=kind, cause=kind, buffer=message, specializations="all")
        [entry_] = known.read(written(tmp_path / "known.toml", everywhere))
        assert [covers(entry_, each, own) for each in (own, alike, *others)] == [True] * 4
        (tmp_path / "again.toml").write_text(known.text_of([entry_]), encoding="utf-8")
        assert known.read(tmp_path / "again.toml")[0].everywhere
    for error, kind in (("RuntimeError", v.CRASH), ("ValueError", v.REFUSED)):
        said = f"{error}: not supported (torch_dcp.py:N)"
        [entry_] = known.read(written(tmp_path / "known.toml", entry(kind=kind, cause=kind, buffer=said)))
        own, alike, other = (ended("raised", said.replace("N)", f"{n})"), wider, n) for n in (7, 7, 8))
        assert all(map(entry_.is_about, (own, alike, other)))
        assert [covers(entry_, each, own) for each in (alike, other)] == [True, False]
        nowhere = ended("raised", f"{error}: not supported")
        assert not covers(entry_, nowhere, own)


def test_a_known_exception_of_a_library_explains_none_that_another_statement_has_from_it(tmp_path: Path) -> None:
    """Both end in the same line of the library: the statements of the code under test tell them apart."""
    call = "__import__('numpy').repeat([0], -1)"
    where, then = "    output = slot_mapping[:num_tokens]", f"\n        {call}\n"
    tree = raising(tmp_path, where, f"    if pad_id == -1:{then}    if pad_id == -2:{then}")
    engine = Engine(LANE, Options(("kernels",), {"kernels": str(tree)}, 1, 10.0, ROOT / ".cache", 1))
    try:
        [dcp] = [each for each in engine.entries() if each.name == "dcp"]
        own, alike, other = (
            engine.run(dcp, each, LAUNCH, Settings())
            for each in (CASE, replace(CASE, max_num_tokens=3), replace(CASE, pad_id=-2))
        )
    finally:
        engine.close()
    found = [re.fullmatch(r"ValueError: [^()]* \(torch_dcp\.py:(\d+)\)", each.verdict.detail) for each in (own, other)]
    assert [int(each[1]) for each in found if each] == [line + int(found[0][1]) for line in (0, 2)]  # type: ignore[index]
    entry_ = known.of_finding(own, LANE.name)
    assert entry_.is_about(other)
    assert [covers(entry_, each, own) for each in (alike, other)] == [True, False]


def test_an_exception_names_the_lines_of_the_code_under_test_that_it_came_through(tmp_path: Path) -> None:
    package = tmp_path / "package"
    text = """\
def helper(): raise ValueError("n")
def one(): helper()
def again(n): again(n - 1) if n else helper()
def hidden():
    try:
        helper()
    except ValueError:
        raise KeyError from None
"""
    there: dict[str, Any] = {}
    exec(compile(text, str(package / "below" / "file.py"), "exec"), there)
    exec(compile("def library(): one()", "/somewhere/library.py", "exec"), there)

    def said(call: Callable[[], object], folder: Path | None = package) -> str:
        with pytest.raises((KeyError, ValueError)) as raised:
            call()
        return raised_at(raised.value, folder)

    assert said(there["one"]) == "below/file.py:2 > below/file.py:1"
    assert said(there["library"]) == "below/file.py:2 > below/file.py:1"
    assert said(lambda: there["again"](50)) == "below/file.py:3 > below/file.py:1"
    assert said(there["hidden"]) == "below/file.py:8 > below/file.py:6 > below/file.py:1"
    for other in (tmp_path / "pack", None):
        assert said(there["one"], other) == "file.py:1"
    assert raised_at(ValueError(), package) == ""


def test_ends_that_are_not_one_are_written_down_one_by_one() -> None:
    died = "the process was ended by SIGSEGV"
    engine = cast("Engine", SimpleNamespace(lane=LANE))
    ends = [
        judge(ENTRY, CASE, Launch(constants={"TILE": tile}), Outcome("crash", message=died)) for tile in (16, 16, 64)
    ]
    written_down = Accepted((), engine).refreshed(ends)
    assert [each.saved.launch.constants["TILE"] for each in written_down] == [16, 64]


def test_a_case_of_two_known_causes_is_explained_by_both_and_by_neither_alone() -> None:
    """Slots above 2^24 in float32, and a block outside what v2 stages of a row, in one output."""
    rows = ((*range(4095), 2**23, 5, 6),)
    case = Case((0, 2), (4095 * 4 + 1, 4097 * 4), 2, 2, (Group(rows, 4, 4),), idx_mapping=(0,))
    launch = Launch(constants={"TOTAL_BLOCK_SIZE": 4096})
    entry = replace(ENTRY, name="v2", family="v2", declaration=Declaration(features=frozenset({"tail"})))
    finding = judge(entry, case, launch, Outcome("ok", {"slot_mapping": [2**25, 77]}))
    assert finding.verdict.total_differences == 2
    assert not explained.can_be(finding, {"float32"})
    assert not explained.can_be(finding, {"window"})
    assert explained.can_be(finding, {"float32", "window"})
    other = judge(entry, case, launch, Outcome("ok", {"slot_mapping": [2**25 + 2, 77]}))
    assert not explained.can_be(other, {"float32", "window"})


def test_a_block_that_was_not_staged_is_told_whatever_was_found_instead() -> None:
    """What lies behind the staged cells is the machine's business, and differs from run to run."""
    saved = read(ROOT / "tests" / "data" / "findings" / "row-wider-than-what-is-staged.json")
    entry = replace(ENTRY, name="v2", family="v2", declaration=Declaration(features=frozenset({"tail"})))
    for value in (77, -(2**31)):
        finding = judge(entry, saved.case, saved.launch, Outcome("ok", {"slot_mapping": [value]}))
        assert finding.diagnosis.key == "window"
    for value in (77, 0):
        finding = judge(entry, saved.case, saved.launch, Outcome("ok", {"slot_mapping": [value]}))
        assert explained.can_be(finding, {"window"})


def test_a_block_outside_the_window_is_told_whatever_was_found_instead() -> None:
    """A kernel that stages a window and does not ask whether a block lies in it: the same, and only of that block."""
    saved = read(ROOT / "tests" / "data" / "findings" / "window-begins-at-a-foreign-token.json")
    entry = replace(ENTRY, name="v1", family="v1", declaration=Declaration(features=frozenset({"cp", "tail"})))

    def found(*values: int) -> Finding:
        return judge(entry, saved.case, saved.launch, Outcome("ok", {"slot_mapping": list(values)}))

    for value in (127, 106_529, -(2**31)):
        assert explained.can_be(found(value, -1), {"window"})
    assert not explained.can_be(found(4095, 77), {"window"})
    assert not explained.can_be(found(77, 77), {"window"})
    inside = replace(saved.case, positions=(127, 4096))
    assert not explained.can_be(
        judge(entry, inside, saved.launch, Outcome("ok", {"slot_mapping": [77, -1]})), {"window"}
    )


def test_wrong_values_end_a_search_unless_failures_are_known_or_written_down() -> None:
    engine = cast("Engine", None)  # nothing is launched
    saved = read(ROOT / "tests" / "data" / "findings" / "row-wider-than-what-is-staged.json")
    mismatch = judge(ENTRY, saved.case, saved.launch, Outcome("ok", {"slot_mapping": [77]}))
    guard = judge(ENTRY, CASE, LAUNCH, Outcome("crash", guards=(read_past("positions"),)))
    for thorough in (False, True):
        target = UnderTest(engine, ENTRY, Accepted((), engine, thorough))
        assert target.signature(mismatch) == ("window" if thorough else None)
        assert target.signature(guard) == "out of bounds read past positions"


# Entries against kernels, in this process.


def combined(folder: Path, *faults: str) -> Path:
    """The kernels with several faults in the torch path."""
    first, *others = map(by_name, faults)
    source = write_variant(first, folder)
    file = source / "kernels" / first.file
    for fault in others:
        file.write_text(faulty_source(fault, file.read_text(encoding="utf-8")), encoding="utf-8")
    return source


def raising(folder: Path, where: str, what: str) -> Path:
    """The kernels with ``what`` before the line that begins with ``where`` in the torch path."""
    source = write_variant(SHARED, folder)
    file, right = source / "kernels" / "torch_dcp.py", PACKAGE / "torch_dcp.py"
    text = right.read_text(encoding="utf-8")
    assert text.count(where) == 1
    file.write_text(text.replace(where, what + where), encoding="utf-8")
    return source


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("trees")
    where, ended = "    output = slot_mapping[:num_tokens]", "raise RuntimeError('not supported')"
    some = f"    if cp_size > 1 and positions.numel():\n        {ended}\n"
    return {
        "right": PACKAGE.parent,
        "never": raising(folder / "never", where, f"    {ended}\n"),
        "sometimes": raising(folder / "sometimes", where, some),
        "shared": combined(folder / "shared", SHARED.name),
        "tail": combined(folder / "tail", TAIL.name),
        "both": combined(folder / "both", SHARED.name, TAIL.name),
    }


STATUSES = {
    "right": [FIXED, FIXED, FIXED, NOT_RUN, NOT_RUN],
    "shared": [STILL_FAILS, FAILS_DIFFERENTLY, STILL_FAILS, NOT_RUN, NOT_RUN],
    "tail": [FAILS_DIFFERENTLY, STILL_FAILS, STILL_FAILS, NOT_RUN, NOT_RUN],
}


@pytest.mark.parametrize("name", STATUSES)
def test_the_case_of_an_entry_decides_what_it_is_worth(name: str, trees: dict[str, Path], tmp_path: Path) -> None:
    entries = known.read(
        written(
            tmp_path / "known.toml",
            entry(),
            entry(cause="padding end"),
            entry(cause="unknown"),
            entry(entry_point="vllm.v1"),
            entry(lane="npu"),
        )
    )
    options = Options(("kernels",), {"kernels": str(trees[name])}, 1, 10.0, ROOT / ".cache", 1)
    engine = Engine(LANE, options)
    try:
        accepted = Accepted(entries, engine)
        outcomes = [accepted.outcome(each) for each in entries]
        assert [outcome.status for outcome in outcomes] == STATUSES[name]
        assert "this run is not about vllm" in outcomes[3].why
        assert "known on lane npu" in outcomes[4].why
        if name != "right":
            finding = outcomes[0].finding
            assert finding is not None
            explaining = accepted.explaining(finding)
            assert explaining is entries[0 if name == "shared" else 1]
            # An unknown cause explains the very same case, and no other one.
            unknown = Accepted(entries[2:3], engine)
            assert unknown.explaining(finding) is entries[2]
            assert unknown.explaining(replace(finding, case=replace(CASE, max_num_tokens=1))) is None
            assert Accepted((replace(entries[0], kind="crash"),), engine).explaining(finding) is None
            elsewhere = replace(finding, entry=replace(finding.entry, name="v1"))
            assert accepted.explaining(elsewhere) is None
    finally:
        engine.close()


# The options, as somebody types them.

SELECTED = ("conformance/test_dcp.py", "conformance/test_known.py", "-p", "no:cacheprovider", "-rxX")
FEW = ("--max-examples", "120", "--hypothesis-seed", "5")


def toml(path: Path) -> list[dict[str, str]]:
    return tomllib.loads(path.read_text(encoding="utf-8"))["failure"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("known")


@pytest.fixture(scope="module")
def first(folder: Path, trees: dict[str, Path]) -> Done:
    """A run that writes what it finds."""
    options = (*FEW, "--report-dir", folder / "first", "--write-known-failures", folder / "written.toml")
    return pytest_("conformance/test_dcp.py", "--source", f"kernels={trees['tail']}", *options)


@pytest.fixture(scope="module")
def runs(folder: Path, first: Done, trees: dict[str, Path]) -> dict[str, Done]:
    text = (folder / "written.toml").read_text(encoding="utf-8")
    accepted = folder / "accepted.toml"
    accepted.write_text(text.replace('reason = ""', 'reason = "accepted for this test"'), encoding="utf-8")
    differs = written(folder / "differs.toml", entry(cause="padding end", reason="it was once so"))
    crash = {"kind": "crash", "cause": "crash", "buffer": "RuntimeError: not supported (torch_dcp.py:N)"}
    crashes = written(folder / "crashes.toml", entry(**crash))
    elsewhere = written(folder / "elsewhere.toml", entry(entry_point="vllm.v1"), entry(lane="npu"))
    [report] = (folder / "first").glob("failure-kernels-dcp-*.json")
    items: dict[str, tuple[str, Path, tuple[str | Path, ...]]] = {
        "unedited": ("tail", folder / "written.toml", ()),
        "accepted": ("tail", accepted, ("--strict-known",)),
        "another": ("both", accepted, ("--write-known-failures", folder / "refreshed.toml")),
        "fixed": (
            "right",
            accepted,
            ("--known-failures", elsewhere, "-rs", "--write-known-failures", folder / "left.toml"),
        ),
        "strict": ("right", accepted, ("--strict-known",)),
        "strict-deselected": ("right", accepted, ("--strict-known", "-k", "test_dcp_slots")),
        "differs": ("shared", differs, ("-k", "known")),
        "never": ("never", crashes, ("--require", "dcp")),
        "sometimes": ("sometimes", crashes, ("--require", "dcp")),
        "outside": ("sometimes", crashes, ("conformance/test_boundary.py", "-k", "dcp_boundary")),
        "outside-unknown": ("sometimes", elsewhere, ("conformance/test_boundary.py", "-k", "dcp_boundary")),
        "replayed": ("tail", accepted, ("--replay", report, "--write-known-failures", accepted / "below-a-file.toml")),
    }
    commands = [
        (
            *(("conformance", *SELECTED[2:]) if name == "replayed" else SELECTED),
            *(*FEW, "--source", f"kernels={trees[tree]}", "--known-failures", file),
            *("--report-dir", folder / name, *more),
        )
        for name, (tree, file, more) in items.items()
    ]
    return dict(zip(items, in_few_processes(commands), strict=True))


def test_a_run_writes_an_entry_for_each_cause_it_found(first: Done, folder: Path) -> None:
    assert first.status == 1, first.tail
    [item] = toml(folder / "written.toml")
    assert {key: item[key] for key in ("entry_point", "kind", "cause", "reason", "lane")} == {
        "entry_point": "kernels.dcp",
        "kind": "mismatch",
        "cause": "padding end",
        "reason": "",
        "lane": LANE.name,
    }
    assert "1 known failures" in first.output
    assert "1 without a reason" in first.output


def test_an_entry_without_a_reason_is_refused(runs: dict[str, Done], folder: Path) -> None:
    assert runs["unedited"].status == USAGE_ERROR
    said = f"ERROR: --known-failures: {folder / 'written.toml'}: failure 1 (kernels.dcp): reason: it is empty"
    assert any(line.startswith(said) for line in runs["unedited"].lines), runs["unedited"].tail


def test_what_is_known_is_expected(runs: dict[str, Done]) -> None:
    done = runs["accepted"]
    assert done.status == 0, done.tail
    assert re.search(r"1 passed, 1 xfailed", done.output), done.tail
    assert "XFAIL conformance/test_known.py::" in done.output
    [line] = [line for line in done.lines if line.startswith("known failure still fails: kernels.dcp: mismatch, ")]
    found = re.search(r"accepted for this test \(explains (\d+) of the cases run\)$", line)
    assert found, line
    assert int(found[1]) > 1
    assert done.lines.index(line) > 0


def test_what_is_known_comes_first(runs: dict[str, Done]) -> None:
    text = runs["accepted"].output
    assert text.index("test_known.py x") < text.index("test_dcp.py .")


def test_another_failure_is_new_and_no_report_is_about_the_known_one(runs: dict[str, Done], folder: Path) -> None:
    done = runs["another"]
    assert done.status == 1, done.tail
    assert "1 failed, 1 xfailed" in done.output, done.tail
    causes = [
        json.loads(file.read_text())["diagnosis"]["cause"] for file in (folder / "another").glob("failure-*.json")
    ]
    assert causes
    assert "padding end" not in causes
    kept, *new = toml(folder / "refreshed.toml")
    assert (kept["cause"], kept["reason"]) == ("padding end", "accepted for this test")
    assert sorted(each["cause"] for each in new) == sorted(causes)
    assert {each["reason"] for each in new} == {""}


def test_a_known_failure_of_some_cases_does_not_become_one_of_all(runs: dict[str, Done]) -> None:
    """Nothing that crashes is compared: a test and a required entry point need cases that do not."""
    assert runs["sometimes"].status == 0, runs["sometimes"].tail
    done = runs["never"]
    assert done.status == 1, done.tail
    assert "1 failed, 1 xfailed" in done.output, done.tail
    assert (
        "no case left an output that could be compared, known failures explain them all: "
        "kernels.dcp: crash, crash RuntimeError: not supported (torch_dcp.py:N)"
    ) in done.lines
    assert "--require dcp: left no output that could be compared, so this run fails" in done.lines


def test_what_is_known_is_expected_outside_the_contract_too(runs: dict[str, Done]) -> None:
    assert runs["outside"].status == 0, runs["outside"].tail
    assert "1 passed" in runs["outside"].output
    assert runs["outside-unknown"].status == 1, runs["outside-unknown"].tail
    assert "RuntimeError: not supported" in runs["outside-unknown"].output


def test_what_passes_now_is_said_and_fails_only_a_strict_run(runs: dict[str, Done]) -> None:
    assert runs["fixed"].status == 0, runs["fixed"].tail
    assert "known failure passes now: kernels.dcp: mismatch, padding end: accepted for this test" in runs["fixed"].lines
    for name in ("strict", "strict-deselected"):
        assert runs[name].status == 1, runs[name].tail
        assert any(line.startswith("--strict-known: kernels.dcp: mismatch") for line in runs[name].lines)
    assert "1 passed, 1 deselected" in runs["strict-deselected"].output


def test_a_case_that_fails_in_another_way_is_new(runs: dict[str, Done]) -> None:
    done = runs["differs"]
    assert done.status == 1, done.tail
    assert (
        "kernels.dcp: mismatch, padding end: its case fails in another way now: "
        'the entry says cause "padding end"; the case now has cause "unknown": mismatch: 1 element'
    ) in done.output
    assert "1 failed" in done.output


def test_an_entry_that_cannot_be_run_says_so_and_is_kept(runs: dict[str, Done], folder: Path) -> None:
    done = runs["fixed"]
    assert "1 passed, 2 skipped, 1 xpassed" in done.output, done.tail
    for reason in ("this run is not about vllm", f"known on lane npu, this is lane {LANE.name}"):
        assert len([line for line in done.lines if reason in line]) == 2, done.tail  # -rs, and at the end
    assert [each.get("lane", "") for each in toml(folder / "left.toml")] == ["", "npu"]


def test_a_saved_case_that_fails_as_known_is_expected(runs: dict[str, Done]) -> None:
    assert "2 xfailed" in runs["replayed"].output, runs["replayed"].tail
    assert "known failure: accepted for this test" in runs["replayed"].output


def test_a_file_that_cannot_be_written_fails_the_run(runs: dict[str, Done]) -> None:
    done = runs["replayed"]
    assert done.status == 1, done.tail
    assert any(line.startswith("--write-known-failures: cannot write ") for line in done.lines), done.tail
