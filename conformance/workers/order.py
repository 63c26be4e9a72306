"""Which tests take long: those start first, so that no worker is left with one when the others are done."""

from __future__ import annotations

import math

import pytest

from conformance.progress import weight_of
from conformance.stash import draws, target_of

_FIRST = ("test_known", "test_corpus", "test_saved")


def cost(item: pytest.Item) -> float:
    """About how long a test takes, in no unit; what is known to have failed comes before everything."""
    if item.path.stem in _FIRST:
        return math.inf
    target = target_of(item)
    if target is None:
        return 0.0
    features = target.entry.declaration.features
    several = 2.0 if "groups" in features else 1.0
    if not draws(item):
        return 100.0 * several  # many launches, or large ones
    return weight_of(item) * several
