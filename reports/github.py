"""What GitHub Actions understands: annotations, and text that it does not take for commands.

The escapes are those of the runner's own toolkit (actions/toolkit, ``command.ts``).
"""

from __future__ import annotations

from reference.fields import printable

MOST_ANNOTATIONS = 10
"""A step shows no more errors than that."""
_LONGEST_MESSAGE = 4000
_LONGEST_TITLE = 200


def annotation(file: str, line: int, title: str, message: str) -> str:
    """An error at a line of a file, as one line to print. Anything may be in it."""
    place = f"file={_property(file)},line={max(line, 1)}," if file else ""
    return f"::error {place}title={_property(printable(title)[:_LONGEST_TITLE])}::{_data(_lines(message))}"


def harmless(line: str) -> str:
    """A line that the runner takes for text: it obeys ``::command::`` at the start and ``##[command]`` anywhere."""
    line = line.replace("##[", "# #[")
    return f"| {line}" if line.lstrip().startswith("::") else line


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))[:_LONGEST_MESSAGE]


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(printable(text)).replace(":", "%3A").replace(",", "%2C")
