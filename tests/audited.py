"""Compiling for tests of the audit: small kernels by name, and compilers that are none."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from conformance.audit.launches import Build
from conformance.audit.rows import Row
from conformance.audit.workers import audit
from conformance.lanes.ascend import compiler
from conformance.lanes.ascend.binding import Bound
from conformance.subjects.entry import EntryPoint
from strategies.declaration import Declaration
from strategies.specializations import Specialization
from tests import audited_kernels

CHIPS = ("Ascend910B3", "Ascend910_9392")
CHIP_950 = "Ascend950PR_9579"

_TYPES: Mapping[str, dict[str, str]] = {
    "remainders": {"values": "*i32", "out": "*i32", "n": "i32"},
    "quotients_of_gathered": {"values": "*i32", "indices": "*i32", "out": "*i32", "n": "i32", "tiles": "i32"},
    "scattered": {"values": "*i32", "indices": "*i32", "out": "*i64"},
    "shifted_or_divided": {"values": "*i32", "out": "*i32", "n": "i32"},
    "short_or_long": {"values": "*i32", "out": "*i32", "n": "i32"},
    "too_large": {"values": "*i32", "out": "*i32"},
    "of_every_batch": {"out": "*i32"},
    "refused": {"values": "*i32", "out": "*i32"},
}
_CONSTANTS: Mapping[str, dict[str, object]] = {"of_every_batch": {"num_tokens": 5}}


def build(name: str) -> Build:
    """One of ``tests.audited_kernels``."""
    kernel: Any = getattr(audited_kernels, name)
    entry = EntryPoint(
        "small", "1", name, name, "v1", str(audited_kernels.__file__), 1, (), (), Declaration(frozenset(), frozenset())
    )
    bound = Bound(_TYPES[name], _CONSTANTS.get(name, {}), (), [])
    return Build(entry, kernel, bound, {"b": 1}, Specialization(1))


@cache
def rows(name: str, *targets: str) -> tuple[Row, ...]:
    """Compiled by the real compiler, a target after the other."""
    return tuple(audit([build(name)], targets, compiler.find(60), 1, lambda done, total: None))


def fake(folder: Path, body: str, version: str = "1.2.0") -> Path:
    """A program that answers like the compiler as long as nothing is to be compiled, and then does ``body``."""
    path = folder / "bishengir-compile"
    path.write_text(
        "#!/bin/sh\n"
        f'case "$*" in\n--version) echo "bishengir-compile {version} (elsewhere)"; exit 0;;\n'
        '--help) echo "    =Ascend910B3         -   Ascend910B3"; exit 0;;\nesac\n'
        f"{body}\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path
