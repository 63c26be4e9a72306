"""Cases as JSON, both ways, and everything that a file can have wrong, one line and exit status 2 each."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from reference.__main__ import main
from reference.case import MAX_TOKENS, Case, CaseError, ContextParallel, Group, Launch, Replay, from_document, load
from reference.oracle import slot_mapping

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data"
BROKEN = DATA / "broken"
FIELD_CASE = DATA / "field_cases" / "minimal_width_row.json"

CASE = Case(
    query_start_loc=(0, 2, 3),
    positions=(4, 5, 0, -1),
    num_tokens=3,
    max_num_tokens=8,
    groups=(
        Group(((7, 3), (9, 1)), 2, 4, sharded=False, row_stride=5),
        Group(((7,), (9,)), 3, 3, kind="circular", enabled=False),
    ),
    cp=ContextParallel(2, 1, 1),
    pad_id=-2,
    idx_mapping=(1, 0),
    replay=Replay((3, 0), 2, (0,)),
)
LAUNCH = Launch("int64", 12, "before", {"TILE_BLOCK_SIZE": 16, "IS_CIRCULAR": False})

MESSAGES = {
    "a_list": "case: expected an object, got a list of 1",
    "block_past_int32": "groups[0].block_table[1][0]: expected an integer <= 2147483647, got 2147483648",
    "block_size_zero": "groups[0].block_size: expected an integer >= 1, got 0",
    "boolean_for_integer": "num_tokens: expected an integer >= 0, got true",
    "byte_order_mark": "line 1 column 1: not JSON: Unexpected UTF-8 BOM (decode using utf-8-sig)",
    "clause_qsl_capacity_of_the_launch": "qsl-capacity: max_num_tokens 8 exceeds the output's 5 elements",
    "clause_qsl_capacity_of_the_positions": "qsl-capacity: 2 positions for num_tokens 3: every token needs one",
    "clause_rank_range": "rank-range: rank 2 is outside 0..1",
    "clause_row_width": "row-width: group 0: token 1 (request 0, position 9) needs block index 2, "
    "row 0 is 2 blocks wide",
    "empty": "line 1 column 1: not JSON: Expecting value",
    "field_twice": 'not a case: the field "num_tokens" is given twice in one object',
    "float_for_integer": "cp.interleave: expected an integer >= 1, got 1.0",
    "idx_mapping_too_short": "idx_mapping: expected 2 entries, one a request, got 1",
    "inside_a_report": "case.cp.rank: missing",
    "integer_for_boolean": "groups[0].sharded: expected true or false, got 1",
    "integer_for_list": "query_start_loc: expected a list, got 3",
    "launch_constant": 'launch.constants.PAD_ID: expected an integer, got "-1"',
    "launch_dtype": 'launch.output_dtype: expected "int32" or "int64", got "float32"',
    "launch_unknown_field": (
        "launch.dtype: unknown field; known are output_dtype, output_length, fence, open_buffers, constants"
    ),
    "missing_block_size": "groups[0].block_size: missing",
    "missing_positions": "positions: missing",
    "nan": "not JSON: NaN is no JSON number",
    "no_groups": "groups: expected at least one group, got none",
    "no_query_start_loc": "query_start_loc: expected at least one element, got none",
    "not_utf8": "not UTF-8: invalid continuation byte at byte 286",
    "null_block": "groups[1].block_table[0][3]: expected an integer, got null",
    "output_too_large": "max_num_tokens: expected an integer <= 16777216, got 1000000000",
    "position_past_int64": "positions[2]: expected an integer <= 9223372036854775807, got an integer of 71 bits",
    "ragged_table": "groups[0].block_table[1]: expected 2 blocks as in row 0, got 1",
    "replay_group_circular": "replay.cacheable_groups[0]: group 0 is circular, circular groups are never cacheable",
    "replay_group_missing": "replay.cacheable_groups[0]: expected a group below 1, got 1",
    "replay_group_twice": "replay.cacheable_groups[1]: group 0 is listed twice",
    "replay_starts_too_many": "replay.starts: expected 2 entries, one a request, got 3",
    "schema_2": "schema: expected 1, got 2",
    "schema_true": "schema: expected an integer, got true",
    "stride_below_width": "groups[0].row_stride: expected at least the row width 2, got 1",
    "string_for_integer": 'groups[1].block_size: expected an integer >= 1, got "x"',
    "thousands_of_digits": "not a case: it holds an integer of thousands of digits",
    "trailing_text": "line 1 column 346: not JSON: Extra data",
    "truncated": "line 1 column 121: not JSON: Expecting property name enclosed in double quotes",
    "unknown_field": "block_size: unknown field; known are schema, query_start_loc, positions, num_tokens, "
    "max_num_tokens, pad_id, idx_mapping, cp, groups, replay",
    "unknown_field_with_control_characters": 'groups[0]["block\\n\\u2028size`"]: unknown field; known are block_table, '
    "block_size, kv_cache_block_size, kind, sharded, enabled, row_stride",
    "unknown_kind": 'groups[0].kind: expected "paged" or "circular", got "ring"',
}


def complaint(capsys, *arguments):
    """What ``main`` says about ``arguments``: one line on stderr, nothing on stdout, status 2."""
    assert main([str(argument) for argument in arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("python -m reference: ")
    assert captured.err.endswith("\n")
    assert len(captured.err.splitlines()) == 1
    return captured.err.removeprefix("python -m reference: ").removesuffix("\n")


# Files that are wrong


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_broken_file(capsys, name):
    path = BROKEN / f"{name}.json"
    assert complaint(capsys, path) == f"{path}: {MESSAGES[name]}"
    assert complaint(capsys, path, "--trace", 0, 0) == f"{path}: {MESSAGES[name]}"


def test_every_broken_file_has_its_message():
    assert {path.stem for path in BROKEN.iterdir()} == set(MESSAGES)


def test_the_broken_files_are_sound_but_for_their_defect():
    """With its rank put right, the case that all of them vary has an answer."""
    document = json.loads((BROKEN / "clause_rank_range.json").read_text())
    document["cp"]["rank"] = 1
    assert slot_mapping(from_document(document)[0]) == [[-1, 6, -1, -1, -1, -1, -1, -1]]


@pytest.mark.parametrize("name", ["truncated", "string_for_integer", "clause_row_width"])
def test_broken_file_from_the_shell(name):
    path = BROKEN / f"{name}.json"
    done = subprocess.run(
        [sys.executable, "-m", "reference", path], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"python -m reference: {path}: {MESSAGES[name]}\n")


def test_missing_file(capsys, tmp_path):
    path = tmp_path / "none.json"
    assert complaint(capsys, path) == f"{path}: No such file or directory"


def test_folder(capsys, tmp_path):
    assert complaint(capsys, tmp_path) == f"{tmp_path}: Is a directory"


def test_path_on_several_lines(capsys):
    assert (
        complaint(capsys, "no\nsuch\x1b[31m\u2028file\udcff")
        == "no\\nsuch\\x1b[31m\\u2028file\\udcff: No such file or directory"
    )
    assert complaint(capsys, "nul\0") == "nul\\x00: embedded null byte"


def test_deep_nesting(capsys, tmp_path):
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    assert complaint(capsys, path) == f"{path}: not a case: nested too deeply"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: CASE.json (see --help)"),
        (["--trace", "0", "x", FIELD_CASE], "argument --trace: invalid int value: 'x' (see --help)"),
        ([FIELD_CASE, "--trace", "0"], "argument --trace: expected 2 arguments (see --help)"),
        ([FIELD_CASE, FIELD_CASE], f"unrecognized arguments: {FIELD_CASE} (see --help)"),
        ([FIELD_CASE, "--trace", "1", "0"], f"{FIELD_CASE}: there is no group 1, the last is 0"),
        ([FIELD_CASE, "--trace", "-1", "0"], f"{FIELD_CASE}: there is no group -1, the last is 0"),
        (
            [FIELD_CASE, "--trace", "0", "11"],
            f"{FIELD_CASE}: there is no token 11, the last is 10 (max_num_tokens - 1)",
        ),
    ],
    ids=["none", "no-integer", "one-index", "two-files", "group", "negative-group", "token"],
)
def test_wrong_arguments(capsys, arguments, message):
    assert complaint(capsys, *arguments) == message


# Files that are right


def test_slots_on_stdout():
    done = subprocess.run(
        [sys.executable, "-m", "reference", FIELD_CASE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"slot_mappings": json.loads(FIELD_CASE.read_text())["slot_mappings"]}


def test_trace_on_stdout(capsys):
    assert main([str(FIELD_CASE), "--trace", "0", "1"]) == 0
    trace = json.loads(capsys.readouterr().out)
    assert trace["steps"] == [
        "kernel block: i = p // b = 14 // 4 = 3; offset = p % b = 14 % 4 = 2",
        "slot = bt[3]*b + offset = 12*4 + 2 = 50",
    ]


def test_reader_that_goes_away(tmp_path):
    """`python -m reference CASE.json | head -c 1` must not end in a traceback."""
    path = tmp_path / "long.json"
    path.write_text(
        json.dumps(
            replace(
                CASE, max_num_tokens=100_000, idx_mapping=None, replay=None, groups=(Group(((0,) * 9,) * 2, 2, 2),)
            ).to_json()
        )
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "reference", path], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    os.read(process.stdout.fileno(), 1)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 1


# Both ways


@pytest.mark.parametrize("case", [CASE, replace(CASE, idx_mapping=None, replay=None)], ids=["everything", "defaults"])
def test_case_round_trip(case):
    text = json.dumps(case.to_json())
    again = Case.from_json(json.loads(text))
    assert again == case
    assert hash(again) == hash(case)
    assert json.dumps(again.to_json()) == text


def test_case_as_documented():
    """The example of schema 1 in the documentation."""
    case = Case(
        query_start_loc=(0, 2, 3),
        positions=(4, 5, 0),
        num_tokens=3,
        max_num_tokens=8,
        groups=(Group(((7, 3), (9, 1)), 2, 2),),
        cp=ContextParallel(2, 1, 1),
    )
    assert case.to_json() == {
        "schema": 1,
        "query_start_loc": [0, 2, 3],
        "positions": [4, 5, 0],
        "num_tokens": 3,
        "max_num_tokens": 8,
        "pad_id": -1,
        "idx_mapping": None,
        "cp": {"size": 2, "rank": 1, "interleave": 1},
        "groups": [
            {
                "block_table": [[7, 3], [9, 1]],
                "block_size": 2,
                "kv_cache_block_size": 2,
                "kind": "paged",
                "sharded": True,
                "enabled": True,
            }
        ],
        "replay": None,
    }


def test_launch_round_trip():
    assert Launch.from_json(json.loads(json.dumps(LAUNCH.to_json()))) == LAUNCH
    assert Launch.from_json({}) == Launch()
    assert Launch.from_json({"output_length": None}) == Launch()
    kept = Launch.from_json(LAUNCH.to_json()).constants
    assert [type(value) for value in kept.values()] == [int, bool]


def test_document_with_a_case_and_a_launch(tmp_path):
    path = tmp_path / "failure.json"
    path.write_text(json.dumps({"schema": 1, "subject": "x", "case": CASE.to_json(), "launch": LAUNCH.to_json()}))
    assert load(path) == (CASE, LAUNCH)
    path.write_text(json.dumps({"case": CASE.to_json(), "launch": None}))
    assert load(path) == (CASE, Launch())
    path.write_text(json.dumps(CASE.to_json()))
    assert load(path) == (CASE, Launch())


def fields_of(value, path=""):
    """The path of every field and list item in a JSON value."""
    if isinstance(value, dict):
        pairs = [(f"{path}.{name}" if path else name, item) for name, item in value.items()]
    elif isinstance(value, list):
        pairs = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        return
    for where, item in pairs:
        yield where
        yield from fields_of(item, where)


def put(document, path, value):
    """``document`` with ``value`` at ``path``; without the field when ``value`` is absent."""
    document = copy.deepcopy(document)
    *parents, last = path.replace("[", ".[").split(".")
    holder = document
    for step in parents:
        holder = holder[int(step[1:-1])] if step.startswith("[") else holder[step]
    key = int(last[1:-1]) if last.startswith("[") else last
    if value is None:
        del holder[key]
    else:
        holder[key] = value
    return document


@pytest.mark.parametrize("value", [1.5, "7", {"a": 1}], ids=["float", "string", "object"])
def test_every_value_of_another_type_is_refused_where_it_stands(value):
    paths = list(fields_of(CASE.to_json()))
    assert len(paths) > 40
    for path in paths:
        with pytest.raises(CaseError) as caught:
            Case.from_json(put(CASE.to_json(), path, value))
        assert str(caught.value).startswith(path), path


def test_every_field_is_needed():
    optional = {"groups[0].row_stride"}
    for path in fields_of(CASE.to_json()):
        if path.endswith("]") or path in optional:
            continue
        with pytest.raises(CaseError) as caught:
            Case.from_json(put(CASE.to_json(), path, None))
        assert str(caught.value) == f"{path}: missing"


def test_limits_that_a_file_may_ask_for():
    largest = replace(CASE, max_num_tokens=MAX_TOKENS)
    assert Case.from_json(largest.to_json()) == largest
    with pytest.raises(CaseError, match=r"^launch\.output_length: expected an integer <= 16777216, got 16777217$"):
        Launch.from_json({"output_length": MAX_TOKENS + 1})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 100, f'"{"x" * 59}...'),
        ("a\nb", '"a\\nb"'),
        (10**5000, "an integer of 16610 bits"),
        (float("inf"), "Infinity"),
        ({}, "an object of 0 fields"),
        ((1, 2), "a list of 2"),
        (b"", "a Python bytes"),
    ],
    ids=["long", "lines", "huge", "infinity", "object", "tuple", "bytes"],
)
def test_what_was_found_is_shown_on_one_short_line(value, text):
    with pytest.raises(CaseError) as caught:
        Case.from_json({**CASE.to_json(), "pad_id": value})
    assert str(caught.value).endswith(f", got {text}")
