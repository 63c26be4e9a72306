"""Whatever a kernel does, the run gets a verdict with the right culprit, and the next launch gets a working process."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest
from hypothesis import settings

from conformance import lanes
from conformance.engine import Engine, Options
from conformance.execution import session
from conformance.execution.session import Session, SubjectError
from conformance.search import failures
from conformance.subjects.launching import Settings
from conformance.under_test import UnderTest
from conformance.verdicts import Finding, failure_of
from reference import verdict as v
from reference.case import Case, Group, Launch
from tests.commands import pytest_
from tests.hostile import tree

CASE = Case((0, 3), (0, 1, 2), 3, 5, (Group(((4, 2),), 2, 2),))
BEFORE, AFTER = Launch(fence="before"), Launch(fence="after")
SETTINGS = Settings(tile=16)

pytestmark = pytest.mark.skipif(
    lanes.by_name("lowered").unavailable() is not None, reason=f"{lanes.by_name('lowered').unavailable()}"
)


@pytest.fixture
def engine_of(tmp_path: Path, request: pytest.FixtureRequest):
    """An engine for a tree of hostile sources; everything it started is gone afterwards."""
    engines: list[Engine] = []

    def start(case_timeout: float = 10.0, **bodies: str) -> Engine:
        source = tree(tmp_path / str(len(engines)), **bodies)
        options = Options(("kernels",), {"kernels": str(source)}, 1, case_timeout, tmp_path / "cache", 1)
        engines.append(Engine(lanes.by_name("lowered"), options))
        return engines[-1]

    yield start
    for engine in engines:
        engine.close()


def run(engine: Engine, name: str = "v1", launch: Launch = AFTER) -> Finding:
    entry = next(entry for entry in engine.entries() if entry.name == name)
    return engine.run(entry, CASE, launch, SETTINGS)


@pytest.mark.parametrize(
    ("body", "launch", "buffer", "direction", "distance"),
    [
        ("tl.load(positions_ptr + num_tokens)", AFTER, "positions", "read", 8),
        ("tl.load(positions_ptr - (num_tokens - 2))", BEFORE, "positions", "read", -8),
        ("tl.load(block_table_ptr + 268435456)", AFTER, "block_table", "read", (1 << 30) - 4),
        ("tl.load(block_table_ptr - (num_tokens - 2) * 268435456)", AFTER, "block_table", "read", -(1 << 30)),
        ("tl.store(slot_mapping_ptr + max_num_tokens, 7)", AFTER, "slot_mapping", "write", 4),
        ("tl.store(slot_mapping_ptr - (num_tokens - 2), 7)", BEFORE, "slot_mapping", "write", -4),
        ("tl.store(query_start_loc_ptr + 1, 7)", AFTER, "query_start_loc", "write", 0),
        ("tl.store(slot_mapping_ptr + max_num_tokens, 7)", BEFORE, "slot_mapping", "write", 4),
        ("tl.store(slot_mapping_ptr - (num_tokens - 2), 7)", AFTER, "slot_mapping", "write", -4),
    ],
    ids=[
        "read-one-past",
        "read-one-before",
        "read-a-gigabyte-past",
        "read-a-gigabyte-before",
        "write-one-past",
        "write-one-before",
        "write-into-an-input",
        "write-one-past-away-from-the-fence",
        "write-one-before-away-from-the-fence",
    ],
)
def test_an_access_outside_names_buffer_direction_and_distance(engine_of, body, launch, buffer, direction, distance):
    # A load whose value is unused would be dropped by any compiler.
    if "load" in body:
        body = f"tl.store(slot_mapping_ptr, {body}.to(tl.int32))"
    verdict = run(engine_of(kernel=body), launch=launch).verdict
    assert verdict.kind == v.GUARD, verdict.summary()
    guard = verdict.guards[0]
    assert (guard.buffer, guard.direction, guard.distance) == (buffer, direction, distance), guard.message


def test_an_element_never_written_differs_from_every_slot(engine_of):
    finding = run(engine_of(kernel="tl.store(slot_mapping_ptr + 1, 9)"))
    assert finding.verdict.kind == v.MISMATCH
    assert finding.actual == [[v.UNWRITTEN, 9, v.UNWRITTEN, v.UNWRITTEN, v.UNWRITTEN]]


def test_an_address_from_nowhere_is_a_crash_that_names_it(engine_of):
    body = """
