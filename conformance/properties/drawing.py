"""Which cases the properties are asked of, and how many: a fraction of those that are compared with the oracle."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st

from conformance.properties.property import Property
from conformance.under_test import Choice, Drawn, UnderTest
from strategies.specializations import Specialization

FEWER = 25
"""One example here for so many there."""

_CHOICES = 64


def fewer() -> settings:
    """The settings of a test of properties under the profile of the run."""
    return settings(max_examples=-(-settings().max_examples // FEWER))


def asked(
    target: UnderTest, properties: Sequence[Property], kind: str | None = None, chosen: Choice | None = None
) -> st.SearchStrategy[tuple[Property, Drawn, int]]:
    """One of ``properties``, a case of ``kind`` to ask it of, and a number that settles what the case leaves open.
    ``chosen``: of the specializations that are compiled, those to draw from.

    Skips the test when the entry point has no such kind, or none of the properties says anything about it.
    """
    able = [each for each in properties if each.why_not(target.entry) is None]
    if not able:
        pytest.skip(str(properties[0].why_not(target.entry)))
    return st.tuples(st.sampled_from(able), target.cases(kind, chosen), st.sampled_from(range(_CHOICES)))


def compiles(target: UnderTest) -> bool:
    """Whether a case costs a compilation where it differs in more than what changes from batch to batch."""
    return target.engine.pool(target.entry) is not None


def two_of_two_ranks(specializations: Sequence[Specialization]) -> Sequence[Specialization]:
    """What to draw from where every rank of a case is launched: kernels are compiled for a rank, or for rank 1."""
    of_two = [each for each in specializations if each.cp.size == 2] or list(specializations)
    return of_two[:1] if len(of_two) == 1 else [of_two[0], of_two[-1]]


def one_compiled(specializations: Sequence[Specialization]) -> Sequence[Specialization]:
    """What to draw from where a launch differs in something that is compiled in: the simplest with an interleave."""
    return [each for each in specializations if each.kv_cache_block_size > 1][:1] or specializations[:1]
