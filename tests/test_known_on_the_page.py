"""Known failures as a run tells them: in ``summary.json``, on the page and in its last line, and not as agreement."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import Done, pytest_
from tests.faults.catalogue import by_name, write_variant
from tests.pages import failure, summary
from tests.test_known_failures import FEW, entry, written
from tests.test_page import Parsed, drawn

REASON = "<b>rows</b> are padded by the caller"
ENTRY = {
    "entry_point": "kernels.dcp",
    "kind": "mismatch",
    "cause": "padding end",
    "buffer": "",
    "reason": REASON,
    "status": "still fails",
    "cases": 1234,
}


def rows(page: Parsed) -> str:
    (table,) = page.all("table", "known")
    return "".join(table.text.splitlines())


def test_what_is_known_is_no_agreement() -> None:
    page = drawn(run={**summary(0), "known_failures": [ENTRY, ENTRY, {**ENTRY, "status": "passes now", "cases": 0}]})
    (title,) = page.all("h1")
    assert (title.text, title.attributes["class"]) == ("No new failure, 2 known in 4,000 cases", "good")
    assert "element for element, but for what is known." in page.by_id("failures").text
    assert f"kernels.dcpmismatch: padding endstill fails1,234{REASON}" in rows(page)
    assert "passes now0" in rows(page)


def test_what_passes_now_is_not_counted() -> None:
    page = drawn(run={**summary(0), "known_failures": [{**ENTRY, "status": "passes now"}]})
    assert next(page.all("h1")).text == "No new failure in 4,000 cases"
    assert page.by_id("failures").text.split()[-3:] == ["element", "for", "element."]


def test_known_failures_stand_beside_new_ones() -> None:
    page = drawn(failure(), run={**summary(1), "known_failures": [ENTRY]})
    assert next(page.all("h1")).text == "1 failure, 1 unexplained, and 1 known"
    assert REASON in rows(page)


def test_a_run_without_known_failures_says_nothing_of_them() -> None:
    page = drawn(run=summary(0))
    assert not list(page.all("table", "known"))
    assert not [each for each in page.elements if each.attributes.get("id") == "known"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Done, Path]:
    """A run over one fault that is known, an entry whose case passes, and one that is about another subject."""
    folder = tmp_path_factory.mktemp("known")
    source = write_variant(by_name("torch-pads-the-tail"), folder / "tree")
    entries = entry(cause="padding end"), entry(entry_point="kernels.v1"), entry(entry_point="vllm.v1")
    file = written(folder / "known.toml", *entries)
    words = ["conformance/test_dcp.py", "conformance/test_known.py", "--source", f"kernels={source}", *FEW]
    return pytest_(*words, "--known-failures", file, "--report-dir", folder / "reports"), folder / "reports"


def test_a_run_tells_what_became_of_each(done: tuple[Done, Path]) -> None:
    ended, folder = done
    found = json.loads((folder / "summary.json").read_text())["known_failures"]
    assert [(each["entry_point"], each["status"]) for each in found] == [
        ("kernels.dcp", "still fails"),
        ("kernels.v1", "passes now"),
        ("vllm.v1", "not run"),
    ], ended.tail
    assert found[0] == {**ENTRY, "reason": "for a test", "cases": found[0]["cases"]}
    assert f"explains {found[0]['cases']} of the cases run" in ended.output
    assert found[0]["cases"] > 1
    assert " 0 failures and 1 known, " in ended.output
    page = Parsed((folder / "index.html").read_text())
    assert next(page.all("h1")).text.startswith("No new failure, 1 known in ")
