"""The commands that the documentation shows are run: with the words in capitals filled in, and with arguments behind
them that leave little to do. Where all options of one are among those of another, the other is run. What is not run is
listed, with the reason.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

from conformance import lanes
from tests import published_trees as trees
from tests.commands import ROOT, Done, in_few_processes, pytest_, run
from tests.documentation import ALL_COMMANDS, CONTRACT, PAGES, README, REPORTS, TROUBLESHOOTING, blocks, page_id

NOT_RUN = {
    "make": "takes minutes, or a GPU: make says what it would run; tests/test_packaging.py knows what that is",
    "pip": "reaches for the network",
    "python -m zipfile": "unpacks what pip would have fetched",
    "python -m conformance.agreement": "takes another environment: tests/test_lanes_agree.py runs it there",
    "python -m conformance.fleet": "starts a cluster: the tests of the fleet run it",
}
"""By the first words of a command. Those of python are asked for their options, at least."""

FEW_TESTS = "v1 and not host and (test_plain_slots or test_cp_slots)"
FEW_CASES = {
    "pytest": ["--max-examples", "2", "--compile-budget", "4"],
    "python -m conformance.audit": ["--specializations", "1", "--target", "Ascend910B3", "--jobs", "1"],
}


def kind(words: Iterable[str]) -> str:
    """``pytest``, ``make``, or ``python -m module``."""
    words = list(words)
    return " ".join(words[:3]) if words[:2] == ["python", "-m"] else words[0]


def options(words: Iterable[str]) -> frozenset[str]:
    return frozenset(word for word in words if word.startswith("-"))


def unique(*kinds: str) -> list[list[str]]:
    """The commands of these kinds, the longest first, without those whose options are all in one before."""
    shown = [words for page, words in ALL_COMMANDS if kind(words) in kinds and page != TROUBLESHOOTING]
    found: list[list[str]] = []
    for words in sorted(shown, key=lambda words: -len(options(words))):
        same = [other for other in found if kind(other) == kind(words)]
        if words[0] == "make" or not any(options(words) <= options(other) for other in same):
            found += [words] if words not in found else []
    return found


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, str]:
    """What stands for the folders and files that a reader would have."""
    folder = tmp_path_factory.mktemp("documented")
    files = {
        trees.V1: trees.source("v1_circular"),
        trees.V2: trees.source("v2_num_tokens"),
        trees.CLASS: trees.source("block_table_class"),
    }
    wheel = str(trees.write(folder / "wheel", files, version="0.23.0"))
    mine = str(trees.write(folder / "mine", {trees.V1: trees.source("v1_circular")}))
    shutil.copytree(ROOT / "kernels", folder / "wrong" / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "known.toml").write_text("schema = 1\n")
    finding = min((ROOT / "tests" / "data" / "findings").glob("torch-path-*.json"))
    return {
        **dict.fromkeys(("wheel", "WHEEL", "CHECKOUT"), wheel),
        "mine": mine,
        "kernels=build/wrong": f"kernels={folder / 'wrong'}",
        "Path('build/wrong')": f"Path('{folder / 'made'}')",
        "known.toml": str(folder / "known.toml"),
        "build/corpus": str(folder / "corpus"),
        "tests/data/findings/NAME.json": str(finding),
        "N": "2",
        "DIR": str(folder / "merged"),
        "FOLDER": str(folder / "reports"),
        "FOLDER...": str(folder / "reports"),
        "(reports)": str(folder / "reports"),
    }


def filled(words: Iterable[str], places: Mapping[str, str]) -> list[str]:
    """``words`` with what a reader fills in. Asserts that nothing in capitals is left to fill in."""
    found = [places.get(word, word).replace("Path('build/wrong')", places["Path('build/wrong')"]) for word in words]
    left = [word for word in found if re.search(r"(?<![\w./-])[A-Z]{2,}(?![\w=])", word)]
    assert not left, f"{shlex.join(words)}: nothing stands for {left}"
    return found


def with_little_to_do(words: list[str], folder: str) -> list[str]:
    """A pytest command for few cases of few tests, whose reports go to ``folder``."""
    given = [*words[1:], "--report-dir", folder]
    if "--require" in given:
        given[given.index("--require") + 1] = "v1"
    if "--replay" in given:
        return given
    own = f"({given[given.index('-k') + 1]}) and " if "-k" in given else ""
    return [*given, *FEW_CASES["pytest"], "-k", f"{own}{FEW_TESTS}"]


def test_the_pages_show_commands_of_kinds_that_are_run() -> None:
    assert {kind(words) for _, words in ALL_COMMANDS} >= {"make", "pytest", "python"}
    assert {words[0] for _, words in ALL_COMMANDS} <= {"make", "pytest", "python", "pip"}
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
    for words in unique("make"):
        done = run(*words, "--dry-run")
        assert done.status == 0, f"{words}\n{done.tail}"
        assert all(is_target(word) for word in words[1:] if "=" not in word), words


def test_make_targets_and_variables_in_the_text_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page in PAGES:
        for target, rest in re.findall(r"`make ([a-z-]+)([^`]*)`", page.read_text(encoding="utf-8")):
            assert is_target(target), f"{page}: make {target}"
            for variable in re.findall(r"\b([A-Z][A-Z_]+)=", rest):
                assert re.search(rf"^{variable} :=", makefile, re.MULTILINE), f"{page}: {variable}"


def test_pytest_and_then_what_reads_its_reports(places: Mapping[str, str]) -> None:
    shown = unique("pytest")
    given = [with_little_to_do(filled(words, places), places["(reports)"]) for words in shown]
    for words, done in zip(shown, in_few_processes(given), strict=True):
        assert done.status == 0, f"{shlex.join(words)}\n{done.tail}"
        assert re.search(r"\d+ (passed|skipped|xfailed)", done.output), f"{shlex.join(words)}\n{done.tail}"
    for words in unique("python -m reports"):
        done = run(sys.executable, *filled(words, places)[1:])
        assert done.status == 0, f"{shlex.join(words)}\n{done.tail}"


def test_words_after_k_select_something() -> None:
    ids = pytest_("conformance", "--collect-only", "-q").collected()
    assert ids
    for words in (words for _, words in ALL_COMMANDS if kind(words) == "pytest" and "-k" in words):
        selected = Expression.compile(words[words.index("-k") + 1])
        assert any(selected.evaluate(lambda name, each=each: name in each) for each in ids), words


def test_python_commands_run(places: Mapping[str, str]) -> None:
    kinds = {kind(words) for _, words in ALL_COMMANDS} - {"make", "pytest", "pip", "python -m reports"}
    for words in unique(*kinds):
        given = filled(words, places)
        if kind(words) == "python -m conformance.audit":
            entry = [] if "--entry-point" in given else ["--entry-point", "v1"]
            given += [*FEW_CASES[kind(words)], *entry, "--report-dir", places["(reports)"]]
        if kind(words) in NOT_RUN:
            if "conformance" not in kind(words):
                continue
            given = [*given[:3], "--help"]
        done = run(sys.executable, *given[1:])
        # 1: the audit has a finding that nobody has accepted.
        assert done.status == 0 or (done.status == 1 and "ASC0" in done.output), f"{shlex.join(words)}\n{done.tail}"
        if given[-1] == "--help":
            for option in (word for word in words if word.startswith("--")):
                assert re.search(rf"^ +(-\w, )?{option}\b", done.output, re.MULTILINE), f"{shlex.join(words)}: {option}"


def test_what_is_not_run_is_shown_somewhere() -> None:
    """Or it need not be listed."""
    assert NOT_RUN.keys() <= {kind(words) for _, words in ALL_COMMANDS} | {"python -m conformance.fleet"}


# Errors


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


PYTESTS_OWN = "unrecognized arguments"
LEAST = 13
"""Characters in a row that a documented message has in common with the code, at least."""


def the_code() -> str:
    """All that prints messages, strings that go on in the next line in one piece."""
    files = [*ROOT.glob("[a-z]*/**/*.py"), ROOT / "Makefile"]
    text = "\n".join(file.read_text(encoding="utf-8") for file in files if "tests" not in file.parts)
    return re.sub(r'"\s*\n\s*f?"|\\\n\s*', "", text)


def test_messages_that_no_command_here_provokes_are_in_the_code() -> None:
    text = TROUBLESHOOTING.read_text(encoding="utf-8")
    shown = [block for block in blocks(TROUBLESHOOTING, "text") if f"```\n\n```text\n{block}" not in text]
    code = the_code()
    assert len(shown) > 8
    for block in shown:
        if PYTESTS_OWN in block:
            continue
        for line in block.splitlines():
            pieces = (line[begin : begin + LEAST] for begin in range(max(len(line) - LEAST, 0) + 1))
            assert any(len(piece) == LEAST and piece in code for piece in pieces), line
