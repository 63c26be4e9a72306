"""The text of an MLIR module as a tree of operations, as far as the audit reads it: names, operands, loops, lines.

Nothing here knows what an operation means. Text that is not nested as MLIR prints it raises Unreadable.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

_NAME = re.compile(r'^(?:(?P<results>%[^=]*?) = )?(?:"(?P<quoted>[\w.]+)"|(?P<plain>[a-z_]\w*(?:\.\w+)*))')
_VALUE = re.compile(r"%[\w-]+")
_LOCATION = re.compile(r" ?\bloc\((?P<what>.*)\)$")
_ALIAS = re.compile(r"^(?P<name>#loc\d*) = loc\((?P<what>.*)\)$")
_FILE = re.compile(r'^"(?P<file>[^"]+)":(?P<line>\d+):\d+')
_CALLSITE = re.compile(r"^callsite\((?P<callee>#loc\d*) at (?P<caller>#loc\d*)\)$")
# Triton's own library, wherever it is installed: what called it is what a reader wants to see.
_LIBRARY = re.compile(r"/(?:site|dist)-packages/triton/")


class Unreadable(ValueError):
    """Text that is not the MLIR this module reads. The message, one line, says what and where."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of source code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{PurePath(self.file).name}:{self.line}"


@dataclass(slots=True)
class Operation:
    """One operation. ``text`` is what stands after its results, without location; ``operands`` are all values in it,
    the names it gives to arguments of its regions included. ``inner`` are the operations of its regions. Every value
    has a name of its own: one named alike in another region has a number behind it.
    """

    name: str
    results: tuple[str, ...]
    text: str
    location: str = ""
    inner: list[Operation] = field(default_factory=list)

    @property
    def operands(self) -> list[str]:
        return _VALUE.findall(self.text)

    @property
    def callee(self) -> str | None:
        found = re.match(r"(?:func\.)?call @(\w+)\(", self.text)
        return found[1] if found else None

    @property
    def symbol(self) -> str | None:
        """The name that a function is defined under."""
        found = re.match(r"func\.func (?:private )?@(\w+)\(", self.text)
        return found[1] if found else None

    @property
    def is_loop(self) -> bool:
        return self.name in ("scf.for", "scf.while")

    def walk(self) -> Iterator[Operation]:
        """This operation and all in it, in the order of the text."""
        yield self
        for each in self.inner:
            yield from each.walk()


@dataclass(frozen=True, slots=True)
class Module:
    """A module: its attributes, functions, and the lines that locations stand for."""

    attributes: str
    functions: tuple[Operation, ...]
    _locations: dict[str, str]

    def function(self, name: str) -> Operation | None:
        """The one that is defined, not only declared, under ``name``."""
        return next((each for each in self.functions if each.symbol == name and each.inner), None)

    def line_of(self, operation: Operation) -> Line | None:
        """The line of the kernel's own source: inside library code, the line that called it."""
        return self.line_at(operation.location)

    def line_at(self, location: str) -> Line | None:
        """The same for what stands in ``loc(...)``."""
        for line in self._lines(location):
            if not _LIBRARY.search(line.file):
                return line
        return None

    def _lines(self, what: str) -> Iterator[Line]:
        """From the innermost call outward."""
        what = self._locations.get(what, what)
        if found := _CALLSITE.match(what):
            yield from self._lines(found["callee"])
            yield from self._lines(found["caller"])
        elif found := _FILE.match(what):
            yield Line(found["file"], int(found["line"]))


def parse(text: str) -> Module:
    """The module in ``text``. Raises Unreadable."""
    locations: dict[str, str] = {}
    top = Operation("top", (), "")
    stack = [top]
    names = _Names()
    for number, line in enumerate(text.splitlines(), start=1):
        shown = line.strip()
        if found := _ALIAS.match(shown):
            locations[found["name"]] = found["what"]
        elif shown.startswith("}"):
            if len(stack) == 1:
                raise Unreadable(f"line {number} closes a region that none has opened")
            names.close()
            if shown.endswith("{"):  # the next region of the same operation
                names.open()
            else:
                stack.pop().location = _location(shown)
        elif shown and not shown.startswith(("#", "^", "//")):
            operation = _operation(shown, number, names)
            stack[-1].inner.append(operation)
            if shown.endswith("{"):
                stack.append(operation)
                names.open()
    if len(stack) != 1:
        raise Unreadable(f"{len(stack) - 1} regions are still open at the end")
    modules = [each for each in top.inner if each.name == "module"]
    if len(modules) != 1:
        raise Unreadable(f"{len(modules)} modules, expected one")
    functions = tuple(each for each in modules[0].inner if each.name == "func.func")
    return Module(modules[0].text, functions, locations)


class _Names:
    """Values by one name each: text uses a name again in another region beside the first, for another value."""

    def __init__(self) -> None:
        self._scopes: list[dict[str, str]] = [{}]
        self._uses: Counter[str] = Counter()

    def open(self) -> None:
        self._scopes.append({})

    def close(self) -> None:
        self._scopes.pop()

    def define(self, name: str) -> str:
        self._uses[name] += 1
        unique = name if self._uses[name] == 1 else f"{name}-{self._uses[name]}"
        self._scopes[-1][name] = unique
        return unique

    def resolve(self, text: str) -> str:
        """``text`` with the values that its names stand for here."""
        return _VALUE.sub(lambda found: self._of(found[0]), text)

    def _of(self, name: str) -> str:
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), name)


def _operation(shown: str, number: int, names: _Names) -> Operation:
    found = _NAME.match(shown)
    if found is None:
        raise Unreadable(f"line {number} is no operation: {shown[:80]}")
    location = _location(shown)
    text = names.resolve(_LOCATION.sub("", shown)[found.start("quoted" if found["quoted"] else "plain") :])
    results = tuple(map(names.define, _VALUE.findall(found["results"] or "")))
    return Operation(found["quoted"] or found["plain"], results, text, location)


def _location(shown: str) -> str:
    found = _LOCATION.search(shown)
    return found["what"] if found else ""


def without_location(line: str) -> tuple[str, str]:
    """A line of text, and what stands in the ``loc(...)`` at its end."""
    return _LOCATION.sub("", line), _location(line)
