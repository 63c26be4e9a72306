"""Pieces of Markdown that hold whatever is put into them: names, paths and messages come from code under test."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from reference.fields import printable

_SENTENCE = re.compile(r"[A-Za-z][A-Za-z0-9 .,;:()\[\]{}<>=+*/%'\"!?_^-]*")
_LINK = re.compile(r"://|www\.", re.IGNORECASE)
_MARKUP = re.compile(r"[\[\]{}<>*_!()]")


def code(text: str, limit: int = 400) -> str:
    """``text`` as a code span: one line, nothing in it is markup, a mention, a link or a control character."""
    shown = _clipped(printable(text), limit)
    ticks = "`" * (_longest_run(shown) + 1)
    edge = " " if shown.startswith(("`", " ")) or shown.endswith(("`", " ")) else ""
    return f"{ticks}{edge}{shown}{edge}{ticks}" if shown else "(empty)"


def prose(text: str, limit: int = 1000) -> str:
    """``text`` as a sentence: what would be markup is escaped. One that holds anything but words, figures and
    punctuation (a mention, a link, a control character) becomes a code span.
    """
    if not _SENTENCE.fullmatch(text) or len(text) > limit or _LINK.search(text):
        return code(text, limit)
    return _MARKUP.sub(r"\\\g<0>", text)


def block(text: str, language: str = "", limit: int = 20_000) -> str:
    """``text`` as a fenced code block, its lines kept, its other control characters escaped."""
    lines = [printable(line) for line in text.split("\n")]
    shown = _clipped("\n".join(lines), limit)
    fence = "`" * max(3, _longest_run(shown) + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are Markdown already; a pipe in a cell, in a code span too, does not end it."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)


def _clipped(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters in all)"
