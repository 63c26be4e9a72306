"""The tables of ``docs/detection.md`` from the matrix's JSON, so that no figure is typed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from tests.faults.killing import CONFORMANCE, KILLED, PUBLISHED, RANDOM, SURVIVED
from tests.faults.naive import CASES

_REAL = (KILLED, SURVIVED)
_FEW = 15  # examples within which most faults are to be found

Row = Mapping[str, Any]


def tables(report: Mapping[str, Any]) -> Iterator[str]:
    """Section 1: what there is, how it ended, by entry point, what survives. Section 2 where the report has it."""
    yield from _of_faults(report)
    if "compared" in report:
        yield ""
        yield from _compared(report["compared"])


def _of_faults(report: Mapping[str, Any]) -> Iterator[str]:
    summary, seeds = report["summary"], report["seeds"]
    real = [row for row in report["faults"] if row["status"] in _REAL]
    examples = [count for row in real for count in row["examples_by_seed"] if count is not None]
    yield (
        f"{summary['faults']} faults, {summary['catalogue']} of them re-created kinds and {summary['mutations']} "
        f"mutations, of which {summary['do_not_run']} more do not run and "
        f"{summary['equivalent'] + summary['another_test']} more are untold, {summary['equivalent']} equivalent and "
        f"{summary['another_test']} that a named test of the project kills. Seeds 0 to {seeds - 1}, "
        f"{summary['searches']} searches."
    )
    yield ""
    yield "| | |"
    yield "|---|---|"
    yield f"| killed at profile gate with each of {seeds} seeds | {summary['killed_with_every_seed']} of {len(real)} |"
    found, quick = sum(row["killed_with_seeds"] for row in real), summary["killed_at_quick"]
    yield f"| searches that kill at profile gate | {_share(found, summary['searches'])} |"
    yield f"| searches that kill at profile quick | {_share(quick, summary['searches'])} |"
    yield (
        f"| examples until killed, median over the seeds: median and most | {_number(summary['median_examples'])} and "
        f"{_number(summary['most_examples'])}; more than {_FEW} for {_above(real)} faults |"
    )
    yield f"| examples of a single search, most | {_number(max(examples, default=None))} |"
    yield (
        f"| tokens of the case made smaller, median and most | {_number(summary['median_tokens'])} and "
        f"{_number(summary['most_tokens'])} |"
    )
    yield f"| seconds of work in all | {summary['seconds']:.0f} |"
    yield ""
    yield "| entry point | faults | of them mutations | killed with every seed | median examples | most |"
    yield "|---|---|---|---|---|---|"
    for entry, rows in _by_entry(real).items():
        counts = [row["examples"] for row in rows if row["examples"] is not None]
        mutations = sum(row["source"] == "mutation" for row in rows)
        killed = sum(row["status"] == KILLED for row in rows)
        middle = _number(median(counts) if counts else None)
        most = _number(max(counts, default=None))
        yield f"| `{entry}` | {len(rows)} | {mutations} | {killed} | {middle} | {most} |"
    yield ""
    yield "| of the tests, kills the most faults | faults |"
    yield "|---|---|"
    tests: dict[str, int] = defaultdict(int)
    for row in real:
        if row["killed_by"]:
            tests[row["killed_by"]] += 1
    for test, count in sorted(tests.items(), key=lambda item: (-item[1], item[0])):
        yield f"| `{test}` | {count} |"
    survivors = [row for row in real if row["status"] == SURVIVED]
    if survivors:
        yield ""
        yield "| survives | entry point | seeds that kill it |"
        yield "|---|---|---|"
        for row in survivors:
            yield f"| {_code(row['name'])} | `{row['entry_point']}` | {row['killed_with_seeds']} of {seeds} |"


def _compared(comparison: Mapping[str, Any]) -> Iterator[str]:
    own, other, random = (comparison[suite] for suite in (CONFORMANCE, PUBLISHED, RANDOM))
    yield f"| entry point | faults | this suite | published cases | {CASES} random cases | published cases there are |"
    yield "|---|---|---|---|---|---|"
    for entry, (killed, count) in own["by_entry_point"].items():
        others = f"{other['by_entry_point'][entry][0]} | {random['by_entry_point'][entry][0]}"
        yield f"| `{entry}` | {count} | {killed} | {others} | {comparison['cases'][entry]} |"
    yield f"| all | {comparison['faults']} | {own['killed']} | {other['killed']} | {random['killed']} | |"
    yield ""
    yield (
        f"Random cases: killed with every seed; {random['mean_killed']} on average, of those the median after "
        f"{_number(random['median_cases'])} cases (published ones after {_number(other['median_cases'])})."
    )


def _by_entry(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["entry_point"]].append(row)
    return found


def _above(rows: Sequence[Row]) -> int:
    return sum(row["examples"] is not None and row["examples"] > _FEW for row in rows)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f}%)" if whole else "0 of 0"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _code(text: str) -> str:
    """A name that may hold bars and backticks, in a cell of a table."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{text}{fence}".replace("|", "\\|")
