"""The tests of the suite that concern an entry point, as a search for a fault runs them: outside pytest, one after the
other in one process, until one fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from hypothesis import Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from conformance.boundaries import boundaries, stays_inside
from conformance.compile_keys import compiles_for_no_batch, compiles_nothing_after_the_prewarm
from conformance.large import large_batches
from conformance.outside import BoundaryFailure
from conformance.under_test import Drawn, UnderTest
from conformance.verdicts import ConformanceFailure, failures_in

FIRST = 10
"""Cases of a test of which one must be launched, or a fault is none."""

AGREES, INSIDE, LARGE, KEYS, PREWARM = "agrees", "inside", "large", "keys", "prewarm"


@dataclass(frozen=True, slots=True)
class Trial:
    """``test`` is a test of conformance/ and ``how`` what it does, on cases of one ``kind`` (None: of all).

    ``part``: it draws one in so many of the profile's examples.
    """

    test: str
    how: str
    kind: str | None = None
    part: int = 1

    def examples(self, profile: settings) -> int:
        return -(-profile.max_examples // self.part)


@dataclass(slots=True)
class Killed:
    """A test that failed after ``examples`` drawn cases (None: it draws none), and how."""

    trial: Trial
    examples: int | None
    verdict: str
    detail: str
    failure: ConformanceFailure | None = None


_PLAIN = {
    "v1": "test_plain.py::test_plain_slots_follow_the_block_table",
    "v2": "test_v2.py::test_v2_slots_follow_the_row_that_idx_mapping_names",
    "fused": "test_fused.py::test_fused_groups_each_get_their_own_slots",
    "tiled": "test_tiled.py::test_tiled_slots_follow_the_row_of_the_owning_request",
    "block_table": "test_block_table.py::test_block_table_gives_each_token_a_slot_of_its_own_row",
    "draft": "test_draft.py::test_draft_slots_follow_the_block_table",
}
_SHARED = {
    "v1": "test_cp.py::test_cp_slots_exist_on_the_owning_rank_only",
    "v2": "test_v2.py::test_v2_cp_slots_exist_on_the_owning_rank_only",
    "tiled": "test_tiled.py::test_tiled_cp_slots_exist_on_the_owning_rank_only",
    "block_table": "test_block_table.py::test_block_table_cp_slots_exist_on_the_owning_rank_only",
    "draft": "test_draft.py::test_draft_cp_slots_exist_on_the_owning_rank_only",
}
_FUSED = ("fused", "parallel", "adaptive")


def trials(entry: str) -> Iterator[Trial]:
    """Those of an entry point of subject ``kernels``, by its name, the cheapest first."""
    if entry.endswith("_host"):
        yield Trial("test_host.py::test_host_plain_slots_follow_the_block_table", AGREES, "plain", 3)
        yield Trial("test_host.py::test_host_cp_slots_exist_on_the_owning_rank_only", AGREES, "cp", 3)
        if entry == "v1_host":
            yield Trial("test_host.py::test_host_circular_slots_wrap_inside_one_block", AGREES, "circular", 3)
        yield Trial("test_large.py::test_large_batches_get_their_slots", LARGE, "plain")
        yield Trial("test_large.py::test_large_cp_batches_are_shared_among_ranks", LARGE, "cp")
        return
    if entry == "dcp":
        yield Trial("test_dcp.py::test_dcp_slots_exist_on_the_owning_rank_only", AGREES)
        yield Trial("test_boundary.py::test_dcp_boundary_cases_stay_inside_their_buffers", INSIDE, None, 4)
        yield Trial("test_large.py::test_large_cp_batches_are_shared_among_ranks", LARGE, "cp")
        return
    if entry == "replay":
        yield Trial("test_replay.py::test_replayed_tokens_alone_lose_their_slots", AGREES)
    else:
        yield Trial(_PLAIN["fused" if entry in _FUSED else entry], AGREES, "plain")
    if entry in _SHARED:
        yield Trial(_SHARED[entry], AGREES, "cp")
    if entry == "v1":
        yield Trial("test_circular.py::test_circular_slots_wrap_inside_one_block", AGREES, "circular")
    if entry in _FUSED:
        name = "test_circular_and_paged_groups_in_one_launch_each_get_their_own_slots"
        yield Trial(f"test_circular.py::{name}", AGREES, "circular")
    if entry not in ("draft", "block_table"):
        yield Trial("test_boundary.py::test_boundary_cases_stay_inside_their_buffers", INSIDE, "plain", 4)
    if entry in ("v1", "v2", "tiled"):
        yield Trial("test_boundary.py::test_cp_boundary_cases_stay_inside_their_buffers", INSIDE, "cp", 4)
    if entry in ("v1", *_FUSED):
        yield Trial("test_boundary.py::test_circular_boundary_cases_stay_inside_their_buffers", INSIDE, "circular", 4)
    yield Trial("test_large.py::test_large_batches_get_their_slots", LARGE, "plain")
    if entry in ("v1", "v2", "tiled", "block_table"):
        yield Trial("test_large.py::test_large_cp_batches_are_shared_among_ranks", LARGE, "cp")
    if entry not in ("draft", "block_table"):
        yield Trial("test_compile_keys.py::test_batches_of_every_shape_compile_nothing_new", KEYS, "plain")
    if entry == "fused":
        yield Trial("test_compile_keys.py::test_after_the_prewarm_no_batch_compiles_anything", PREWARM, "plain")


def run(target: UnderTest, trial: Trial, profile: settings, number: int) -> Killed | None:
    """How ``trial`` fails with that seed; None: it passes. The first failure ends it, and nothing is shrunk."""
    target.begin()
    try:
        _RUN[trial.how](target, trial, profile, number)
    except _Found as found:
        error = found.error
        if isinstance(error, BoundaryFailure):
            return Killed(trial, found.examples, error.verdict.kind, error.verdict.summary())
        verdict = error.finding.verdict
        return Killed(trial, found.examples, verdict.kind, verdict.summary(), error)
    except pytest.skip.Exception:
        return None
    except (ConformanceFailure, BaseExceptionGroup) as error:
        failure = next(failures_in(error), None)
        if failure is None:
            raise
        verdict = failure.finding.verdict
        return Killed(trial, None, verdict.kind, verdict.summary(), failure)
    except (AssertionError, pytest.fail.Exception) as error:
        return Killed(trial, None, trial.how, str(error))
    return None


def runs_at_all(
    target: UnderTest, trial: Trial, profile: settings, number: int, is_refused: Callable[[str, str], bool]
) -> bool:
    """Whether one of the first ``FIRST`` cases of ``trial`` fails in no way that ``is_refused`` (verdict, detail)."""
    target.begin()

    def check(drawn: Drawn) -> None:
        try:
            target.agrees_with_the_oracle(drawn)
        except ConformanceFailure as error:
            verdict = error.finding.verdict
            if is_refused(verdict.kind, verdict.summary()):
                return
        raise _Runs

    try:
        _draw(target.cases(trial.kind), check, trial, settings(profile, max_examples=FIRST * trial.part), number)
    except _Runs:
        return True
    except pytest.skip.Exception:
        return False
    return False


class _Runs(BaseException):
    """A case was launched. No ``Exception``, as below."""


class _Found(BaseException):
    """The first failure, after so many drawn cases. No ``Exception``: Hypothesis then looks for no other."""

    def __init__(self, examples: int, error: ConformanceFailure | BoundaryFailure) -> None:
        super().__init__(str(error))
        self.examples, self.error = examples, error


def _agrees(target: UnderTest, trial: Trial, profile: settings, number: int) -> None:
    _draw(target.cases(trial.kind), target.agrees_with_the_oracle, trial, profile, number)


def _inside(target: UnderTest, trial: Trial, profile: settings, number: int) -> None:
    _draw(boundaries(target, trial.kind), lambda drawn: stays_inside(target, drawn), trial, profile, number)


def _draw(
    cases: st.SearchStrategy[Drawn], check: Callable[[Drawn], None], trial: Trial, profile: settings, number: int
) -> None:
    examples = 0

    @seed(number)
    @settings(profile, max_examples=trial.examples(profile), phases=[Phase.generate], verbosity=Verbosity.quiet)
    @given(st.data())
    def test(data: st.DataObject) -> None:
        nonlocal examples
        drawn = data.draw(cases)
        examples += 1
        try:
            check(drawn)
        except (ConformanceFailure, BoundaryFailure) as error:
            raise _Found(examples, error) from None

    test()


def _large(target: UnderTest, trial: Trial, profile: settings, number: int) -> None:
    for batch in large_batches(target.entry, target.engine.lane, shared=trial.kind == "cp"):
        target.agrees_on(batch)


def _keys(target: UnderTest, trial: Trial, profile: settings, number: int) -> None:
    compiles_for_no_batch(target)


def _prewarm(target: UnderTest, trial: Trial, profile: settings, number: int) -> None:
    compiles_nothing_after_the_prewarm(target)


_RUN: dict[str, Callable[[UnderTest, Trial, settings, int], None]] = {
    AGREES: _agrees,
    INSIDE: _inside,
    LARGE: _large,
    KEYS: _keys,
    PREWARM: _prewarm,
}
