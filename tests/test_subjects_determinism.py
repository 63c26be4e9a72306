"""The same seed and the same tree give the same verdicts, the same shrunk cases and the same report, but for times."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reference.case import Case, Group
from tests.commands import pytest_, together
from tests.drawn import FILE
from tests.faults.catalogue import by_name, faulty_source, write_variant

# Faults, and the tests that are to find them; the last one of several is known.
FOUND: dict[str, tuple[tuple[str, ...], str, str]] = {
    "interleave-and-world-size-swapped": (("interleave-and-world-size-swapped",), "test_cp", "80"),
    "request-mask-one-too-far": (("request-mask-one-too-far",), "test_plain", "80"),
    "known": (("torch-kernel-block-for-virtual-block", "torch-pads-the-tail"), "dcp", "60"),
}
CASE = Case((0, 1), (0,), 1, 2, (Group(((3,),), 1, 1),))
KNOWN = f"""
schema = 1
[[failure]]
entry_point = "kernels.dcp"
kind = "mismatch"
cause = "padding end"
reason = "for this test"
case = '''{json.dumps(CASE.to_json())}'''
"""


def reports(folder: Path) -> dict[str, object]:
    """Every file of a report folder, without the times; the page is drawn from the others and shows these."""
    found: dict[str, object] = {}
    for file in sorted(folder.iterdir()):
        text = file.read_text(encoding="utf-8")
        found[file.name] = json.loads(text) if file.suffix == ".json" else text
    summary = found["summary.json"]
    assert isinstance(summary, dict)
    assert summary.pop("seconds") == summary.pop("seconds_total") > 0
    coverage: Any = found["coverage.json"]
    assert coverage.pop("started")
    for counts in coverage["entry_points"].values():
        assert counts.pop("seconds").keys() == {"compile", "launch"}
    assert found.pop("index.html")
    return found


def timeless(text: str) -> list[str]:
    """What pytest printed, with every time and every rate taken out, the line of dashes around some, and how far the
    run was after half a minute.
    """
    kept = (line for line in text.splitlines() if not re.search(r"\d/s, specializations: ", line))
    return [re.sub(r"=+|\d+\.\d+ ?s\b|\(\d:\d\d:\d\d\)", "", line).strip() for line in kept]


@pytest.mark.parametrize("name", FOUND)
def test_the_same_seed_gives_the_same_run(name: str, tmp_path: Path) -> None:
    (fault, *others), keyword, examples = FOUND[name]
    source = write_variant(by_name(fault), tmp_path / "wrong")
    folder = tmp_path / "reports"
    known: list[str | Path] = []
    for other in map(by_name, others):
        file = source / "kernels" / other.file
        file.write_text(faulty_source(other, file.read_text(encoding="utf-8")), encoding="utf-8")
        (tmp_path / "known.toml").write_text(KNOWN, encoding="utf-8")
        known = ["--known-failures", tmp_path / "known.toml", "--write-known-failures", folder / "refreshed.toml"]
    runs = []
    for number in range(2):
        done = pytest_(
            "conformance",
            *("-k", keyword, "--source", f"kernels={source}", "--hypothesis-seed", "11", "--report-dir", folder),
            *("--max-examples", examples, "--compile-budget", "4", "-p", "no:cacheprovider", *known),
            variables={"PYTHONHASHSEED": str(number)},  # the order of sets must not decide anything
        )
        assert done.status == 1, done.tail
        runs.append((timeless(done.output), reports(folder)))
        folder.rename(tmp_path / f"reports-{number}")
    (first_output, first), (second_output, second) = runs
    assert any(file.startswith("failure-") for file in first)
    if known:
        assert str(first["refreshed.toml"]).count("[[failure]]") > 1
        assert any(
            line.startswith("known failure still fails: kernels.dcp: mismatch, padding end") for line in first_output
        )
    assert first == second
    assert first_output == second_output


# What draws nothing launches the same in any case, and takes longest.
NOTHING_DRAWN = ("test_sweep.py", "test_large.py", "test_compile_keys.py")


def test_the_same_seed_draws_the_same_cases_for_every_test(tmp_path: Path) -> None:
    """And the next seed draws others; also on a CI machine, where Hypothesis by itself would always draw the same."""
    options = ("--max-examples", "6", "--compile-budget", "3", "-p", "tests.drawn", "-p", "no:cacheprovider")
    everything = ("conformance", *(f"--ignore=conformance/{name}" for name in NOTHING_DRAWN))
    runs = {"first": (11, everything), "again": (11, everything), "next": (12, ["conformance/test_v2.py"])}
    commands = [
        (*which, *options, "--hypothesis-seed", str(seed), "--report-dir", tmp_path / name)
        for name, (seed, which) in runs.items()
    ]
    variables = [{FILE: str(tmp_path / f"{name}.json"), "PYTHONHASHSEED": str(n)} for n, name in enumerate(runs)]
    for on_ci in (0, 2):
        variables[on_ci]["CI"] = "true"
    for done in together(commands, variables):
        assert done.status == 0, done.tail
    first, again, following = (json.loads((tmp_path / f"{name}.json").read_text()) for name in runs)
    assert sum(count >= 6 for count, _ in first.values()) >= 12
    assert first == again
    assert following
    assert all(first[name] != drawn for name, drawn in following.items())
