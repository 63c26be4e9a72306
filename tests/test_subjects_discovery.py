"""What a version has is found wherever it keeps it. What is not found says why: nothing passes for want of a file."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from conformance.subjects.__main__ import _guess as guess
from conformance.subjects.__main__ import main
from conformance.subjects.entry import TESTABLE, EntryPoint
from conformance.subjects.published import PLACES
from conformance.subjects.sources import UNKNOWN, find_package, version_of
from tests import published_trees as trees
from tests.commands import ROOT

CIRCULAR = trees.source("v1_circular")
V2 = trees.source("v2_enabled")
CLASS = trees.source("block_table_class")
BY_ADDRESS = trees.source("by_address")
WHOLE = {
    trees.V1: CIRCULAR + BY_ADDRESS.partition('"""\n')[2],
    trees.V2_LATER: V2,
    trees.CLASS: CLASS,
}


def table(*arguments: str | Path) -> tuple[int, list[str], str]:
    """Exit status, lines and errors of ``python -m conformance.subjects``."""
    printed, said = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said):
        status = main([*map(str, arguments)])
    return status, printed.getvalue().splitlines(), said.getvalue()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trees.write(tmp_path_factory.mktemp("whole"), WHOLE, version="0.99.0")


def line_of(text: str, definition: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith(definition))


def test_every_entry_point_is_found_with_file_line_and_parameters(whole: Path) -> None:
    [found] = trees.found([("vllm-ascend", whole)])
    assert [entry.name for entry in found.values()] == [place.entry for place in PLACES["vllm-ascend"]]
    assert {entry.status for entry in found.values() if not entry.prepares} == {TESTABLE}
    assert {entry.version for entry in found.values()} == {"0.99.0"}
    v1 = found["v1"]
    assert (v1.file, v1.line) == (str(whole / trees.V1), line_of(CIRCULAR, "def _compute_slot_mapping_kernel("))
    assert v1.parameters[:3] == ("num_tokens", "max_num_tokens", "query_start_loc_ptr")
    assert v1.constants[0] == "KV_CACHE_BLOCK_SIZE"
    assert v1.constants[-1] == "IS_CIRCULAR"
    assert found["dcp"].function == "BlockTable._compute_dcp_slot_mapping"
    assert found["draft"].line == line_of(CLASS, "def compute_slot_mapping_draft(")


def test_the_table_lists_them_and_ends_well(whole: Path) -> None:
    status, lines, said = table("--source", whole)
    assert (status, said) == (0, "")
    assert lines[0] == "vllm-ascend 0.99.0"
    assert lines[1].split() == ["entry", "point", "status", "where", "function", "parameters"]
    rows = {line.split()[0]: line for line in lines[2:]}
    assert list(rows) == [place.entry for place in PLACES["vllm-ascend"] if not place.prepares]
    line = line_of(CIRCULAR, "def _compute_slot_mapping_kernel(")
    assert rows["v1"].split()[1:4] == [
        "testable",
        f"ops/triton/compute_slot_mapping.py:{line}",
        "_compute_slot_mapping_kernel",
    ]
    assert rows["v1"].endswith("TILE_BLOCK_SIZE, BLOCK_TABLE_WINDOW_SIZE, IS_CIRCULAR")


