"""What the plugins of one run share: what is kept in pytest's stash, and whom a test is about."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from conformance.accepted import Accepted
from conformance.corpus import Corpus
from conformance.engine import Engine
from conformance.recording import Recorder
from conformance.under_test import UnderTest
from conformance.workers.places import Place
from strategies.specializations import Specialization

ENGINE = pytest.StashKey[Engine]()
"""There once the subjects are loaded; absent where the suite itself is not collected."""
ACCEPTED = pytest.StashKey[Accepted]()
"""The known failures, there together with the engine."""
CORPUS = pytest.StashKey[Corpus | None]()
"""The folder that ``--corpus`` names."""
RECORDER = pytest.StashKey[Recorder]()
PLACE = pytest.StashKey[Place]()
"""Where this process runs, in a worker of pytest-xdist."""
COMPILED = pytest.StashKey[Callable[[], None]]()
"""What to call once all that the tests draw from is compiled."""
DRAWN = pytest.StashKey[dict[str, Counter[Specialization]]]()
"""By entry point, for which specializations workers have drawn cases, where that is counted (``--explored``)."""
SAID = pytest.StashKey[dict[str, str]]()
"""The lines that the run begins with, each under what it is about."""


def target_of(item: pytest.Item) -> UnderTest | None:
    """The entry point that a test of the suite is about."""
    target = item.callspec.params.get("entry_point") if hasattr(item, "callspec") else None
    return target if isinstance(target, UnderTest) else None


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is one of several workers: a controller brings their results together."""
    return hasattr(config, "workerinput")


def is_controller(config: pytest.Config) -> bool:
    """Whether this process is the controller, which runs no test itself."""
    return config.pluginmanager.hasplugin("dsession")


def draws(item: pytest.Item) -> bool:
    """Whether a test draws its cases."""
    return hasattr(getattr(item, "obj", None), "hypothesis")
