"""A run must not be green because something kept it from looking."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import lanes
from conformance.required import BESIDE, Launches, could_not_run
from reference.case import Case, Group
from tests.hostile import tree

ROOT = Path(__file__).parents[1]
FINDING = ROOT / "tests" / "data" / "findings" / "row-staged-past-the-table.json"
UNAVAILABLE = lanes.by_name("lowered").unavailable()

pytestmark = pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))


def suite(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "--report-dir", str(tmp_path / "reports"), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


UNSUPPORTED = "from conformance.subjects.loading import StandInUsed"


def test_a_case_that_is_not_supported_does_not_hide_a_wrong_one(tmp_path: Path) -> None:
    body = f"""
{UNSUPPORTED}
if len(positions) == 1:
    raise StandInUsed("missing.helper was called")
slot_mapping[: len(positions)] = 7
"""
    source = tree(tmp_path, host=body)
    done = suite(tmp_path, "conformance/test_dcp.py", "--source", str(source), "--max-examples", "100")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "kernels.dcp: mismatch" in done.stdout


def test_a_test_that_is_not_supported_is_a_skip_with_its_reason(tmp_path: Path) -> None:
    source = tree(tmp_path, host=f'{UNSUPPORTED}\nraise StandInUsed("missing.helper was called")')
    arguments = ("--source", str(source), "--max-examples", "5", "-rs")
    done = suite(tmp_path, "conformance", "-k", "test_dcp or test_v2_slots", *arguments)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "missing.helper was called" in done.stdout
    alone = suite(tmp_path, "conformance/test_dcp.py", *arguments)
    assert alone.returncode == pytest.ExitCode.TESTS_FAILED
    assert "subject kernels: every test was skipped, so this run fails" in alone.stdout
    assert (
        suite(tmp_path, "conformance/test_dcp.py", *arguments, "--require", "dcp").returncode
        == pytest.ExitCode.TESTS_FAILED
    )


def _above(number: int, folder: Path) -> Path:
    """These kernels, whose torch path needs a package that is not there for more tokens than that."""
    source = tree(folder)
    file = source / "kernels" / "torch_dcp.py"
    right = (ROOT / "kernels" / "torch_dcp.py").read_text(encoding="utf-8")
    before, line, after = right.partition("    geometry = Geometry(block_size, kv_cache_block_size, cp_size")
    assert line
    refused = f"    if len(positions) > {number}:\n        {UNSUPPORTED}\n"
    refused += '        raise StandInUsed("missing.helper was called")\n'
    file.write_text(before + refused + line + after, encoding="utf-8")
    return source


SLOTS = "test_dcp.py::test_dcp_slots_exist_on_the_owning_rank_only"
LARGE = "test_large.py::test_large_cp_batches_are_shared_among_ranks"
COULD_NOT = (
    r"--require (?P<name>[a-z.]+): (?P<count>\d) tests? of kernels\.dcp could not run, so this run fails: "
    r"lane lowered: missing\.helper was called: (?P<tests>.*)"
)


@pytest.mark.parametrize(
    ("above", "required", "more", "tests"),
    [
        pytest.param(3, "dcp", (), [SLOTS, LARGE], id="most-of-it"),
        pytest.param(3, "kernels.dcp", ("-n", "2"), [SLOTS, LARGE], id="workers"),
        pytest.param(3, "dcp", ("--shard", "1/2", "-k", "test_dcp_slots"), [SLOTS], id="shard"),
        pytest.param(3, "draft", (), [], id="not-required"),
        # What any case may ask for is not missed in one; what a test is about is.
        pytest.param(1000, "dcp", (), [LARGE], id="large-only"),
    ],
)
def test_a_required_entry_point_of_which_not_every_test_could_run_fails_the_run(
    above: int, required: str, more: tuple[str, ...], tests: list[str], tmp_path: Path
) -> None:
    chosen = "test_dcp_slots or test_draft_slots or (test_large_cp and dcp)"
    words = ("--source", str(_above(above, tmp_path)), "--max-examples", "40", "--hypothesis-seed", "1", *more)
    done = suite(tmp_path, "conformance", "--lane", "lowered", "-k", chosen, *words, "--require", required)
    assert done.returncode == (pytest.ExitCode.TESTS_FAILED if tests else pytest.ExitCode.OK), done.stdout
    found = [line for line in done.stdout.splitlines() if line.startswith("--require")]
    assert len(found) == bool(tests), done.stdout
    for line in found:
        said = re.fullmatch(COULD_NOT, line)
        assert said, line
        assert said["name"] == required
        named = re.findall(r"(\S+) \(([\d,]+) of ([\d,]+) launches\)", said["tests"])
        assert [name for name, _, _ in named] == tests
        assert int(said["count"]) == len(tests)
        assert all(0 < int(unsupported) <= int(all_) for _, unsupported, all_ in named)


def test_what_a_test_that_could_not_run_is() -> None:
    """One whose cases are drawn misses little where a single one of many is out of reach."""
    for compared, unsupported, beside, expected in (
        (1000, 0, BESIDE, False),
        (1000, 1, BESIDE, False),
        (1000, 10, BESIDE, False),
        (1000, 11, BESIDE, True),
        (98, 2, BESIDE, False),
        (97, 3, BESIDE, True),
        (20, 2, BESIDE, False),
        (19, 2, BESIDE, True),
        (10, 1, BESIDE, False),
        (9, 1, BESIDE, True),
        (0, 1, BESIDE, True),
        (0, 2, 0, False),
        (0, 3, 0, True),
        (1000, 1, None, True),
        (0, 1, None, True),
    ):
        found = Launches(compared, unsupported, "why", beside)
        assert found.could_not_run == expected, found
        assert not Launches(compared, unsupported, "", beside).could_not_run, "it was not skipped for it"


def test_what_could_not_run_is_said_in_one_line() -> None:
    cannot = {f"t{number}": Launches(0, 1, f"r{min(number, 1)}\x1b") for number in range(9, -1, -1)}
    tests = {"kernels.dcp": {**cannot, "u": Launches(7)}, "vllm.dcp": {"u": Launches(7)}, "kernels.v1": cannot}
    (said,) = could_not_run(["dcp", "vllm.dcp", "v9"], ("kernels", "vllm"), tests)
    named = ", ".join(f"t{number} (1 of 1 launches)" for number in range(8))
    assert said == (
        "--require dcp: 10 tests of kernels.dcp could not run, so this run fails: r0\\x1b (1 more reason): "
        f"{named} and 2 more"
    )


def test_a_case_of_the_corpus_that_cannot_be_run_is_one_of_those_that_were_drawn(tmp_path: Path) -> None:
    """Not a test that is missing: where nothing else is, the run is as good as without it."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for length in (4500, 3):
        positions = tuple(range(length))
        group = Group((tuple(range(length)),), 1, 1)
        case = Case((0, length), positions, length, length, (group,))
        (corpus / f"{length}.json").write_text(json.dumps({"case": case.to_json(), "entry_points": ["dcp"]}))
    words = ("--source", str(_above(4000, tmp_path)), "--max-examples", "40", "--corpus", str(corpus))
    seed = ("--hypothesis-seed", "1", "--require", "dcp")
    done = suite(tmp_path, "conformance", "-k", "test_dcp_slots or corpus", *words, *seed)
    assert done.returncode == pytest.ExitCode.OK, done.stdout
    assert "1 skipped" in done.stdout
    assert "unsupported on lane lowered: kernels.dcp, 1 of 1: missing.helper was called" in done.stdout


