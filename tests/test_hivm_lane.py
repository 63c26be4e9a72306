"""Lane hivm runs the compiler's last program as it is planned, sees what it does in UB, and refuses what it does not
know.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from conformance import options
from conformance.engine import Engine, Options
from conformance.lanes.errors import OutOfBounds, Unsupported
from conformance.lanes.hivm import HivmLane
from conformance.subjects.launching import Settings
from reference import verdict as v
from reference.case import Case, Group, Launch
from reports.diagnosis import memory
from tests import hivm_kernels as kernels
from tests.hostile import tree

if (_UNAVAILABLE := HivmLane().unavailable()) is not None:
    pytest.skip(_UNAVAILABLE, allow_module_level=True)

from conformance.lanes.ascend import compiler
from conformance.lanes.ascend.binding import bind
from conformance.lanes.hivm import program
from conformance.lanes.hivm.functions import Rounding
from conformance.lanes.hivm.launcher import Launcher
from tests.audited import fake

Edit = Callable[[str], str]

SIXTY_FOUR = torch.arange(64, dtype=torch.int32)
PAST = 1 << 24


class Edited(Launcher):
    """A launcher whose compiler is someone else: what it leaves is changed by ``edit``."""

    def __init__(self, folder: Path, edit: Edit) -> None:
        super().__init__(folder)
        self._edit = edit

    def last_program(self, module: str) -> str:
        program = super().last_program(module)
        edited = self._edit(program)
        assert edited != program
        return edited


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def launcher(cache: Path) -> Launcher:
    return Launcher(cache)


def unwritten(elements: int = 64, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.full((elements,), v.UNWRITTEN, dtype=dtype)


def replaced(*changes: tuple[str, str]) -> Edit:
    """Each pattern by its replacement, once, on the line that has it."""

    def edit(text: str) -> str:
        for pattern, replacement in changes:
            text, count = re.subn(pattern, replacement, text, count=1)
            assert count, pattern
        return text

    return edit


def edited_launch(folder: Path, kernel: Any, arguments: Mapping[str, Any], edit: Edit) -> None:
    """Launch what ``edit`` makes of the kernel's last program, compiled for this alone."""
    launcher = Edited(folder, edit)
    code = launcher.compile(launcher.lower(kernel, bind(kernel, arguments)), kernel, bind(kernel, arguments))
    launcher._loaded.clear()
    launcher._code = lambda kernel, bound: (code, True)  # type: ignore[method-assign]
    launcher.launch(kernel, (1,), arguments)


def violation_of(folder: Path, kernel: Any, arguments: Mapping[str, Any], edit: Edit) -> OutOfBounds:
    with pytest.raises(OutOfBounds) as caught:
        edited_launch(folder, kernel, arguments, edit)
    return caught.value


def line_of(kernel: Any, text: str) -> str:
    """The line of the kernel that has ``text``, as messages name it."""
    lines = Path(kernels.__file__).read_text(encoding="utf-8").splitlines()
    first = next(
        number
        for number, line in enumerate(lines)
        if line == f"def {kernel.fn.__name__}" or line.startswith(f"def {kernel.fn.__name__}(")
    )
    number = next(number for number in range(first, len(lines)) if text in lines[number]) + 1
    return f"hivm_kernels.py:{number}"


# --- what it runs -------------------------------------------------------------------------------------------------


def test_a_masked_load_takes_the_other_value(launcher: Launcher) -> None:
    out = unwritten()
    launcher.launch(kernels.masked, (1,), {"values": SIXTY_FOUR, "out": out, "n": 5})
    assert out.tolist() == [*range(1, 6), *[1] * 59]


@pytest.mark.parametrize("backwards", [False, True])
def test_two_runs_leave_what_one_leaves(launcher: Launcher, backwards: bool) -> None:
    """Programs that read what others have stored: memory is as before when the second run begins."""
    out = torch.zeros(64 + 48 * 2, dtype=torch.int32)
    launcher.backwards = backwards
    try:
        launcher.launch(kernels.counted_up, (3,), {"out": out, "n": 2})
    finally:
        launcher.backwards = False
    expected = np.zeros(out.numel(), dtype=np.int32)
    for first in (0, 48, 96):
        expected[first : first + 64] += 2
    assert out.tolist() == expected.tolist()


@pytest.mark.parametrize("grid", [(5,), (3, 2), (2, 3, 4), (5000,)])
def test_grids_of_one_two_and_three_dimensions(launcher: Launcher, grid: tuple[int, ...]) -> None:
    """The last one stores more, single elements, than the log has room for at first."""
    x, y, z = (*grid, 1, 1)[:3]
    out = unwritten(x * y * z)
    launcher.launch(kernels.numbered_programs, grid, {"out": out})
    assert out.tolist() == [k * 100 + j * 10 + i for k in range(z) for j in range(y) for i in range(x)]


