"""What a comparison says, and what an output is expected to hold."""

from __future__ import annotations

import json

import pytest

from reference.case import Case, Group
from reference.verdict import (
    GUARD,
    KINDS,
    MAX_DIFFERENCES,
    MISMATCH,
    PASS,
    UNWRITTEN,
    Difference,
    Guard,
    Verdict,
    compare,
    expected_output,
)

CASE = Case((0, 2), (0, 1), 2, 4, (Group(((3,),), 4, 4), Group(((5,),), 4, 4)))
OVER_READ = Guard("block_table", "read", 0x7F0000001000, 4, "read 4 bytes past block_table at 0x7f0000001000")


def test_expected_output_pads_to_max_num_tokens_and_leaves_the_rest():
    assert expected_output(CASE, 6) == [[12, 13, -1, -1, UNWRITTEN, UNWRITTEN], [20, 21, -1, -1, UNWRITTEN, UNWRITTEN]]
    assert expected_output(CASE, 4) == [[12, 13, -1, -1], [20, 21, -1, -1]]


def test_expected_output_without_a_tail():
    assert expected_output(CASE, 5, writes_tail=False) == [[12, 13, *[UNWRITTEN] * 3], [20, 21, *[UNWRITTEN] * 3]]


def test_expected_output_needs_room():
    with pytest.raises(ValueError, match=r"^qsl-capacity: max_num_tokens 4 exceeds the output's 3$"):
        expected_output(CASE, 3)


def test_unwritten_is_what_every_buffer_holds():
    assert UNWRITTEN & 0xFFFFFFFF == 0xDEADBEEF
    assert -(1 << 31) <= UNWRITTEN < 0


def test_equal_outputs_pass():
    verdict = compare([[1, 2], [3, 4]], [[1, 2], [3, 4]])
    assert verdict == Verdict(PASS)
    assert verdict.passed
    assert verdict.summary() == "pass"


def test_equal_elements_pass_in_whatever_sequence():
    assert compare([[1, 2]], [(1, 2)]).passed


def test_every_element_counts():
    for group in range(2):
        for index in range(3):
            actual = [[1, 2, 3], [4, 5, 6]]
            actual[group][index] = 0
            verdict = compare([[1, 2, 3], [4, 5, 6]], actual)
            assert verdict.kind == MISMATCH
            assert not verdict.passed
            assert verdict.differences == (Difference(group, index, 3 * group + index + 1, 0),)


def test_differences_are_kept_up_to_a_limit_and_counted_beyond():
    verdict = compare([[0] * 50, [0] * 50], [[0] * 49 + [1], [1] * 50])
    assert verdict.total_differences == 51
    assert len(verdict.differences) == MAX_DIFFERENCES
    assert verdict.differences[0] == Difference(0, 49, 0, 1)
    assert verdict.summary() == "mismatch: 51 elements differ, first group 0 [49]: expected 0, got 1"


def test_summary_says_in_words_what_was_not_written():
    assert compare([[7, UNWRITTEN]], [[UNWRITTEN, 7]]).summary() == (
        "mismatch: 2 elements differ, first group 0 [0]: expected 7, got nothing written"
    )
    assert compare([[UNWRITTEN]], [[7]]).summary() == (
        "mismatch: 1 element differs, first group 0 [0]: expected nothing written, got 7"
    )


def test_a_guard_outranks_a_mismatch_and_keeps_it():
    verdict = compare([[1]], [[2]], [OVER_READ])
    assert verdict.kind == GUARD
    assert verdict.guards == (OVER_READ,)
    assert verdict.summary() == (
        "guard violation: read 4 bytes past block_table at 0x7f0000001000; "
        "1 element differs, first group 0 [0]: expected 1, got 2"
    )
    right = compare([[1]], [[1]], iter([OVER_READ]))
    assert (right.kind, right.differences, right.guards) == (GUARD, (), (OVER_READ,))
    assert compare([[1]], [(1,)], [OVER_READ]).kind == GUARD


@pytest.mark.parametrize(
    "actual", [[[1]], [[1, 2], [3]], [[1, 2, 3], [4, 5]], []], ids=["rows", "short", "long", "none"]
)
def test_other_shapes_are_not_compared(actual):
    with pytest.raises(ValueError, match=r"^cannot compare groups of \[2, 2\] elements with groups of \["):
        compare([[1, 2], [3, 4]], actual)


def test_summary_is_one_line():
    assert (
        Verdict("compile error", detail="error:\n  no `%`\r\n on vectors").summary()
        == "compile error: error: no `%` on vectors"
    )


LISTING = '''at 9:8:
def kernel(pos_ptr, TILE: tl.constexpr):
    """What a listing begins with.

    It is long.
    """
'''
CALLER = f"{LISTING}    token = first_token(tile)\n            ^\n"
CALLED = f"{LISTING}    slot = unknown(token)\n           ^\nNameError('unknown is not defined')"


@pytest.mark.parametrize(
    ("detail", "shown"),
    [
        (CALLED, "NameError('unknown is not defined') (at: slot = unknown(token))"),
        (f"{CALLER}\n{CALLED}", "NameError('unknown is not defined') (at: slot = unknown(token))"),
        (f"{CALLED}\nunknown", "NameError('unknown is not defined') unknown (at: slot = unknown(token))"),
        (CALLER, " ".join(CALLER.split())),
        ("at 1:2:\n^", "at 1:2: ^"),
        ("at 1:2:", "at 1:2:"),
        ("k.mlir:1:2: error: no\n %1 = a.b\n      ^\nnote: see", "k.mlir:1:2: error: no %1 = a.b ^ note: see"),
    ],
)
def test_summary_of_a_compile_error_is_what_the_compiler_says(detail, shown):
    """Not the kernel, from its documentation on, that is listed before it."""
    assert Verdict("compile error", detail=detail).summary() == f"compile error: {shown}"


def test_json_holds_everything():
    verdict = Verdict(GUARD, (Difference(0, 1, 2, 3),), 1, (OVER_READ,), "as it is")
    assert json.loads(json.dumps(verdict.to_json())) == {
        "kind": "guard violation",
        "differences": [{"group": 0, "index": 1, "expected": 2, "actual": 3}],
        "total_differences": 1,
        "guards": [
            {
                "buffer": "block_table",
                "direction": "read",
                "address": 0x7F0000001000,
                "distance": 4,
                "message": "read 4 bytes past block_table at 0x7f0000001000",
            }
        ],
        "detail": "as it is",
    }


def test_kinds_are_distinct():
    assert len(set(KINDS)) == 8
