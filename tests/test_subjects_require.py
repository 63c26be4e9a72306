"""A gate is green only when what it requires has run: a listed entry point without a case fails the run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reference.case import Case, Group
from tests import published_trees as trees
from tests.commands import Done, in_few_processes

CASE = Case((0, 2), (0, 3), 2, 2, (Group(((4, 2),), 2, 2),))
CLASS = trees.source("block_table_class")
MOVED = {trees.CLASS: CLASS.replace("def _compute_dcp_slot_mapping", "def _moved_away")}
# Tree, what else is typed, exit status, and what is said of what is required (nothing: it ran).
RUNS: dict[str, tuple[dict[str, str], str, int, list[str]]] = {
    "ran": ({trees.CLASS: CLASS}, "--require vllm-ascend.dcp,draft", 0, []),
    "moved": (MOVED, "--require vllm-ascend.dcp", 1, ["vllm-ascend.dcp"]),
    "twice": (MOVED, "--require draft,dcp --require v1", 1, ["dcp", "v1"]),
    "deselected": ({trees.CLASS: CLASS}, "--require dcp,draft -k draft", 1, ["dcp"]),
    "nothing-left": ({trees.CLASS: CLASS}, "--require dcp -k no_such_test", 1, ["dcp"]),
    "nobody": (
        {trees.CLASS: CLASS},
        "--require vllm-ascend.v7,kernels.draft",
        1,
        ["vllm-ascend.v7", "kernels.draft"],
    ),
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


def test_without_the_option_a_moved_file_is_a_skip_with_its_reason(tmp_path: Path) -> None:
    """Which is why a gate sets it."""
    source = trees.write(tmp_path, MOVED)
    arguments = ("--subject", "vllm-ascend", "--source", source, "--report-dir", tmp_path / "reports")
    [done] = in_few_processes([("conformance", "-k", "test_dcp", "-rs", *arguments)])
    assert done.status == 0, done.tail
    assert "1 skipped" in done.output
    assert "vllm-ascend.dcp: no _compute_dcp_slot_mapping or _compute_pcp_dcp_slot_mapping" in done.output
