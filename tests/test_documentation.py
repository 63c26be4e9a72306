"""The documentation is true: its commands run, its links lead somewhere, its tables say what the code says."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import settings

from conformance import lanes
from conformance.subjects.promises import PROMISES
from reference import verdict as v
from reference.case import Case, Group, Launch
from reference.contract import ANSWER_CLAUSES, CLAUSES
from reports.call import Call
from reports.coverage import INTERLEAVES, SHAPES, Counts
from reports.failure import FailureReport
from reports.summary import Summary, Tally
from strategies.declaration import FEATURES
from tests.commands import ROOT, Done, in_few_processes, own_entry_points, pytest_, run

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README, CONTRACT, REPORTS, TROUBLESHOOTING = (
    ROOT / name for name in ("README.md", "docs/contract.md", "docs/reports.md", "docs/troubleshooting.md")
)
# Only parsed: what reaches for a network, what takes long, and what holds a word in capitals for the reader to fill in.
NETWORK = {"pip"}
LONG = {"conformance.audit", "conformance.bench", "conformance.bench_kernels"}
PLACEHOLDER = re.compile(r"(?<![A-Za-z_])[A-Z]{3,}(?![A-Za-z_=])")


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The words of every command in the page's ``sh`` blocks, one a line or a part of a line between ``&&``."""
    found = []
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while "&&" in words:
                found.append(words[: words.index("&&")])
                words = words[words.index("&&") + 1 :]
            if words:
                found.append(words)
    return found


ALL_COMMANDS = [(page, words) for page in PAGES for words in commands(page)]


def runnable(program: str) -> list[tuple[Path, list[str]]]:
    """Page and words of each command of ``program`` that needs nothing filled in."""
    return [
        (page, words) for page, words in ALL_COMMANDS if words[0] == program and not any(map(PLACEHOLDER.search, words))
    ]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What stands for the folders that a reader would have made: an unpacked wheel, trees of kernels."""
    folder = tmp_path_factory.mktemp("documented")
    (folder / "wheel" / "vllm_ascend").mkdir(parents=True)
    (folder / "mine" / "vllm_ascend").mkdir(parents=True)
    shutil.copytree(ROOT / "kernels", folder / "wrong" / "kernels")
    return {
        "wheel": str(folder / "wheel"),
        "mine": str(folder / "mine"),
        "kernels=build/wrong": f"kernels={folder / 'wrong'}",
        "Path('build/wrong')": f"Path('{folder / 'made'}')",
    }


def test_the_pages_show_commands() -> None:
    shown = {words[0] for _, words in ALL_COMMANDS}
    assert shown >= {"make", "pytest", "python"}
    assert {page for page, _ in ALL_COMMANDS} >= {README, CONTRACT, REPORTS, TROUBLESHOOTING}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_shell_blocks_parse(page: Path) -> None:
    for block in blocks(page, "sh"):
        done = subprocess.run(["sh", "-n"], input=block, text=True, capture_output=True)
        assert done.returncode == 0, f"{block}\n{done.stderr}"


def is_target(name: str) -> bool:
    """Of the Makefile itself: make takes any file or folder for a target with nothing to do."""
    return re.search(rf"^{re.escape(name)}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE) is not None


def test_make_commands_name_targets() -> None:
    for page, words in ALL_COMMANDS:
        if words[0] == "make":
            done = run(*words, "--dry-run")
            assert done.status == 0, f"{page}: {words}\n{done.tail}"
            assert all(is_target(word) for word in words[1:] if "=" not in word), f"{page}: {words}"


def test_make_targets_and_variables_in_the_text_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target, rest in re.findall(r"`make ([a-z-]+)([^`]*)`", page.read_text(encoding="utf-8")):
            assert is_target(target), f"{page}: make {target}"
            for variable in re.findall(r"\b([A-Z][A-Z_]+)=", rest):
                assert re.search(rf"^{variable} :=", makefile, re.MULTILINE), f"{page}: {variable}"


def test_pytest_commands_collect_tests(places: Mapping[str, str]) -> None:
    shown = [(page, words) for page, words in runnable("pytest") if page != TROUBLESHOOTING]
    given = [[*(places.get(word, word) for word in words[1:]), "--collect-only", "-q"] for _, words in shown]
    for (page, words), done in zip(shown, in_few_processes(given), strict=True):
        assert done.status == 0, f"{page}: {words}\n{done.tail}"
        assert done.collected(), f"{page}: {words}\n{done.tail}"


def test_python_commands_run(places: Mapping[str, str]) -> None:
    for page, words in runnable("python"):
        if words[1:3] == ["-m", "zipfile"] or LONG & set(words):
            continue
        given = [places.get(word, word).replace("Path('build/wrong')", places["Path('build/wrong')"]) for word in words]
        done = run(sys.executable, *given[1:])
        assert done.status == 0, f"{page}: {words}\n{done.tail}"


def test_no_command_is_of_a_kind_that_nothing_checks() -> None:
    assert {words[0] for _, words in ALL_COMMANDS} <= {"make", "pytest", "python", *NETWORK}


def provoked() -> list[tuple[list[str], list[str]]]:
    """Command and the lines that it is said to print, wherever a ``text`` block follows a ``sh`` block directly."""
    text = TROUBLESHOOTING.read_text(encoding="utf-8")
    pairs = re.findall(r"^```sh\n(.*?)^```\n\n```text\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(shlex.split(command), output.splitlines()) for command, output in pairs]


@pytest.fixture(scope="module")
def answers() -> list[Done]:
    return in_few_processes([command[1:] for command, _ in provoked()])


@pytest.mark.skipif(
    lanes.by_name("lowered").unavailable() is not None,
    reason="the messages are those of the lowered lane's environment",
)
@pytest.mark.parametrize("index", range(len(provoked())))
def test_an_error_is_printed_as_documented(index: int, answers: list[Done]) -> None:
    command, lines = provoked()[index]
    for line in lines:
        pattern = ".*".join(map(re.escape, line.split("...")))
        assert any(re.match(pattern, printed) for printed in answers[index].lines), (
            f"{shlex.join(command)}\nprints\n{answers[index].tail}\nand not\n{line}"
        )


def test_every_shell_block_on_errors_is_followed_by_its_message() -> None:
    assert len(provoked()) == len(blocks(TROUBLESHOOTING, "sh")) > 8


# Links


def links(page: Path) -> list[str]:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"(?<!\[)`[^`]*`", "", text)  # a link's own text may be code
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


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links(README)}
    assert {page for page in PAGES if page != README} <= linked


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
    for program in (["conformance.audit"], ["reports", "merge"]):
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
