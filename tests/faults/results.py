"""What was found out about each fault with each seed: one JSON line each, appended as soon as it is known.

A line belongs to the sources that it was found with: a changed kernel, strategy or judgement makes it unknown again.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from statistics import mean
from textwrap import dedent
from typing import Any

from tests.faults.killing import PUBLISHED, RANDOM, ROOT

SUITE = (
    ("reference/*.py", ()),
    ("strategies/*.py", ()),
    ("conformance/engine.py", ("AXES", "_HOST_AXES", "_HOST_BUDGET", "settings_of", "declared", "narrowed")),
    ("conformance/under_test.py", ("_cases_of_kind", "agrees_with_the_oracle", "_assert")),
    ("conformance/verdicts.py", ("judge",)),
    ("conformance/boundaries.py", ("_boundaries", "promised", "_promised_tokens", "finding_of")),
    ("conformance/large.py", ()),
    ("conformance/subjects/allocated.py", ()),
    ("conformance/subjects/*binding.py", ()),
    ("conformance/subjects/host_functions.py", ()),
    ("conformance/subjects/launching.py", ()),
    ("conformance/subjects/own.py", ()),
    ("tests/faults/trials.py", ("trials", "_draw")),
)
"""What decides which cases are drawn, how they are launched and how an outcome is judged: files, or of a file these
definitions.
"""

_UNKNOWN_SECONDS = 3.0

OTHERS = {PUBLISHED: (("tests/faults/published.py", ()),), RANDOM: (("tests/faults/naive.py", ()),)}
"""What decides it beside that for the other suites."""


@lru_cache(maxsize=8)
def suite_digest(suite: str) -> str:
    """Of all that, without comments and docstrings."""
    texts = []
    for pattern, names in SUITE + OTHERS.get(suite, ()):
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text(encoding="utf-8")
            texts += [_definition(text, name, path) for name in names] or [text]
    return _digest(texts)


def _definition(text: str, name: str, path: Path) -> str:
    """The source of one definition, wherever it stands. Raises ValueError where there is none."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return dedent(str(ast.get_source_segment(text, node, padded=True)))
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return str(ast.get_source_segment(text, node))
    raise ValueError(f"{path}: no {name}, on which results depend: say in SUITE what takes its place")


def subject_digest(texts: Mapping[str, str], module: str) -> str:
    """Of what is executed in ``module`` of a package ``kernels`` with these ``texts`` by module, and in those that it
    imports.
    """
    waiting, found = [module], set[str]()
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _imported(texts[name])
    return _digest(texts[name] for name in sorted(found))


@lru_cache(maxsize=64)
def _imported(text: str) -> tuple[str, ...]:
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom) and node.module]
    return tuple(str(node.module)[len("kernels.") :] for node in imports if str(node.module).startswith("kernels."))


def _digest(texts: Iterable[str]) -> str:
    return sha256("".join(map(_meaning, texts)).encode()).hexdigest()[:16]


@lru_cache(maxsize=64)
def _meaning(text: str) -> str:
    """A digest of the code alone."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return sha256(ast.dump(tree).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Key:
    """Which fault (``name``, in a subject with that digest), by which ``suite``, with which ``seed``."""

    name: str
    subject: str
    suite: str
    seed: int


@dataclass(slots=True)
class Results:
    """The lines of ``file`` that belong to today's sources. Of all of them, also of those that do not any more,
    ``seconds`` says what a search for a fault took, by its name and by the suite.
    """

    file: Path
    known: dict[Key, Mapping[str, Any]] = field(default_factory=dict)
    seconds: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    @classmethod
    def read(cls, file: Path) -> Results:
        """Those of ``file``, if there is one. A line that was cut off, as a kill leaves it, is no line."""
        results = cls(file)
        if file.exists():
            for line in file.read_text(encoding="utf-8").splitlines():
                try:
                    item = json.loads(line)
                except json.JSONDecodeError:
                    continue
                results.seconds.setdefault((item["name"], item["suite"]), []).append(item["result"]["seconds"])
                if item["digest"] == suite_digest(item["suite"]):
                    results.known[_key(item)] = item["result"]
        return results

    def likely_seconds(self, name: str, suite: str) -> float:
        """What one more search for that fault takes, as far as that is known: as long as those before it, or as one for
        any fault.
        """
        own = self.seconds.get((name, suite)) or [
            each for (_, other), all_of in self.seconds.items() if other == suite for each in all_of
        ]
        return mean(own) if own else _UNKNOWN_SECONDS

    def add(self, key: Key, result: Mapping[str, Any]) -> None:
        """Remember a result, on disk before anything else is done."""
        self.known[key] = result
        self.file.parent.mkdir(parents=True, exist_ok=True)
        item = {"digest": suite_digest(key.suite), **_plain(key), "result": result}
        cut_off = self.file.exists() and self.file.read_bytes()[-1:] not in (b"", b"\n")
        with self.file.open("a", encoding="utf-8") as file:
            file.write(("\n" if cut_off else "") + json.dumps(item) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _key(item: Mapping[str, Any]) -> Key:
    return Key(item["name"], item["subject"], item["suite"], item["seed"])


def _plain(key: Key) -> dict[str, Any]:
    return {"name": key.name, "subject": key.subject, "suite": key.suite, "seed": key.seed}
