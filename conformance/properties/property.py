"""What a property is, and how two launches are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from conformance.subjects.entry import EntryPoint
from reference import verdict as v
from reference.case import Case

Rows = list[list[int]]
"""The output of each group, ``Launch.output_length`` elements; what was not written holds UNWRITTEN."""


class Launches(Protocol):
    """Launches a case; ``what`` is its part in the property, in a few words. ``held`` is what the outputs hold before;
    None: UNWRITTEN everywhere. Raises what ends the check where there is no output to compare.
    """

    def __call__(self, what: str, case: Case, held: Rows | None = None) -> Rows: ...


Check = Callable[[Launches, Case, int, EntryPoint], str | None]
"""(launch, case, choice, entry point): what contradicts the property, in a sentence; None where nothing does.

``choice`` is a number from 0 on that settles everything which the case leaves open: where to cut, what to exchange.
"""


@dataclass(frozen=True, slots=True)
class Property:
    """``name`` is its id, ``statement`` what holds, in a sentence. ``features`` are those without which an entry point
    has nothing that it could be said of.
    """

    name: str
    statement: str
    check: Check
    features: frozenset[str] = frozenset()

    def why_not(self, entry: EntryPoint) -> str | None:
        """Why it says nothing about ``entry``, or None."""
        missing = self.features - entry.declaration.features
        return f"{entry.id} does not have {', '.join(sorted(missing))}" if missing else None


@dataclass(frozen=True, slots=True)
class Changed:
    """A case made of another one. Token t of it is token ``tokens[t]`` there, its group g is group ``groups[g]`` (None:
    there is none). ``renamed`` takes (group, slot there) to the slot here.
    """

    what: str
    case: Case
    tokens: Sequence[int]
    groups: Sequence[int | None]
    renamed: Callable[[int, int], int] = lambda group, slot: slot


def contradiction(launch: Launches, before: Case, rows: Rows, changed: Changed, entry: EntryPoint) -> str | None:
    """Launch ``changed`` and say where it is not what ``rows``, the output of ``before``, make of it."""
    found = launch(changed.what, changed.case)
    pad = before.pad_id
    for group, origin in enumerate(changed.groups):
        if origin is None:
            continue
        for token, source in enumerate(changed.tokens):
            was = rows[origin][source]
            wanted = was if was == pad else changed.renamed(group, was)
            if found[group][token] != wanted:
                said = "" if wanted == was else f", which is {wanted} here"
                return (
                    f"{token_of(before, source)} had {shown(was)} in group {origin}{said}; in {changed.what} it is"
                    f" token {token} and has {shown(found[group][token])} in group {group}"
                )
        if entry.writes_tail:
            for element in range(changed.case.num_tokens, changed.case.max_num_tokens):
                if found[group][element] != pad:
                    value = shown(found[group][element])
                    return f"element {element} of group {group} is padding in {changed.what} and holds {value}"
    return None


def request_of(case: Case, token: int) -> int:
    return next(r for r in range(case.num_reqs) if case.query_start_loc[r] <= token < case.query_start_loc[r + 1])


def token_of(case: Case, token: int) -> str:
    """A token in words."""
    return f"token {token} (request {request_of(case, token)}, position {case.positions[token]})"


def shown(value: int) -> str:
    return v.shown_element(value)
