"""What ``audit.json`` says of each kernel, as a bar: vector, movement and scalar instructions of a tile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WIDTH = 320.0
_KINDS = (("vector", "vector operations"), ("movement", "transfers"), ("scalar", "scalar instructions"))
MOST_LOOPS = 12


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the bar. ``number`` instructions a tile."""

    kind: str
    x: float
    width: float
    number: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel in the setting, of those measured, in which a tile has most instructions. ``compiled`` of ``rows``
    settings and chips. ``parts`` are empty where nothing was measured.
    """

    name: str
    function: str
    setting: str
    chip: str
    compiled: int
    rows: int
    parts: tuple[Part, ...]
    loops: tuple[str, ...]
    ub_percent: float | None
    words: str


@dataclass(frozen=True, slots=True)
class Audited:
    """An audit: its kernels, and how many of its findings are accepted."""

    compiler: str
    targets: tuple[str, ...]
    kernels: tuple[Kernel, ...]
    findings: int
    accepted: int


def audited(found: Mapping[str, Any]) -> Audited:
    """What ``audit.json`` holds. Raises KeyError, TypeError, ValueError or AttributeError for what is none."""
    rows: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in found["rows"]:
        rows.setdefault((str(row["entry_point"]), str(row["function"])), []).append(row)
    reasons = [finding["accepted"] for finding in found["findings"]]
    return Audited(
        str(found["compiler"]),
        tuple(map(str, found["targets"])),
        tuple(_kernel(name, function, seen) for (name, function), seen in rows.items()),
        len(reasons),
        sum(reason is not None for reason in reasons),
    )


def _kernel(name: str, function: str, rows: list[Mapping[str, Any]]) -> Kernel:
    compiled = sum(row["status"] == "compiled" for row in rows)
    measured = [row for row in rows if row["per_tile"] is not None]
    if not measured:
        return Kernel(name, function, "", "", compiled, len(rows), (), (), None, f"{name}: nothing was measured")
    most = max(measured, key=lambda row: sum(_numbers(row)))
    numbers = _numbers(most)
    whole = sum(numbers) or 1
    parts, x = [], 0.0
    for (kind, _), number in zip(_KINDS, numbers, strict=True):
        width = WIDTH * number / whole
        parts.append(Part(kind, x, width, number))
        x += width
    counted = ", ".join(f"{number:,} {what}" for (_, what), number in zip(_KINDS, numbers, strict=True))
    ub = most["ub_bytes"]
    return Kernel(
        name,
        function,
        ", ".join(f"{key} {value}" for key, value in most["settings"].items()),
        str(most["target"]),
        compiled,
        len(rows),
        tuple(parts),
        tuple(dict.fromkeys(_loop(loop) for loop in most["scalar_loops"]))[:MOST_LOOPS],
        None if ub is None else 100 * ub["used"] / ub["available"],
        f"{name}: {counted} a tile",
    )


def _numbers(row: Mapping[str, Any]) -> list[int]:
    return [int(row["per_tile"][kind]) for kind, _ in _KINDS]


def _loop(loop: Mapping[str, Any]) -> str:
    place = loop["line"]
    where = f"{str(place['file']).rpartition('/')[2]}:{place['line']} " if place else ""
    return f"{where}{loop['operation']}"
