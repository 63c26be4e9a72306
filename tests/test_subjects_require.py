"""A gate is green only when what it requires has run: a listed entry point without a case fails the run."""

from __future__ import annotations

import json

import pytest

from conformance.subjects.published import PLACES
from reference.case import Case, Group
from tests import published_trees as trees
from tests.commands import USAGE_ERROR, Done, in_few_processes

CASE = Case((0, 2), (0, 3), 2, 2, (Group(((4, 2),), 2, 2),))
CLASS = trees.source("block_table_class")
MOVED = {trees.CLASS: CLASS.replace("def _compute_dcp_slot_mapping", "def _moved_away")}
FEW = ("--max-examples", "3", "--compile-budget", "1")
# Tree, what else is typed, exit status, and what is said of what is required (nothing: it ran).
RUNS: dict[str, tuple[dict[str, str], str, int, list[str]]] = {
    "ran": ({trees.CLASS: CLASS}, "--require vllm-ascend.dcp,draft", 0, []),
    "moved": (MOVED, "--require vllm-ascend.dcp", 1, ["vllm-ascend.dcp"]),
    "twice": (MOVED, "--require draft,dcp --require v1", 1, ["dcp", "v1"]),
    "deselected": ({trees.CLASS: CLASS}, "--require dcp,draft -k draft", 1, ["dcp"]),
    "nothing-left": ({trees.CLASS: CLASS}, "--require dcp -k no_such_test", 1, ["dcp"]),
    "only-collected": (MOVED, "--require vllm-ascend.dcp --collect-only -q", 0, []),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    """Every run, over one saved case that both entry points of the class can take."""
    folder = tmp_path_factory.mktemp("require")
    (folder / "case.json").write_text(json.dumps({"case": CASE.to_json(), "entry_points": ["dcp", "draft"]}))
    commands = []
    for name, (files, typed, _, _) in RUNS.items():
        source = trees.write(folder / name, files)
        always = ("--subject", "vllm-ascend", "--source", source, "--report-dir", source / "reports")
        commands.append(("conformance", "--replay", folder / "case.json", *always, *typed.split()))
    return dict(zip(RUNS, in_few_processes(commands), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_a_required_entry_point_that_ran_no_case_fails_the_run(name: str, runs: dict[str, Done]) -> None:
    _, _, status, missing = RUNS[name]
    done = runs[name]
    assert done.status == status, done.tail
    assert [line for line in done.lines if line.startswith("--require")] == [
        f"--require {each}: ran no case, so this run fails" for each in missing
    ]


# What nobody in the run can have is no reason to test anything first.
REFUSED = {
    "no-name": "v9",
    "not-of-it": "vllm-ascend.v9",
    "other-subject": "kernels.draft",
    "part": "draf",
    "dot": ".draft",
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    source = trees.write(tmp_path_factory.mktemp("refused"), {trees.CLASS: CLASS})
    always = ("conformance", "--subject", "vllm-ascend", "--source", source, "--report-dir", source / "reports")
    runs = in_few_processes([(*always, "--require", f"dcp,{name}") for name in REFUSED.values()])
    return dict(zip(REFUSED, runs, strict=True))


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_subject_of_the_run_has_is_refused_before_anything_runs(name: str, refused: dict[str, Done]) -> None:
    done = refused[name]
    assert done.status == USAGE_ERROR, done.tail
    assert [line for line in done.lines if line.startswith("ERROR")] == [
        f"ERROR: --require {REFUSED[name]}: no such entry point; this run has vllm-ascend.v1, vllm-ascend.v2, "
        "vllm-ascend.fused, vllm-ascend.replay, vllm-ascend.dcp, vllm-ascend.draft"
    ]


# Without the option, a version is held to what it is known to have.

V2 = trees.source("v2_total_block_size")
WITHOUT: dict[str, tuple[dict[str, str], str | None, str, int, str]] = {
    # Tree, its version, what else is typed, exit status, and what is said of it.
    "moved-from-an-unknown-version": (MOVED, None, "-k test_dcp", 1, "vllm-ascend.dcp was not tested"),
    "place-gone": (
        {trees.CLASS: CLASS},
        "0.23.0",
        "-k test_v2 or test_draft",
        1,
        "vllm-ascend.v2 was not tested, so this run fails: vllm-ascend 0.23.0 should have it: "
        "no _compute_slot_mappings_kernel in vllm_ascend/ops/triton/v2/block_table/compute_slot_mappings.py "
        "or vllm_ascend/worker/v2/block_table.py",
    ),
    "cannot-be-imported": (
        {trees.CLASS: CLASS, trees.V2: "import a_module_of_nobody\n" + V2},
        "0.23.0",
        "-k test_v2 or test_draft",
        1,
        "block_table.py cannot be imported: ModuleNotFoundError",
    ),
    "not-there-yet": ({trees.CLASS: CLASS}, "0.23.0", "-k test_plain or test_draft", 0, "1 passed"),
    "required-otherwise": (MOVED, "0.23.0", "-k dcp_slots_exist or test_draft --require draft", 0, "1 passed"),
    "all-skipped": ({trees.CLASS: CLASS}, "0.23.0", "-k test_fused", 1, "subject vllm-ascend: every test was skipped"),
    "for-nobody": ({trees.CLASS: CLASS}, "0.23.0", "-k test_tiled", 1, "subject vllm-ascend: every test was skipped"),
}


@pytest.fixture(scope="module")
def runs_without(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Done]:
    folder = tmp_path_factory.mktemp("expected")
    commands = []
    for name, (files, version, typed, _, _) in WITHOUT.items():
        source = trees.write(folder / name, files, version=version)
        options, dash, required = typed.removeprefix("-k ").partition(" --require ")
        always = ("--subject", "vllm-ascend", "--source", source, "--report-dir", source / "reports")
        commands.append(("conformance", "-k", options, *(["--require", required] if dash else []), *always, *FEW))
    return dict(zip(WITHOUT, in_few_processes(commands), strict=True))


@pytest.mark.parametrize("name", WITHOUT)
def test_what_a_version_should_have_and_what_was_all_skipped_is_never_green(
    name: str, runs_without: dict[str, Done]
) -> None:
    _, _, _, status, said = WITHOUT[name]
    done = runs_without[name]
    assert done.status == status, done.tail
    assert said in done.output, done.tail


def test_each_wheel_that_was_looked_at_should_have_what_it_has() -> None:
    expected = {
        "0.18.0": {"v2", "dcp", "draft"},
        "0.23.0": {"v2", "dcp", "draft"},
        "0.26.0rc1": {"v1", "v2", "dcp", "draft"},
        "unknown": {"v1", "v2", "dcp", "draft"},
        "0.1.dev1+g27a5ed8": {"v1", "v2", "dcp", "draft"},
    }
    for version, names in expected.items():
        assert {place.entry for place in PLACES["vllm-ascend"] if place.expected(version)} == names
    assert {place.entry for place in PLACES["vllm"] if place.expected("0.23.0")} == {"v1", "v2"}
