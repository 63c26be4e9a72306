"""``python -m conformance.agreement``: the lowered lane against the interpreter lane, case by case.

Both run the same drawn cases of every entry point, and their whole outputs are compared element for element, as is how
each launch ended. The lanes share nothing behind Triton's language, so what they agree on is not an error of either.
Exit status 0: they agree; 1: they differ somewhere; 2: there was nothing to compare,
one of the two environments is missing, say.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
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
from reports.files import ReportError, json_lines, write_text

SCHEMA = 1
CHUNK = 250  # cases drawn, launched on both lanes and forgotten again
MOST_SAVED = 3  # differing cases of an entry point that are written to files
SECONDS_BETWEEN_LINES = 30.0


@dataclass(slots=True)
class Comparison:
    """One entry point: ``cases`` compared, and those that differ with what the lanes said."""

    entry: EntryPoint
    cases: int = 0
    differences: int = 0
    saved: list[tuple[Item, str]] = field(default_factory=list)

    def add(self, item: Item, here: Outcome, there: Outcome) -> None:
        self.cases += 1
        difference = difference_between(here, there)
        if difference is not None:
            self.differences += 1
            if len(self.saved) < MOST_SAVED:
                self.saved.append((item, difference))

    def line(self) -> str:
        return f"{self.entry.id}: {self.cases} cases, {self.differences} differences"


def difference_between(lowered: Outcome, interpreter: Outcome) -> str | None:
    """In words, or None.

    Of a guard violation buffer, direction and side count: how far into the fence the first access of a vector falls is
    the lane's own choice.
    """
    if lowered.status != interpreter.status:
        return f"lowered: {_ending(lowered)}; interpreter: {_ending(interpreter)}"
    if _guards(lowered) != _guards(interpreter):
        return f"guard violations: {_guards(lowered)} on lowered, {_guards(interpreter)} on interpreter"
    for name in sorted(lowered.outputs.keys() | interpreter.outputs.keys()):
        one, other = lowered.outputs.get(name, []), interpreter.outputs.get(name, [])
        if one != other:
            if len(one) != len(other):
                return f"{name}: {len(one)} elements on lowered, {len(other)} on interpreter"
            index = next(index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
            return f"{name}[{index}]: {one[index]} on lowered, {other[index]} on interpreter"
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
    engine: Engine, other: OtherLane, entry: EntryPoint, count: int, seed: int, progress: Progress
) -> Comparison:
    """``count`` cases of ``entry`` on ``engine`` and on the ``other`` lane at the same time."""
    comparison = Comparison(entry)
    target = UnderTest(engine, entry)
    number = seed
    while comparison.cases < count:
        items = [item_of(entry, each) for each in draw(target, min(CHUNK, count - comparison.cases), number)]
        other.ask(entry, items)
        here = [outcomes(engine, entry, drawn_of(entry, item))[0] for item in items]
        for item, one, (another,) in zip(items, here, other.answer(), strict=True):
            comparison.add(item, one, another)
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


def run(who: Who, cases: int, seed: int, budget: int, folder: Path) -> int:
    lane = lanes.by_name("lowered")
    reason = lane.unavailable()
    if reason is not None:
        raise LaneError(f"lane lowered: {reason} (`make environment` creates its environment)")
    started = time.monotonic()
    found: list[Comparison] = []
    with OtherLane("interpreter", INTERPRETER, who) as other:
        engine = who.engine(lane, budget, workers=len(os.sched_getaffinity(0)))
        try:
            entries = [entry for entry in engine.entries() if entry.status == TESTABLE]
            if not entries:
                raise LaneError(f"subject {who.subject!r} has no entry point that can be tested")
            progress = Progress(cases)
            for entry, share in _shares(entries, cases):
                engine.compile(entry, lambda done, total: None)
                found.append(compare(engine, other, entry, share, seed, progress))
                print(found[-1].line(), flush=True)
                for line in _write_differences(found[-1], folder):
                    print(line, flush=True)
        finally:
            engine.close()
    differences = sum(each.differences for each in found)
    figures = {
        "schema": SCHEMA,
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
        return run(who, options.cases, options.seed, options.compile_budget, options.report_dir)
    except (LaneError, SubjectError, ReportError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above 0")
    return number


if __name__ == "__main__":
    sys.exit(main())
