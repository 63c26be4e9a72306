"""Every seeded fault still fits the kernels: it applies, changes what is executed, and is valid Python."""

from __future__ import annotations

import ast
import filecmp
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.catalogue import CATALOGUE, PACKAGE, Fault, FaultError, by_name, write_variant


@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_a_fault_changes_its_file_and_nothing_else(fault: Fault, tmp_path: Path) -> None:
    assert write_variant(fault, tmp_path) == tmp_path

    changed = ast.parse((tmp_path / "kernels" / fault.file).read_text(encoding="utf-8"))
    original = ast.parse((PACKAGE / fault.file).read_text(encoding="utf-8"))
    assert ast.dump(changed) != ast.dump(original)
    others = [path.name for path in PACKAGE.glob("*.py") if path.name != fault.file]
    assert filecmp.cmpfiles(PACKAGE, tmp_path / "kernels", others, shallow=False) == (others, [], [])


def test_names_are_unique_and_can_be_looked_up() -> None:
    assert [by_name(fault.name) for fault in CATALOGUE] == list(CATALOGUE)


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(FaultError, match=r"no fault 'no-such'; there are .*padding-starts-late"):
        by_name("no-such")


@pytest.mark.parametrize(("old", "times"), [("no such text", 0), ("import", 4)])
def test_a_text_that_does_not_occur_once_is_refused(old: str, times: int, tmp_path: Path) -> None:
    source = (PACKAGE / "slot_mapping.py").read_text(encoding="utf-8")
    assert (source.count(old) == 0) == (times == 0)
    broken = replace(by_name("padding-starts-late"), replacements=((old, "x"),))

    with pytest.raises(FaultError, match=rf"padding-starts-late: {old!r} occurs \d+ times in kernels/slot_mapping.py"):
        write_variant(broken, tmp_path)
    assert not (tmp_path / "kernels").exists()
