"""The lowered lane binds, specializes and compiles like a device, and compiles nothing twice."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import itertools
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings

from conformance.engine import Engine, Options
from conformance.lanes.errors import CompileError
from conformance.lanes.lowered import LoweredLane
from conformance.search import failures
from conformance.subjects.launching import Settings
from conformance.under_test import UnderTest
from reference import verdict as v
from reference.case import Case, Group, Launch
from tests import lowered_kernels as kernels
from tests.commands import ROOT
from tests.faults.catalogue import V1, Fault, write_variant

if (_UNAVAILABLE := LoweredLane().unavailable()) is not None:
    pytest.skip(_UNAVAILABLE, allow_module_level=True)

from conformance.lanes.ascend import frontend, host
from conformance.lanes.ascend.binding import bind
from conformance.lanes.lowered import mlir, native
from conformance.lanes.lowered.launcher import Launcher

SIXTEEN = np.arange(16)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Launcher:
    """One for every kernel of this file. It is called, not installed: Triton stays what it is in this process."""
    return Launcher(tmp_path_factory.mktemp("cache"))


def ints(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.full(shape, v.UNWRITTEN, dtype=dtype)


# --- specialization -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kernel", "n", "constant", "multiple"),
    [
        (kernels.scaled, 1, True, False),
        (kernels.scaled, 2, False, False),
        (kernels.scaled, 0, False, True),
        (kernels.scaled, 48, False, True),
        (kernels.scaled, -32, False, True),
        (kernels.scaled, 2**35, False, True),
        (kernels.scaled, 40, False, False),
        (kernels.scaled, True, False, False),
        (kernels.scaled_by_anything, 1, False, False),
        (kernels.scaled_by_anything, 48, False, False),
        (kernels.scaled_by_any_multiple, 1, True, False),
        (kernels.scaled_by_any_multiple, 48, False, False),
        (kernels.scaled_by_constant, 48, True, False),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_one_becomes_a_constant_and_multiples_of_sixteen_carry_the_hint(
    kernel: Any, n: int, constant: bool, multiple: bool
) -> None:
    name = kernel.arg_names[1]
    bound = bind(kernel, {"out": ints(16), name: n})
    assert (name in bound.constants, name in bound.multiples) == (constant, multiple)
    assert (name in bound.types) == (not constant)
    text = frontend.linalg(kernel, bound.types, bound.constants, bound.multiples)
    (parameters,) = re.findall(r"func\.func @\w+\((.*)\) attributes", text)
    assert ("tt.divisibility = 16" in parameters) == multiple
    # Two memrefs of Ascend's own come first, and six integers about the grid last.
    assert len(re.findall(r"%arg\d+:", parameters)) == 2 + len(bound.values) + 6


@pytest.mark.parametrize("n", [0, 1, 2, 16, -16, 2**31 - 1])
def test_however_a_value_is_specialized_the_result_is_the_same(launcher: Launcher, n: int) -> None:
    for kernel in (kernels.scaled, kernels.scaled_by_anything):
        out = ints(16)
        launcher.launch(kernel, (1,), {"out": out, "n": n})
        assert out.numpy().tolist() == (SIXTEEN * n).astype(np.int32).tolist()


def test_specializations_that_lower_to_the_same_module_share_code(tmp_path: Path) -> None:
    launcher = Launcher(tmp_path)
    # The hint about 32 is nothing that upstream passes read; the constant 1 makes another module.
    fresh = [launcher.precompile(kernels.scaled, {"out": ints(16), "n": n}) for n in (33, 32, 1, 35, 64)]
    assert fresh == [True, False, True, False, False]


_STRIDE_HAS_A_TYPE = Fault(
    "stride-has-a-type",
    "specialization",
    "asks the row stride for its type, which a stride of 1 does not have: it is a constant then",
    V1,
    (("request.to(tl.int64) * block_table_stride", "request.to(tl.int64) * block_table_stride.to(tl.int64)"),),
    ("compile error",),
)


def test_a_kernel_that_breaks_only_for_a_stride_of_one_fails(tmp_path: Path) -> None:
    source = write_variant(_STRIDE_HAS_A_TYPE, tmp_path)
    engine = Engine(LoweredLane(), Options(("kernels",), {"kernels": str(source)}, 4, 10.0, tmp_path / "cache", 1))
    try:
        entry = next(entry for entry in engine.entries() if entry.name == "v1")
        found = failures(UnderTest(engine, entry), ("plain",), settings.get_profile("quick"), 1)
        assert {failure.finding.verdict.kind for failure in found} == {v.COMPILE_ERROR}
        assert {failure.finding.case.groups[0].stride for failure in found} == {1}
        kinds = {}
        for width in (1, 2, 3, 16):
            case = Case((0, 2), (0, 1), 2, 4, (Group((tuple(range(width)),), 2, 2),))
            kinds[width] = engine.run(entry, case, Launch(), Settings(tile=16)).verdict.kind
        assert kinds == {1: v.COMPILE_ERROR, 2: v.PASS, 3: v.PASS, 16: v.PASS}
    finally:
        engine.close()


# --- what kernels are made of -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
def test_outputs_of_both_widths(launcher: Launcher, dtype: torch.dtype) -> None:
    out = ints(16, dtype=dtype)
    launcher.launch(kernels.scaled, (1,), {"out": out, "n": 3})
    assert out.tolist() == (SIXTEEN * 3).tolist()


@pytest.mark.parametrize("n", [2**31, -(2**31) - 1, 2**40 + 16, -(2**62)])
def test_integers_beyond_32_bits(launcher: Launcher, n: int) -> None:
    out = ints(16, dtype=torch.int64)
    launcher.launch(kernels.scaled_to_int64, (1,), {"out": out, "n": n})
    with np.errstate(over="ignore"):
        assert out.tolist() == (SIXTEEN * np.int64(n)).tolist()


def test_integers_that_only_uint64_holds(launcher: Launcher) -> None:
    out = ints(16, dtype=torch.int64)
    launcher.launch(kernels.scaled_to_int64, (1,), {"out": out, "n": 2**64 - 3})
    assert out.tolist() == (SIXTEEN * -3).tolist()


def test_tables_of_bool(launcher: Launcher) -> None:
    flags = torch.from_numpy(SIXTEEN % 3 == 0)
    out = ints(16)
    launcher.launch(kernels.chosen_by_flags, (1,), {"flags": flags, "out": out})
    assert out.tolist() == np.where(flags.numpy(), 5, 7).tolist()


def test_tables_of_addresses(launcher: Launcher) -> None:
    tables = [torch.arange(16, dtype=torch.int32) * factor for factor in (1, -2, 3)]
    addresses = torch.tensor([table.data_ptr() for table in tables], dtype=torch.uint64)
    out = ints(3, 16)
    launcher.launch(kernels.gathered_through_addresses, (3,), {"addresses": addresses, "out": out})
    assert out.tolist() == [table.tolist() for table in tables]


def test_optional_pointers(launcher: Launcher) -> None:
    flags = torch.from_numpy(SIXTEEN < 5)
    for given, expected in (({}, [3] * 16), ({"flags": None}, [3] * 16), ({"flags": flags}, [3] * 5 + [-1] * 11)):
        out = ints(16)
        launcher.launch(kernels.with_optional_pointer, (1,), {"out": out, **given})
        assert out.tolist() == expected


def test_helper_functions(launcher: Launcher) -> None:
    out = ints(16)
    launcher.launch(kernels.with_helpers, (1,), {"out": out, "n": 7})
    assert out.tolist() == (SIXTEEN**2 + 7).tolist()


@pytest.mark.parametrize(("rows", "columns"), [(3, 4), (1, 5), (5, 1), (0, 4), (4, 0)])
def test_nested_loops(launcher: Launcher, rows: int, columns: int) -> None:
    out = ints(20)
    launcher.launch(kernels.nested_loops, (1,), {"out": out, "rows": rows, "columns": columns})
    written = [row * 10 + column for row in range(rows) for column in range(columns)]
    assert out.tolist() == written + [v.UNWRITTEN] * (20 - len(written))


@pytest.mark.parametrize("grid", [(5,), (3, 4), (2, 3, 4), (4, 1, 2), (0, 3), (2, 0, 3)], ids=str)
def test_grids_of_one_two_and_three_dimensions(launcher: Launcher, grid: tuple[int, ...]) -> None:
    x, y, z = (*grid, 1, 1)[:3]
    out = ints(128)  # room for programs that are numbered wrongly
    launcher.launch(kernels.numbered_programs, grid, {"out": out})
    written = [k * 100 + j * 10 + i + z * 1000 for k, j, i in itertools.product(range(z), range(y), range(x))]
    assert out.tolist() == written + [v.UNWRITTEN] * (128 - len(written))


@pytest.mark.parametrize("backwards", [False, True])
def test_programs_run_one_after_the_other_forward_or_backward(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    monkeypatch.setattr(launcher, "backwards", backwards)
    out = torch.zeros(1 + 24, dtype=torch.int32)
    launcher.launch(kernels.counted_programs, (2, 3, 4), {"out": out})
    order = range(24)
    assert out.tolist() == [24, *(reversed(order) if backwards else order)]


@pytest.mark.parametrize(
    ("arguments", "said"), [({"out": 5, "m": 1}, "unexpected arguments m"), ({"n": 5}, "misses the argument out")]
)
def test_arguments_that_do_not_fit_are_refused(launcher: Launcher, arguments: dict[str, int], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        launcher.launch(kernels.scaled, (1,), arguments)


def test_constants_that_are_equal_but_not_alike_are_compiled_apart(launcher: Launcher) -> None:
    """1 == 1.0 in Python; in Triton the one makes integers and the other floats."""
    out = ints(1)
    for value, bits in ((1, 0), (1.0, 32), (1, 0)):
        launcher.launch(kernels.what_a_constant_is, (1,), {"out": out, "VALUE": value})
        assert out.tolist() == [bits]


def test_functions_as_constants(launcher: Launcher) -> None:
    out = ints(16)
    launcher.launch(kernels.with_function, (1,), {"out": out, "n": 7, "FUNCTION": kernels.square_plus})
    assert out.tolist() == (SIXTEEN**2 + 7).tolist()


# --- the cache ----------------------------------------------------------------------------------------------------


def events_of(launcher: Launcher) -> list[str]:
    """What the launcher announces from now on."""
    events: list[str] = []
    launcher.announce = events.append
    return events


def test_a_second_run_compiles_nothing(tmp_path: Path) -> None:
    arguments = {"out": ints(16), "n": 3}
    first = Launcher(tmp_path)
    events = events_of(first)
    assert first.precompile(kernels.scaled, arguments)
    assert events == ["compiling", "launching"]
    second = Launcher(tmp_path)
    events = events_of(second)
    assert not second.precompile(kernels.scaled, arguments)
    second.launch(kernels.scaled, (1,), arguments)
    assert events == []
    assert arguments["out"].tolist() == (SIXTEEN * 3).tolist()


_SOURCE = """
import triton
import triton.language as tl

