"""A pytest plugin (``-p conformance.exploring``): ``--explored FILE``, by which a run draws what earlier ones drew
least, and which it adds to. With ``-n`` all workers choose by the same file, and the controller adds what they drew.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.engine import AXES
from conformance.explored import Explored
from conformance.stash import DRAWN, ENGINE, RECORDER, is_worker
from reference.fields import CaseError
from reports.files import ReportError


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("conformance").addoption(
        "--explored",
        required=True,
        metavar="FILE",
        help="what runs have drawn so far: draw what is least in it, add to it",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config) -> None:
    """Before anything asks which specializations there are."""
    try:
        config.stash[ENGINE].explored = _read(config)
    except CaseError as error:
        raise pytest.UsageError(f"--explored: {error}") from error


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    config = session.config
    engine = config.stash.get(ENGINE, None)
    if engine is None or is_worker(config):
        return
    try:
        explored = engine.explored or _read(config)
        entries = {entry.id: entry for entry in engine.entries()}
        for name, drawn in config.stash.get(DRAWN, {}).items():
            if axes := AXES.get(entries[name].family):
                explored.add(entries[name], axes, drawn)
        explored.write()
    except (CaseError, ReportError) as error:
        config.get_terminal_writer().line(f"--explored: {error}")


def _read(config: pytest.Config) -> Explored:
    explored = Explored(Path(config.option.explored), config.stash[RECORDER].seed)
    explored.read()
    return explored
