"""``python -m conformance.deep``: what is found is kept once, run again first on another day, and time is kept."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from conformance import deep
from conformance.deep import Campaign, RoundError
from conformance.runs import figures
from tests.faults.catalogue import by_name, write_variant

# Torch alone, which compiles nothing.
ONE_TEST = ("-k", "test_dcp or corpus", "--max-examples", "30")
LONG = 3600.0


def campaign(folder: Path, *arguments: str) -> Campaign:
    return Campaign(folder, folder / "corpus", [*ONE_TEST, *arguments], time.monotonic() + LONG)


def test_a_failure_is_kept_once_and_is_run_again_first_the_next_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_variant(by_name("torch-pads-the-tail"), tmp_path / "wrong")
    folder = tmp_path / "reports" / "deep"
    first = campaign(folder, "--source", f"kernels={source}")
    first.prepare()
    first.saved()
    for number in (1, 2):
        first.draw(number, 70 + number, ())
    assert [figures(folder)["seed"] for folder in first.rounds] == [71, 72]
    assert first.finish() == 1
    said = capsys.readouterr().out.splitlines()
    assert [re.sub(r"\d+ cases", "N cases", line).split("; ")[0] for line in said[:2]] == [
        "round 1 (seed 71): N cases, 1 new failure",
        "round 2 (seed 72): N cases, 0 new failures",
    ]
    (kept,) = folder.glob("failure-*.json")
    assert str(kept) in said
    assert said[-1] == f"page: {folder / 'index.html'}"
    assert list((folder / "corpus").glob("*.json"))
    assert not list(folder.glob("rounds/round-2/failure-*"))  # it was known by then

    again = campaign(folder, "--source", f"kernels={source}")
    again.prepare()
    assert not list(folder.glob("failure-*"))
    again.saved()
    assert again.rounds == [folder / "rounds" / "saved"]
    assert again.finish() == 1
    assert json.loads((folder / "summary.json").read_text())["reports"]
    assert re.match(r"\d+ saved cases? run again: 1 failure\n", capsys.readouterr().out)


def test_failures_of_other_runs_are_saved_ones(tmp_path: Path) -> None:
    folder = tmp_path / "reports" / "deep"
    folder.mkdir(parents=True)
    (folder.parent / "failure-kernels-v1-1.json").write_text("{}")
    (folder / "failure-kernels-v1-2.json").write_text("{}")
    (folder / "failure-kernels-v1-2.md").write_text("")
    campaign(folder).prepare()
    assert {file.name for file in (folder / "corpus").iterdir()} == {f"failure-kernels-v1-{n}.json" for n in (1, 2)}
    assert not list(folder.glob("failure-*"))
    assert list(folder.parent.glob("failure-*"))


def test_it_ends_when_its_time_is_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the middle of a round that would take far longer."""
    arguments = ("--minutes", "0.02", "--report-dir", str(tmp_path), "-k", "test_dcp", "--max-examples", "100000000")
    assert deep.main(arguments) == 0
    assert "round 1 (seed" in capsys.readouterr().out


def test_a_run_that_cannot_be_made_ends_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RoundError, match=r"(?s)--subject: unknown subject 'none'.*round-1 ended with status 4"):
        campaign(tmp_path, "--subject", "none").draw(1, 1, ())
    with pytest.raises(SystemExit):
        deep.main(["--minutes", "0"])
