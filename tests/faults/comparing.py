"""The same faults against what people have today: the cases of published tests, and naive random ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from tests.faults.killing import KILLED, PUBLISHED, RANDOM
from tests.faults.matrix import Fault
from tests.faults.naive import CASES
from tests.faults.published import SETS, published

SUITES = (PUBLISHED, RANDOM)


def compared(
    rows: Sequence[Mapping[str, Any]], chosen: Sequence[Fault], found: Mapping[str, Mapping[str, Mapping[int, Any]]]
) -> dict[str, Any]:
    """What each suite kills of the faults of ``rows``, in all and by entry point. ``found``: results by suite, fault
    and seed. Of random cases, what is killed with every seed, and the mean over the seeds.
    """
    real = {row["name"] for row in rows if row["status"] in (KILLED, "survived")}
    faults = [fault for fault in chosen if fault.name in real]
    own = {row["name"] for row in rows if row["status"] == KILLED}
    answer: dict[str, Any] = {"faults": len(faults), "sources": [each.source for each in SETS]}
    answer["conformance"] = {"killed": len(own), "by_entry_point": _by_entry(faults, own)}
    for suite in SUITES:
        results = {fault.name: list(found[suite][fault.name].values()) for fault in faults}
        killed = {name for name, all_of in results.items() if all(each["status"] == KILLED for each in all_of)}
        counts = [each["examples"] for all_of in results.values() for each in all_of if each["status"] == KILLED]
        seeds = max(map(len, results.values()), default=0)
        answer[suite] = {
            "killed": len(killed),
            "mean_killed": round(len(counts) / seeds, 1) if seeds else 0,
            "by_entry_point": _by_entry(faults, killed),
            "median_cases": median(counts) if counts else None,
            "survivors": sorted(real - killed),
        }
    answer["cases"] = {entry: len(published(entry)) for entry in sorted({fault.entry_point for fault in faults})}
    return answer


def _by_entry(faults: Sequence[Fault], killed: set[str]) -> dict[str, list[int]]:
    """Killed of how many."""
    of = Counter(fault.entry_point for fault in faults)
    dead = Counter(fault.entry_point for fault in faults if fault.name in killed)
    return {entry: [dead[entry], count] for entry, count in of.items()}


def side_by_side(comparison: Mapping[str, Any]) -> Iterator[str]:
    """A line an entry point, then all of them."""
    yield f"{'entry point':<12} {'faults':>6} {'suite':>6} {'published':>9} {'random':>6}   published cases"
    own, other, random = (comparison[suite]["by_entry_point"] for suite in ("conformance", PUBLISHED, RANDOM))
    for entry, (killed, count) in own.items():
        cases = comparison["cases"][entry]
        yield f"{entry:<12} {count:>6} {killed:>6} {other[entry][0]:>9} {random[entry][0]:>6}   {cases}"
    total = [comparison[suite]["killed"] for suite in ("conformance", PUBLISHED, RANDOM)]
    yield f"{'all':<12} {comparison['faults']:>6} {total[0]:>6} {total[1]:>9} {total[2]:>6}"
    mean = comparison[RANDOM]["mean_killed"]
    yield f"random: {CASES} cases; killed with every seed, {mean} on average"
