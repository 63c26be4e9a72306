"""The page on the audit says what the audit does."""

from __future__ import annotations

import re

import numpy as np

from conformance.audit.__main__ import TARGETS, parser
from conformance.audit.bounds import Vector, bounds, largest_block, largest_position, quotient
from conformance.audit.rules import RULES
from reference.case import ContextParallel
from strategies.geometry import Geometry
from tests.commands import ROOT

OWN = ("v1", "v2", "parallel", "tiled")
TEXT = (ROOT / "docs" / "ascend-audit.md").read_text(encoding="utf-8")


def test_the_rules_are_listed() -> None:
    listed = re.findall(r"^\| (ASC\d{3}) \| ([\w-]+) \| (\w+) \|$", TEXT, re.MULTILINE)
    assert listed == [(rule.id, rule.name, rule.severity) for rule in RULES.values()]


def test_the_options_are_listed_with_their_defaults() -> None:
    table = TEXT[TEXT.index("| option | meaning |") : TEXT.index("Exit status 0")]
    known = {name for action in parser()._actions for name in action.option_strings if name.startswith("--")}
    assert set(re.findall(r"--[a-z][a-z-]+", table)) == known - {"--help"}
    defaults = parser().parse_args([])
    assert f"(default {defaults.specializations})" in table
    assert f"(default {defaults.timeout:g})" in table
    assert f"(default `{defaults.report_dir}`)" in table
    assert re.findall(r"`(Ascend\w+)`", table) == list(TARGETS)


def corrected(dividend: Vector, divisor: int) -> Vector:
    """The quotient after one step of the usual correction."""
    found = quotient(dividend, divisor)
    rest = dividend - found * divisor
    return found + (rest >= divisor) - (rest < 0)


def test_the_bounds_before_and_with_one_step_are_those_of_the_model() -> None:
    before = re.findall(r"^\| (\d+) \| \d+, up to ([\d,]+) \|", TEXT, re.MULTILINE)
    assert [int(block_size) for block_size, _ in before] == [2, 3, 7, 16, 48, 128]
    for block_size, position in before:
        assert _number(position) == largest_position(Geometry(int(block_size)))
    sentence = TEXT[TEXT.index("one step is right") : TEXT.index("(by the model; a test")]
    steps = {int(b): _number(last) for last, b in re.findall(r"([\d,]+) for b = (\d+)", sentence) if "," in last}
    assert sorted(steps) == [2, 3, 7]
    assert "past 2^27 for b = 16, 48 and 128" in sentence
    for b, last in {**steps, 16: 2**27, 48: 2**27, 128: 2**27}.items():
        near = np.arange(last - 200_000, last + 1)
        assert np.array_equal(corrected(near, b), near // b)
        if b in steps:
            assert corrected(near[-1:] + 1, b) != (last + 1) // b


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def test_the_bounds_are_those_of_the_sweep() -> None:
    (row,) = re.findall(
        r"^\| published `v1`, `v2` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", TEXT, re.MULTILINE
    )
    geometries = [Geometry(1), Geometry(16), Geometry(128), Geometry(128, 1, ContextParallel(2, 0, 1))]
    assert [int(cell.replace(",", "")) for cell in row] == [largest_position(each) for each in geometries]
    (row,) = re.findall(r"^\| `v1`, `v2`, `tiled` \| (.+) \|$", TEXT, re.MULTILINE)
    now = [bounds(each, family, frozenset({"division"}), own=True, wide=False) for each in geometries for family in OWN]
    assert {f"{each.position:,}" for each in now} == set(row.split(" | "))
    assert f"block {largest_block(128, gathered=False, multiplied=False):,} for b = 128" in TEXT
    assert f"right up to block {largest_block(1, gathered=True, multiplied=False):,};" in TEXT
    assert f"block {largest_block(128, gathered=True, multiplied=True):,} for b = 128" in TEXT
