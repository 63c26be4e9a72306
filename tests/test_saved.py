"""What a saved case is bound with: what its report says, so that the same launch is made again."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import saved
from conformance.both_lanes import INTERPRETER
from conformance.subjects.binding import bind
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from reference.case import Case, CaseError, Group, Launch
from strategies.declaration import Declaration
from tests.commands import run
from tests.hostile import tree

CASE = Case((0, 1), (0,), 1, 1, (Group(((3,),), 2, 2),))
DECLARATION = Declaration(frozenset(), frozenset({"groups", "tail", "circular"}))
# Its tile is its own to choose; whether it is given flags depends on the settings all the same.
HOST = EntryPoint("kernels", "1", "fused", "f", "fused", "f.py", 1, ("is_circular_ptr",), (), DECLARATION)


def read(folder: Path, **fields: object) -> saved.SavedCase:
    file = folder / "case.json"
    file.write_text(json.dumps({"case": CASE.to_json(), **fields}))
    return saved.read(file)


def test_settings_of_a_report_are_used_again(tmp_path: Path) -> None:
    report = read(tmp_path, settings={"tile": 16, "window": 4}, launch=Launch().to_json())
    assert report.drawn(HOST)[2] == Settings(16, 4)
    assert read(tmp_path).drawn(HOST)[2] == Settings()
    assert read(tmp_path, settings={}).drawn(HOST)[2] == Settings()


def test_constants_say_more_than_settings(tmp_path: Path) -> None:
    """They may have been changed by hand, and the settings forgotten."""
    names = ("TILE_BLOCK_SIZE", "BLOCK_TABLE_WINDOW_SIZE")
    kernel = EntryPoint("kernels", "1", "v1", "f", "v1", "f.py", 1, names, names, DECLARATION)
    launch = Launch(constants={"TILE_BLOCK_SIZE": 64, "BLOCK_TABLE_WINDOW_SIZE": 8}).to_json()
    assert read(tmp_path, settings={"tile": 16, "window": None}, launch=launch).drawn(kernel)[2] == Settings(64, 8)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tile": 16}, "settings.window: missing"),
        ({"tile": 0, "window": None}, "settings.tile: expected an integer >= 1, got 0"),
        ({"tile": 16, "window": "x"}, 'settings.window: expected an integer >= 1, got "x"'),
        ([1], "settings: expected an object, got a list of 1"),
    ],
)
def test_settings_that_are_none_are_refused(tmp_path: Path, settings: object, message: str) -> None:
    with pytest.raises(CaseError) as caught:
        read(tmp_path, settings=settings)
    assert str(caught.value) == f"{tmp_path}/case.json: {message}"


BROKEN = {
    # what the file says, what of the case is changed, the refusal
    "no-clause": (5, {}, "broken: expected a clause, got 5"),
    "not-breakable": ("qsl-monotone: x", {}, 'broken: expected one of pos-nonneg, .*, got "qsl-monotone"$'),
    "kept": ("pos-nonneg: x", {}, "broken: it says pos-nonneg, which the case does not break"),
    "bounds": ("pos-nonneg: x", {"query_start_loc": (1, 1)}, 'qsl-monotone: .* starts at 1, .* says "pos-nonneg"'),
    "two": ("pos-nonneg: x", {"positions": (2**24,)}, "pos-f32: .*"),
    "implied-backwards": ("pos-nonneg: x", {"positions": (-(2**32),)}, "pos-int32: .*"),
    "nothing": ("", {"positions": (-1,)}, 'pos-nonneg: .*says ""'),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_launch_outside_the_contract_breaks_what_it_says_and_nothing_else(name: str, tmp_path: Path) -> None:
    said, changes, message = BROKEN[name]
    file = tmp_path / "case.json"
    file.write_text(json.dumps({"case": replace(CASE, **changes).to_json(), "broken": said}))  # type: ignore[arg-type]
    with pytest.raises(CaseError, match=f"case.json: {message}") as caught:
        saved.read(file, boundary=True)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "position"), [("", 0), ("window: of a tile", 0), ("pos-nonneg: x", -1), ("pos-int32: x", -(2**32))]
)
def test_a_launch_outside_the_contract_is_read(said: str, position: int, tmp_path: Path) -> None:
    file = tmp_path / "case.json"
    case = replace(CASE, positions=(position,))
    file.write_text(json.dumps({"case": case.to_json(), "broken": said}))
    assert (saved.read(file, boundary=True).case, saved.read(file, boundary=True).boundary) == (case, True)


def test_the_bound_flags_come_back(tmp_path: Path) -> None:
    def given(settings: dict[str, object]) -> bool:
        names = (
            "is_circular_ptr",
            "query_start_loc_ptr",
            "positions_ptr",
            "block_table_addrs_ptr",
            "slot_mapping_addrs_ptr",
        )
        host = EntryPoint("kernels", "1", "fused", "f", "fused", "f.py", 1, names, (), DECLARATION)
        case, launch, chosen = read(tmp_path, settings=settings).drawn(host)
        return bind(host, case, launch, chosen)[0].arguments["is_circular_ptr"] is not None

    assert {given({"tile": tile, "window": None}) for tile in (16, 64, 256, 1024)} == {True, False}


OTHERS = {
    "dcp-of-another": ("vllm-ascend", ["dcp"], "; add --subject vllm-ascend --source PATH"),
    "ours": ("kernels", [], "; add --subject kernels"),
    "of-the-run": ("vllm", ["v9"], ""),
    "nobody-s": ("vlm", [], ""),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_case_for_another_subject_says_what_to_add(name: str, tmp_path: Path) -> None:
    subject, names, advice = OTHERS[name]
    case = read(tmp_path, subject=subject, entry_points=names)
    with pytest.raises(CaseError) as caught:
        saved.pairs([case], [replace(HOST, subject="vllm")])
    assert str(caught.value).endswith(f", and this run has vllm.fused{advice}")


@pytest.mark.skipif(not INTERPRETER.exists(), reason=f"{INTERPRETER} does not exist")
def test_a_report_replays_on_either_lane_with_the_same_verdict(tmp_path: Path) -> None:
    """The case of a report, on the lane of this environment and on the interpreter's: the same elements differ."""
    source = tree(tmp_path / "source", host="slot_mapping.fill_(-77)")
    report = tmp_path / "report.json"
    launch, settings = Launch(output_length=2).to_json(), {"tile": 1024, "window": None}
    fields = {"subject": "kernels", "entry_point": "dcp", "launch": launch, "settings": settings}
    report.write_text(json.dumps({**fields, "case": CASE.to_json()}))
    verdicts = []
    for python, lane in ((sys.executable, "auto"), (str(INTERPRETER), "interpreter")):
        folder = tmp_path / lane
        words = ["--replay", str(report), "--lane", lane, "--source", str(source), "--report-dir", str(folder)]
        done = run(python, "-m", "pytest", "conformance", *words)
        assert done.status == 1, done.tail
        (found,) = folder.glob("failure-*.json")
        verdicts.append(json.loads(found.read_text())["verdict"])
    assert verdicts[0] == verdicts[1]
    assert verdicts[0]["total_differences"] == 2
