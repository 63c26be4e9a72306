"""A pytest plugin (``-p tests.launched``) that writes down what each conformance test launched, for tests that ask.

``LAUNCHED`` names the JSON file: node id -> what its cases were, or "skipped".
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reference.case import Case

FILE = "LAUNCHED"
_found: dict[str, set[str]] = defaultdict(set)


def words(entry_point: str, case: Case) -> Iterator[str]:
    """What a case is, as far as it decides which keywords should find a test that launches it."""
    yield "launched"
    if entry_point == "dcp":
        yield "dcp"
    if case.cp.size > 1:
        yield "cp"
    yield "circular" if any(group.kind == "circular" for group in case.groups) else "without a ring"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    from conformance import engine  # not sooner: pytest rewrites the assertions of what it imports itself

    original = engine.bind

    def bind(entry: Any, case: Case, *rest: Any) -> Any:
        _found[item.nodeid].update(words(entry.name, case))
        return original(entry, case, *rest)

    engine.bind = bind  # every launch is bound there, alone or with others
    try:
        return (yield)
    finally:
        engine.bind = original


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped:
        _found[report.nodeid].add("skipped")


def pytest_sessionfinish() -> None:
    Path(os.environ[FILE]).write_text(json.dumps({name: sorted(found) for name, found in _found.items()}))