MOVED = "no _compute_slot_mapping_kernel in vllm_ascend/ops/triton/compute_slot_mapping.py"
PLAIN = trees.replaced(
    CIRCULAR, '@triton.jit(do_not_specialize=["num_tokens", "max_num_tokens"])\n', "# no kernel any more\n"
)
# What is wrong with a tree that also has a v2: its files, the entry point, and the reason that it must be given.
REASONS = {
    "moved": ({"vllm_ascend/ops/slots.py": CIRCULAR}, "v1", MOVED),
    "renamed": ({trees.V1: CIRCULAR.replace("_compute_slot_mapping_kernel", "_slots_kernel")}, "v1", MOVED),
    "syntax": (
        {trees.V1: CIRCULAR + "\ndef ("},
        "v1",
        "compute_slot_mapping.py cannot be parsed: invalid syntax",
    ),
    "no-text": ({trees.V1: "x = '\0'"}, "v1", "compute_slot_mapping.py cannot be parsed: source code string cannot "),
    "import": (
        {trees.V1: "import a_module_of_nobody\n" + CIRCULAR},
        "v1",
        "compute_slot_mapping.py cannot be imported: ModuleNotFoundError: No module named 'a_module_of_nobody'",
    ),
    "raises": (
        {trees.V1: CIRCULAR + "\n1 / 0\n"},
        "v1",
        "compute_slot_mapping.py cannot be imported: ZeroDivisionError: division by zero",
    ),
    "undecorated": ({trees.V1: PLAIN}, "v1", "_compute_slot_mapping_kernel is no @triton.jit function after import"),
    "overwritten": (
        {trees.V1: CIRCULAR + "\n_compute_slot_mapping_kernel = None\n"},
        "v1",
        "_compute_slot_mapping_kernel is no @triton.jit function after import",
    ),
    "placeholder": (
        {trees.V1: CIRCULAR.replace("from vllm.triton_utils import tl, triton", "from vllm.logger import tl, triton")},
        "v1",
        "_compute_slot_mapping_kernel is no @triton.jit function after import",
    ),
    "methods": (
        {trees.CLASS: CLASS.replace("def _compute_dcp_slot_mapping", "def _something_else")},
        "dcp",
        "no _compute_dcp_slot_mapping or _compute_pcp_dcp_slot_mapping or compute_slot_mapping in "
        "vllm_ascend/worker/block_table.py",
    ),
    "class": (
        {trees.CLASS: CLASS.replace("class BlockTable", "class AnotherTable")},
        "draft",
        "no compute_slot_mapping_draft or compute_slot_mapping in vllm_ascend/worker/block_table.py",
    ),
}


@pytest.fixture(scope="module")
def unfit(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, EntryPoint]]:
    """What is found in each of them."""
    folder = tmp_path_factory.mktemp("unfit")
    written = [trees.write(folder / name, {trees.V2_LATER: V2, **files}) for name, (files, _, _) in REASONS.items()]
    return dict(zip(REASONS, trees.found([("vllm-ascend", source) for source in written]), strict=True))


@pytest.mark.parametrize("name", REASONS)
def test_what_cannot_be_tested_says_why_and_takes_nothing_else_with_it(
    name: str, unfit: dict[str, dict[str, EntryPoint]]
) -> None:
    _, whom, reason = REASONS[name]
    found = unfit[name]
    assert found[whom].status.startswith(reason)
    assert found[whom].parameters == ()
    assert found["v2"].status == TESTABLE
    assert [entry.name for entry in found.values()] == [place.entry for place in PLACES["vllm-ascend"]]


def test_a_kernel_that_moved_is_said_to_be_where_it_is_now(unfit: dict[str, dict[str, EntryPoint]]) -> None:
    status = unfit["moved"]["v1"].status
    line = line_of(CIRCULAR, "def _compute_slot_mapping_kernel(")
    assert status.endswith(f"(there is one in vllm_ascend/ops/slots.py:{line}: if that is it, add the place to PLACES)")
    assert "there is one" not in unfit["renamed"]["v1"].status


def test_both_places_of_v2_are_looked_at_and_the_newer_one_counts(tmp_path: Path) -> None:
    """Even when the newer file does not parse: what it was meant to replace is not what runs."""
    earlier = {trees.V2: trees.source("v2_total_block_size")}
    written = {
        "earlier": trees.write(tmp_path / "earlier", earlier),
        "both": trees.write(tmp_path / "both", {**earlier, trees.V2_LATER: V2}),
        "broken": trees.write(tmp_path / "broken", {**earlier, trees.V2_LATER: "def ("}),
    }
    found = trees.found([("vllm-ascend", source) for source in written.values()])
    one, both, broken = (entries["v2"] for entries in found)
    assert (one.status, one.file) == (TESTABLE, str(written["earlier"] / trees.V2))
    assert (both.status, both.file) == (TESTABLE, str(written["both"] / trees.V2_LATER))
    assert broken.status.startswith("compute_slot_mappings.py cannot be parsed: ")