_REFUSED = """\
    if {condition}:
        from conformance.lanes.errors import Unsupported
        raise Unsupported("a thing of tomorrow")
"""


def _with_what_the_lane_cannot(folder: Path, condition: str) -> Path:
    """These kernels, of which the lane cannot do what v1's host launches where ``condition`` is true."""
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "kernels" / "slot_mapping.py"
    before, line, after = file.read_text(encoding="utf-8").partition("    row_stride = block_table.stride(0)")
    assert line
    file.write_text(before + _REFUSED.format(condition=condition) + line + after, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("condition", "chosen", "options"),
    [
        pytest.param("True", "(v1_host and test_host_plain) or test_dcp_slots", (), id="beside-plain-torch"),
        pytest.param("num_tokens > 2", "v1_host and test_host_plain", ("--require", "v1_host"), id="in-part"),
    ],
)
def test_kernels_that_the_lane_cannot_run_to_their_end_are_never_green(
    condition: str, chosen: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    source = _with_what_the_lane_cannot(tmp_path, condition)
    few = ("--source", str(source), "--max-examples", "20", "--compile-budget", "4", "--hypothesis-seed", "1")
    done = suite(tmp_path, "conformance", "--lane", "lowered", "-k", chosen, *few, *options)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout
    assert "kernels.v1_host: the lane could run no test of it to its end, so this run fails" in done.stdout
    assert re.search(r"unsupported on lane lowered: kernels\.v1_host, .*: a thing of tomorrow", done.stdout)
    written = json.loads((tmp_path / "reports" / "summary.json").read_text(encoding="utf-8"))
    assert (written["failures"], written["entry_points"]["kernels.v1_host"]["unsupported"]) == (
        0,
        written["unsupported"],
    )
    assert written["unsupported"] > 0
    assert f"0 failures, {written['unsupported']} unsupported, " in done.stdout
    assert (written["entry_points"]["kernels.v1_host"]["cases"] > 0) == bool(options)
    page = (tmp_path / "reports" / "index.html").read_text(encoding="utf-8")
    assert f"<dt>unsupported</dt><dd>{written['unsupported']}</dd>" in page


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("conformance/test_plain.py", "--replay", str(FINDING)), "concerns vllm-ascend.v2"),
        (("conformance", "--source", "kernels=.", "--source", "kernels=.."), "has a source already"),
        (("conformance", "--hypothesis-seed", "abc"), "'abc' is no integer"),
    ],
    ids=["replay-beside-another-test", "two-sources", "seed-that-is-no-number"],
)
def test_what_cannot_be_meant_ends_in_one_line(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = suite(tmp_path, *arguments)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout
    assert said in done.stderr
    assert "Traceback" not in done.stdout + done.stderr


def test_a_saved_case_is_run_or_refused(tmp_path: Path) -> None:
    own = tmp_path / "own.json"
    item = json.loads(FINDING.read_text())
    own.write_text(json.dumps({**item, "subject": "kernels"}))
    chosen = suite(tmp_path, "conformance/test_plain.py", "--replay", str(own))
    assert chosen.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no saved case was collected" in chosen.stderr
    own.write_text(json.dumps({**item, "subject": "kernels", "entry_points": ["v1"]}))
    refused = suite(tmp_path, "conformance", "--replay", str(own))
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    assert "does not have idx_mapping" in refused.stderr
    own.write_text(json.dumps({**item, "subject": "kernels", "entry_points": None}))
    assert "expected a list of names" in suite(tmp_path, "conformance", "--replay", str(own)).stderr


def test_a_required_name_is_meant_for_every_subject(tmp_path: Path) -> None:
    empty = tmp_path / "wheel" / "vllm_ascend" / "worker"
    empty.mkdir(parents=True)
    (empty / "moved.py").write_text("")
    subjects = ("--subject", "kernels", "--subject", "vllm-ascend", "--source", f"vllm-ascend={tmp_path / 'wheel'}")
    done = suite(tmp_path, "conformance/test_dcp.py", *subjects, "--require", "dcp", "--max-examples", "3")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED
    assert "--require dcp: ran no case" in done.stdout