FACTOR = tl.constexpr(2)


@triton.jit
def _helped(x):
    return x + 1


@triton.jit
def kernel(out, n, WIDTH: tl.constexpr):
    i = tl.arange(0, WIDTH)
    tl.store(out + i, _helped(i * n) * FACTOR)


@triton.jit
def called(out, FUNCTION: tl.constexpr):
    tl.store(out, FUNCTION(3))
"""


def module_of(folder: Path, source: str, number: int) -> ModuleType:
    file = folder / f"source_{number}.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("source", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class FrontEndCalls:
    """Counts compilations instead of doing them: what is asked here is only whether a key was known."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(frontend, "linalg", self._linalg)
        monkeypatch.setattr(mlir, "llvm_ir", lambda module: module)
        monkeypatch.setattr(native, "object_code", lambda *_: b"code")

    def _linalg(self, *_: object) -> str:
        self.count += 1
        return f"module {self.count}"


@pytest.mark.parametrize(
    ("source", "arguments", "recompiled"),
    [
        (_SOURCE, {}, False),
        (_SOURCE, {"n": 35}, False),
        (_SOURCE.replace("_helped(i * n)", "_helped(i + n)"), {}, True),
        (_SOURCE.replace("return x + 1", "return x + 2"), {}, True),
        (_SOURCE.replace("tl.constexpr(2)", "tl.constexpr(3)"), {}, True),
        (_SOURCE, {"WIDTH": 32}, True),
        (_SOURCE, {"n": 32}, True),
        (_SOURCE, {"n": 1}, True),
        (_SOURCE, {"n": 2**40 + 1}, True),
        (_SOURCE, {"out": ints(32, dtype=torch.int64)}, True),
    ],
    ids=["same", "value", "kernel", "helper", "global", "constant", "multiple", "one", "int64", "pointer"],
)
def test_a_key_holds_everything_that_code_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, arguments: dict[str, Any], recompiled: bool
) -> None:
    calls = FrontEndCalls(monkeypatch)
    usual = {"out": ints(32), "n": 33, "WIDTH": 16}
    Launcher(tmp_path / "cache").precompile(module_of(tmp_path, _SOURCE, 1).kernel, usual)
    assert calls.count == 1
    Launcher(tmp_path / "cache").precompile(module_of(tmp_path, source, 2).kernel, {**usual, **arguments})
    assert calls.count == 1 + recompiled


