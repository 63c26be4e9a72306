"""Launches that are waited for together: whose failure a failure is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from conformance import lanes
from conformance.engine import Engine, Options
from conformance.execution.session import Invocation, Outcome
from conformance.subjects.entry import TESTABLE
from conformance.subjects.launching import Settings
from conformance.under_test import UnderTest
from conformance.verdicts import ConformanceFailure
from reference.case import Case, Group, Launch
from reference.oracle import slot_mapping
from tests.commands import own_entry_points

SIZES = (3, 4, 5)


def case(max_num_tokens: int) -> Case:
    return Case((0, 3), (4, 5, 6), 3, max_num_tokens, (Group(((5, 3, 8, 1),), 2, 2),))


class Launched:
    """A session that launches nothing. Outputs of ``case`` are right but for those whose size is ``wrong`` in a batch,
    or ``alone``; other cases, with which a failure is explained, are not supported.
    """

    hurried = False

    def __init__(self, wrong: set[int], alone: set[int]) -> None:
        self.wrong, self.alone, self.launches = wrong, alone, 0

    def launch_all(self, launches: Sequence[tuple[Invocation, Launch]]) -> list[Outcome]:
        return [self._outcome(invocation, self.wrong) for invocation, _ in launches]

    def launch(self, invocation: Invocation, fence: str, open_buffers: object = ()) -> Outcome:
        return self._outcome(invocation, self.alone)

    def close(self) -> None:
        pass

    def _outcome(self, invocation: Invocation, wrong: set[int]) -> Outcome:
        self.launches += 1
        size = invocation.arguments["max_num_tokens"]
        assert isinstance(size, int)
        (output,) = (array for array in invocation.arrays() if array.writable)
        positions = next(array for array in invocation.arrays() if array.name == "positions")
        if size not in SIZES or output.size != size or positions.data.tolist() != [4, 5, 6]:
            return Outcome("unsupported")
        return Outcome("ok", {output.name: [slot + (size in wrong) for slot in slot_mapping(case(size))[0]]})


@pytest.fixture
def target_of(tmp_path: Path) -> Callable[[Launched], UnderTest]:
    entry = next(each for each in own_entry_points() if each.name == "v1")
    assert entry.status == TESTABLE

    def make(session: Launched) -> UnderTest:
        lane = lanes.by_name("npu")
        engine = Engine(lane, Options(("kernels",), {}, 1, 1.0, tmp_path, 1))
        engine._sessions["kernels"] = session  # type: ignore[assignment]
        return UnderTest(engine, entry)

    return make


def drawn() -> list[tuple[Case, Launch, Settings]]:
    return [(case(size), Launch(output_length=size), Settings(tile=16)) for size in SIZES]


@pytest.mark.parametrize(
    ("wrong", "alone", "kinds", "launches"),
    [
        (set(), set(), ["pass"] * 3, 3),
        ({4}, {4}, ["pass", "mismatch", "pass"], 4),
        ({4}, set(), ["pass", "mismatch", "pass"], 4),  # what it did beside the others, it did
    ],
)
def test_what_does_not_agree_in_a_batch_is_launched_alone(
    target_of: Callable[[Launched], UnderTest], wrong: set[int], alone: set[int], kinds: list[str], launches: int
) -> None:
    session = Launched(wrong, alone)
    target = target_of(session)
    findings = target.engine.run_all(target.entry, drawn())
    assert [finding.verdict.kind for finding in findings] == kinds
    assert session.launches == launches == target.engine.tallies["kernels.v1"].cases


@pytest.mark.parametrize("alone", [{4}, set()])
def test_a_case_that_agrees_alone_and_not_beside_others_is_a_failure(
    target_of: Callable[[Launched], UnderTest], alone: set[int]
) -> None:
    target = target_of(Launched({4}, alone))
    with pytest.raises(ConformanceFailure) as failure:
        target.agrees_on_all(drawn())
    assert failure.value.finding.case == case(4)
    target = target_of(Launched(set(), set()))
    target.agrees_on_all(drawn())
    assert target.compared == 3
