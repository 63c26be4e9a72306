"""Reproduction scripts where triton is triton-ascend's: its interpreter has no tl.gather, so a script does not blame
the kernel for that.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from conformance.lanes.environment import installed
from reports.issue import page
from reports.reproduction import pieces
from tests.commands import run
from tests.test_reports import REPORT
from tests.test_reproduction import ENTRIES, EXAMPLES, ROOT, call_for, script_for

SAYS = "this Python has triton-ascend, whose interpreter has no tl.gather: use one with triton"


def device(monkeypatch: pytest.MonkeyPatch, has_ascend: bool, interpreted: bool, **constants: bool) -> str:
    """Where a script would run. Raises SystemExit."""

    def version(name: str) -> str:
        if not has_ascend:
            raise importlib.metadata.PackageNotFoundError(name)
        return "3.2.0"

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setenv("TRITON_INTERPRET", str(int(interpreted)))
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    torch = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: True), set_num_threads=lambda number: None)
    names: dict[str, Any] = {"os": os, "sys": sys, "torch": torch, "ON_HOST": False, "PLAIN_TORCH": False, **constants}
    exec(pieces.DEVICE, names)
    return str(names["DEVICE"])


def test_a_kernel_is_not_interpreted_by_triton_ascend(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        device(monkeypatch, has_ascend=True, interpreted=True)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith(SAYS)


def test_anything_else_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device(monkeypatch, has_ascend=False, interpreted=True) == "cpu"
    assert device(monkeypatch, has_ascend=True, interpreted=True, PLAIN_TORCH=True) == "cpu"
    assert device(monkeypatch, has_ascend=True, interpreted=False) == "cuda"


@pytest.mark.skipif(installed("triton-ascend") is None, reason="triton-ascend is not installed")
def test_a_whole_script_says_so(tmp_path: Path) -> None:
    made = script_for(EXAMPLES["v1"], ENTRIES["v1"], ROOT / "kernels" / "slot_mapping.py")
    script = tmp_path / "script.py"
    script.write_text(str(made.script), encoding="utf-8")
    done = run(sys.executable, script, variables={"TRITON_INTERPRET": "1"})
    assert (done.status, done.output.startswith(SAYS)) == (2, True), done.output


def test_script_and_page_tell_it_beforehand() -> None:
    call, _ = call_for(EXAMPLES["v1"], ENTRIES["v1"], ROOT / "kernels" / "slot_mapping.py")
    made = script_for(EXAMPLES["v1"], ENTRIES["v1"], ROOT / "kernels" / "slot_mapping.py")
    header = [line for line in str(made.script).splitlines() if line.startswith("# ")]
    assert "a Python with triton and not triton-ascend" in " ".join(line.removeprefix("# ") for line in header)
    shown = page(replace(REPORT, call=call, expected=((0,) * 7,)), "failure.json")
    assert "it needs a Python with triton and not triton-ascend" in shown
