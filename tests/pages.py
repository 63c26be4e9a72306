"""Runs for the page to draw: real cases with real verdicts, as the files of a run hold them."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from typing import Any

from reference import verdict as v
from reference.case import Case, ContextParallel, Group, Launch
from reference.contract import ANSWER_CLAUSES, violations
from reports.coverage import Coverage
from reports.diagnosis import UNKNOWN, Diagnosis
from reports.failure import FailureReport
from reports.summary import Summary, Tally
from tests.random_cases import draw

Report = dict[str, Any]

NOT_DIAGNOSED = Diagnosis(UNKNOWN, "")
TWO_TOKENS = Case(
    (0, 2, 3), (0, 1, 5), 3, 4, (Group(((3, 4), (7, 9)), 1, 2),), cp=ContextParallel(4, 0, 2)
)  # positions 0 and 1 are rank 0's, 5 is rank 2's


def failure(
    case: Case = TWO_TOKENS,
    wrong: dict[tuple[int, int], int] | None = None,
    diagnosis: Diagnosis = NOT_DIAGNOSED,
    guards: tuple[v.Guard, ...] = (),
    **more: Any,
) -> Report:
    """The JSON of a failure of ``case`` whose elements (group, index) hold what ``wrong`` says."""
    expected = v.expected_output(case, case.max_num_tokens)
    actual = [list(row) for row in expected]
    for (group, index), value in (wrong or {}).items():
        actual[group][index] = value
    report = FailureReport(
        subject="kernels",
        entry_point="v1",
        lane="lowered",
        test="conformance/test_cp.py::test_cp_slots_exist_on_the_owning_rank_only[kernels.v1]",
        case=case,
        launch=Launch(constants={"TILE_BLOCK_SIZE": 64}),
        verdict=v.compare(expected, actual, guards),
        seed=7,
        examples=4,
        diagnosis=diagnosis,
    )
    return {**json.loads(json.dumps(report.to_json("reports/output/failure.json"))), **more}


def summary(failures: int, cases: int = 4000) -> Report:
    tallies = {"kernels.v1": Tally(cases - cases // 4, 64, failures), "kernels.dcp": Tally(cases // 4, 1, 0)}
    made = Summary(("kernels",), "lowered", 12.25, tallies, seed=7, environment={"python": "CPython 3.11.9"})
    return json.loads(json.dumps(made.to_json()))


def coverage(cases: int = 300) -> Report:
    """Of small random cases, as two entry points would have drawn them."""
    rng, counted = random.Random(5), Coverage()
    for number in range(cases):
        case = draw(rng, world_sizes=(1, 2, 4))
        constants = {"TILE_BLOCK_SIZE": 64, "BLOCK_TABLE_WINDOW_SIZE": 32} if number % 3 else {}
        counts = counted.of("kernels.v1" if number % 3 else "kernels.dcp")
        counts.count(case, Launch(constants=constants), 0.001)
    return json.loads(json.dumps(counted.to_json()))


def answered(case: Case) -> Case | None:
    """``case`` if the contract defines an answer for it."""
    return None if violations(case, ANSWER_CLAUSES) else case


@cache
def many(count: int) -> dict[str, Report]:
    """As many failures, of six causes and of none, on cases of up to some hundred tokens."""
    rng = random.Random(11)
    found: dict[str, Report] = {}
    while len(found) < count:
        case = answered(draw(rng, world_sizes=(1, 2, 4)))
        if case is None or not case.max_num_tokens:
            continue
        cause = rng.choice(["virtual block", "owner", "table row", "padding end", "local offset", "offset", UNKNOWN])
        wrong = {(0, rng.randrange(case.max_num_tokens)): 12345 + index for index in range(rng.randint(1, 5))}
        name = f"failure-kernels-v1-{len(found):010x}.json"
        found[name] = failure(replace(case, pad_id=-1), wrong, Diagnosis(cause, f"The {cause} is taken wrongly."))
    return found
