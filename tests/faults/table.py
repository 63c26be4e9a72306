"""The matrix as JSON and as lines to read."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from tests.faults.killing import INVALID, KILLED, SURVIVED
from tests.faults.matrix import Fault

SCHEMA = 1


def document(chosen: Sequence[Fault], found: Mapping[str, Mapping[int, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """Everything that was found out, one entry a fault, and the whole in figures."""
    rows = [_row(fault, found[fault.name]) for fault in chosen]
    return {"schema": SCHEMA, "seeds": len(seeds), "faults": rows, "summary": _summary(rows, len(seeds))}


def _row(fault: Fault, results: Mapping[int, Any]) -> dict[str, Any]:
    all_of = list(results.values())
    killed = [each for each in all_of if each["status"] == KILLED]
    tests = Counter(each["test"] for each in killed)
    examples = [each["examples"] for each in killed if each["examples"] is not None]
    quick = [each for each in killed if each["quick_test"]]
    shrunk = [each for each in killed if each["tokens"] is not None]
    first = all_of[0]
    if first["status"] == INVALID:
        status = INVALID
    elif fault.equivalent:
        status = "killed although equivalent" if killed else "another test" if fault.test else "equivalent"
    else:
        status = KILLED if len(killed) == len(all_of) else SURVIVED
    return {
        "name": fault.name,
        "source": "mutation" if fault.is_mutation else "catalogue",
        "entry_point": fault.entry_point,
        "kind": fault.kind,
        "summary": fault.summary,
        "status": status,
        "equivalent": fault.equivalent,
        "killed_by": tests.most_common(1)[0][0] if tests else fault.test,
        "verdict": killed[0]["verdict"] if killed else first["verdict"],
        "detail": killed[0]["detail"] if killed else first["detail"],
        "cause": shrunk[0]["cause"] if shrunk else "",
        "killed_with_seeds": len(killed),
        "examples": median(examples) if examples else None,
        "examples_by_seed": [each["examples"] for each in all_of],
        "quick_with_seeds": len(quick),
        "quick_by_seed": [each["quick"] for each in all_of],
        "tokens": shrunk[0]["tokens"] if shrunk else None,
        "seconds": round(sum(each["seconds"] for each in all_of), 2),
    }


def _summary(rows: Sequence[Mapping[str, Any]], seeds: int) -> dict[str, Any]:
    """Counts over what runs: a fault that does not run is none."""
    there = [row for row in rows if row["status"] != INVALID]
    real = [row for row in there if not row["equivalent"]]
    killed = [row for row in real if row["status"] == KILLED]
    mutations = [row for row in there if row["source"] == "mutation"]
    examples = [row["examples"] for row in killed if row["examples"] is not None]
    tokens = [row["tokens"] for row in killed if row["tokens"] is not None]
    quick = sum(row["quick_with_seeds"] for row in real)
    wrongly = [row["name"] for row in there if row["status"] == "killed although equivalent"]
    return {
        "faults": len(real),
        "catalogue": sum(row["source"] == "catalogue" for row in real),
        "mutations": sum(row["source"] == "mutation" for row in real),
        "do_not_run": len(rows) - len(there),
        "equivalent": sum(row["status"] == "equivalent" for row in there),
        "another_test": sum(row["status"] == "another test" for row in there),
        "by_entry_point": dict(Counter(row["entry_point"] for row in mutations if not row["equivalent"])),
        "killed_with_every_seed": len(killed),
        "killed_with_some_seed": sum(row["killed_with_seeds"] > 0 for row in real),
        "survivors": [row["name"] for row in real if row["status"] == SURVIVED],
        "median_examples": median(examples) if examples else None,
        "most_examples": max(examples, default=None),
        "searches": len(real) * seeds,
        "killed_at_quick": quick,
        "killed_at_quick_percent": round(100 * quick / (len(real) * seeds), 1) if real else None,
        "median_tokens": median(tokens) if tokens else None,
        "most_tokens": max(tokens, default=None),
        "killed_although_equivalent": wrongly,
        "seconds": round(sum(row["seconds"] for row in rows), 1),
        "as_it_should_be": len(killed) == len(real) and not wrongly,
    }


def lines(report: Mapping[str, Any]) -> Iterator[str]:
    """One line a fault, then the figures."""
    yield f"{'examples':>8} {'tokens':>6} {'seconds':>7}  {'killed by':<48} fault"
    for row in report["faults"]:
        if row["status"] == KILLED:
            by = row["killed_by"].partition("::")[2]
        elif row["status"] == SURVIVED:
            by = f"SURVIVES {report['seeds'] - row['killed_with_seeds']} of {report['seeds']} seeds"
        else:
            by = row["status"]
        number = "-" if row["examples"] is None else f"{row['examples']:g}"
        tokens = "-" if row["tokens"] is None else row["tokens"]
        yield f"{number:>8} {tokens:>6} {row['seconds']:>7.1f}  {by[:48]:<48} {row['entry_point']}: {row['name']}"
    summary = report["summary"]
    yield ""
    yield (
        f"{summary['faults']} faults ({summary['catalogue']} of the catalogue, {summary['mutations']} mutations; "
        f"beside them {summary['equivalent']} equivalent, {summary['another_test']} that another test kills and "
        f"{summary['do_not_run']} that do not run), "
        f"{report['seeds']} seeds"
    )
    yield (
        f"killed with every seed: {summary['killed_with_every_seed']}; at quick {summary['killed_at_quick']} of "
        f"{summary['searches']} searches ({summary['killed_at_quick_percent']}%)"
    )
    yield (
        f"examples until killed: median {summary['median_examples']}, most {summary['most_examples']}; "
        f"tokens of the shrunk case: median {summary['median_tokens']}, most {summary['most_tokens']}; "
        f"{summary['seconds']} s of work"
    )
    for name in summary["killed_although_equivalent"]:
        yield f"killed although equivalent: {name}"


def write(report: Mapping[str, Any], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
