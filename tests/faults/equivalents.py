"""Changes that no launch of the suite can tell, each with the reason in ``equivalents.toml``: those that change
nothing, and those that another test of the project kills.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

FILE = Path(__file__).with_name("equivalents.toml")


@dataclass(frozen=True, slots=True)
class Untold:
    """``reason``: why no launch can tell. ``test``: the test that kills it, empty where it changes nothing."""

    reason: str
    test: str = ""


@lru_cache(maxsize=1)
def equivalents() -> Mapping[str, Untold]:
    """By the name of the mutant. Raises ValueError for a name that is there twice."""
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    found: dict[str, Untold] = {}
    for entry in (*document.get("equivalent", []), *document.get("elsewhere", [])):
        for name in entry["mutants"]:
            if name in found:
                raise ValueError(f"{FILE.name}: {name!r} is there twice")
            found[name] = Untold(entry["reason"], entry.get("test", ""))
    return found
