"""What a run says at its end and to continuous integration, however many failures it has and whatever is in them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from conformance.outputs import MOST_GROUPS
from reports import github
from tests.commands import pytest_
from tests.test_reports import HOSTILE, outside_code

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ["::add-mask::x", "  ::error file=x::y", "##[error]x", "%0A::warning::x", "a:b,c%d"]


@dataclass(frozen=True)
class Ended:
    """A run: its exit status, the bytes that it printed, and its files."""

    status: int
    output: bytes
    folder: Path

    @property
    def text(self) -> str:
        return self.output.decode("utf-8")

    @property
    def end(self) -> list[str]:
        """From the suite's heading on, without pytest's last line."""
        lines = self.text.splitlines()
        start = next(number for number, line in enumerate(lines) if line.strip("= ") == "conformance")
        return lines[start:-1]

    def xml(self) -> ET.Element:
        return ET.parse(self.folder / "junit.xml").getroot()


def run(folder: Path, details: list[str], *arguments: str, **variables: str) -> Ended:
    (folder / "test_nothing.py").write_text("def test_it(): pass\n")
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "PYTEST_", "CI"))
    }
    words = [str(folder / "reports"), f"--rootdir={folder}", str(folder / "test_nothing.py")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.failing_run", *words, f"--junitxml={folder / 'junit.xml'}", *arguments],
        cwd=ROOT,
        env={**environment, **variables},
        input=json.dumps(details).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=120,
    )
    return Ended(done.returncode, done.stdout, folder)


@pytest.fixture(scope="module")
def thousand(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("thousand")
    summary = folder / "summary.md"
    return run(
        folder, [str(n) for n in range(1000)], GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary), CI="true"
    )


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("hostile")
    # The terminal shows the first ones only: those that could harm it.
    details = sorted([*HOSTILE, *COMMANDS], key=lambda text: (text.isprintable(), "\n" in text))
    return run(folder, details, GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(folder / "summary.md"))


def test_a_thousand_failures_are_few_lines(thousand: Ended) -> None:
    assert thousand.status == pytest.ExitCode.TESTS_FAILED
    annotations = [line for line in thousand.end if line.startswith("::error ")]
    assert len(annotations) == github.MOST_ANNOTATIONS
    assert len(thousand.end) - len(annotations) <= 25
    assert "1,000 failures, 1,000 unexplained (in 1,000 tests)" in thousand.end
    assert f"... and 996 failures, 996 unexplained: see {thousand.folder}/reports" in thousand.end
    assert len(thousand.text.splitlines()) < 80
    assert "1000 failed" in thousand.text.splitlines()[-1]


def test_a_thousand_failures_are_all_in_the_files(thousand: Ended) -> None:
    reports = thousand.folder / "reports"
    assert len(list(reports.glob("failure-*.json"))) == 1000
    assert json.loads((reports / "summary.json").read_text())["reports"] == [
        str(path) for path in sorted(reports.glob("failure-*.json"), key=lambda path: path.stat().st_mtime_ns)
    ]
    failures = thousand.xml().findall(".//failure")
    assert len(failures) == 1000
    rows = [line for line in (thousand.folder / "summary.md").read_text().splitlines() if line.startswith("| `kernels")]
    assert len(rows) == 100


def test_junit_has_diagnosis_and_report(hostile: Ended) -> None:
    cases = hostile.xml().findall(".//testcase")
    assert len(cases) == len(HOSTILE) + len(COMMANDS)
    for case in cases:
        properties = {each.get("name"): each.get("value") for each in case.findall("properties/property")}
        assert Path(str(properties["report"])).is_file()
        assert properties["cause"] == "crash"
        assert str(properties["replay"]).startswith("pytest conformance --replay ")
        failure = case.find("failure")
        assert failure is not None
        assert str(failure.get("message")).startswith("kernels.dcp: crash: ")


def test_nothing_hostile_reaches_the_terminal(hostile: Ended) -> None:
    assert all(character == "\n" or character.isprintable() for character in hostile.text)
    assert max(map(len, hostile.end)) < 5000


def test_what_happened_is_said_once(hostile: Ended) -> None:
    """Where nothing is known but that, the cause is the kind of the verdict."""
    assert "kernels.dcp: crash: " in hostile.text
    assert not re.search(r"crash: *crash:", hostile.text)
    # Each is shown once at the end, and once in an annotation.
    assert sum(line.startswith("kernels.dcp: crash: ") for line in hostile.end) <= MOST_GROUPS
    annotation = next(line for line in hostile.end if line.startswith("::error "))
    assert annotation.count("kernels.dcp: crash: ") == 1


def test_nothing_hostile_becomes_a_command(hostile: Ended) -> None:
    lines = hostile.text.splitlines()
    commands = [line for line in lines if line.lstrip().startswith("::")]
    assert len(commands) == github.MOST_ANNOTATIONS
    assert all(line.startswith("::error file=/kernels/") for line in commands)
    assert not any("##[" in line for line in lines if line not in commands)


def test_nothing_hostile_becomes_markup(hostile: Ended) -> None:
    text = (hostile.folder / "summary.md").read_text(encoding="utf-8")
    assert all(character == "\n" or character.isprintable() for character in text)
    shown = outside_code(text)
    assert not re.search(r"(?<!\\)[<\[@]", shown)
    assert len([line for line in shown.splitlines() if line.startswith("| CODE | CODE | ")]) > 1


def test_failures_of_one_cause_are_shown_once(tmp_path: Path) -> None:
    ended = run(tmp_path, ["signal 11 at 1", "signal 11 at 2", "another"])
    assert "3 failures of 2 causes (in 3 tests)" in ended.end
    heads = [line for line in ended.end if line.startswith("kernels.dcp: crash: signal")]
    assert len(heads) == 1
    assert heads[0].endswith(" (1 more of this cause)")
    assert not any(line.startswith("::") for line in ended.text.splitlines())


def test_a_failure_that_two_tests_meet_is_one(tmp_path: Path) -> None:
    """Terminal, summary and page count reports; how many tests there were is said beside them."""
    ended = run(tmp_path, ["signal 11 at 1", "signal 11 at 2", "same", "same"])
    assert "3 failures of 2 causes (in 4 tests)" in ended.end
    found = json.loads((tmp_path / "reports" / "summary.json").read_text())
    assert (found["failures"], found["entry_points"]["kernels.dcp"]["failures"], len(found["reports"])) == (3, 3, 3)
    assert any(" 3 failures, " in line for line in ended.end)
    shown = (tmp_path / "reports" / "index.html").read_text()
    assert '3 failures<span class="soft"> of 2 causes</span></h1>' in shown
    assert "<title>3 failures: slot mapping, kernels</title>" in shown


def test_what_fails_outside_the_contract_comes_last_in_few_lines_and_is_counted(tmp_path: Path) -> None:
    ended = run(tmp_path, ["outside 1", "signal 11 at 1", "outside 2", *"56789"])
    assert "8 failures of 1 cause, 5 unexplained, 2 outside the contract (in 8 tests)" in ended.end
    assert "=== FAILURES" not in ended.text
    reports = tmp_path / "reports"
    files = sorted(reports.glob("boundary-kernels-dcp-*.json"))
    assert len(files) == 2
    (head,) = [number for number, line in enumerate(ended.end) if " outside the contract (positions: " in line]
    assert ended.end[head] == (
        "kernels.dcp outside the contract (positions: \\x1b[31m): crash: outside 1 (1 more outside the contract)"
    )
    case, replay = ended.end[head + 1 : head + 3]
    assert Path(case.removeprefix("case: ")) in files
    file = Path(case.removeprefix("case: "))
    assert replay.startswith(f"replay: pytest conformance --replay {file} --lane lowered --subject kernels --source ")
    assert head + 2 == max(number for number, line in enumerate(ended.end) if line.startswith("replay: "))
    assert len(ended.end) <= 25
    kept = json.loads(file.read_text())
    assert re.match(r"pytest \S+::test_0 --lane lowered --subject kernels .*--hypothesis-seed 17$", kept["again"])
    assert (kept["entry_point"], kept["broken"], kept["summary"]) == ("dcp", "positions: \x1b[31m", "crash: outside 1")
    assert kept["case"]["positions"] == [0, 0]
    found = json.loads((reports / "summary.json").read_text())
    assert (found["failures"], len(found["reports"])) == (8, 6)
    assert sorted(found["outside_the_contract"]) == [str(file) for file in files]
    shown = (reports / "index.html").read_text()
    assert '8 failures<span class="soft"> of 1 cause, 5 unexplained, 2 outside the contract</span></h1>' in shown
    assert all(f'<a href="./{file.name}">' in shown for file in files)


def test_what_fails_outside_the_contract_and_cannot_be_written_is_printed(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file\n")
    ended = run(tmp_path, ["outside 1"])
    assert ended.status == pytest.ExitCode.TESTS_FAILED
    assert '"positions": [0, 0]' in ended.text
    assert re.search(
        r"^again: pytest \S+::test_0 --lane lowered --subject kernels .*seed 17$", ended.text, re.MULTILINE
    )
    assert "cannot write" in ended.text


def test_what_cannot_be_written_is_printed(tmp_path: Path) -> None:
    (tmp_path / "reports").write_text("a file\n")
    summary = tmp_path / "no-folder" / "summary.md"
    ended = run(tmp_path, ["::add-mask::x\n::b"], "--tb=short", GITHUB_ACTIONS="true", GITHUB_STEP_SUMMARY=str(summary))
    assert ended.status == pytest.ExitCode.TESTS_FAILED
    assert "# crash: `kernels` `dcp`" in ended.text.splitlines()
    assert f"cannot write GitHub's summary {summary}: No such file or directory" in ended.text.splitlines()
    assert not [
        line for line in ended.text.splitlines() if line.startswith("::") and not line.startswith("::error file=")
    ]


def test_where_the_xml_cannot_be_written_all_else_is_said(tmp_path: Path) -> None:
    ended = run(tmp_path, [str(n) for n in range(30)], "--junitxml=/dev/full")
    assert ended.status == pytest.ExitCode.TESTS_FAILED, ended.text
    assert "30 failures, 30 unexplained (in 30 tests)" in ended.end
    assert ended.end[-1] == "--junit-xml: cannot write /dev/full: No space left on device"
    assert len(ended.end) <= 25
    assert "30 failed" in ended.text.splitlines()[-1]
    assert "INTERNALERROR" not in ended.text
    assert "generated xml file" not in ended.text


@pytest.mark.parametrize("workers", ["0", "2"])
def test_a_run_whose_xml_cannot_be_written_is_not_green(workers: str, tmp_path: Path) -> None:
    words = ("-k", "test_dcp_slots_exist", "--max-examples", "3", "-n", workers, "--report-dir", tmp_path / "reports")
    done = pytest_("conformance", *words, "--junit-xml", "/dev/full")
    assert done.status == pytest.ExitCode.TESTS_FAILED, done.output
    assert "--junit-xml: cannot write /dev/full: No space left on device" in done.lines
    assert done.lines[-1].strip("= ").startswith("1 passed"), done.tail
    assert not list(tmp_path.glob("*.xml"))


SAYS_NOTHING = """
def pytest_sessionfinish():
    raise OSError({arguments})
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("30, 'Read-only file system', 'a/b'", "cannot write a/b: Read-only file system"),
        ("28, 'No space left on device'", "cannot write what a plugin writes at the end: No space left on device"),
        ("'it is gone'", "cannot write what a plugin writes at the end: it is gone"),
    ],
    ids=["with-a-name", "without-one", "in-words"],
)
def test_another_file_that_cannot_be_written_is_said_too(arguments: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "says_nothing.py").write_text(SAYS_NOTHING.format(arguments=arguments))
    ended = run(tmp_path, ["0"], "-p", "says_nothing", PYTHONPATH=str(tmp_path))
    assert ended.status == pytest.ExitCode.TESTS_FAILED, ended.text
    assert said in ended.end
    assert "1 failed" in ended.text.splitlines()[-1]


