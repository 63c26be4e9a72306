"""The documentation is true: its links lead somewhere, its tables say what the code says. Its commands are run by
``test_documented_commands.py``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from conformance import lanes
from conformance.execution.array import Array
from conformance.subjects.launching import Launching, Settings
from conformance.subjects.promises import PROMISES
from reference import verdict as v
from reference.case import Case, Group, Launch
from reference.contract import ANSWER_CLAUSES, CLAUSES
from reports.call import Call
from reports.coverage import INTERLEAVES, SHAPES, Counts
from reports.failure import FailureReport
from reports.summary import Summary, Tally
from strategies.declaration import FEATURES
from tests.commands import ROOT, own_entry_points, pytest_, run
from tests.documentation import CONTRACT, INDEX, PAGES, README, REPORTS, blocks, page_id

# Links


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"`[^`]*`", "code", text)  # a link's own text may be code
    return re.findall(r"\]\(([^)\s]+)\)", text)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for link in links(page):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page}: {link}"
        assert target.is_relative_to(ROOT), f"{page}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page}: {link}"


def test_every_page_is_linked_from_the_index_and_that_from_the_readme() -> None:
    linked = {(INDEX.parent / link.partition("#")[0]).resolve() for link in links(INDEX)}
    assert {page for page in PAGES if page != INDEX} <= linked
    assert INDEX in {(ROOT / link.partition("#")[0]).resolve() for link in links(README)}


# Examples


def defined_in(page: str) -> dict[str, Any]:
    """What the page's Python block defines."""
    (block,) = blocks(ROOT / "docs" / page, "python")
    names: dict[str, Any] = {"__name__": "documented"}
    exec(compile(block, page, "exec"), names)
    return names


def test_the_example_of_a_binding_binds() -> None:
    family = defined_in("writing-a-binding.md")["FAMILY"]
    case = Case((0, 1, 2), (4, 5), 2, 4, (Group(((5, 3), (1, 2)), 4, 4),))
    launching = Launching(case, Launch(output_length=4), Settings(tile=1), tuple(family.values))
    assert set(family.needed) <= family.values.keys()
    assert family.grid(launching) == (2,)
    bound = {name: value(launching) for name, value in family.values.items()}
    assert (bound["batch_size"], bound["BLOCK"], bound["TILE"]) == (2, 4, 1)
    assert {name for name, value in bound.items() if isinstance(value, Array)} == {
        "seq_positions_ptr",
        "table_ptr",
        "slots_ptr",
    }


def test_the_example_of_a_lane_launches_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lane = defined_in("writing-a-lane.md")["TwiceLane"]()
    if lane.unavailable() is not None:
        pytest.skip("the example is built on lane lowered")
    launched: list[object] = []
    launcher = "conformance.lanes.lowered.launcher.Launcher"
    monkeypatch.setattr(f"{launcher}.install", lambda self: None)
    monkeypatch.setattr(f"{launcher}.launch", lambda self, *call: launched.append(call))
    lane.enter(str(tmp_path))
    lane._launcher.launch("kernel", (1,), {})
    assert launched == [("kernel", (1,), {})] * 2


# Tables


def rows(page: Path, *header: str) -> list[list[str]]:
    """The cells of the table under this header, without its backquotes."""
    lines = page.read_text(encoding="utf-8").splitlines()
    start = lines.index("| " + " | ".join(header) + " |") + 2
    found = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        found.append([cell.strip().replace("`", "") for cell in line.strip("|").split("|")])
    return found


@pytest.fixture(scope="module")
def pytest_help() -> str:
    return pytest_("conformance", "--help").output


def test_the_readme_lists_the_options_that_exist(pytest_help: str) -> None:
    section = re.search(r"^slot-mapping conformance:\n(.*?)\n\n", pytest_help, re.MULTILINE | re.DOTALL)
    assert section, pytest_help
    own = set(re.findall(r"^  (--[a-z-]+)", section[1], re.MULTILINE))
    assert len(own) >= 8
    listed = {row[0].split()[0] for row in rows(README, "option", "meaning")}
    assert {name for name in listed if not name.startswith("--hypothesis-")} == own


def test_the_readme_gives_the_defaults_and_the_sizes_of_the_profiles(pytest_help: str) -> None:
    for option, meaning in rows(README, "option", "meaning"):
        name = option.split()[0]
        for default in re.findall(r"\(default ([^)]*)\)", meaning):
            described = re.search(rf"^  {name}\b(.*?)(?=^  --|\n\n)", pytest_help, re.MULTILINE | re.DOTALL)
            assert described
            assert f"(default {default})" in " ".join(described[1].split()), name
        if name == "--hypothesis-profile":
            sizes = {profile: int(size.replace(",", "")) for profile, size in re.findall(r"(\w+) \(([\d,]+)", meaning)}
            assert len(sizes) == 3
            assert sizes == {profile: settings.get_profile(profile).max_examples for profile in sizes}


def test_options_in_the_text_exist(pytest_help: str) -> None:
    theirs = {"--no-deps", "--trace"}  # pip's, python -m reference's
    for program in (
        ["conformance.audit"],
        ["conformance.audit.block_sizes"],
        ["conformance.agreement"],
        ["conformance.fleet"],
        ["conformance.int32_positions"],
        ["conformance.ranks"],
        ["conformance.rounding"],
        ["conformance.stability"],
        ["tests.faults"],
        ["reports", "merge"],
    ):
        theirs |= set(re.findall(r"--[a-z][a-z-]+", run(sys.executable, "-m", *program, "--help").output))
    for page in PAGES:
        named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", page.read_text(encoding="utf-8")))
        for name in named - theirs:
            assert re.search(rf"^ +(-\w, )?{name}\b", pytest_help, re.MULTILINE), f"{page}: {name}"


