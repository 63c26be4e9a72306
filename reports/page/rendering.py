"""The template engine, set so that nothing put into a template can be anything but text.

Jinja2 escapes markup (autoescape). Before that, ``printable`` shows every character that is not to be seen as its
escape sequence: control characters, ANSI codes, bidirectional overrides, NUL, lone surrogates. Both happen to every
expression of every template, so no template can forget them.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from reference.fields import printable

LONGEST = 20_000
"""Characters of any text on the page."""


def clipped(text: str, limit: int = 300) -> str:
    """``text`` as it can be seen, or its beginning and how long it is: at most ``limit`` characters of it, escape
    sequences included. Line feeds stay.
    """
    shown = "\n".join(map(printable, text[:limit].split("\n")))
    if len(text) <= limit and len(shown) <= limit:
        return shown
    return f"{shown[:limit]}\N{HORIZONTAL ELLIPSIS} ({len(text):,} characters in all)"


def shortened(text: str, limit: int) -> str:
    """``text`` for a heading: on one line, and its beginning where it is longer than ``limit`` as it is shown."""
    shown = printable(text[: limit + 1])
    return shown if len(shown) <= limit else f"{shown[: limit - 1].rstrip()}\N{HORIZONTAL ELLIPSIS}"


def _text(value: object) -> object:
    return clipped(value, LONGEST) if isinstance(value, str) and not isinstance(value, Markup) else value


def environment() -> Environment:
    """Templates of ``templates/``. A name that a template is not given is an error and not nothing."""
    made = Environment(
        loader=PackageLoader("reports.page"),
        autoescape=True,
        finalize=_text,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["clipped"] = clipped
    made.filters["shortened"] = shortened
    made.filters["count"] = lambda number, noun: f"{number:,} {noun}{'' if number == 1 else 's'}"
    made.filters["grouped"] = lambda number: f"{number:,}"
    made.filters["px"] = lambda number: f"{number:.1f}".removesuffix(".0")
    return made


def own(engine: Environment, name: str) -> Markup:
    """One of this package's own files, to stand in the page as it is."""
    assert engine.loader is not None
    return Markup(engine.loader.get_source(engine, name)[0])


def content_hash(text: str) -> str:
    """What a Content-Security-Policy calls an inline script or style sheet."""
    return f"sha256-{b64encode(sha256(text.encode()).digest()).decode()}"
