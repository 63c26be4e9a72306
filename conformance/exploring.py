"""A pytest plugin (``-p conformance.exploring``): ``--explored FILE``, by which a run draws what earlier ones drew
least, and which it adds to.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.explored import Explored
from conformance.stash import ENGINE, RECORDER
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
    explored = Explored(Path(config.option.explored), config.stash[RECORDER].seed)
    try:
        explored.read()
    except CaseError as error:
        raise pytest.UsageError(f"--explored: {error}") from error
    config.stash[ENGINE].explored = explored


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    engine = session.config.stash.get(ENGINE, None)
    if engine is None or engine.explored is None:
        return
    try:
        engine.explored.write()
    except ReportError as error:
        session.config.get_terminal_writer().line(f"--explored: {error}")
