"""Reproduction scripts: each fails on a faulty kernel and passes on the right one, without this project around it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conformance.both_lanes import INTERPRETER
from conformance.calls import call_of
from conformance.lanes import by_name
from conformance.subjects import own
from conformance.subjects.binding import bind
from conformance.subjects.launching import Settings
from reference import verdict as v
from reference.case import Case, ContextParallel, Group, Launch, Replay
from reference.oracle import trace
from reports.call import Call
from reports.diagnosis import Diagnosis
from reports.reproduction import Reproduction, reproduction

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
    print("----", flush=True)
"""


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
WIDE = Launch("int64", 7, "before")
OFF_BY_ONE = ("window.py", "block_number * block_size + offset", "block_number * block_size + offset + 1")
EVERY_OTHER_RANK = ("slot_mappings_v2.py", "return owner == cp_rank", "return owner != cp_rank")
PAST_THE_ROW = (
    "window.py",
    "window = tl.load(row_ptr + cell, mask=cell < row_stride)",
    "window = tl.load(row_ptr + cell)",
)
ONE_TOO_FAR = ("slot_mapping.py", "mask=token < max_num_tokens", "mask=token <= max_num_tokens")

EXAMPLES = {
    "v1": Example("v1", SHARDED, OFF_BY_ONE, WIDE),
    "v2": Example("v2", TWO_GROUPS, EVERY_OTHER_RANK, WIDE),
    "tiled": Example("tiled", replace(SHARDED, idx_mapping=(1, 0)), EVERY_OTHER_RANK),
    "parallel": Example("parallel", PLAIN, OFF_BY_ONE),
    "fused": Example("fused", PLAIN, OFF_BY_ONE),
    "dcp": Example("dcp", SHARDED, ("torch_dcp.py", "owner == geometry.cp_rank", "owner != geometry.cp_rank")),
    "replay": Example("replay", REPLAYED, ("replay.py", "- replay_start < window", "- replay_start <= window")),
    "load": Example("v1", SHARDED, PAST_THE_ROW, verdict=v.GUARD, shows="the launch died of SIGSEGV"),
}


def call_for(example: Example, file: Path) -> tuple[Call, Launch]:
    entry = replace(ENTRIES[example.entry], file=str(file))
    invocation, launch = bind(entry, example.case, example.launch, Settings(16))
    return call_of(entry, invocation), launch


def script_for(example: Example, file: Path) -> Reproduction:
    call, launch = call_for(example, file)
    case = example.case
    length = case.max_num_tokens if launch.output_length is None else launch.output_length
    expected = v.expected_output(case, length, ENTRIES[example.entry].writes_tail)
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


@needs_interpreter
def test_each_script_fails_on_the_faulty_kernel_and_passes_on_the_right_one(tmp_path):
    lines = []
    for name, example in EXAMPLES.items():
        module = own.PLACES[[place.entry for place in own.PLACES].index(example.entry)].module
        faulty = faulty_copy(example.fault, tmp_path / name) / "kernels" / f"{module}.py"
        script = tmp_path / f"{name}.py"
        made = script_for(example, faulty)
        assert made.script is not None
        script.write_text(made.script, encoding="utf-8")
        lines += [f"{script}\t", f"{script}\t{ROOT / 'kernels' / faulty.name}"]
    done = without_this_project("-c", RUN_ALL, cwd=tmp_path, text="\n".join(lines))
    printed = done.stdout.split("----\n")
    assert len(printed) == len(lines) + 1, done.stderr
    for (name, example), faulty, right in zip(EXAMPLES.items(), printed[0::2], printed[1::2], strict=False):
        assert "exit status 1\n" in faulty, f"{name}: {faulty}{done.stderr}"
        assert example.shows in faulty, name
        assert right == "as expected\nexit status 0\n", f"{name}: {right}{done.stderr}"
