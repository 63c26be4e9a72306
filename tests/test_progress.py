"""What a run shows while it runs, and what is left of one that is ended in the middle."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance import ticker
from conformance.progress import Work, shown_time
from conformance.ticker import Ticker
from tests.commands import ROOT
from tests.hostile import tree
from tests.test_interruption import Run, run  # noqa: F401  (a fixture)

_QUICK = """
import sys
from conformance import ticker
ticker.EVERY = ticker.LIVE_EVERY = 0.05
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""
_FIGURES = "[0-9,]+ cases, [0-9,]+/s, specializations [0-9]+, failures 0"
_ALWAYS_WRONG = """
import time
end = time.process_time() + 0.3
while time.process_time() < end:
    pass
slot_mapping.fill_(-77)
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticker, "EVERY", 0.02)
    monkeypatch.setattr(ticker, "LIVE_EVERY", 0.02)


def test_a_live_line_gives_back_what_it_covers(quick: None) -> None:
    file = io.StringIO()
    made = Ticker(file, live=True, width=30, current_line=lambda: "test_plain.py .")
    made.start()
    with made.showing(lambda: "x" * 40):
        wait_until(lambda: bool(file.getvalue()))
    made.stop()
    *shown, last = file.getvalue().split("\r")[1:]
    assert set(shown) == {"x" * 26 + "...\x1b[K"}
    assert last == "\x1b[Ktest_plain.py ."


def test_plain_lines_are_whole_lines(quick: None) -> None:
    file = io.StringIO()
    made = Ticker(file, live=False, current_line=lambda: "..")
    made.start()
    with made.showing(lambda: "5 cases\x1b[31m\nmore"):
        wait_until(lambda: bool(file.getvalue()))
    made.stop()
    assert set(file.getvalue().splitlines()) == {"", "5 cases\\x1b[31m\\nmore"}


def test_nothing_is_shown_where_there_is_nothing_to_say(quick: None) -> None:
    file = io.StringIO()
    made = Ticker(file, live=True)
    made.start()
    time.sleep(0.1)
    made.stop()
    assert file.getvalue() == ""


def test_a_reader_who_went_away_ends_nothing(quick: None) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    made = Ticker(Closed(), live=True)
    made.start()
    with made.showing(lambda: "x"):
        time.sleep(0.1)
    made.stop()


def test_the_time_left_follows_the_pace() -> None:
    work = Work(total=1000, done=200, started=0.0)
    assert work.left(50, 25.0) == 75.0
    assert work.left(5000, 25.0) == 0.0
    assert Work(total=1000, started=0.0).left(10, 1.0) is None
    assert [shown_time(seconds) for seconds in (0.4, 99.0, 150.0)] == ["0 s", "99 s", "2 min"]


def command(folder: Path, *arguments: str) -> list[str]:
    words = ["conformance/test_dcp.py", "-k", "kernels", "--report-dir", str(folder), "--max-examples", "120"]
    return [sys.executable, "-c", _QUICK, *words, *arguments]


def test_a_terminal_shows_a_live_line(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command(tmp_path), cwd=ROOT, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    printed = b""
    while True:
        try:
            printed += os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
    os.close(ours)
    assert process.wait() == 0
    text = printed.decode()
    live = re.findall(r"\r([0-9,]+ cases, [^\r\x1b]*)\x1b\[K", text)
    assert live
    assert re.fullmatch(rf"{_FIGURES}, [0-9]+ (s|min) left: test_dcp_\w+(\.\.\.|\[kernels\.dcp\])", live[-1])
    assert re.search(r"\r\x1b\[Kconformance/test_dcp.py .*\.", text)


def test_where_nobody_watches_there_are_plain_lines(tmp_path: Path) -> None:
    done = subprocess.run(command(tmp_path), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.endswith("[kernels.dcp]")]
    assert lines
    assert all(re.fullmatch(rf"{_FIGURES}(, [0-9]+ s left)?: test_dcp_\w+\[kernels\.dcp\]", line) for line in lines)
    assert "\r" not in done.stdout
    assert "\x1b" not in done.stdout
    quiet = subprocess.run(command(tmp_path, "-q"), cwd=ROOT, capture_output=True, text=True, check=False)
    assert quiet.returncode == 0, quiet.stdout
    assert "/s, " not in quiet.stdout


def test_what_was_found_before_the_end_is_reported(run: Callable[..., Run], tmp_path: Path) -> None:  # noqa: F811
    """SIGTERM, with which a job is cancelled, ends a run as Ctrl-C does."""
    source = tree(tmp_path / "source", host=_ALWAYS_WRONG)
    one = run("conformance/test_dcp.py", "-k", "kernels", "--source", source, "--max-examples", "100000")
    one.wait_until_launching(1.0)
    one.process.send_signal(signal.SIGTERM)
    assert one.ended() == pytest.ExitCode.INTERRUPTED, one.output
    summary = json.loads((one.reports / "summary.json").read_text())
    assert summary["failures"] == 1, one.output
    report = json.loads(Path(summary["reports"][0]).read_text())
    assert (report["entry_point"], report["verdict"]["kind"]) == ("dcp", "mismatch")
    assert f"report: {Path(summary['reports'][0]).with_suffix('.md')}" in one.output.splitlines()
    assert (one.reports / "index.html").exists()
