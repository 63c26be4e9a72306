"""Both lanes give the same output for every case; where they do not, the comparison says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conformance import agreement, both_lanes, lanes
from conformance.agreement import difference_between
from conformance.execution.session import Outcome
from conformance.subjects.own import PLACES
from reference.verdict import Guard
from tests.commands import pytest_
from tests.hostile import tree

_UNAVAILABLE = lanes.by_name("lowered").unavailable()
_MISSING = None if both_lanes.INTERPRETER.exists() else f"{both_lanes.INTERPRETER} does not exist"
needs_both = pytest.mark.skipif(bool(_UNAVAILABLE or _MISSING), reason=f"{_UNAVAILABLE or _MISSING}")

# Right on one lane only: on the other the output stays as it was.
_ONLY_LOWERED = """
if os.environ.get("TRITON_INTERPRET") != "1":
    slot_mapping[:] = 0
"""


def compared(folder: Path, *arguments: str) -> tuple[int, dict]:
    """The exit status and what was written about ``--compile-budget 4``, so that little is compiled."""
    status = agreement.main(["--compile-budget", "4", "--report-dir", str(folder), *arguments])
    return status, json.loads((folder / "agreement.json").read_text())


@needs_both
def test_three_lanes_give_the_same_output_for_every_entry_point(tmp_path: Path) -> None:
    drawn = [place.entry for place in PLACES if not place.prepares]
    lanes_asked = ("--lanes", "interpreter,lowered,hivm", "--compile-budget", "2")
    status, figures = compared(tmp_path, "--cases", str(5 * len(drawn)), *lanes_asked)
    assert figures["lanes"] == ["interpreter", "lowered", "hivm"]
    assert figures["differences"] == 0
    assert status == 0
    assert figures["cases"] == 5 * len(drawn)
    assert set(figures["entry_points"]) == {f"kernels.{name}" for name in drawn}
    assert min(entry["cases"] for entry in figures["entry_points"].values()) == 5


@needs_both
def test_a_kernel_that_is_right_on_one_lane_only_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tree(tmp_path / "source", host=_ONLY_LOWERED, kernel="tl.store(slot_mapping_ptr, 7)")
    status, figures = compared(tmp_path, "--cases", "24", "--source", str(source))
    assert status == 1
    counts = {name: each["differences"] for name, each in figures["entry_points"].items() if each["differences"]}
    assert list(counts) == ["kernels.dcp"]
    assert figures["differences"] == counts["kernels.dcp"]
    assert "slot_mapping[0]: 0 on lowered, -559038737 on interpreter" in capsys.readouterr().out
    # What is written is a case that the suite takes; on this lane alone it is a wrong value like any other.
    saved = sorted(tmp_path.glob("disagreement-kernels-dcp-*.json"))[0]
    replayed = pytest_("conformance", "--replay", saved, "--source", source, "--report-dir", tmp_path / "replayed")
    assert replayed.status == 1, replayed.tail
    assert "1 failed" in replayed.output


def test_without_the_other_environment_one_line_says_which(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(agreement, "INTERPRETER", tmp_path / "bin" / "python")
    assert agreement.main(["--cases", "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    expected = "lowered" if _UNAVAILABLE else "make environment-interpreter"
    assert expected in line


@needs_both
def test_an_environment_that_does_not_work_is_an_error_and_no_agreement(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho 'no such library' >&2\nexit 7\n")
    broken.chmod(0o755)
    monkeypatch.setattr(agreement, "INTERPRETER", broken)
    assert agreement.main(["--cases", "1", "--compile-budget", "1", "--report-dir", str(tmp_path)]) == 2
    assert "no such library" in capsys.readouterr().err


NAMES = ("lowered", "interpreter")


def _guard(**changes: object) -> Guard:
    values = {"buffer": "positions", "direction": "read", "address": 4096, "distance": 8, "message": ""}
    return Guard(**{**values, **changes})


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Outcome("ok", {"slot_mapping": [1, 2, 3]}), None),
        (Outcome("ok", {"slot_mapping": [1, 2, 4]}), "slot_mapping[2]: 3 on lowered, 4 on interpreter"),
        (Outcome("ok", {"slot_mapping": [1, 2]}), "3 elements on lowered, 2 on interpreter"),
        (Outcome("ok", {}), "3 elements on lowered, 0 on interpreter"),
        (Outcome("raised", message="IndexError: 9"), "interpreter: raised IndexError: 9"),
        (Outcome("ok", {"slot_mapping": [1, 2, 3]}, (_guard(),)), "guard violations"),
    ],
    ids=["same", "value", "length", "nothing", "ending", "guard"],
)
def test_everything_a_launch_did_is_compared(other: Outcome, said: str | None) -> None:
    difference = difference_between(Outcome("ok", {"slot_mapping": [1, 2, 3]}), other, NAMES)
    assert difference is None if said is None else said in str(difference)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"distance": 16, "address": 8192}, True),
        ({"distance": -8}, False),
        ({"direction": "write"}, False),
        ({"buffer": "block_table"}, False),
    ],
    ids=["further-past", "before", "write", "another-buffer"],
)
def test_guard_violations_agree_in_buffer_direction_and_side(changes: dict[str, object], same: bool) -> None:
    one, other = (Outcome("crash", guards=(guard,)) for guard in (_guard(), _guard(**changes)))
    assert (difference_between(one, other, NAMES) is None) == same


@pytest.mark.parametrize("named", ["lowered", "lowered,lowered", "lowered,gpu", ""])
def test_lanes_that_cannot_be_compared_are_refused(named: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        agreement.main(["--lanes", named])
    assert "--lanes" in capsys.readouterr().err


def test_one_lane_of_three_that_differs_is_told() -> None:
    comparison = agreement.Comparison(PLACES[0])  # type: ignore[arg-type]  (only its name is asked for)
    right, wrong = Outcome("ok", {"slot_mapping": [1]}), Outcome("ok", {"slot_mapping": [2]})
    comparison.add({}, {"lowered": right, "interpreter": right, "hivm": right})
    comparison.add({}, {"lowered": right, "interpreter": right, "hivm": wrong})
    assert (comparison.cases, comparison.differences) == (2, 1)
    assert comparison.saved == [({}, "slot_mapping[0]: 1 on lowered, 2 on hivm")]
