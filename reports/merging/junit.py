"""JUnit XML of several runs as one file: the test suites of each, side by side, under the names of their folders."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from xml.etree import ElementTree as ET

from reference.fields import CaseError, printable, shown
from reports.files import read_bytes

NAME = "junit.xml"
_OF_PYTEST = "pytest"
"""What pytest calls its one suite in every run."""


def suites(file: Path, folder: str) -> list[ET.Element]:
    """The suites in ``file``, those that pytest has named with the name of their ``folder``. Raises CaseError."""
    try:
        root = ET.fromstring(read_bytes(file))
    except CaseError:
        raise
    except (ET.ParseError, LookupError, ValueError) as error:  # the latter two: an encoding that Python does not have
        raise CaseError(f"not XML: {error}") from None
    if root.tag not in ("testsuites", "testsuite"):
        raise CaseError(f"not JUnit XML: its root element is {shown(root.tag)}")
    found = [root] if root.tag == "testsuite" else root.findall("testsuite")
    for each in found:
        if each.get("name") == _OF_PYTEST:
            each.set("name", f"{_OF_PYTEST} {printable(folder)}")
    return found


def text_of(found: Iterable[ET.Element]) -> str:
    """The file that holds these suites."""
    root = ET.Element("testsuites", name="pytest tests")
    root.extend(found)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ET.tostring(root, encoding="unicode")}\n'