address = tl.load(positions_ptr)
tl.store(slot_mapping_ptr, tl.load(address.to(tl.pointer_type(tl.int32))))
"""
    verdict = run(engine_of(kernel=body)).verdict
    assert verdict.kind == v.CRASH
    assert "SIGSEGV at address 0x0" in verdict.detail


def test_division_by_zero_is_a_crash_with_its_signal(engine_of):
    body = "tl.store(slot_mapping_ptr, num_tokens // tl.load(query_start_loc_ptr))"
    verdict = run(engine_of(kernel=body)).verdict
    assert verdict.kind == v.CRASH
    assert "SIGFPE" in verdict.detail


def test_a_kernel_that_never_ends_is_a_hang(engine_of):
    body = """
i = num_tokens
while i > 0:
    tl.store(slot_mapping_ptr, i)
    i = tl.load(query_start_loc_ptr + 1)
"""
    started = time.monotonic()
    assert run(engine_of(kernel=body, case_timeout=0.5)).verdict.kind == v.HANG
    assert time.monotonic() - started < 20


def test_an_enormous_tile_does_not_compile(engine_of):
    verdict = run(engine_of(kernel="tl.store(slot_mapping_ptr + tl.arange(0, 1 << 30), 1)")).verdict
    assert verdict.kind == v.COMPILE_ERROR
    assert "TRITON_MAX_TENSOR_NUMEL" in verdict.detail


def test_a_gather_that_the_lane_cannot_do_is_no_failure_of_the_kernel(engine_of):
    body = """
