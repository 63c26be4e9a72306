"""Cases from the field through this project's kernels: the values in the files, whatever the settings and the fence.

That the oracle gives these values is ``test_reference_oracle.py``'s business; here the files are the judge.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from conformance import lanes
from conformance.engine import Engine, Options
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from reference.case import Case, Launch
from reference.verdict import UNWRITTEN
from tests.commands import ROOT

FILES = sorted((Path(__file__).parent / "data" / "field_cases").glob("*.json"))
# The words for entry points; a file may be about one that these kernels do not have yet.
ENTRY_POINTS = {"v1", "v2", "fused", "parallel", "adaptive", "tiled", "replay", "dcp", "draft", "block_table"}
HOSTS = {"v1_host", "v2_host", "tiled_host"}  # no file is about how a host function launches
FENCES = ("after", "before")
TILES = (16, 64, 1024)


def document(file: Path) -> dict:
    return json.loads(file.read_text(encoding="utf-8"))


def file_id(file: Path) -> str:
    """Cases under context parallelism say so, and ``-k cp`` finds them."""
    world = document(file)["case"]["cp"]["size"]
    return file.stem if world == 1 else f"{file.stem}-cp{world}"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    lane = lanes.automatic()
    started = Engine(lane, Options(("kernels",), {}, 1, 60.0, ROOT / ".cache", 1))
    yield started
    started.close()


def concerned(file: Path, engine: Engine) -> list[EntryPoint]:
    return [entry for entry in engine.entries() if entry.name in document(file)["entry_points"]]


def settings_for(entry: EntryPoint) -> list[Settings]:
    """Tiles with the published window and, once, a window that holds two blocks; nothing to set without constants."""
    if not entry.constants:
        return [Settings()]
    narrow = [] if "window" in entry.declaration.clauses else [Settings(64, 2)]
    return [*map(Settings, TILES), *narrow]


def launches(entry: EntryPoint, case: Case) -> Iterator[Launch]:
    for fence in FENCES:
        yield Launch(fence=fence)
        yield Launch(fence=fence, output_length=case.max_num_tokens + 3)
    if "int64" in entry.declaration.features:
        yield Launch("int64")


def as_in(file: Path, entry: EntryPoint, actual: list[list[int]]) -> bool:
    """Whether the outputs hold the file's own values and nothing past max_num_tokens; past num_tokens neither, where
    the entry point pads no tail. A buffer may be longer than it was asked to be.
    """
    case, rows = document(file)["case"], document(file)["slot_mappings"]
    written = case["max_num_tokens"] if entry.writes_tail else case["num_tokens"]
    return len(actual) == len(rows) and all(
        len(got) >= case["max_num_tokens"] and got[:written] == row[:written] and set(got[written:]) <= {UNWRITTEN}
        for got, row in zip(actual, rows, strict=True)
    )


@pytest.mark.parametrize("file", FILES, ids=file_id)
def test_field_case_gets_the_slots_of_its_file(file: Path, engine: Engine) -> None:
    case = Case.from_json(document(file)["case"])
    entries = concerned(file, engine)
    if not entries:
        pytest.skip(f"kernels has none of {', '.join(document(file)['entry_points'])} yet")
    for entry in entries:
        # An entry point that a file names must take its case: a feature that went missing is no reason to pass.
        assert entry.cannot_take(case, Launch()) is None
        for settings in settings_for(entry):
            for launch in launches(entry, case):
                finding = engine.run(entry, case, launch, settings)
                assert finding.verdict.passed, (entry.id, settings, launch, finding.verdict.summary())
                assert as_in(file, entry, finding.actual), (entry.id, settings, launch, finding.actual)


@pytest.mark.parametrize("file", FILES, ids=file_id)
def test_a_field_case_names_entry_points_that_exist_somewhere(file: Path) -> None:
    names = document(file)["entry_points"]
    assert names
    assert set(names) <= ENTRY_POINTS


def test_no_entry_point_has_a_name_that_no_file_could_give(engine: Engine) -> None:
    """Renamed, it would be given no case, and nobody would miss it."""
    assert {entry.name for entry in engine.entries()} <= ENTRY_POINTS | HOSTS


def test_a_field_case_with_another_slot_is_told_apart(engine: Engine) -> None:
    """The check can fail: one position more and the file's values are no longer the answer."""
    file = next(file for file in FILES if file.stem == "minimal_width_row")
    case = Case.from_json(document(file)["case"])
    moved = replace(case, positions=(*case.positions[:-1], case.positions[-1] - 1))
    entry = concerned(file, engine)[0]
    finding = engine.run(entry, moved, Launch(), Settings(16))
    assert finding.verdict.passed
    assert not as_in(file, entry, finding.actual)
