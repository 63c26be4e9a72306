"""What a run says of ``--corpus FOLDER``: what is in it, was replayed and added, and what could not be kept."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from dataclasses import asdict
from typing import Any

import pytest

from conformance.corpus import Corpus, Unkept, counted
from conformance.stash import CORPUS
from reference.fields import printable

MOST_PROBLEMS = 20
"""That a run shows; a folder may hold thousands of files that are no cases."""
LONGEST_CASE = 100_000
"""Characters of a case that is shown because it could not be kept, though a report has it."""

_KINDS = ("passed", "failed", "xfailed", "skipped")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker of pytest-xdist is about to start."""
    corpus = node.config.stash.get(CORPUS, None)
    if corpus is not None:
        node.workerinput["corpus"] = json.dumps(dict(corpus.texts()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """What a worker has added, for the controller, which shows it."""
    corpus = session.config.stash.get(CORPUS, None)
    if corpus is not None and hasattr(session.config, "workeroutput"):
        unkept = [asdict(each) for each in corpus.unkept]
        session.config.workeroutput["corpus"] = json.dumps({"added": corpus.added, "unkept": unkept})


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    corpus = node.config.stash.get(CORPUS, None)
    told = getattr(node, "workeroutput", {}).get("corpus")
    if corpus is not None and told is not None:
        found = json.loads(told)
        corpus.added += found["added"]
        corpus.unkept += [Unkept(**each) for each in found["unkept"]]


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    corpus = config.stash.get(CORPUS, None)
    return [] if corpus is None else list(_problems(corpus))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Generator[None, None, None]:
    """The last lines, so that a problem is seen."""
    yield
    corpus = config.stash.get(CORPUS, None)
    if corpus is None or config.option.collectonly:
        return
    terminalreporter.write_line(_line(corpus, terminalreporter))
    for line in _problems(corpus):
        terminalreporter.write_line(line, yellow=True)
    for line in _unkept(corpus):
        terminalreporter.write_line(line, red=True)


def _problems(corpus: Corpus) -> Iterator[str]:
    """What is wrong with the files."""
    yield from (f"corpus: {problem}" for problem in corpus.problems[:MOST_PROBLEMS])
    if len(corpus.problems) > MOST_PROBLEMS:
        yield f"corpus: {len(corpus.problems) - MOST_PROBLEMS:,} more files that are not replayed"


def _unkept(corpus: Corpus) -> Iterator[str]:
    """The cases that were found and could not be kept: all that are in no report, and the first of the others."""
    shown = 0
    for each in corpus.unkept:
        text = json.dumps(json.loads(each.text))
        if each.reported and (shown >= MOST_PROBLEMS or len(text) > LONGEST_CASE):
            continue
        shown += 1
        yield f"corpus: {each.problem}; the case: {text}"
    if shown < len(corpus.unkept):
        yield f"corpus: {len(corpus.unkept) - shown:,} more cases could not be kept; their reports are there"


def _line(corpus: Corpus, terminalreporter: pytest.TerminalReporter) -> str:
    ran = {kind: sum(map(_is_replay, each)) for kind, each in terminalreporter.stats.items() if kind in _KINDS}
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in ran.items() if count)
    return (
        f"corpus {printable(corpus.folder)}: {counted(len(corpus.cases()), 'case')}, "
        f"{counted(sum(ran.values()), 'replay')}"
        f"{f' ({kinds})' if kinds else ''}, {corpus.added:,} added"
    )


def _is_replay(report: object) -> bool:
    return "test_corpus.py::" in getattr(report, "nodeid", "")