def test_the_readme_lists_the_entry_points_as_they_are() -> None:
    listed = rows(README, "entry point", "function", "file", "needs", "can do")
    actual = [
        [
            entry.name,
            entry.function,
            Path(entry.file).relative_to(ROOT).as_posix(),
            ", ".join(sorted(entry.declaration.clauses)) or "-",
            ", ".join(sorted(entry.declaration.features)),
        ]
        for entry in own_entry_points()
        if not entry.prepares
    ]
    assert [[*row[:2], re.sub(r"\[(.*)\]\(\1\)", r"\1", row[2]), *row[3:]] for row in listed] == actual


def test_the_readme_lists_the_lanes() -> None:
    listed = [row[0] for row in rows(README, "lane", "what executes the kernel", "run so far on")]
    assert sorted(listed) == sorted(lanes.names())


def test_the_contract_lists_every_clause() -> None:
    heading, *names = [row[0] for row in rows(CONTRACT, "clause", "what it asks")]
    assert heading == "**no answer without it**"
    second = names.index("**some implementations need it**")
    assert set(names[:second]) == ANSWER_CLAUSES
    assert set(names[second + 1 :]) == CLAUSES.keys() - ANSWER_CLAUSES


def test_the_contract_lists_every_promise_of_a_published_version() -> None:
    listed = {
        (subject, name, clause)
        for subject, name, clauses in rows(CONTRACT, "subject", "entry point", "needs")
        for clause in clauses.split(", ")
    }
    assert listed == {(promise.subject, promise.name, promise.clause) for promise in PROMISES}


def test_the_contract_lists_every_feature() -> None:
    assert {row[0] for row in rows(CONTRACT, "feature", "cases with it have")} == FEATURES


CASE = Case((0, 1), (0,), 1, 1, (Group(((3,),), 2, 2, row_stride=2),))
VERDICT = v.compare([[6]], [[7]], [v.Guard("block_table", "read", 4096, 4, "read too far")])
CALL = Call("kernel", "kernels.some", "_kernel", "some.py", 1, (1,), {"n": 1})
REPORT = FailureReport("kernels", "v1", "lowered", "test", CASE, Launch(), VERDICT, call=CALL).to_json("report.json")


def test_the_fields_of_a_report_are_documented() -> None:
    text = REPORTS.read_text(encoding="utf-8")
    report, summary = text.index("## failure-*.json"), text.index("## summary.json")
    assert report < summary
    tables = {
        heading: set(re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", part, re.MULTILINE))
        for heading, part in {
            "report": text[report : text.index("`verdict`:")],
            "verdict": text[text.index("`verdict`:") : text.index("`call`:")],
            "call": text[text.index("`call`:") : text.index("`case`, schema 1")],
            "case": text[text.index("`case`, schema 1") : text.index("## failure-*.md")],
            "summary": text[summary : text.index("## coverage.json")],
            "coverage": text[text.index("## coverage.json") : text.index("## index.html")],
        }.items()
    }
    named = {
        heading: {name for cell in cells for name in re.findall(r"\w+", cell)} for heading, cells in tables.items()
    }
    done = Summary(("kernels",), "lowered", 1.0, {"kernels.v1": Tally(1, 1, 0)}).to_json()
    assert named == {
        "report": REPORT.keys(),
        "verdict": REPORT["verdict"].keys(),
        "call": REPORT["call"].keys(),
        "case": REPORT["case"].keys(),
        "summary": done.keys(),
        "coverage": Counts().to_json().keys(),
    }


def test_the_shapes_of_a_batch_are_documented() -> None:
    for name in (*SHAPES, *INTERLEAVES):
        assert f"`{name}`" in REPORTS.read_text(encoding="utf-8"), name


def test_the_parts_of_a_report_are_documented() -> None:
    text = REPORTS.read_text(encoding="utf-8")
    group, guard = REPORT["case"]["groups"][0], REPORT["verdict"]["guards"][0]
    difference = REPORT["verdict"]["differences"][0]
    for name in (*group, *guard, *difference, *REPORT["launch"], *REPORT["case"]["cp"]):
        assert f"`{name}`" in text, name


def test_the_verdicts_are_documented() -> None:
    assert [row[0] for row in rows(ROOT / "docs" / "lanes.md", "verdict", "means", "and is not")] == list(v.KINDS)


def test_the_line_of_a_run_is_shown_as_it_is_printed() -> None:
    """The figures are those of one run; the form is the code's."""
    tallies = {"kernels.v1": Tally(4500, 51, 0), "kernels.dcp": Tally(1500, 1, 0)}
    form = re.sub(r"[\d,.]+", "N", Summary(("kernels",), "lowered", 12.0, tallies).line())
    assert form in {re.sub(r"[\d,.]+", "N", block.strip()) for block in blocks(README, "text")}


def test_nothing_claims_an_npu() -> None:
    """As long as nobody had one."""
    ran_on = {row[0]: row[2] for row in rows(README, "lane", "what executes the kernel", "run so far on")}
    assert ran_on["npu"] == "**nothing so far**"
    assert "**Nothing here has been run on an NPU.**" in README.read_text(encoding="utf-8")
