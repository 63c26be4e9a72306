"""``make bench``: how fast the suite itself is. Two lanes on the same cases in one run, the whole loop, compiling.

Machines differ and are shared, so lanes are compared by ratio, in rounds that take turns; absolute figures are medians.
The result is printed and written to ``bench.json``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings

from conformance import lanes
from conformance.both_lanes import CACHE, INTERPRETER, ROOT, OtherLane, Who, draw, item_of, outcomes
from conformance.engine import Engine, Options
from conformance.execution.session import Outcome
from conformance.lanes.lowered import LoweredLane
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from conformance.under_test import Drawn, UnderTest
from reference.case import Case, Group, Launch
from reports.environment import environment
from reports.files import json_lines, write_text

SCHEMA = 1
BUDGET = 64
CORES = len(os.sched_getaffinity(0))


def engine_on(lane: lanes.Lane, cache: Path, workers: int = CORES) -> tuple[Engine, EntryPoint]:
    """An engine and its entry point v1, which all figures are about."""
    engine = Engine(lane, Options(("kernels",), {}, BUDGET, 60.0, cache, workers))
    return engine, next(entry for entry in engine.entries() if entry.name == "v1")


def five_programs(tile: int) -> tuple[Case, Launch, Settings]:
    """Four requests of one full tile each, and the program that pads."""
    bounds = tuple(request * tile for request in range(5))
    width = tile // 128 + 1
    table = tuple(tuple(range(row * width, (row + 1) * width)) for row in range(4))
    positions = tuple(range(tile)) * 4
    case = Case(bounds, positions, 4 * tile, 4 * tile + tile, (Group(table, 128, 128),))
    return case, Launch(), Settings(tile=tile)


def loop(target: UnderTest, count: int, number: int) -> float:
    """Cases a second of the whole loop: draw, oracle, launch, compare."""

    @seed(number)
    @settings(
        max_examples=count, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck]
    )
    @given(target.cases())
    def agrees(each: Drawn) -> None:
        target.agrees_with_the_oracle(each)

    started = time.perf_counter()
    agrees()
    return count / (time.perf_counter() - started)


def launch_time(launched: Iterable[Outcome]) -> float:
    """The median time of several launches of one case but the first, in seconds, as timed around the call in the child
    process.
    """
    times = []
    for outcome in launched:
        if outcome.status != "ok":
            raise RuntimeError(f"a launch to be timed failed: {outcome.message}")
        times.append(outcome.seconds)
    return statistics.median(times[1:])


def compare_lanes(target: UnderTest, count: int, rounds: int) -> dict[str, object]:
    """The same cases on both lanes, in turns."""
    items = [item_of(target.entry, each) for each in draw(target, count, 1)]
    repeats = {"lowered": 5, "interpreter": 1}
    totals: dict[str, list[float]] = {lane: [] for lane in repeats}
    middles: dict[str, list[float]] = {lane: [] for lane in repeats}
    pythons = {"lowered": Path(sys.executable), "interpreter": INTERPRETER}
    with ExitStack() as stack:
        others = [stack.enter_context(OtherLane(lane, pythons[lane], Who())) for lane in repeats]
        for _ in range(rounds):
            for other in others:
                other.ask(target.entry, items, repeats[other.name] + 1)
                times = [launch_time(launched) for launched in other.answer()]
                totals[other.name].append(sum(times))
                middles[other.name].append(statistics.median(times))
    ratios = [slow / fast for slow, fast in zip(totals["interpreter"], totals["lowered"], strict=True)]
    return {
        "cases": count,
        "launch_us": {lane: round(statistics.median(values) * 1e6, 1) for lane, values in middles.items()},
        "launch_ratio": round(statistics.median(ratios), 1),
        "launch_ratio_rounds": [round(ratio, 1) for ratio in ratios],
    }


def compiling() -> dict[str, object]:
    """Compiling the whole pool into an empty cache, on all cores and on one."""
    figures = {}
    for name, workers in (("all_cores", CORES), ("one_core", 1)):
        with tempfile.TemporaryDirectory(prefix="bench-") as cache:
            engine, entry = engine_on(LoweredLane(), Path(cache), workers)
            try:
                engine.session(entry.subject)
                count = len(engine.pool(entry) or ())
                started = time.perf_counter()
                errors = engine.compile(entry, lambda done, total: None)
                figures[name] = (time.perf_counter() - started, count)
            finally:
                engine.close()
            if errors:
                raise RuntimeError(f"{len(errors)} specializations do not compile: {errors[0]}")
    wall, count = figures["all_cores"]
    return {
        "specializations": count,
        "compile_s": round(figures["one_core"][0] / count, 3),
        "compile_pool_s": round(wall, 1),
        "cores": CORES,
    }


def measure(count: int, rounds: int) -> dict[str, object]:
    engine, entry = engine_on(LoweredLane(), CACHE)
    try:
        engine.compile(entry, lambda done, total: None)
        target = UnderTest(engine, entry)
        loop(target, 200, 2)
        rates = [loop(target, 1000, number) for number in (3, 4, 5)]
        fixed = {f"tile_{tile}": launch_time(outcomes(engine, entry, five_programs(tile), 301)) for tile in (1024, 64)}
        figures: dict[str, object] = {
            "schema": SCHEMA,
            "loop_cases_per_second": round(statistics.median(rates)),
            "loop_rounds": [round(rate) for rate in rates],
            "five_programs_us": {name: round(value * 1e6, 1) for name, value in fixed.items()},
        }
        if INTERPRETER.exists():
            figures |= compare_lanes(target, count, rounds)
    finally:
        engine.close()
    return {**figures, **compiling(), "environment": environment()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m conformance.bench", description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="cases that both lanes run (default 200)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of both lanes in turns (default 3)")
    parser.add_argument("--report-dir", type=Path, default=ROOT / "reports" / "output")
    options = parser.parse_args(arguments)
    figures = measure(options.cases, options.rounds)
    for name, value in figures.items():
        if name not in ("schema", "environment"):
            print(f"{name}: {value}")
    print(f"written to {write_text(options.report_dir / 'bench.json', json_lines(figures))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
