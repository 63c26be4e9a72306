"""Mistakes that nobody has taught the diagnosis: it may say what is true of them or nothing, never another cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from conformance.probes import probes
from reference.case import Case, ContextParallel, Group, Launch
from reference.contract import violations
from reference.verdict import compare
from reports.diagnosis import CAUSES, UNKNOWN, Diagnosis, Observation, diagnose, refuting
from reports.diagnosis.features import NEEDED
from reports.diagnosis.hypotheses import HYPOTHESES, Hypothesis
from reports.diagnosis.launches import REQUESTS, WINDOWS, _Strays
from reports.diagnosis.mapping import Mapping
from tests.supposed_launches import cases, right, supposed

CASES = cases(3)

Step = Callable[..., Any]


def mistake(**steps: Step) -> Hypothesis:
    return Hypothesis("a mistake of its own", "", steps)


def kept_if(keep: Callable[[Mapping], bool]) -> Step:
    return lambda m: Mapping.value(m) if keep(m) else m.pad()


def cell_if(keep: Callable[[Mapping, int], bool], other: int) -> Step:
    return lambda m, index: Mapping.cell(m, index) if keep(m, index) else other


def last_of_request(m: Mapping) -> bool:
    return m.t + 1 in m.case.query_start_loc


UNTAUGHT: dict[str, tuple[Hypothesis, set[str]]] = {
    # What it is, and what may be said of it beside nothing.
    "every second request reads the row of the one before": (
        mistake(row=lambda m: m.case.row_of(m.request() // 2 * 2)),
        {"table row", "idx_mapping"},
    ),
    "rows are numbered by halves": (mistake(row=lambda m: m.case.row_of(m.request()) // 2), {"table row"}),
    "rows are reversed": (
        mistake(row=lambda m: len(m.own.block_table) - 1 - m.case.row_of(m.request())),
        {"table row"},
    ),
    "the last token of a request is the next one's": (
        mistake(
            request=lambda m: min(Mapping.request(m) + last_of_request(m), m.case.num_reqs - 1),
            value=kept_if(lambda m: m.t + 1 < m.case.num_tokens),
        ),
        {"foreign request"},
    ),
    "positions 0 and 1 get no slot": (mistake(without_slot=lambda m, p: p <= 1), set()),
    "the first position of a request counts for less": (
        mistake(position=lambda m: Mapping.position(m) - (m.t in m.case.query_start_loc)),
        {"position"},
    ),
    "positions begin at 1": (mistake(position=lambda m: Mapping.position(m) - 1), {"position"}),
    "positions are doubled": (mistake(position=lambda m: Mapping.position(m) * 2), {"position"}),
    "what gets no slot holds PAD_ID + 1": (mistake(pad=lambda m: m.case.pad_id + 1), {"padding value"}),
    "every third position is left out": (mistake(value=kept_if(lambda m: Mapping.position(m) % 3 != 2)), set()),
    "odd columns are left out": (
        mistake(value=kept_if(lambda m: Mapping.block_index(m) is None or Mapping.block_index(m) % 2 == 0)),
        set(),
    ),
    "columns are reversed": (
        mistake(column=lambda m, index: m.table_group().row_width - 1 - index),
        {"table column"},
    ),
    "the last column is block 0": (
        mistake(cell=cell_if(lambda m, index: m.ring() or index + 2 < m.table_group().row_width, 0)),
        set(),
    ),
    "block numbers lose their upper bits": (
        mistake(cell=lambda m, index: Mapping.cell(m, index) & 63),
        set(),
    ),
    "k + 1 columns a virtual block": (
        mistake(sharded_place=lambda m, v, o, l: (v * (m.k + 1) + l // m.b, l % m.b)),
        {"kernel block index", "table column"},
    ),
    "the owner is told a token late": (
        mistake(owner=lambda m, o: (o + 1) // m.I % m.W),
        {"ownership"},
    ),
    "ranks up to this one": (mistake(local=lambda m, o: m.owner(o) <= m.R), {"ownership"}),
    "the run is shifted by one": (
        mistake(local_offset=lambda m, o: o // (m.W * m.I) * m.I + (o + 1) % m.I),
        {"local offset", "block offset"},
    ),
    "the rank is added to the slot": (
        mistake(slot=lambda m, number, offset: number * m.b + offset + m.R),
        {"slot", "block offset"},
    ),
    "the offset grows with the column": (
        mistake(paged_place=lambda m, p: (p // m.b, p % m.b + (p >= m.b))),
        {"block offset"},
    ),
    "another rank and another offset": (
        mistake(local=lambda m, o: m.owner(o) == 0, slot=lambda m, n, o: n * m.b + (o + 1) % m.b),
        {"ownership", "block offset"},
    ),
    "the replay window is one token shorter at both ends": (
        mistake(
            replayed=lambda m: (
                m.case.replay is not None
                and Mapping.replayed(m)
                and 0 < m.position() - m.case.replay.starts[m.request()] < m.case.replay.window - 1
            )
        ),
        {"replay window"},
    ),
}


def of(seen: Observation, evidence: tuple[Observation, ...] = ()) -> Diagnosis:
    verdict = compare(seen.expected, seen.actual)
    return diagnose(seen.case, seen.launch, verdict, seen.expected, seen.actual, evidence)


@pytest.mark.parametrize("name", UNTAUGHT)
def test_what_is_not_known_is_not_called_something_else(name: str) -> None:
    made, true = UNTAUGHT[name]
    launches = [seen for case in CASES if (seen := supposed(made, *case)) is not None]
    failed = sorted((seen for seen in launches if seen.differing), key=lambda seen: len(seen.differing))
    assert failed
    for seen in failed[:3]:
        near = [each for each in probes(seen.case, seen.launch) if not violations(each[0], launch=each[1])][-30:]
        told = [other for each in near if (other := supposed(made, *each)) is not None]
        found = of(seen, (*launches, *told))
        assert found.cause in true | {UNKNOWN}, found


def one_token(case: Case, launch: Launch, expected: int, actual: int) -> Observation:
    return Observation(case, launch, [[expected]], [[actual]])


def test_where_a_window_ends_must_be_seen_before_one_is_named() -> None:
    """Single tokens at both ends of a row are wrong and right for whatever lies between them."""
    beyond = mistake(without_slot=lambda m, p: p < 0 or p >= 60_000)
    group = Group((tuple(range(1, 200)),), 2048, 2048)
    launch = Launch(constants={"TILE_BLOCK_SIZE": 16, "BLOCK_TABLE_WINDOW_SIZE": 16})

    def at(*positions: int) -> Observation:
        count = len(positions)
        made = supposed(beyond, Case((0, count), positions, count, count, (group,)), launch)
        assert made is not None
        return made

    seen, *near = (at(position) for position in (261_926, 0, 261_925, 261_927, 259_878))
    assert len(seen.differing) == 1
    assert of(seen, tuple(near)).cause == UNKNOWN
    windowed = next(each for each in WINDOWS if each.says.endswith("it begins at the beginning of the row"))
    both = supposed(windowed, Case((0, 2), (0, 40_000), 2, 2, (group,)), launch)
    assert both is not None
    alone = [supposed(windowed, each.case, launch) for each in (seen, *near)]
    assert of(both, tuple(each for each in alone if each)).cause == "window"
    anything = replace(both, actual=[[both.expected[0][0], 123_457]])
    assert of(anything).cause == "window"
    assert of(replace(anything, launch=Launch())).cause == UNKNOWN
    assert of(replace(both, actual=[[123_457, both.expected[0][1]]])).cause == UNKNOWN


def test_flags_that_nobody_passes_are_not_misread() -> None:
    """A path without flags that gives no slots at all."""
    case = Case((0, 1), (2,), 1, 1, (Group(((0, 1, 5, 3, 7),), 2, 2),))
    seen = one_token(case, Launch(), 2, -1)
    wide = right(
        replace(case, query_start_loc=(0, 10), positions=tuple(range(10)), num_tokens=10, max_num_tokens=10), Launch()
    )
    nothing = replace(wide, actual=[[-1] * 10])
    assert of(seen, (nothing,)).cause == UNKNOWN
    disabled = replace(case, groups=(replace(case.groups[0], enabled=False),))
    assert of(seen, (nothing, right(disabled, Launch()))).cause == "disabled group"


def test_a_row_that_is_not_staged_is_no_matter_of_sharding_flags() -> None:
    """On several ranks, all of which share every group: what is read behind the staged cells is anything."""
    group = Group((tuple(range(8)),), 2, 2)
    case = Case((0, 1), (24,), 1, 1, (group,), ContextParallel(2, 0, 1))
    passed = tuple(right(replace(case, positions=(p,)), Launch()) for p in range(4))
    assert of(one_token(case, Launch(), 12, 7), passed).cause == UNKNOWN
    like_replicated = one_token(case, Launch(), 12, 24)  # column 12, were there one
    assert of(like_replicated, passed).cause == UNKNOWN


def test_a_kernel_block_that_ranks_share_and_that_takes_one_cell_is_a_virtual_block() -> None:
    """vllm-ascend 0.18.0: b*W tokens, one cell."""
    case = Case((0, 1), (2,), 1, 1, (Group(((0, 5, 2, 7),), 2, 4),), ContextParallel(2, 0, 4))
    made = mistake(virtual_size=lambda m: m.b * m.W, sharded_place=lambda m, v, o, l: (v, l))
    seen = supposed(made, case, Launch())
    assert seen is not None
    assert (seen.expected[0][0], seen.actual[0][0]) == (10, 2)
    near = [each for each in probes(case, Launch()) if not violations(each[0], launch=each[1])]
    told = tuple(other for each in near if (other := supposed(made, *each)) is not None)
    assert of(seen, told).cause == "virtual block"


def test_a_launch_that_shows_a_difference_elsewhere_refutes() -> None:
    """What predicts a difference that is not there is out, even if the launch failed for another reason."""
    behind = next(each for each in HYPOTHESES if "position of the token behind" in each.says)
    first, second = (supposed(behind, *each) for each in (CASES[0], CASES[6]))
    assert first is not None
    assert second is not None
    assert of(first, (second,)).cause == "position"
    group, element = second.differing[0]
    rows = [list(row) for row in second.actual]
    rows[group][element] = second.expected[group][element]
    found = of(first, (replace(second, actual=rows),))
    assert found.cause == UNKNOWN, found


def test_of_two_mistakes_the_one_that_shows_is_named() -> None:
    """Launches that failed by another known mistake do not hide this one."""
    case, launch = CASES[5]  # numbers above 2^24
    seen = right(case, launch)
    one = next(each for each in HYPOTHESES if each.cause == "float32")
    other = next(each for each in HYPOTHESES if each.cause == "sign")
    negative = replace(case, positions=tuple(-1 - p % 7 for p in case.positions))
    evidence = tuple(each for each in (supposed(other, negative, launch), seen) if each is not None)
    assert evidence[0].differing
    shown = supposed(one, case, launch)
    assert shown is not None
    assert of(shown, (evidence[0],)).cause == "float32"


def test_features_are_asked_of_known_causes() -> None:
    assert set(NEEDED) <= set(CAUSES)


def test_of_hundreds_of_requests_few_are_asked_what_they_would_have_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """That a request also writes the tokens of all behind it is looked into one pair of requests at a time."""
    requests = 48
    table = tuple(tuple(row * 8 + column for column in range(8)) for row in range(requests))
    positions = tuple(request * 3 % 16 for request in range(requests))
    case = Case(tuple(range(requests + 1)), positions, requests, requests, (Group(table, 2, 2),))
    expected = right(case, Launch()).expected
    strays = [each for each in REQUESTS if each.base is _Strays]
    asked = 0
    ask = _Strays._from

    def counted(mapping: _Strays, request: int, element: int) -> tuple[int | None, ...]:
        nonlocal asked
        asked += 1
        return ask(mapping, request, element)

    monkeypatch.setattr(_Strays, "_from", counted)
    explaining = 0
    for wrong, writer in ((1, 0), (requests - 1, requests - 2), (requests - 1, requests)):
        actual = [list(row) for row in expected]
        cell = positions[wrong] // 2
        actual[0][wrong] = table[writer][cell] * 2 + positions[wrong] % 2 if writer < requests else 100_000
        seen = Observation(case, Launch(), expected, actual)
        for each in strays:
            mapping, whole = each.of(seen), each.of(seen)
            asked = 0
            explaining += mapping.explains()
            assert asked <= requests
            for element in (0, 1, requests // 2, requests - 1):
                possible = whole.possible(0, element)
                values = {value for value in possible if value is not None} | {-7}
                found = {value: mapping.holds(0, element, value) for value in values}
                assert found == {value: value in possible or (None if None in possible else False) for value in values}
    assert explaining > 2


def test_a_launch_that_a_mistake_explains_is_no_evidence_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure is among the launches of its own test: what explains it need not be held against it again."""
    case = Case((0, 2), (0, 3), 2, 2, (Group(((5, 7), (1, 2)), 2, 2),))
    seen = Observation(case, Launch(), right(case, Launch()).expected, [[2, 5]])
    asked: list[Observation] = []
    monkeypatch.setattr(refuting, "_consistent", lambda hypothesis, launch: bool(asked.append(launch)) or True)
    supposed = refuting.explaining(seen)
    assert refuting.standing(supposed, seen, (seen, replace(seen, actual=[[2, 6]])))
    assert seen not in asked
    assert asked
