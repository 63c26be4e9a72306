"""``python -m conformance.agreement``: lanes against each other, case by case; the lowered lane against the interpreter
lane unless ``--lanes`` names others.

All run the same drawn cases of every entry point, and their whole outputs are compared element for element, as is how
each launch ended. Lanes ``interpreter`` and ``lowered`` share nothing behind Triton's language, and ``hivm`` shares
with ``lowered`` what comes before the back end: what they agree on is not an error of either. No case is drawn that
breaks a clause which one of the lanes needs. Exit status 0: they agree; 1: they differ somewhere; 2: there was nothing
to compare, one of the environments is missing, say.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from conformance import lanes
from conformance.both_lanes import (
    INTERPRETER,
    ROOT,
    Item,
    LaneError,
    OtherLane,
    Who,
    draw,
    drawn_of,
    item_of,
    outcomes,
)
from conformance.engine import Engine
from conformance.execution.session import Outcome, SubjectError
from conformance.subjects.entry import TESTABLE, EntryPoint
from conformance.under_test import UnderTest
from reference.contract import violations
from reports.files import ReportError, json_lines, write_text

SCHEMA = 1
CHUNK = 250  # cases drawn, launched on every lane and forgotten again
DEFAULT_LANES = "interpreter,lowered"
MOST_SAVED = 3  # differing cases of an entry point that are written to files
SECONDS_BETWEEN_LINES = 30.0


@dataclass(slots=True)
class Comparison:
    """One entry point: ``cases`` compared, and those that differ with what the lanes said."""

    entry: EntryPoint
    cases: int = 0
    differences: int = 0
    saved: list[tuple[Item, str]] = field(default_factory=list)

    def add(self, item: Item, outcomes: Mapping[str, Outcome]) -> None:
        """What the launch of ``item`` did on each lane; the first is compared with every other."""
        self.cases += 1
        (name, first), *others = outcomes.items()
        found = [difference_between(first, other, (name, another)) for another, other in others]
        differences = [each for each in found if each is not None]
        if differences:
            self.differences += 1
            if len(self.saved) < MOST_SAVED:
                self.saved.append((item, "; ".join(differences)))

    def line(self) -> str:
        return f"{self.entry.id}: {self.cases} cases, {self.differences} differences"


def difference_between(one: Outcome, other: Outcome, names: tuple[str, str]) -> str | None:
    """In words, or None; ``names`` are those of the lanes.

    Of a guard violation buffer, direction and side count: how far into the fence the first access of a vector falls is
    the lane's own choice.
    """
    here, there = names
    if one.status != other.status:
        return f"{here}: {_ending(one)}; {there}: {_ending(other)}"
    if _guards(one) != _guards(other):
        return f"guard violations: {_guards(one)} on {here}, {_guards(other)} on {there}"
    for name in sorted(one.outputs.keys() | other.outputs.keys()):
        mine, its = one.outputs.get(name, []), other.outputs.get(name, [])
        if mine != its:
            if len(mine) != len(its):
                return f"{name}: {len(mine)} elements on {here}, {len(its)} on {there}"
            index = next(index for index, pair in enumerate(zip(mine, its, strict=True)) if pair[0] != pair[1])
            return f"{name}[{index}]: {mine[index]} on {here}, {its[index]} on {there}"
    return None


def _ending(outcome: Outcome) -> str:
    return f"{outcome.status} {outcome.message}".strip()


def _guards(outcome: Outcome) -> list[tuple[str, str, str]]:
    return [
        (guard.buffer, guard.direction, "before" if guard.distance < 0 else "past" if guard.distance else "inside")
        for guard in outcome.guards
    ]


class Progress:
    """Says how far it is: on a terminal all the time in one line, elsewhere in a line every half minute."""

    def __init__(self, total: int) -> None:
        self._total, self._done, self._last = total, 0, time.monotonic()
        self._rewrites = sys.stderr.isatty()

    def add(self, cases: int, what: str) -> None:
        self._done += cases
        said = f"{self._done}/{self._total} cases, {what}"
        if self._rewrites:
            print(f"\r{said:<60}", end="\r" if self._done < self._total else "\n", file=sys.stderr, flush=True)
        elif time.monotonic() - self._last >= SECONDS_BETWEEN_LINES:
            self._last = time.monotonic()
            print(said, file=sys.stderr, flush=True)


def compare(
    engine: Engine, others: Sequence[OtherLane], entry: EntryPoint, count: int, seed: int, progress: Progress
) -> Comparison:
    """``count`` cases of ``entry`` on ``engine`` and on the ``others`` at the same time."""
    comparison = Comparison(entry)
    target = UnderTest(engine, entry)
    needed = engine.lane.clauses.union(*(lanes.by_name(other.name).clauses for other in others))
    number = seed
    while comparison.cases < count:
        drawn = draw(target, min(CHUNK, count - comparison.cases), number)
        items = [item_of(entry, each) for each in drawn if not violations(each[0], needed)]
        for other in others:
            other.ask(entry, items)
        here = [outcomes(engine, entry, drawn_of(entry, item))[0] for item in items]
        answers = {other.name: other.answer() for other in others}
        for index, (item, one) in enumerate(zip(items, here, strict=True)):
            there = {name: answer[index][0] for name, answer in answers.items()}
            comparison.add(item, {engine.lane.name: one, **there})
        progress.add(len(items), entry.id)
        number += 1
    return comparison


def _shares(entries: Sequence[EntryPoint], cases: int) -> Iterator[tuple[EntryPoint, int]]:
    """Cases spread evenly; the first entry points get what is left over."""
    each, left = divmod(cases, len(entries))
    for index, entry in enumerate(entries):
        yield entry, each + (index < left)


def _write_differences(comparison: Comparison, folder: Path) -> Iterator[str]:
    """Files that ``pytest conformance --replay`` takes; yields a line about each."""
    entry = comparison.entry
    for index, (item, difference) in enumerate(comparison.saved):
        document = {"subject": entry.subject, "entry_point": entry.name, **item}
        file = write_text(folder / f"disagreement-{entry.subject}-{entry.name}-{index}.json", json_lines(document))
        yield f"  {difference} ({file})"


def run(who: Who, names: Sequence[str], cases: int, seed: int, budget: int, folder: Path) -> int:
    """Compare the lanes ``names``. Raises LaneError."""
    here, *others = sorted(names, key="interpreter".__eq__)  # that one has an environment of its own
    lane = lanes.by_name(here)
    reason = lane.unavailable()
    if reason is not None:
        raise LaneError(f"lane {here}: {reason} (`make environment` creates its environment)")
    started = time.monotonic()
    found: list[Comparison] = []
    with ExitStack() as stack:
        there = [stack.enter_context(OtherLane(name, python_of(name), who)) for name in others]
        engine = who.engine(lane, budget, workers=len(os.sched_getaffinity(0)))
        stack.callback(engine.close)
        entries = [entry for entry in engine.entries() if entry.status == TESTABLE]
        if not entries:
            raise LaneError(f"subject {who.subject!r} has no entry point that can be tested")
        progress = Progress(cases)
        for entry, share in _shares(entries, cases):
            engine.compile(entry, lambda done, total: None)
            found.append(compare(engine, there, entry, share, seed, progress))
            print(found[-1].line(), flush=True)
            for line in _write_differences(found[-1], folder):
                print(line, flush=True)
    differences = sum(each.differences for each in found)
    figures = {
        "schema": SCHEMA,
        "lanes": list(names),
        "cases": sum(each.cases for each in found),
        "differences": differences,
        "seed": seed,
        "seconds": round(time.monotonic() - started, 1),
        "entry_points": {each.entry.id: {"cases": each.cases, "differences": each.differences} for each in found},
    }
    print(f"{figures['cases']} cases, {differences} differences, {figures['seconds']} s")
    write_text(folder / "agreement.json", json_lines(figures))
    return 1 if differences else 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.agreement", description=__doc__)
    parser.add_argument("--cases", type=_positive, default=20_000, help="over all entry points (default 20,000)")
    parser.add_argument(
        "--lanes",
        type=_lanes,
        default=DEFAULT_LANES,
        metavar="NAMES",
        help=f"two or more, separated by commas (default {DEFAULT_LANES})",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the first chunk of each entry point (default 0)")
    parser.add_argument("--subject", default="kernels", help="whose kernels (default kernels)")
    parser.add_argument("--source", metavar="PATH", help="a checkout or an unpacked wheel to read them from")
    parser.add_argument("--compile-budget", type=_positive, default=64, metavar="N", help="as of pytest (default 64)")
    parser.add_argument(
        "--report-dir", type=Path, default=ROOT / "reports" / "output", help="where agreement.json goes"
    )
    options = parser.parse_args(arguments)
    source = options.source and os.path.abspath(options.source)
    try:
        who = Who(options.subject, source)
        return run(who, options.lanes, options.cases, options.seed, options.compile_budget, options.report_dir)
    except (LaneError, SubjectError, ReportError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def python_of(lane: str) -> Path:
    """The interpreter of the environment in which ``lane`` runs."""
    return INTERPRETER if lane == "interpreter" else Path(sys.executable)


def _lanes(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    for name in names:
        if name not in lanes.names():
            raise argparse.ArgumentTypeError(f"unknown lane {name!r}, choose among {', '.join(lanes.names())}")
    if len(set(names)) < 2 or len(set(names)) < len(names):
        raise argparse.ArgumentTypeError(f"{text!r} are not two or more different lanes")
    return names


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
