"""Reproduction scripts: each fails on a faulty kernel and passes on the right one, without this project around it."""

from __future__ import annotations

import ast
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conformance.both_lanes import INTERPRETER
from conformance.calls import call_of
from conformance.lanes import by_name
from conformance.subjects import own
from conformance.subjects.binding import bind
from conformance.subjects.block_table_class import GIVEN
from conformance.subjects.entry import EntryPoint
from conformance.subjects.host_functions import fill
from conformance.subjects.launching import Settings
from reference import verdict as v
from reference.case import Case, ContextParallel, Group, Launch, Replay
from reference.oracle import trace
from reports.call import Call
from reports.diagnosis import Diagnosis
from reports.reproduction import Reproduction, objects, reproduction
from reports.reproduction.literals import listed
from strategies.declaration import Declaration
from tests import published_trees as trees
from tests.test_reports import HOSTILE

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable if by_name("interpreter").unavailable() is None else str(INTERPRETER)
ENTRIES = {loaded.description.name: loaded.description for loaded in own.load(None, by_name("interpreter"))}
DIAGNOSIS = Diagnosis("owner", "Token 1 is on the wrong rank.", "slot_mapping")

needs_interpreter = pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"{PYTHON} does not exist")

# Runs each script given as "script kernel-file" in a fork of its own, so that torch and Triton are imported once.
RUN_ALL = """
import os, runpy, sys
import torch, triton
for line in sys.stdin.read().splitlines():
    script, file = line.split("\\t")
    sys.stdout.flush()
    child = os.fork()
    if not child:
        sys.argv = [script, *([file] if file else [])]
        status = 0
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as error:
            status = error.code
        finally:
            sys.stdout.flush()
            os._exit(status)
    print(f"exit status {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}", flush=True)
    for stream in (sys.stdout, sys.stderr):
        print("----", file=stream, flush=True)
"""
PASSES = "as expected\nexit status 0\n"
CANNOT_BE_RUN = "exit status 2\n"


@dataclass(frozen=True)
class Example:
    """An entry point with a case, and a fault (file, old text, new text) that the case shows."""

    entry: str
    case: Case
    fault: tuple[str, str, str]
    launch: Launch = Launch()  # noqa: RUF009  (it is frozen)
    verdict: str = v.MISMATCH
    shows: str = "expected"


SHARDED = Case(
    query_start_loc=(0, 2, 3),
    positions=(4, 5, 12),
    num_tokens=3,
    max_num_tokens=5,
    groups=(Group(((7, 3, 2, 6), (9, 1, 0, 4)), 2, 4, row_stride=6),),
    cp=ContextParallel(2, 0, 2),
)
TWO_GROUPS = replace(
    SHARDED, groups=(*SHARDED.groups, Group(((5, 8), (2, 6)), 2, 2, enabled=False)), idx_mapping=(1, 0)
)
PLAIN = Case((0, 2, 3), (4, 5, 3), 3, 5, (Group(((7, 3, 5), (9, 1, 8)), 2, 2), Group(((4,), (6,)), 16, 16)))
REPLAYED = replace(PLAIN, replay=Replay((4, 0), 1, (0,)))
# Rows of allocated blocks, of two kernel blocks each.
ALLOCATED = replace(SHARDED, groups=(Group(((6, 7, 2, 3), (8, 9, 4, 5)), 2, 4),))
OF_ONE_RANK = replace(
    ALLOCATED,
    positions=(4, 5, 3),
    groups=(*ALLOCATED.groups, Group(((4,), (6,)), 16, 16, kind="circular")),
    cp=ContextParallel(),
)
WIDE = Launch("int64", 7, "before")
OFF_BY_ONE = ("window.py", "* block_size + distance", "* block_size + distance + 1")
EVERY_OTHER_RANK = ("slot_mappings_v2.py", "return owner == cp_rank", "return owner != cp_rank")
PAST_THE_ROW = (
    "window.py",
    "window = tl.load(row_ptr + cell, mask=cell < row_stride)",
    "window = tl.load(row_ptr + cell)",
)
ALL_OR_NOTHING = ("group_tables.py", "None if all(self.enabled)", "None if any(self.enabled)")
ALWAYS_THE_FIRST_RANK = ("block_table.py", "dcp_rank=dcp_rank", "dcp_rank=0")
ONE_TOO_FAR = ("slot_mapping.py", "mask=token < max_num_tokens", "mask=token <= max_num_tokens")

