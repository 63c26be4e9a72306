"""What several runs have drawn, added up: ``coverage.json`` of each as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from reference.fields import INT64_MAX, CaseError, shown
from reports.coverage import SCHEMA


def added(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """``coverage.json`` of all ``documents`` together, begun when the first of them was. Raises CaseError where one of
    them is put together otherwise than those before it.
    """
    started: list[str] = []
    total: Any = {}
    for each in documents:
        started.append(str(each.get("started", "")))
        total = _sum(total, each.get("entry_points", {}), "entry_points")
    return {"schema": SCHEMA, "started": min(started, default=""), "entry_points": total}


def _sum(one: Any, other: Any, where: str) -> Any:
    """Numbers are added, objects field by field, and lists of [what, ..., number] by what they count."""
    if isinstance(one, dict) and isinstance(other, dict):
        found = dict(one)
        for name, value in other.items():
            found[name] = _sum(found[name], value, f"{where}.{name}") if name in found else value
        return found
    if isinstance(one, list) and isinstance(other, list):
        counts: dict[tuple[Any, ...], Any] = {}
        for row in (*one, *other):
            if not isinstance(row, list) or not row or not _is_number(row[-1]):
                raise CaseError(f"{where}: expected lists that end with a number, got {shown(row)}")
            key = tuple(map(_plain, row[:-1]))
            counts[key] = counts.get(key, 0) + row[-1]
        return [[*key, number] for key, number in sorted(counts.items(), key=lambda item: _order(item[0]))]
    if _is_number(one) and _is_number(other):
        return round(one + other, 3) if isinstance(one + other, float) else one + other
    raise CaseError(f"{where}: {shown(one)} in one run and {shown(other)} in another cannot be added")


def _is_number(value: object) -> bool:
    """One that can be added to others of its kind, however many."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= INT64_MAX


def _plain(value: object) -> object:
    return str(value) if isinstance(value, list | dict) else value


def _order(key: tuple[object, ...]) -> tuple[tuple[bool, float, str], ...]:
    """Numbers by size, before words."""
    return tuple((False, float(each), "") if isinstance(each, int | float) else (True, 0.0, str(each)) for each in key)
