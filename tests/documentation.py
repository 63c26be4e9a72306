"""What the documentation shows: its pages, and the commands in their ``sh`` blocks."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.commands import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README, INDEX, CONTRACT, REPORTS, TROUBLESHOOTING = (
    ROOT / name
    for name in ("README.md", "docs/README.md", "docs/contract.md", "docs/reports.md", "docs/troubleshooting.md")
)


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[list[str]]:
    """The words of every command in the page's ``sh`` blocks, one a line or a part of a line between ``&&``."""
    found = []
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            while "&&" in words:
                found.append(words[: words.index("&&")])
                words = words[words.index("&&") + 1 :]
            if words:
                found.append(words)
    return found


ALL_COMMANDS = [(page, words) for page in PAGES for words in commands(page)]