EXAMPLES = {
    "v1": Example("v1", SHARDED, OFF_BY_ONE, WIDE),
    "v2": Example("v2", TWO_GROUPS, EVERY_OTHER_RANK, WIDE),
    "tiled": Example("tiled", replace(SHARDED, idx_mapping=(1, 0)), EVERY_OTHER_RANK),
    "parallel": Example("parallel", PLAIN, OFF_BY_ONE),
    "fused": Example("fused", PLAIN, OFF_BY_ONE),
    "dcp": Example("dcp", SHARDED, ("torch_dcp.py", "owner == geometry.cp_rank", "owner != geometry.cp_rank")),
    "replay": Example("replay", REPLAYED, ("replay.py", "- replay_start < window", "- replay_start <= window")),
    # A store past the output, while another buffer is open.
    "store": Example(
        "v1", SHARDED, ONE_TOO_FAR, Launch(open_buffers=("block_table",)), v.GUARD, "the launch died of SIGSEGV"
    ),
    "v1_host": Example("v1_host", SHARDED, OFF_BY_ONE),
    "load": Example("v1", SHARDED, PAST_THE_ROW, verdict=v.GUARD, shows="the launch died of SIGSEGV"),
    # Host code that takes objects; the faults are in what makes them.
    "v2_host": Example("v2_host", TWO_GROUPS, ALL_OR_NOTHING, WIDE),
    "tiled_host": Example("tiled_host", replace(TWO_GROUPS, idx_mapping=None), ALL_OR_NOTHING),
    "block_table": Example("block_table", ALLOCATED, ("block_rows.py", "* k + self._split", "* k + self._split[::-1]")),
    "block_table of several groups": Example(
        "block_table", OF_ONE_RANK, ("block_table.py", "[table.is_circular for", "[not table.is_circular for")
    ),
    "block_table of one rank": Example(
        "block_table",
        replace(OF_ONE_RANK, groups=ALLOCATED.groups),
        ("host_device_buffer.py", "target.copy_(source,", "target.copy_(source + 1,"),
    ),
    "block_table of a later step": Example(
        "block_table",
        replace(OF_ONE_RANK, query_start_loc=(0, 2, 4), positions=(4, 5, 3, 2), num_tokens=4),
        (
            "block_rows.py",
            "        self.block_table.copy_to_gpu(num_reqs)\n",
            "        if not hasattr(self, 'sent'):\n            self.sent = self.block_table.copy_to_gpu(num_reqs)\n",
        ),
    ),
    "draft": Example("draft", replace(ALLOCATED, cp=ContextParallel(2, 1, 2)), ALWAYS_THE_FIRST_RANK),
    "draft of one rank": Example(
        "draft",
        replace(OF_ONE_RANK, groups=ALLOCATED.groups),
        ("group_block_table.py", "number * self.block_size + ", "number * self.physical_block_size + "),
    ),
}


CONSTRUCTOR = ("block_size", "max_num_reqs", "max_num_blocks_per_req", "max_num_batched_tokens", "pin_memory")
OF_THE_CLASS = (*CONSTRUCTOR, "cp_kv_cache_interleave_size", "num_speculative_tokens", "kv_cache_group", *GIVEN)
CONSTANTS = ("CP_SIZE", "CP_INTERLEAVE", "PAD_ID", "TRITON_BLOCK_SIZE", "TOTAL_BLOCK_SIZE")
OF_V2 = (
    "max_num_tokens",
    "idx_mapping",
    "query_start_loc",
    "pos",
    "block_table_ptrs",
    "block_table_strides",
    "block_sizes",
    "slot_mappings_ptr",
    "slot_mappings_stride",
    "cp_rank",
)


def published(name: str, family: str, function: str, parameters: tuple[str, ...], constants: tuple[str, ...] = ()):
    """An entry point of vllm-ascend, as the stand-ins in ``tests/data/signatures`` have it."""
    features = frozenset({"tail"}) if family == "v2" else frozenset()
    declaration = Declaration(frozenset(), features)
    return EntryPoint("vllm-ascend", "1", name, function, family, "", 1, parameters, constants, declaration)


