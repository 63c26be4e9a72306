"""The compile audit counts what is there, says what it does not know, and survives its compiler."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from conformance import lanes

if lanes.by_name("lowered").unavailable() is not None:
    pytest.skip("the audit needs triton-ascend and ascendnpu-ir", allow_module_level=True)

from conformance.audit import rules
from conformance.audit.measure import NotMeasured, measure, ub
from conformance.audit.rows import FRONT_END, NO_COMPILER, OTHER_VERSION, WORKER_DIED
from conformance.audit.workers import audit
from conformance.lanes.ascend import compiler
from conformance.lanes.ascend.ir import parse
from tests.audited import CHIP_950, CHIPS, build, fake, rows

PROGRAM = """module attributes {{dlti.target_system_spec = #x<"UB_SIZE", 1572864 : i32>}} {{
  func.func private @vadd_1d_int32_t(memref<?xi32>, memref<?xi32>, memref<?xi32>, memref<?xi32>)
  func.func @kernel(%arg0: memref<?xi32>) {{
    {body}
    return
  }}
}}
"""


# Counted by hand in the text of module.hivm.opt.mlir, for each chip.


@pytest.mark.parametrize("chip", CHIPS)
def test_remainders_as_counted_by_hand(chip: str) -> None:
    """One loop of 64 rounds of load, remsi, store; then the quotient by 0 is sorted out by compare and select."""
    (row,) = rows("remainders", chip)
    m = row.measures
    assert m is not None, row
    assert dict(m.vector) == {"broadcast_scalar_int32_t_to_1d": 1, "vcmps_eq_1d_int32_t": 1, "vsel_sv_1d_int32_t": 1}
    assert dict(m.movement) == {"load_gm_to_ubuf_1d_int32_t": 1, "store_ubuf_to_gm_1d_int32_t": 1}
    (loop,) = m.scalar_loops
    assert (loop.operation, loop.trips, loop.instructions) == ("arith.remsi:i32", 64, 3)
    assert str(loop.line) == "audited_kernels.py:12"
    assert (m.scalar_per_tile, m.read_per_tile, m.written_per_tile) == (192, 256, 256)
    # The last buffer: 16 int32 from byte 768 on.
    assert row.ub == (832, 196608)
    assert m.float32 == ()


@pytest.mark.parametrize("chip", CHIPS)
def test_quotients_and_a_gather_as_counted_by_hand(chip: str) -> None:
    """Six vector functions in a loop over tiles: to float32, gather, back, to float32, divide, back; two loads of 128
    int32, one store. Twelve of the scalar instructions are the tile's, thirty choose buffers.
    """
    (row,) = rows("quotients_of_gathered", chip)
    m = row.measures
    assert m is not None, row
    assert dict(m.vector) == {
        "vcast_int32_t_to_float_1d_with_mode": 2,
        "gather_1d_float": 1,
        "vcast_float_to_int32_t_1d_with_mode": 2,
        "vdiv_vs_1d_float": 1,
    }
    assert (m.vector_per_tile, m.movement_per_tile, m.scalar_per_tile) == (6, 3, 42)
    assert (m.read_per_tile, m.written_per_tile) == (1024, 512)
    assert m.scalar_loops == ()
    assert [(use.kind, str(use.line)) for use in m.float32] == [
        ("gather", "audited_kernels.py:19"),
        ("division", "audited_kernels.py:20"),
    ]
    # The last buffer: 128 int32 from byte 3104 on.
    assert row.ub == (3616, 196608)


def test_scattered_loads_and_int64_are_loops_with_their_lines() -> None:
    (row,) = rows("scattered", CHIPS[0])
    assert row.measures is not None
    loops = [(loop.operation, loop.trips, str(loop.line)) for loop in row.measures.scalar_loops]
    assert loops == [
        ("scattered-load", 32, "audited_kernels.py:26"),
        ("arith.muli:i64", 32, "audited_kernels.py:26"),
    ]
    # 128 bytes of indices at once, 32 cells of 4 bytes one by one.
    assert (row.measures.read_per_tile, row.measures.written_per_tile) == (256, 256)


def test_values_that_are_named_alike_in_two_branches_are_not_one() -> None:
    """The text calls the result of the shift, and the float32 that is divided, by the same name."""
    (row,) = rows("shifted_or_divided", CHIPS[0])
    assert row.measures is not None
    assert [(use.kind, str(use.line)) for use in row.measures.float32] == [("division", "audited_kernels.py:36")]
    assert row.bounds is not None
    assert row.bounds.position == 16777216


def test_a_name_in_two_branches_is_two_values() -> None:
    text = PROGRAM.format(
        body="""%0 = arith.constant 1 : i32
    %1 = scf.if %0 -> (i32) {
      %2 = arith.addi %0, %0 : i32
      scf.yield %2 : i32
    } else {
      %2 = arith.muli %0, %0 : i32
      scf.yield %2 : i32
    }
    %3 = arith.subi %1, %0 : i32"""
    )
    kernel = parse(text).function("kernel")
    assert kernel is not None
    chosen = kernel.inner[1]
    added, first, multiplied, second = chosen.inner
    assert added.results != multiplied.results
    assert (first.operands, second.operands) == (list(added.results), list(multiplied.results))
    assert kernel.inner[2].operands == [*chosen.results, *kernel.inner[0].results]


def test_of_two_loops_over_tiles_the_larger_counts() -> None:
    (row,) = rows("short_or_long", CHIPS[0])
    m = row.measures
    assert m is not None
    assert (m.vector.total(), m.vector_per_tile, m.movement_per_tile) == (2, 1, 2)
    assert (m.read_per_tile, m.written_per_tile) == (1024, 1024)


def test_a_float32_that_comes_from_nowhere_known_is_not_taken_for_safe() -> None:
    division = """%c0_i64 = arith.constant 0 : i64
    %0 = hivm.hir.pointer_cast(%c0_i64) : memref<8xf32, #hivm.address_space<ub>>
    call @vdiv_1d_float(%0, %0, %0, %0) : (memref<8xf32>) -> ()"""
    assert [use.kind for use in measure(PROGRAM.format(body=division), "kernel").float32] == ["division"]
    loaded = division.replace("    call", "    call @load_gm_to_ubuf_1d_float(%arg0, %0) : () -> ()\n    call")
    assert measure(PROGRAM.format(body=loaded), "kernel").float32 == ()


# Ascend950: other programs. Buffers are planned alike; nothing else is known, and nothing is 0.


@pytest.mark.parametrize(("name", "used"), [("remainders", 256), ("quotients_of_gathered", 3072)])
def test_a_950_compiles_and_only_its_buffers_are_known(name: str, used: int) -> None:
    """By hand: 64 int32 at 0; 128 int32 at 2560 as the last ones."""
    (row,) = rows(name, CHIP_950)
    assert row.compiled
    assert row.ub == (used, 253952)
    assert row.measures is None
    assert "950" in row.not_measured
    figures = row.to_json()
    assert [
        figures[key] for key in ("vector_operations", "per_tile", "scalar_loops", "float32", "largest_position")
    ] == [None] * 5
    assert [finding.rule.id for finding in rules.findings([row])] == ["ASC008"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("hivm.hir.vnew %arg0 : memref<?xi32>", "operation hivm.hir.vnew is not known"),
        ("call @vnew_1d_int32_t(%arg0) : (memref<?xi32>) -> ()", "library function vnew_1d_int32_t is not known"),
        ("call @vadd_2d_int32_t(%arg0) : (memref<?xi32>) -> ()", "library function vadd_2d_int32_t is not known"),
        ("cf.br ^bb1", "operation cf.br is not known"),
        ("}", "closes a region"),
        ("scf.if %0 {", "still open"),
        ("- what is this", "is no operation"),
    ],
)
def test_what_is_not_known_is_not_measured(body: str, reason: str) -> None:
    with pytest.raises(NotMeasured, match=reason):
        measure(PROGRAM.format(body=body), "kernel")


def test_a_program_without_the_kernel_or_with_two_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="no function other"):
        measure(PROGRAM.format(body=""), "other")
    two = PROGRAM.format(body="").replace(
        "  func.func @kernel", "  func.func @vf() {\n    return\n  }\n  func.func @kernel"
    )
    with pytest.raises(NotMeasured, match="2 functions"):
        measure(two, "kernel")


def test_a_buffer_without_a_planned_address_is_not_measured() -> None:
    cast = "%0 = hivm.hir.pointer_cast({}) : memref<8xi32, #hivm.address_space<ub>>"
    with pytest.raises(NotMeasured, match="planned address"):
        ub(PROGRAM.format(body=cast.format("%arg1")))
    assert ub(PROGRAM.format(body="%c64_i64 = arith.constant 64 : i64\n" + cast.format("%c64_i64"))) == (96, 196608)


# What the compiler refuses


def test_an_overflow_has_the_compilers_message_and_a_line() -> None:
    (row,) = rows("too_large", CHIPS[0])
    assert (row.status, str(row.line)) == ("refused", "audited_kernels.py:53")
    assert "requires 4194304 bits while 1572864 bits available" in row.message
    assert any("enable-auto-multi-buffer to false" in note for note in row.notes)
    (finding,) = rules.findings([row])
    assert (finding.rule.id, finding.rule.severity) == ("ASC001", "error")


def test_what_the_front_end_refuses_is_a_row_on_every_chip() -> None:
    both = rows("refused", *CHIPS)
    assert [row.status for row in both] == [FRONT_END] * 2
    assert "shape" in both[0].message
    (finding,) = rules.findings(both)
    assert (finding.rule.id, finding.targets) == ("ASC005", CHIPS)


def test_a_value_of_every_batch_that_is_compiled_in_is_found() -> None:
    found = rules.findings(rows("of_every_batch", CHIPS[0]))
    assert [(finding.rule.id, finding.cause) for finding in found] == [("ASC004", "num_tokens")]


# The compiler itself


def only_row(path: Path, target: str = CHIPS[0], timeout: float = 60.0):  # type: ignore[no-untyped-def]
    (row,) = audit([build("remainders")], [target], compiler.at(path, timeout), 1, lambda done, total: None)
    return row


def test_another_version_compiles_and_is_not_measured(tmp_path: Path) -> None:
    row = only_row(fake(tmp_path, "exit 0", version="1.3.0"))
    assert row.compiled
    assert row.measures is None
    assert row.ub is None
    assert row.not_measured.startswith(f"{OTHER_VERSION}: 1.3.0")
    assert [(f.rule.id, f.cause) for f in rules.findings([row])] == [("ASC008", "other-version")]


def test_a_compiler_that_leaves_no_program_is_not_measured(tmp_path: Path) -> None:
    row = only_row(fake(tmp_path, "exit 0"))
    assert (row.status, row.not_measured) == ("compiled", "the compiler left no program")


def test_a_crash_is_a_row(tmp_path: Path) -> None:
    row = only_row(fake(tmp_path, "echo about to crash; kill -SEGV $$"))
    assert row.status == "died"
    assert row.message == "ended by SIGSEGV: about to crash"
    assert [f.rule.id for f in rules.findings([row])] == ["ASC009"]


def test_a_hang_is_a_row_and_nothing_goes_on_behind_it(tmp_path: Path) -> None:
    mark = tmp_path / "still-there"
    started = time.monotonic()
    row = only_row(fake(tmp_path, f"(sleep 2; touch {mark}) & sleep 60"), timeout=0.5)
    assert (row.status, row.message) == ("timed out", "not done after 0.5 s")
    assert time.monotonic() - started < 20
    time.sleep(2.2)
    assert not mark.exists()


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "temporary"
    made.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(made))
    row = only_row(fake(tmp_path, "pwd >" + str(tmp_path / "where")))
    assert row.compiled
    assert Path((tmp_path / "where").read_text().strip()).parent == made
    assert list(made.iterdir()) == []


def test_a_chip_that_it_does_not_know_is_a_row(tmp_path: Path) -> None:
    row = only_row(fake(tmp_path, "exit 0"), target="Ascend310P3")
    assert (row.status, row.message) == ("unknown target", "bishengir-compile 1.2.0 knows no target Ascend310P3")


def test_a_compiler_that_disappears_is_a_row(tmp_path: Path) -> None:
    path = fake(tmp_path, "exit 0")
    known = compiler.at(path, 60)
    assert (known.version, known.targets) == ("1.2.0", frozenset({"Ascend910B3"}))
    path.unlink()
    (row,) = audit([build("remainders")], CHIPS[:1], known, 1, lambda done, total: None)
    assert row.status == NO_COMPILER
    assert "No such file" in row.message


@pytest.mark.parametrize("answer", ["exit 3", "echo nothing of the kind"])
def test_a_program_that_is_no_compiler_is_unavailable(tmp_path: Path, answer: str) -> None:
    path = tmp_path / "bishengir-compile"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    with pytest.raises(compiler.Unavailable, match="--version"):
        compiler.at(path, 60).version  # noqa: B018
    with pytest.raises(compiler.Unavailable, match="no file"):
        compiler.at(tmp_path / "missing", 60)


def test_a_front_end_that_dies_takes_its_own_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    from conformance.lanes.ascend import frontend

    real = frontend.linalg

    def dying(kernel, *args, **kwargs):  # type: ignore[no-untyped-def]
        if kernel.fn.__name__ == "scattered":
            os.kill(os.getpid(), signal.SIGKILL)
        return real(kernel, *args, **kwargs)

    monkeypatch.setattr(frontend, "linalg", dying)
    jobs = [build("scattered"), build("remainders")]
    done: list[int] = []
    found = audit(jobs, CHIPS[:1], compiler.find(60), 2, lambda count, total: done.append(count))
    assert [row.status for row in found] == [WORKER_DIED, "compiled"]
    assert "SIGKILL" in found[0].message
    assert done == [1, 2]
