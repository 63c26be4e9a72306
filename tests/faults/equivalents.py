"""Changes that change nothing: each with the reason, or the proof, in ``equivalents.toml``."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

FILE = Path(__file__).with_name("equivalents.toml")


@lru_cache(maxsize=1)
def equivalents() -> Mapping[str, str]:
    """Why no launch can tell, by the name of the mutant. Raises ValueError for a name that is there twice."""
    document = tomllib.loads(FILE.read_text(encoding="utf-8"))
    found: dict[str, str] = {}
    for entry in document.get("equivalent", []):
        for name in entry["mutants"]:
            if name in found:
                raise ValueError(f"{FILE.name}: {name!r} is there twice")
            found[name] = entry["reason"]
    return found