# Without rows apart and hybrid blocks, which these versions do not have.
NARROW = replace(SHARDED, positions=(4, 5, 3), groups=(Group(((7, 3), (9, 1)), 2, 2),), cp=ContextParallel(2, 0, 2))
UNSHARDED = replace(NARROW, positions=(1, 2, 3), cp=ContextParallel())
OF_AN_ENGINE = {
    "published method": (
        published(
            "dcp", "block-table", "BlockTable._compute_dcp_slot_mapping", ("req_indices", "positions", *OF_THE_CLASS)
        ),
        "block_table_class",
        trees.CLASS,
        Example("dcp", NARROW, ("", "is_local = run % size ==", "is_local = run % size !=")),
    ),
    "published method of arrays": (
        published(
            "draft", "draft", "BlockTable.compute_slot_mapping_draft", ("req_indices", "positions", *OF_THE_CLASS)
        ),
        "block_table_class",
        trees.CLASS,
        Example("draft", UNSHARDED, ("", "self.block_size + offset", "self.block_size - offset")),
    ),
    "published kernel": (
        published("v2", "v2", "_compute_slot_mappings_kernel", (*OF_V2, *CONSTANTS), CONSTANTS),
        "v2_total_block_size",
        trees.V2,
        Example("v2", replace(NARROW, idx_mapping=(1, 0)), ("", "* block_size + own", "* block_size + 1 + own"), WIDE),
    ),
}


def call_for(example: Example, entry: EntryPoint, file: Path) -> tuple[Call, Launch]:
    entry = replace(entry, file=str(file))
    invocation, launch = bind(entry, example.case, example.launch, Settings(16))
    return call_of(entry, invocation), launch


def script_for(example: Example, entry: EntryPoint, file: Path) -> Reproduction:
    call, launch = call_for(example, entry, file)
    case = example.case
    length = case.max_num_tokens if launch.output_length is None else launch.output_length
    expected = v.expected_output(case, length, entry.writes_tail)
    guards = (v.Guard("block_table", "read", 0, 4, "read past block_table"),) if example.verdict == v.GUARD else ()
    traces = [trace(case, group, token) for group in range(len(case.groups)) for token in range(case.num_tokens)]
    verdict = v.Verdict(example.verdict, guards=guards)
    return reproduction(f"kernels {example.entry}", call, case, launch, verdict, expected, DIAGNOSIS, traces)


