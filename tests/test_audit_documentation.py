"""The page on the audit says what the audit does."""

from __future__ import annotations

import re

from conformance.audit.__main__ import TARGETS, parser
from conformance.audit.bounds import largest_block, largest_position
from conformance.audit.rules import RULES
from reference.case import ContextParallel
from strategies.geometry import Geometry
from tests.commands import ROOT

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


def test_the_bounds_are_those_of_the_sweep() -> None:
    (row,) = re.findall(
        r"^\| `v1`, `v2`, `tiled` \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \| ([\d,]+) \|$", TEXT, re.MULTILINE
    )
    geometries = [Geometry(1), Geometry(16), Geometry(128), Geometry(128, 1, ContextParallel(2, 0, 1))]
    assert [int(cell.replace(",", "")) for cell in row] == [largest_position(each) for each in geometries]
    assert f"block {largest_block(128, gathered=False, multiplied=False):,} for b = 128" in TEXT
    assert f"right up to block {largest_block(1, gathered=True, multiplied=False):,};" in TEXT
    assert f"block {largest_block(128, gathered=True, multiplied=True):,} for b = 128" in TEXT