def test_other_failures_are_shown_as_ever(tmp_path: Path) -> None:
    """A test that fails by itself is pytest's to show."""
    file = tmp_path / "test_other.py"
    file.write_text("def test_it():\n    assert 1 == 2\n")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            str(file),
            "-c",
            "/dev/null",
            "--rootdir",
            str(tmp_path),
            "-p",
            "no:cacheprovider",
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTEST_PLUGINS": "conformance.outputs"},
    )
    assert done.returncode == 1
    assert "assert 1 == 2" in done.stdout
    assert "FAILED" in done.stdout


@pytest.mark.parametrize(
    ("message", "shown"),
    [("a\nb", "a%0Ab"), ("100%", "100%25"), ("\x1b[31m", "\\x1b[31m"), ("::error::x", "::error::x"), ("\r", "\\r")],
)
def test_annotations_are_escaped(message: str, shown: str) -> None:
    line = github.annotation("a,b:c.py", 3, "t,i:tle", message)
    assert line == f"::error file=a%2Cb%3Ac.py,line=3,title=t%2Ci%3Atle::{shown}"
    assert github.annotation("", 0, "t", "m") == "::error title=t::m"


@pytest.mark.parametrize("text", COMMANDS[:3])
def test_commands_become_text(text: str) -> None:
    made = github.harmless(text)
    assert not made.lstrip().startswith("::")
    assert "##[" not in made
    assert github.harmless("a ::b") == "a ::b"