def faulty_copy(fault: tuple[str, str, str], folder: Path) -> Path:
    file, old, new = fault
    shutil.copytree(ROOT / "kernels", folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    source = (folder / "kernels" / file).read_text(encoding="utf-8")
    assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times in kernels/{file}"
    (folder / "kernels" / file).write_text(source.replace(old, new), encoding="utf-8")
    return folder


def without_this_project(*words: str, cwd: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    """Python alone, with the packages of the interpreter lane: no module of this project can be imported."""
    return subprocess.run(
        [PYTHON, "-I", *words],
        cwd=cwd,
        env={"PATH": os.environ["PATH"], "TRITON_INTERPRET": "1", "HOME": str(cwd)},
        input=text,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


RAISES = "raise RuntimeError('lone \\ud800 surrogate')"
OTHERS = {
    "other.py": "x = 1\n",
    "alone.py": "class BlockTable: pass\n",
    "lone.py": f"def compute_dcp_slot_mapping(**arguments):\n    {RAISES}\n",
    "unprintable.py": f"""
class Unprintable(Exception):
    def __str__(self):
        {RAISES}

def compute_dcp_slot_mapping(**arguments):
    raise Unprintable
""",
}
"""Files that no script can test."""


def faulty_and_right(folder: Path) -> Iterator[tuple[str, Example, EntryPoint, Path, Path]]:
    """Each example with the file of the faulty code and that of the right one."""
    for name, example in EXAMPLES.items():
        faulty = faulty_copy(example.fault, folder / name) / "kernels" / Path(ENTRIES[example.entry].file).name
        yield name, example, ENTRIES[example.entry], faulty, ROOT / "kernels" / faulty.name
    for name, (entry, text, path, example) in OF_AN_ENGINE.items():
        _, old, new = example.fault
        source = trees.source(text)
        assert source.count(old) == 1
        right = trees.write(folder / f"{name} right", {path: source}) / path
        yield name, example, entry, trees.write(folder / name, {path: source.replace(old, new)}) / path, right


@dataclass(frozen=True)
class Ran:
    """Where the scripts were run, and what each printed for each file it was given ("": none), on both streams."""

    folder: Path
    printed: dict[tuple[str, str], tuple[str, str]]

    def of(self, script: str, file: str = "") -> tuple[str, str]:
        return self.printed[script, file]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """All of them in one process, and forks of it."""
    folder = tmp_path_factory.mktemp("scripts")
    for name, text in OTHERS.items():
        (folder / name).write_text(text)
    asked: dict[tuple[str, str], str] = {}

    def ask(name: str, example: Example, entry: EntryPoint, tested: Path, files: dict[str, Path | None]) -> None:
        script = folder / f"{name}.py"
        script.write_text(str(script_for(example, entry, tested).script), encoding="utf-8")
        asked.update({(name, said): f"{script}\t{file or ''}" for said, file in files.items()})

    for name, example, entry, faulty, right in faulty_and_right(folder):
        ask(name, example, entry, faulty, {"": None, "right": right})
    opened = replace(EXAMPLES["load"], launch=Launch(open_buffers=("block_table",)))
    ask("opened", opened, ENTRIES["v1"], folder / "load" / "kernels" / "slot_mapping.py", {"": None})
    nowhere = folder / "nowhere" / "kernels"
    of_draft, of_torch = EXAMPLES["draft"], EXAMPLES["dcp"]
    ask("of draft", of_draft, ENTRIES["draft"], nowhere / "group_block_table.py", {"alone.py": folder / "alone.py"})
    files = ("other.py", "lone.py")
    ask(
        "values",
        of_torch,
        ENTRIES["dcp"],
        nowhere / "torch_dcp.py",
        {"": None, **{each: folder / each for each in files}},
    )
    crash, files = replace(of_torch, verdict=v.CRASH), ("lone.py", "unprintable.py")
    ask("process", crash, ENTRIES["dcp"], nowhere / "torch_dcp.py", {each: folder / each for each in files})

    done = without_this_project("-c", RUN_ALL, cwd=folder, text="\n".join(asked.values()))
    printed, errors = done.stdout.split("----\n"), done.stderr.split("----\n")
    assert len(printed) == len(errors) == len(asked) + 1, done.stderr
    return Ran(folder, dict(zip(asked, zip(printed, errors, strict=True), strict=False)))


@needs_interpreter
@pytest.mark.parametrize("name", [*EXAMPLES, *OF_AN_ENGINE])
def test_a_script_fails_on_the_faulty_kernel_and_passes_on_the_right_one(name: str, ran: Ran) -> None:
    shows = EXAMPLES[name].shows if name in EXAMPLES else "expected"
    of_faulty, errors = ran.of(name)
    assert "exit status 1\n" in of_faulty, of_faulty + errors
    assert shows in of_faulty
    of_right, errors = ran.of(name, "right")
    assert of_right == PASSES, of_right + errors


@needs_interpreter
def test_buffers_that_are_open_can_be_read_past(ran: Ran) -> None:
    of_opened, errors = ran.of("opened")
    assert of_opened == PASSES, of_opened + errors


@needs_interpreter
def test_a_script_says_what_it_needs(ran: Ran) -> None:
    """Exit status 2 and a sentence where it cannot be run: no kernel file, no function in it, no package around it."""
    ended, said = ran.of("values")
    assert (ended, said.startswith("give the file that defines compute_dcp_slot_mapping: ")) == (CANNOT_BE_RUN, True)
    other, alone = ran.folder / "other.py", ran.folder / "alone.py"
    assert ran.of("values", "other.py") == (CANNOT_BE_RUN, f"{other} defines no compute_dcp_slot_mapping\n")
    assert ran.of("of draft", "alone.py") == (CANNOT_BE_RUN, f"{alone} is not in a folder kernels\n")


@needs_interpreter
def test_a_script_shows_what_a_launch_raises(ran: Ran) -> None:
    """Characters that the terminal cannot show, and an exception of which nothing can be shown."""
    for script in ("values", "process"):
        printed, errors = ran.of(script, "lone.py")
        assert printed == "the launch raised RuntimeError: lone \\ud800 surrogate\nexit status 1\n", errors
    printed, errors = ran.of("process", "unprintable.py")
    assert printed == CANNOT_BE_RUN
    assert "RuntimeError: lone \\ud800 surrogate" in errors


def tree_of(title: str, summary: str, message: str, file: str) -> ast.Module:
    example = EXAMPLES["v1"]
    call, launch = call_for(example, ENTRIES["v1"], Path("x"))
    verdict = v.Verdict(v.GUARD, guards=(v.Guard(message, "read", 0, 4, message),), detail=message)
    expected = v.expected_output(example.case, 7)
    diagnosis = Diagnosis(summary, summary, summary)
    made = reproduction(title, replace(call, file=file), example.case, launch, verdict, expected, diagnosis, ())
    assert made.script is not None
    made.script.encode("utf-8")
    assert all(c == "\n" or c.isprintable() for c in made.script)
    assert max(map(len, made.script.splitlines())) < 2_000
    return ast.parse(made.script)


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_nothing_hostile_becomes_code(text):
    tree = tree_of(text, text, text, "FILE")
    assert ast.dump(tree) == ast.dump(tree_of("title", "summary", "message", "FILE"))
    short = text[:100]
    file = next(node.value for node in tree_of("", "", "", short).body if isinstance(node, ast.Assign))
    assert ast.literal_eval(file) == short


def test_a_case_that_is_too_large_has_no_script():
    example = EXAMPLES["v1"]
    numbers = tuple(range(0, 400_000, 3))
    case = replace(example.case, groups=(replace(example.case.groups[0], block_table=(numbers, numbers)),))
    case = replace(case, groups=(replace(case.groups[0], row_stride=None),))
    made = script_for(replace(example, case=case), ENTRIES["v1"], Path("x"))
    assert made.script is None
    assert re.fullmatch(r"No script: it would have [0-9,]+ characters, the case is too large\.", made.note)


def test_rows_are_filled_as_in_the_suite():
    """Through the same operations in the same order, so that a fault in one of them shows in the script too."""
    of_the_script, of_the_suite = (ast.parse(text).body[0] for text in (objects.FILL, inspect.getsource(fill)))
    assert isinstance(of_the_script, ast.FunctionDef)
    assert isinstance(of_the_suite, ast.FunctionDef)
    assert [*map(ast.dump, of_the_script.body[1:])] == [*map(ast.dump, of_the_suite.body[1:])]


def test_a_guard_violation_says_what_a_device_cannot_show():
    example = EXAMPLES["load"]
    made = script_for(example, ENTRIES["v1"], Path("x"))
    assert "loads outside them it cannot show" in made.note
    assert "triton-ascend drops the mask" in made.note
    of_torch = script_for(replace(EXAMPLES["dcp"], verdict=v.GUARD), ENTRIES["dcp"], Path("x"))
    assert "so the access ends the process" in of_torch.note
    assert "mask" not in of_torch.note
    opened = script_for(replace(example, launch=Launch(fence="open")), ENTRIES["v1"], Path("x"))
    assert opened.note == "It finds stores outside the buffers; loads outside them do not show in values."
    assert script_for(EXAMPLES["v1"], ENTRIES["v1"], Path("x")).note == ""


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([], "[]"),
        ([1, 1, 2], "[1, 1, 2]"),
        ([-1] * 8, "[*[-1] * 8]"),
        ([5, *range(10, 30), 7], "[5, *range(10, 30), 7]"),
        ([0] * 7 + [9] * 9, "[0, 0, 0, 0, 0, 0, 0, *[NINE] * 9]"),
        ([9, 3], "[NINE, 3]"),
    ],
)
def test_lists_are_short_and_true(values, text):
    assert listed(values, {9: "NINE"}) == text
    assert eval(text, {"NINE": 9}) == values