@pytest.mark.parametrize("backwards", [False, True])
def test_programs_run_one_after_the_other_forward_or_backward(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, backwards: bool
) -> None:
    monkeypatch.setattr(launcher, "backwards", backwards)
    out = torch.zeros(64, dtype=torch.int32)
    launcher.launch(kernels.chained_programs, (2, 3, 2), {"out": out})
    left = 0
    for number in reversed(range(12)) if backwards else range(12):
        left = left * 3 + number
    assert out.tolist() == [left] * 64


@pytest.mark.parametrize("first", [0, PAST - 64, PAST, (1 << 31) - 64])
def test_vectors_are_divided_in_float32(launcher: Launcher, first: int) -> None:
    values = torch.arange(first, first + 64, dtype=torch.int64).to(torch.int32)
    out = unwritten()
    launcher.launch(kernels.divided, (1,), {"values": values, "out": out, "n": 3})
    as_float = (values.numpy().astype(np.float32) / np.float32(3)).astype(np.int32)
    assert out.tolist() == as_float.tolist()
    exact = (values // 3).tolist()
    assert (out.tolist() == exact) == (first < PAST)


def test_remainders_are_exact_where_quotients_are_not(launcher: Launcher) -> None:
    values, out = SIXTY_FOUR + PAST, unwritten()
    launcher.launch(kernels.remainders, (1,), {"values": values, "out": out, "n": 3})
    assert out.tolist() == (values % 3).tolist()


@pytest.mark.parametrize(("vdiv", "off"), [("low", -1), ("high", 0)])
def test_quotients_beside_the_right_one(cache: Path, vdiv: str, off: int) -> None:
    """Truncation makes an exact quotient that comes out too low one less; too high, it changes nothing."""
    out = unwritten()
    Launcher(cache, Rounding(vdiv)).launch(kernels.divided, (1,), {"values": SIXTY_FOUR * 3, "out": out, "n": 3})
    assert out.tolist() == [0, *range(1 + off, 64 + off)]


def test_the_lane_is_set_by_an_option_that_others_refuse() -> None:
    def chosen(lane: str, vdiv: str) -> Any:
        return options.lane(SimpleNamespace(option=SimpleNamespace(lane=lane, vdiv=vdiv)))  # type: ignore[arg-type]

    lane = chosen("hivm", "low")
    assert lane.environment()["SLOT_MAPPING_VDIV"] == "low"
    assert lane.options() == ("--vdiv", "low")
    assert chosen("hivm", "exact").options() == ()
    with pytest.raises(pytest.UsageError, match="--vdiv: an option of lane hivm, and this is lane lowered"):
        chosen("lowered", "low")


# --- what it sees in UB -------------------------------------------------------------------------------------------


def test_a_buffer_moved_onto_one_that_is_in_use_shows(cache: Path) -> None:
    values, others, out = SIXTY_FOUR, SIXTY_FOUR * 1000, unwritten()
    arguments = {"values": values, "others": others, "out": out}
    edited_launch(cache, kernels.added, arguments, lambda text: text + "\n")
    assert out.tolist() == (values * 3 + others).tolist()
    edited_launch(cache, kernels.added, arguments, replaced((r"arith\.constant 256 : i64", "arith.constant 0 : i64")))
    assert out.tolist() != (values * 3 + others).tolist()


def test_ub_that_was_never_written_is_named_and_where_it_shows(cache: Path) -> None:
    """Without the value that fills the buffer where the mask is false; the load fills its last 32 bytes, 8 elements."""
    out = unwritten()
    arguments = {"values": SIXTY_FOUR, "out": out, "n": 5}
    found = violation_of(cache, kernels.masked, arguments, replaced(("arith.cmpi slt", "arith.cmpi sgt")))
    assert (found.guard.buffer, found.guard.direction, found.guard.distance) == ("UB", "read", 0)
    assert memory.cause_of(found.guard) == "read before it is written"
    line = line_of(kernels.masked, "tl.load")
    assert f"depends on UB 0x0, where it has 64 x i32 ({line})" in found.guard.message
    assert found.stored_at == out.data_ptr() + 8 * 4


def test_what_an_earlier_launch_left_in_ub_is_not_there(cache: Path) -> None:
    """The same program with and without the load of its second operand."""
    arguments = {"values": SIXTY_FOUR, "others": SIXTY_FOUR, "out": unwritten()}
    edited_launch(cache, kernels.added, arguments, lambda text: text + "\n")
    without = replaced((r"(?s)(call @load_gm_to_ubuf.*?)\n[^\n]*call @load_gm_to_ubuf[^\n]*", r"\1"))
    found = violation_of(cache, kernels.added, arguments, without)
    assert "which it has not written" in found.guard.message


def test_a_result_that_is_not_defined_is_named_and_where_it_shows(launcher: Launcher) -> None:
    """By how much an int32 is shifted is known up to 32."""
    out = unwritten()
    for n in (5, 32):
        launcher.launch(kernels.shifted, (1,), {"values": SIXTY_FOUR, "out": out, "n": n})
        assert out.tolist() == (SIXTY_FOUR >> min(n, 31)).tolist()
    with pytest.raises(OutOfBounds) as caught:
        launcher.launch(kernels.shifted, (1,), {"values": SIXTY_FOUR, "out": out, "n": 33})
    found = caught.value
    assert (found.guard.buffer, found.guard.direction) == ("UB", "read")
    line = line_of(kernels.shifted, ">> n")
    assert found.guard.message == (
        f"what the launch stores depends on what vshrs_vs_1d_int32_t ({line}) leaves undefined"
    )
    assert found.stored_at == out.data_ptr()
    launcher.launch(kernels.shifted_and_thrown_away, (1,), {"values": SIXTY_FOUR, "out": out, "n": 33})
    assert out.tolist() == SIXTY_FOUR.tolist()


def test_what_a_call_leaves_in_its_temporaries_is_not_defined(cache: Path) -> None:
    """The sum is put where the addition has a temporary, which is stored."""
    arguments = {"values": SIXTY_FOUR, "others": SIXTY_FOUR, "out": unwritten()}
    result_as_temporary = replaced((r"(call @vadd_1d_int32_t\(%\w+, %\w+, )(%\w+)(, )(%\w+)", r"\1\2\3\2"))
    found = violation_of(cache, kernels.added, arguments, result_as_temporary)
    line = line_of(kernels.added, "* 3 +")
    assert f"depends on what vadd_1d_int32_t ({line}) leaves undefined" in found.guard.message


def test_an_argument_that_reaches_out_of_its_buffer(cache: Path) -> None:
    def longer(text: str) -> str:
        size = "%more = arith.constant 72 : index\n"
        part = r"(?m)^ *(%\S+ = memref\.subview %\d+\[0\] )\[%\d+\]( \[1\] : memref<64xi32, #hivm\.address_space<ub>>)"
        return re.sub(part, rf"{size}\1[%more]\2", text, count=1)

    arguments = {"values": SIXTY_FOUR, "out": unwritten(), "n": 5}
    found = violation_of(cache, kernels.masked, arguments, longer)
    line = line_of(kernels.masked, "tl.load")
    assert found.guard.message == (
        f"load_gm_to_ubuf_1d_int32_t ({line}) touches 64 x i32 planned at UB 0x0 ({line}), up to 32 bytes past its end"
    )
    assert (found.guard.buffer, found.guard.address, found.guard.distance) == ("UB", 0, 32)


def test_a_buffer_planned_past_the_end_of_ub(cache: Path) -> None:
    arguments = {"values": SIXTY_FOUR, "others": SIXTY_FOUR, "out": unwritten()}
    past = replaced((r"arith\.constant 256 : i64", "arith.constant 196512 : i64"))
    found = violation_of(cache, kernels.added, arguments, past)
    assert "planned at UB 0x2ffa0" in found.guard.message
    assert "which ends 160 bytes past the end of UB (0x30000)" in found.guard.message


def test_a_single_access_outside_its_buffer(cache: Path) -> None:
    """The loop over the elements of a remainder goes one too far."""
    arguments = {"values": SIXTY_FOUR, "out": unwritten(), "n": 3}
    further = replaced(
        (r"(scf\.for %\w+ = %c0 to )%c64( step)", r"\1%further\2"),
        (r"(?m)^( *hivm\.hir\.set_mask_norm)", r"%further = arith.constant 65 : index\n\1"),
    )
    found = violation_of(cache, kernels.remainders, arguments, further)
    line = line_of(kernels.remainders, "%")
    assert f"a single load ({line}) touches 64 x i32 planned at UB" in found.guard.message
    assert found.guard.message.endswith("up to 4 bytes past its end")


def test_a_mask_that_is_too_short_for_its_vector(launcher: Launcher, cache: Path) -> None:
    out = unwritten()
    arguments = {"values": SIXTY_FOUR, "out": out, "n": 7}
    launcher.launch(kernels.chosen, (1,), arguments)
    assert out.tolist() == [1 if value == 7 else 2 for value in range(64)]
    found = violation_of(cache, kernels.chosen, arguments, lambda text: text.replace("memref<64xi1,", "memref<24xi1,"))
    line = line_of(kernels.chosen, "tl.where")
    assert re.fullmatch(
        rf"vcmps?_eq_1d_int32_t \({line}\) writes to element 63 of 24 x i1 planned at UB 0x\w+ \({line}\),"
        " of which it was given 24",
        found.guard.message,
    )
    assert (found.guard.direction, found.guard.distance) == ("write", 40)


def test_a_gather_by_an_index_that_is_not_there(launcher: Launcher) -> None:
    indices, out = SIXTY_FOUR.flip(0).contiguous(), unwritten()
    arguments = {"values": SIXTY_FOUR * 2, "indices": indices, "out": out}
    launcher.launch(kernels.gathered, (1,), arguments)
    assert out.tolist() == (indices * 2).tolist()
    indices[7] = 64
    with pytest.raises(
        OutOfBounds, match=r"gathers by index 64 from 64 x f32 planned at UB .*of which it was given 64"
    ):
        launcher.launch(kernels.gathered, (1,), arguments)


# --- what it refuses ----------------------------------------------------------------------------------------------


def test_a_function_that_is_not_known_is_named_with_the_line(launcher: Launcher) -> None:
    values = torch.zeros(64, dtype=torch.float32)
    line = line_of(kernels.raised_to_e, "tl.exp")
    with pytest.raises(Unsupported, match=rf"library function vexp_1d_float is not known \({re.escape(line)}\)"):
        launcher.launch(kernels.raised_to_e, (1,), {"values": values, "out": values.clone()})


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (replaced((r"hivm\.hir\.set_mask_norm", "hivm.hir.set_ctrl true at ctrl[48]")), "operation hivm.hir.set_ctrl"),
        (replaced((r"#hivm\.module_core_type<AIV>", "#hivm.module_core_type<MIX>")), "vector cores alone"),
        (replaced((r'"UB_SIZE", 1572864 : i32', '"L3_SIZE", 1572864 : i32')), "how much UB"),
        (replaced((r"hivm\.unlikely_condition", "hivm.some_condition")), "attribute of }: } {hivm.some_condition}"),
        (replaced((r"pointer_cast\((%\w+)\)", r"pointer_cast(\1, \1)")), "buffer at several addresses"),
        (replaced((r"pointer_cast\(%\w+\)", r"pointer_cast(%arg0)")), "an address that the plan does not say"),
        (replaced((r"(load_gm_to_ubuf_1d_int32_t\(%\w+, %\w+), %c2_i32", r"\1, %c1_i32")), "argument 2 is 1"),
        (replaced((r"(?m)^(.*pointer_cast\()(%\w+)", r"\2 = arith.addi %a, %b : i64\n\1\2")), "does not say"),
        (lambda text: text.replace("64xi32", "8x8xi32"), "8x8xi32"),
        (lambda text: text[: len(text) // 2], "not as expected"),
    ],
    ids=["operation", "core", "ub", "attribute", "addresses", "address", "mode", "name", "shape", "half"],
)  # fmt: skip
def test_a_program_of_another_shape_is_refused(masked_program: str, edit: Edit, said: str) -> None:
    from conformance.lanes.hivm import functions

    program.rewritten(masked_program, "masked", functions.check_call)
    with pytest.raises(Unsupported, match=re.escape(said)):
        program.rewritten(edit(masked_program), "masked", functions.check_call)


_HINTED = "%a = arith.addi %x, %y {DiscreteMemAccess, hivm.unlikely_condition} : i32"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%a = arith.addi %x, %y : i32", None),
        (_HINTED, None),
        ("%a = arith.addi %x, %y {foo, bar = 1 : i32} : i32", "attribute of arith.addi"),
        ("%a = arith.addi %x, %y {DiscreteMemAccess, bar = 1 : i32} : i32", "attribute of arith.addi"),
        ('%a = arith.addi %x, %y {"q" = 1 : i32} : i32', "attribute of arith.addi"),
        ("%a = arith.addi %x, %y {foo = {bar = 1}} : i32", "attribute of arith.addi"),
        ("%a = arith.addf %x, %y fastmath<fast> : f32", "attribute of arith.addf"),
        ("%a, %b = arith.addui_extended %x, %y : i32, i1", "operation arith.addui_extended"),
        ('annotation.mark %x {overflow_mode = "trunc"} : i32', "attribute of annotation.mark"),
        ("hivm.hir.pipe_barrier[<PIPE_ALL>] {foo}", "attribute of hivm.hir.pipe_barrier"),
    ],
)
def test_no_operation_and_no_attribute_is_passed_over(masked_program: str, line: str, said: str | None) -> None:
    from conformance.lanes.hivm import functions

    edited = masked_program.replace("    hivm.hir.set_mask_norm", f"    {line}\n    hivm.hir.set_mask_norm", 1)
    assert edited != masked_program
    if said is None:
        program.rewritten(edited, "masked", functions.check_call)
        return
    with pytest.raises(Unsupported, match=re.escape(said)):
        program.rewritten(edited, "masked", functions.check_call)