rows = tl.zeros((2, TILE_BLOCK_SIZE), tl.float32) + tl.arange(0, TILE_BLOCK_SIZE)[None, :].to(tl.float32)
gathered = tl.gather(rows, tl.zeros((2, TILE_BLOCK_SIZE), tl.int32) + num_tokens, 1)
tl.store(slot_mapping_ptr + tl.arange(0, TILE_BLOCK_SIZE), tl.sum(gathered, axis=0).to(tl.int32))
"""
    engine = engine_of(kernel=body)
    verdict = run(engine).verdict
    assert (verdict.kind, verdict.detail) == (
        v.UNSUPPORTED,
        "tl.gather on tensor<2x16xf32>: the lane gathers from one dimension only",
    )
    entry = next(entry for entry in engine.entries() if entry.name == "v1")
    assert engine.compile(entry, lambda done, total: None) == []


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", v.CRASH, "SIGKILL"),
        ("os._exit(3)", v.CRASH, "status 3"),
        ("os.closerange(3, 300)\nwhile True: pass", v.CRASH, "closed its connection to the suite and went on"),
        ("raise IndexError('row 9')", v.CRASH, "IndexError: row 9"),
        ("raise SystemExit(3)", v.CRASH, "SystemExit: 3 (torch_dcp.py:"),
        ("raise KeyboardInterrupt('now')", v.CRASH, "KeyboardInterrupt: now (torch_dcp.py:"),
        (
            "class Mute(Exception):\n    def __str__(self): raise SystemExit\nraise Mute",
            v.CRASH,
            "Mute: [its __str__ raises SystemExit] (torch_dcp.py:",
        ),
        ("raise ValueError('qsl-capacity: no')", v.REFUSED, "qsl-capacity"),
        ("compute_dcp_slot_mapping(**locals())", v.CRASH, "RecursionError"),
        ("slot_mapping.resize_(1 << 40)", v.CRASH, "RuntimeError"),
        ("kept = []\nwhile True: kept.append(bytearray(1 << 26))", v.CRASH, "MemoryError"),
        ("ctypes.CDLL(None).free(ctypes.c_void_p(slot_mapping.data_ptr()))", v.CRASH, "SIGABRT"),
    ],
    ids=[
        "killed-from-outside",
        "exits",
        "closes-everything-and-goes-on",
        "raises",
        "raises-SystemExit",
        "raises-KeyboardInterrupt",
        "raises-what-has-no-words",
        "refuses",
        "recursion",
        "resizes-its-output",
        "fills-memory",
        "corrupts-its-heap",
    ],
)
def test_a_host_path_that_dies_or_raises_says_how(engine_of, body, kind, said):
    verdict = run(engine_of(host=body), "dcp").verdict
    assert verdict.kind == kind
    assert said in verdict.detail


_CONNECTION = """
frame = sys._getframe()
while "connection" not in frame.f_locals: frame = frame.f_back
connection = frame.f_locals["connection"]
"""
_NO_ANSWER = "the process wrote something else than an answer"
_WELL = '"specializations": 1, "seconds": 0.1'


@pytest.mark.parametrize(
    ("written", "kind", "said"),
    [
        ("os.write(connection.fileno(), b'\\0\\0\\1\\0half of it')", v.HANG, "no answer within"),
        ("os.write(connection.fileno(), b'\\0\\0')", v.HANG, "no answer within"),
        ("os.write(connection.fileno(), b'\\0\\0\\1\\0half of it'); os._exit(4)", v.CRASH, "status 4"),
        ("os.write(connection.fileno(), b'\\x7f\\xff\\xff\\xff')", v.CRASH, _NO_ANSWER),
        ("os.write(connection.fileno(), b'\\xff\\xff\\xff\\xfe')", v.CRASH, _NO_ANSWER),
        ("connection.send_bytes(b'garbage')", v.CRASH, _NO_ANSWER),
        ("connection.send_bytes(b'\\xff\\xfe\\xfd')", v.CRASH, _NO_ANSWER),
        ("connection.send_bytes(b'[' * 100000)", v.CRASH, _NO_ANSWER),
        ("connection.send_bytes(b'[]')", v.CRASH, _NO_ANSWER),
        ("connection.send_bytes(b'{}')", v.CRASH, _NO_ANSWER),
        ("connection.send_bytes(b'{\"event\": [1]}')", v.CRASH, _NO_ANSWER),
        ("connection.send_bytes(b'{\"broken\": {}}')", v.CRASH, _NO_ANSWER),
        ("connection.send_bytes(b'{\"outcomes\": []}')", v.CRASH, _NO_ANSWER),
        ('connection.send_bytes(b\'{"outcomes": [{"status": []}]}\')', v.CRASH, _NO_ANSWER),
        ('connection.send_bytes(b\'{"outcomes": [{"status": "ok", "seconds": NaN}]}\')', v.CRASH, _NO_ANSWER),
        (
            'connection.send_bytes(b\'{"outcomes": [{"status": "guard", "guard": {}, "specializations": 1}]}\')',
            v.CRASH,
            _NO_ANSWER,
        ),
        ('while True: connection.send_bytes(b\'{"event": "launching"}\')', v.HANG, "no answer within"),
    ],
    ids=[
        "half-a-message",
        "half-a-length",
        "half-a-message-and-ends",
        "a-length-of-gigabytes",
        "a-negative-length",
        "no-json",
        "no-text",
        "nested-too-deep",
        "a-list",
        "nothing-in-it",
        "another-event",
        "a-device-without-words",
        "no-outcomes",
        "no-status",
        "no-seconds",
        "a-guard-of-nothing",
        "events-without-end",
    ],
)
def test_what_is_written_in_place_of_an_answer_is_a_crash_or_a_hang_of_its_launch(
    engine_of, monkeypatch, written, kind, said
):
    monkeypatch.setattr(session, "COMPILATIONS_TIMEOUT", 0.5)
    body = f"if len(positions) > 1:\n{indent(f'{_CONNECTION}{written}', '    ')}\n    while True: pass"
    engine = engine_of(host=body, case_timeout=0.5)
    entry = next(entry for entry in engine.entries() if entry.name == "dcp")
    empty = Case((0, 1), (0,), 1, 1, (Group(((4, 2),), 2, 2),))
    for _ in range(2):
        started = time.monotonic()
        verdict = run(engine, "dcp").verdict
        assert (verdict.kind, said in verdict.detail) == (kind, True), verdict.detail
        assert time.monotonic() - started < 5
        assert engine.run(entry, empty, AFTER, SETTINGS).verdict.kind == v.MISMATCH  # it has gone on


def test_a_run_in_which_an_answer_is_garbage_goes_on_and_has_a_report(tmp_path):
    body = f"if len(positions) > 1:\n{indent(_CONNECTION, '    ')}\n    connection.send_bytes(b'garbage')"
    done = pytest_(
        *("conformance/test_dcp.py", "-k", "test_dcp_slots", "--source", tree(tmp_path / "source", host=body)),
        *("--max-examples", "20", "--report-dir", tmp_path / "reports"),
    )
    assert done.status == 1, done.tail
    assert f"crash: {_NO_ANSWER}" in done.output
    assert "INTERNALERROR" not in done.output
    assert any((tmp_path / "reports").glob("failure-kernels-dcp-*.json"))


@pytest.mark.parametrize(
    ("imported", "said"),
    [
        ("import os; os._exit(3)", r"the process of subject 'kernels' ended itself with status 3$"),
        ("import os; os.kill(os.getpid(), 9)", r"the process of subject 'kernels' was ended by SIGKILL$"),
        (
            "import os\nfor i in range(300): print('line', i, flush=True)\nos._exit(0)",
            r"ended itself with status 0; the last that it printed:\nline 292\n(line \d+\n){6}line 299$",
        ),
        (
            "import os\nprint('x' * 3000 + '\\na last line', flush=True)\nos._exit(0)",
            r"ended itself with status 0; the last that it printed:\na last line$",
        ),
        ("raise SystemExit(0)", r"cannot be loaded on lane 'lowered': SystemExit: 0$"),
        ("raise KeyboardInterrupt", r"cannot be loaded on lane 'lowered': KeyboardInterrupt: $"),
        (
            "import os; os.environ['TRITON_INTERPRET'] = '1'",
            r"lane 'lowered': RuntimeError: it sets TRITON_INTERPRET when it is imported",
        ),
        ("import os; os.closerange(3, 300)", r"ended itself with status 1; the last that it printed:\n"),
    ],
    ids=[
        "exits",
        "is-killed",
        "prints-much",
        "prints-a-long-line",
        "SystemExit",
        "KeyboardInterrupt",
        "switches-the-interpreter-on",
        "closes-everything",
    ],
)
def test_a_subject_that_cannot_be_imported_says_how_it_ended(tmp_path, imported, said):
    source = tree(tmp_path / "source")
    with (source / "kernels" / "slot_mapping.py").open("a", encoding="utf-8") as file:
        file.write(f"\n{imported}\n")
    with pytest.raises(SubjectError) as refused:
        Session(lanes.by_name("lowered"), "kernels", str(source), cache=tmp_path / "cache")
    assert re.search(said, str(refused.value)), str(refused.value)


def test_the_next_launch_gets_a_working_process(engine_of):
    body = """