def test_the_table_shows_reasons_and_parameters_that_cannot_be_bound(tmp_path: Path) -> None:
    files = {
        trees.V1: CIRCULAR.replace("positions_ptr", "pos_ptr"),
        trees.V2_LATER: "raise OSError('not today')\n" + V2,
    }
    status, lines, said = table("--source", trees.write(tmp_path, files))
    assert (status, said) == (0, "")
    assert "_compute_slot_mapping_kernel has a parameter 'pos_ptr' that the suite does not know" in lines[-6]
    assert lines[-5] == "v2: compute_slot_mappings.py cannot be imported: OSError: not today"
    shown = [line.split()[:4] for line in lines[2:4]]
    assert [row[:3] for row in shown] == [["v1", "see", "below"], ["v2", "see", "below"]]
    for row, file in zip(shown, (trees.V1, trees.V2_LATER), strict=True):
        assert row[3].startswith(file.removeprefix("vllm_ascend/") + ":")
    assert lines[-7] == ""
    assert not [line for line in lines[:-7] if "cannot be imported" in line]
    assert not [line for line in lines if TESTABLE in line]


@pytest.mark.parametrize("name", ["empty", "missing"])
def test_a_folder_without_the_package_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    status, lines, said = table("--source", tmp_path / name)
    assert (status, lines) == (2, [])
    assert said.endswith(f"FileNotFoundError: {tmp_path / name} holds no folder vllm_ascend\n")
    assert said.count("\n") == 1


# Where the package is


@pytest.mark.parametrize("start", ["tree", "tree/vllm"])
def test_a_package_is_found_from_its_folder_and_from_the_one_above(start: str, tmp_path: Path) -> None:
    """A checkout of vLLM is often called vllm, as the package in it is; and the package has one named kernels."""
    package = {f"{path}": trees.source("v1_upstream") for path in (trees.UPSTREAM_V1, "vllm/kernels/__init__.py")}
    for root in ("tree", "vllm"):
        trees.write(tmp_path / root, package, version="0.99.1")
    assert find_package("vllm", str(tmp_path / start)) == tmp_path / "tree" / "vllm"
    assert find_package("vllm", str(tmp_path / "vllm")) == tmp_path / "vllm" / "vllm"
    for source in (tmp_path / start, tmp_path / "vllm"):
        assert guess(source) == "vllm"


@pytest.mark.parametrize("name", ["vllm", "vllm_ascend", "kernels"])
def test_the_package_in_a_folder_says_whose_it_is(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    assert guess(tmp_path) == name.replace("_", "-")
    assert guess(None) == guess(tmp_path / name) == "vllm-ascend"  # an empty folder is nobody's


def test_a_package_is_found_from_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trees.write(tmp_path, {trees.V1: CIRCULAR})
    monkeypatch.chdir(tmp_path / "vllm_ascend")
    assert find_package("vllm_ascend", ".") == tmp_path / "vllm_ascend"


def test_a_package_that_is_not_installed_asks_for_a_source() -> None:
    with pytest.raises(FileNotFoundError, match=r"^no_such_package is not installed: give .* with --source PATH$"):
        find_package("no_such_package", None)


def test_an_installed_package_is_found_without_a_source() -> None:
    assert (find_package("hypothesis", None) / "strategies").is_dir()


@pytest.mark.parametrize(
    ("file", "text", "version"),
    [
        ("vllm-1.2.3.dist-info/METADATA", "Metadata-Version: 2.4\nVersion: 1.2.3\n", "1.2.3"),
        ("vllm/_version.py", "__version__ = version = '0.9.1rc2.dev5+g1234'\n", "0.9.1rc2.dev5+g1234"),
        ("vllm/version.py", "import x\nversion = '3.2'\n", "3.2"),
        ("vllm/other.py", "version = '3.2'\n", UNKNOWN),
    ],
)
def test_the_version_is_that_of_the_wheel_else_of_its_version_file(
    file: str, text: str, version: str, tmp_path: Path
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert version_of(tmp_path / "vllm") == version


def test_the_documented_places_are_those_that_are_looked_at() -> None:
    text = (ROOT / "docs" / "subjects.md").read_text(encoding="utf-8")
    row = re.compile(r"^\| (vllm\S*) \| `(\w+)` \| `(.+)` \| `(.+)` \| (\S+) \|$", re.MULTILINE)
    listed = [
        (subject, name, files.split("`, `"), names.split("`, `"), versions.strip("`-"))
        for subject, name, files, names, versions in row.findall(text)
    ]
    owner = {"method": "BlockTable."}
    assert listed == [
        (
            subject,
            place.entry,
            list(place.files),
            [owner.get(place.kind, "") + name for name in place.names],
            place.versions,
        )
        for subject, places in PLACES.items()
        for place in places
    ]