def test_a_key_holds_a_function_that_is_a_constant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = FrontEndCalls(monkeypatch)
    sources = [_SOURCE, _SOURCE, _SOURCE.replace("return x + 1", "return x + 2")]
    for number, (source, expected) in enumerate(zip(sources, (1, 1, 2), strict=True)):
        module = module_of(tmp_path, source, number)
        Launcher(tmp_path / "cache").precompile(module.called, {"out": ints(1), "FUNCTION": module._helped})
        assert calls.count == expected


@pytest.mark.parametrize("changed", ["nothing", "passes", "host", "lane", "triton-ascend", "ascendnpu-ir", "llvmlite"])
def test_a_key_holds_the_lane_the_machine_and_the_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    calls = FrontEndCalls(monkeypatch)
    arguments = {"out": ints(16), "n": 3}
    Launcher(tmp_path).precompile(kernels.scaled, arguments)
    version = importlib.metadata.version
    if changed == "passes":
        monkeypatch.setattr(mlir, "PASSES", mlir.PASSES[1:])
    elif changed == "lane":
        edited = tmp_path / "native.py"
        edited.write_text(Path(str(native.__file__)).read_text() + "# another wrapper\n")
        monkeypatch.setattr(native, "__file__", str(edited))
    elif changed == "host":
        monkeypatch.setattr(host, "described", lambda: "another machine")
    else:
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "99" if name == changed else version(name))
    Launcher(tmp_path).precompile(kernels.scaled, arguments)
    assert calls.count == (1 if changed == "nothing" else 2)


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "locks"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
        lambda data: bytes([data[0] ^ 1]) + data[1:],
    ],
    ids=["half", "last-byte-missing", "empty", "code-changed", "digest-changed"],
)
def test_a_damaged_file_is_compiled_again_and_not_executed(tmp_path: Path, damage: Any) -> None:
    arguments = {"out": ints(16), "n": 3}
    Launcher(tmp_path).precompile(kernels.scaled, arguments)
    whole = {path: path.read_bytes() for path in files_of(tmp_path)}
    assert whole
    for path, data in whole.items():
        path.write_bytes(damage(data))
    launcher = Launcher(tmp_path)
    assert launcher.precompile(kernels.scaled, arguments)
    assert {path: path.read_bytes() for path in files_of(tmp_path)} == whole
    launcher.launch(kernels.scaled, (1,), arguments)
    assert arguments["out"].tolist() == (SIXTEEN * 3).tolist()


