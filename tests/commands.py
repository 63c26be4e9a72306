"""The suite as somebody types it: pytest in a process of its own, its exit status and what it printed.

As a program it runs several command lines, JSON lists of arguments on its input, one after the other in one process:
for those that are refused, only collect, or run a handful of cases. Importing would take longer than what they do.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path

from conformance import lanes
from conformance.subjects import load
from conformance.subjects.entry import EntryPoint

ROOT = Path(__file__).resolve().parents[1]
USAGE_ERROR = 4  # pytest's exit status
CORES = len(os.sched_getaffinity(0))
_TIMEOUT = 300


@dataclass(frozen=True, slots=True)
class Done:
    """``status`` and everything that was printed, both streams in their order."""

    status: int
    output: str

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    @property
    def tail(self) -> str:
        """The end of it, for the message of an assertion."""
        return "\n".join(self.lines[-30:])

    def collected(self) -> set[str]:
        """The node ids that ``--collect-only -q`` listed."""
        return {line for line in self.lines if "::" in line}


def run(*command: str | Path, variables: Mapping[str, str] | None = None, text: str = "") -> Done:
    """``command`` in the project's root with ``text`` as its input, whatever the environment says to pytest."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [*map(str, command)],
        cwd=ROOT,
        env={**environment, "NO_COLOR": "1", **(variables or {})},
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT,
    )
    return Done(done.returncode, done.stdout)


def pytest_(*arguments: str | Path, variables: Mapping[str, str] | None = None) -> Done:
    """``pytest`` with these arguments, in this environment."""
    return run(sys.executable, "-m", "pytest", *arguments, variables=variables)


def together(
    commands: Iterable[Sequence[str | Path]], variables: Iterable[Mapping[str, str]] = repeat({})
) -> list[Done]:
    """``pytest_`` for each list of arguments, each with its variables, as many at a time as there are cores."""
    with ThreadPoolExecutor(CORES) as pool:
        return list(pool.map(lambda arguments, own: pytest_(*arguments, variables=own), commands, variables))


def in_few_processes(commands: Sequence[Sequence[str | Path]]) -> list[Done]:
    """``pytest_`` for arguments that leave little to do, such as those that are refused: in one process a core."""
    answers: list[Done] = [Done(-1, "not run")] * len(commands)

    def share(first: int) -> None:
        text = json.dumps([list(map(str, arguments)) for arguments in commands[first::CORES]])
        done = run(sys.executable, "-m", "tests.commands", text=text)
        assert done.status == 0, done.tail
        answers[first::CORES] = [Done(**item) for item in json.loads(done.lines[-1])]

    with ThreadPoolExecutor(CORES) as pool:
        list(pool.map(share, range(CORES)))
    return answers


def _one_after_the_other() -> None:
    import pytest

    answers = []
    for arguments in json.load(sys.stdin):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            status = int(pytest.main(arguments))
        answers.append({"status": status, "output": printed.getvalue()})
    print(json.dumps(answers))


def own_entry_points() -> list[EntryPoint]:
    """What subject ``kernels`` has. Imported here and now: for what they say of themselves, not for launching them."""
    return [entry.description for entry in load("kernels", None, lanes.automatic())]


if __name__ == "__main__":
    _one_after_the_other()
