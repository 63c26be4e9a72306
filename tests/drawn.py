"""A pytest plugin (``-p tests.drawn``) that writes down, test by test, a digest of every case that was launched, in its
order, and of how.

``DRAWN`` names the JSON file: node id -> [number of cases, digest].
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

FILE = "DRAWN"
_found: dict[str, tuple[int, str]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    from conformance import engine  # not sooner: pytest rewrites the assertions of what it imports itself

    original = engine.bind
    digest, count = hashlib.sha256(), 0

    def bind(entry: Any, case: Any, launch: Any, settings: Any, *rest: Any) -> Any:
        nonlocal count
        count += 1
        digest.update(json.dumps([case.to_json(), launch.to_json(), asdict(settings)]).encode())
        return original(entry, case, launch, settings, *rest)

    engine.bind = bind
    try:
        return (yield)
    finally:
        engine.bind = original
        _found[item.nodeid] = count, digest.hexdigest()


def pytest_sessionfinish() -> None:
    Path(os.environ[FILE]).write_text(json.dumps(_found))