def test_two_processes_compile_the_same_at_once(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.lowered_kernels", str(tmp_path)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    answers = [process.communicate(timeout=120)[0] for process in processes]
    # Whoever comes second waits, and finds what the first has compiled.
    right = (SIXTEEN**2 + 5).tolist()
    assert sorted(answers) == [f"{compiled} {right}\n" for compiled in (False, True)]
    assert [process.returncode for process in processes] == [0, 0]
    # Complete files under their keys, and nothing half-written beside them.
    assert all(re.fullmatch("[0-9a-f]{64}", path.name) for path in files_of(tmp_path))
    assert not Launcher(tmp_path).precompile(kernels.with_helpers, {"out": ints(16), "n": 5})


def test_a_cache_that_cannot_be_written_costs_time_only(tmp_path: Path) -> None:
    occupied = tmp_path / "cache"
    occupied.write_text("not a folder")
    arguments = {"out": ints(16), "n": 3}
    for _ in range(2):
        launcher = Launcher(occupied / "lowered")
        assert launcher.precompile(kernels.scaled, arguments)
        launcher.launch(kernels.scaled, (1,), arguments)
        assert arguments["out"].tolist() == (SIXTEEN * 3).tolist()
    assert occupied.read_text() == "not a folder"


# --- a front end that fails ---------------------------------------------------------------------------------------


def replaced_front_end(folder: Path, monkeypatch: pytest.MonkeyPatch, failing: int, how: str) -> Path:
    """The front end's program dies ``how`` in its first ``failing`` runs and works afterwards; returns what counts."""
    runs = folder / "runs"
    runs.write_text("")
    program = folder / "triton-adapter-opt"
    real = frontend.ascend._get_triton_adapter_opt_path()
    program.write_text(
        f'#!/bin/sh\necho >> {runs}\n[ $(wc -l < {runs}) -gt {failing} ] && exec {real} "$@"\necho oh >&2\n{how}\n'
    )
    program.chmod(0o755)
    monkeypatch.setattr(frontend.ascend, "_get_triton_adapter_opt_path", lambda: str(program))
    return runs


SIGNATURE = {"out": "*i32", "n": "i32"}


def test_the_front_end_drops_the_mask_of_a_load_at_computed_addresses() -> None:
    """Documented, hinted at in diagnoses, and the reason for good addresses in the kernels: every element is loaded."""
    text = frontend.linalg(kernels.gathered_under_a_mask, {"out": "*i32", "values": "*i32", "n": "i32"}, {})
    loaded, selected = text.index("memref.load"), text.index("arith.select")
    assert loaded < selected
    assert "scf.if" not in text


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGABRT])
def test_a_front_end_that_dies_by_a_signal_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    expected = frontend.linalg(kernels.scaled, SIGNATURE, {})
    runs = replaced_front_end(tmp_path, monkeypatch, 2, f"kill -{int(number)} $$")
    assert frontend.linalg(kernels.scaled, SIGNATURE, {}) == expected
    assert len(runs.read_text()) == 3


