"""The audit on the page of a run: a bar a kernel, drawn from ``audit.json`` alone."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from reports.page import draw
from reports.page.audit import WIDTH, audited
from reports.summary import Summary, Tally


def row(entry: str, scalar: int | None, target: str = "Ascend910B3", **more: object) -> dict[str, object]:
    per_tile = None if scalar is None else {"vector": 60, "movement": 20, "scalar": scalar}
    loops: list[dict[str, Any]] = [{"line": {"file": "/x/tiled.py", "line": 44}, "operation": "scattered-load"}]
    return {
        "entry_point": entry,
        "function": f"_{entry}",
        "settings": {"b": 128, "tile": 1024},
        "target": target,
        "status": "compiled",
        "per_tile": per_tile,
        "scalar_loops": loops * 2 if scalar else [],
        "ub_bytes": {"used": 50, "available": 200},
        **more,
    }


AUDIT = {
    "schema": 1,
    "compiler": "bishengir-compile 1.2.0",
    "targets": ["Ascend910B3", "Ascend950PR_9579"],
    "rows": [
        row("kernels.v1", 0),
        row("kernels.v1", 20, settings={"b": 1}),
        row("kernels.v1", None, "Ascend950PR_9579", status="refused"),
        row("kernels.<b>new", None, "Ascend950PR_9579"),
    ],
    "findings": [{"accepted": None}, {"accepted": "it is so"}],
}


def test_a_kernel_is_shown_in_its_largest_setting() -> None:
    v1, new = audited(AUDIT).kernels
    assert (v1.setting, v1.compiled, v1.rows, v1.ub_percent) == ("b 1", 2, 3, 25.0)
    assert [(part.kind, part.number, part.x / WIDTH, part.width / WIDTH) for part in v1.parts] == [
        ("vector", 60, 0.0, 0.6),
        ("movement", 20, pytest.approx(0.6), 0.2),
        ("scalar", 20, pytest.approx(0.8), 0.2),
    ]
    assert v1.loops == ("tiled.py:44 scattered-load",)
    assert (new.parts, new.compiled) == ((), 1)


def test_nothing_measured_is_not_a_bar_of_nothing(tmp_path: Path) -> None:
    text = page_of(tmp_path, json.dumps(AUDIT))
    section = text[text.index('<section id="audit"') :]
    assert section.count('<svg class="audit"') == 1
    assert section.count("not measured") == 1
    assert "kernels.&lt;b&gt;new" in section
    assert "2 findings, 1 accepted" in section
    assert [float(width) for width in re.findall(r'<rect class="\w+" x="[\d.]+" y="0" width="([\d.]+)"', section)] == [
        192,
        64,
        64,
    ]


def test_without_an_audit_the_page_says_nothing_of_one(tmp_path: Path) -> None:
    assert "#audit" not in page_of(tmp_path, None)


def test_an_audit_that_is_none_is_named_and_the_page_drawn(tmp_path: Path) -> None:
    text = page_of(tmp_path, json.dumps({**AUDIT, "rows": [{"entry_point": "v1"}]}))
    assert "audit.json: KeyError" in text
    assert '<section id="audit"' not in text


def page_of(folder: Path, audit: str | None) -> str:
    summary = Summary(("kernels",), "lowered", 1.0, {"kernels.v1": Tally(1, 1, 0)}).to_json()
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    if audit is not None:
        (folder / "audit.json").write_text(audit, encoding="utf-8")
    return draw(folder).read_text(encoding="utf-8")