@pytest.mark.parametrize("module", ["ir", "binding", "frontend"])
def test_a_change_of_what_reads_the_program_is_another_key(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conformance.lanes.hivm import launcher as ours

    def key() -> object:
        return ours.Launcher(tmp_path)._cache.key()

    assert key() == key()
    before = key()
    changed = tmp_path / f"{module}.py"
    changed.write_text(Path(str(getattr(ours, module).__file__)).read_text() + "# more\n")
    monkeypatch.setattr(getattr(ours, module), "__file__", str(changed))
    assert key() != before


@pytest.fixture(scope="module")
def masked_program(launcher: Launcher) -> str:
    bound = bind(kernels.masked, {"values": SIXTY_FOUR, "out": unwritten(), "n": 5})
    return launcher.last_program(launcher.lower(kernels.masked, bound))


def test_a_chip_whose_vectors_are_in_registers_is_refused(cache: Path) -> None:
    launcher = Launcher(cache, target="Ascend950PR_9579")
    with pytest.raises(Unsupported, match=r"Ascend950PR_9579, whose vectors are in registers: .* knows .* Ascend910"):
        launcher.precompile(kernels.masked, {"values": SIXTY_FOUR, "out": unwritten(), "n": 5})


def test_another_version_of_the_compiler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = compiler.at(fake(tmp_path, "exit 70", "1.3.0"), 60)
    monkeypatch.setattr(compiler, "find", lambda timeout: other)
    with pytest.raises(Unsupported, match=r"bishengir-compile 1\.3\.0: lane hivm knows the programs of 1\.2\.0"):
        Launcher(tmp_path / "cache").precompile(kernels.masked, {"values": SIXTY_FOUR, "out": unwritten(), "n": 5})


# --- in a run -----------------------------------------------------------------------------------------------------


TWO, THREE, FOUR = (Case((0, n), tuple(range(n)), n, 5, (Group(((4, 2),), 2, 2),)) for n in (2, 3, 4))
_BODY = """
i = tl.arange(0, 16)
loaded = tl.load(positions_ptr + i, mask=i < num_tokens, other=0).to(tl.int32)
if num_tokens == 2:
    tl.store(slot_mapping_ptr + i, loaded * block_size // block_size, mask=i < 5)
elif num_tokens == 3:
    gathered = tl.gather(loaded.to(tl.float32), i + num_tokens, 0)
    tl.store(slot_mapping_ptr + i, gathered.to(tl.int32), mask=i < 5)
else:
    tl.store(slot_mapping_ptr + max_num_tokens, 7)
"""


def test_a_run_has_its_division_and_names_what_is_outside_in_ub_and_in_global_memory(tmp_path: Path) -> None:
    source = tree(tmp_path, kernel=_BODY)
    lane = HivmLane("low")
    engine = Engine(lane, Options(("kernels",), {"kernels": str(source)}, 1, 60.0, tmp_path / "cache", 1))
    try:
        entry = next(entry for entry in engine.entries() if entry.name == "v1")
        assert entry.declaration.clauses >= {"pos-f32"}
        divided, *found = [engine.run(entry, case, Launch(), Settings(tile=16)) for case in (TWO, THREE, FOUR)]
    finally:
        engine.close()
    assert divided.actual == [[0] * 5]  # and not 1 for position 1
    assert [each.verdict.kind for each in found] == [v.GUARD, v.GUARD]
    (on_chip,), (outside,) = (each.verdict.guards for each in found)
    assert (on_chip.buffer, on_chip.direction) == (v.ON_CHIP, "read")
    assert "gathers by index 16 from 16 x f32 planned at UB" in on_chip.message
    assert (outside.buffer, outside.direction, outside.distance) == ("slot_mapping", "write", 4)