def test_a_front_end_that_always_dies_is_a_compile_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = replaced_front_end(tmp_path, monkeypatch, 99, f"kill -{int(signal.SIGSEGV)} $$")
    with pytest.raises(CompileError, match="triton-adapter-opt"):
        frontend.linalg(kernels.scaled, SIGNATURE, {})
    assert len(runs.read_text()) == 3


def test_a_front_end_that_goes_on_for_ever_is_ended_and_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_CPU)
    expected = frontend.linalg(kernels.scaled, SIGNATURE, {})
    runs = replaced_front_end(tmp_path, monkeypatch, 1, "while :; do :; done")
    monkeypatch.setattr(frontend, "_PROCESSOR_SECONDS", 1)
    assert frontend.linalg(kernels.scaled, SIGNATURE, {}) == expected
    assert len(runs.read_text()) == 2
    assert resource.getrlimit(resource.RLIMIT_CPU) == limits


def test_a_front_end_that_refuses_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = replaced_front_end(
        tmp_path, monkeypatch, 99, "echo 'kernel.ttir.mlir:1: error: no such operation' >&2\nexit 1"
    )
    with pytest.raises(CompileError, match="no such operation"):
        frontend.linalg(kernels.scaled, SIGNATURE, {})
    assert len(runs.read_text()) == 1


def test_a_kernel_that_is_no_triton_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = replaced_front_end(tmp_path, monkeypatch, 0, "exit 1")
    with pytest.raises(CompileError, match="invalid operands"):
        frontend.linalg(kernels.scaled, {"out": "*i32", "n": "*i32"}, {})
    assert runs.read_text() == ""