if num_tokens == 3:
    tl.store(slot_mapping_ptr + 268435456, 1)
for i in range(0, max_num_tokens):
    tl.store(slot_mapping_ptr + i, PAD_ID)
"""
    engine = engine_of(kernel=body)
    entry = next(entry for entry in engine.entries() if entry.name == "v1")
    empty = Case((0,), (), 0, 5, (Group(((4, 2),), 2, 2),))
    for _ in range(3):
        assert run(engine).verdict.kind == v.GUARD
        assert engine.run(entry, empty, AFTER, SETTINGS).verdict.kind == v.PASS


def _children() -> Iterator[int]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == os.getpid():
                yield int(entry.name)


def test_many_crashes_leave_no_descriptors_and_no_processes(engine_of):
    others = set(_children())  # of other tests
    engine = engine_of(host="os.kill(os.getpid(), signal.SIGSEGV)")
    run(engine, "dcp")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        assert run(engine, "dcp").verdict.kind == v.CRASH
    assert len(os.listdir("/proc/self/fd")) <= before
    engine.close()
    assert set(_children()) <= others


def test_closing_ends_a_launch_that_hangs(engine_of):
    engine = engine_of(host="while True: pass", case_timeout=0.3)
    assert run(engine, "dcp").verdict.kind == v.HANG
    pid = engine.session("kernels")._server.pid
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("bodies", "kind", "most"),
    [
        ({"kernel": "tl.store(slot_mapping_ptr, tl.load(positions_ptr + num_tokens).to(tl.int32))"}, v.GUARD, 0),
        ({"kernel": "tl.store(slot_mapping_ptr, tl.load(block_table_ptr + 268435456))"}, v.GUARD, 0),
        ({"kernel": "tl.store(slot_mapping_ptr + max_num_tokens, 7)"}, v.GUARD, 0),
        ({"kernel": "tl.store(query_start_loc_ptr, 7)"}, v.GUARD, 0),
        ({"kernel": "tl.store(slot_mapping_ptr, num_tokens // tl.load(query_start_loc_ptr))"}, v.CRASH, 0),
        ({"kernel": "tl.store(slot_mapping_ptr + tl.arange(0, 1 << 30), 1)"}, v.COMPILE_ERROR, 0),
        ({"host": "os.kill(os.getpid(), signal.SIGKILL)"}, v.CRASH, 0),
        ({"host": "compute_dcp_slot_mapping(**locals())"}, v.CRASH, 0),
        ({"host": "if len(positions) > 1: os._exit(0)"}, v.CRASH, 2),
        ({"host": "while len(positions) > 1: pass"}, v.HANG, 2),
    ],
    ids=[
        "reads-past",
        "reads-far-past",
        "writes-past",
        "writes-an-input",
        "divides-by-zero",
        "tile-too-large",
        "is-killed",
        "recursion",
        "ends-its-process",
        "hangs",
    ],
)
def test_a_search_ends_with_a_small_case_whatever_the_kernel_does(engine_of, bodies, kind, most):
    engine = engine_of(case_timeout=1.0 if kind == v.HANG else 30.0, **bodies)
    name = "v1" if "kernel" in bodies else "dcp"
    target = UnderTest(engine, next(entry for entry in engine.entries() if entry.name == name))
    found = failures(target, ("plain",), settings.get_profile("quick"), 1)
    tokens = {failure.finding.verdict.kind: failure.finding.case.num_tokens for failure in found}
    assert kind in tokens
    assert tokens[kind] <= most


def test_a_hang_is_shrunk_in_seconds(engine_of):
    engine = engine_of(
        host="while len(positions) > 1: pass\nslot_mapping[:1] = block_table[0, 0] * block_size", case_timeout=2.0
    )
    target = UnderTest(engine, next(entry for entry in engine.entries() if entry.name == "dcp"))
    only_hangs = Case((0, 6), (0, 0, 0, 0, 0, 0), 6, 6, (Group(((1,),), 2, 2),))
    finding = engine.run(target.entry, only_hangs, AFTER, SETTINGS)
    assert finding.verdict.kind == v.HANG
    started = time.monotonic()
    smallest = target.smallest(failure_of(finding, 1)).finding
    assert smallest.verdict.kind == v.HANG
    assert smallest.case.num_tokens == 2
    assert time.monotonic() - started < 60
