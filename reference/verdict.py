"""What became of one launch: what the output should hold, what it held, and what else went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from reference.case import Case
from reference.oracle import slot_mapping

UNWRITTEN: int = -559038737
"""0xDEADBEEF as int32: what an output's elements hold before the launch, so what "not written" looks like after it."""

PASS = "pass"
MISMATCH = "mismatch"
GUARD = "guard violation"
CRASH = "crash"
HANG = "hang"
COMPILE_ERROR = "compile error"
REFUSED = "refused"
UNSUPPORTED = "unsupported"
KINDS = (PASS, MISMATCH, GUARD, CRASH, HANG, COMPILE_ERROR, REFUSED, UNSUPPORTED)

_LISTING = re.compile(r"at [0-9]+:[0-9]+:")

ON_CHIP = "UB"
"""What a Guard calls the on-chip memory of an NPU. Its addresses are those that the compiler planned."""

MAX_DIFFERENCES = 16
"""Differences kept in a verdict; the rest is counted only."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One access outside what the kernel may touch, or a store into an input.

    ``direction`` is "read" or "write"; ``distance`` counts bytes to the nearest element of ``buffer``: negative before
    the first, 0 at an element (a store into an input; a read of what was never written), positive past the last.
    ``message`` says all of it in words.
    """

    buffer: str
    direction: str
    address: int
    distance: int
    message: str

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Difference:
    """One element: ``expected`` or ``actual`` is ``UNWRITTEN`` where nothing should have been, or was, written."""

    group: int
    index: int
    expected: int
    actual: int

    def __str__(self) -> str:
        expected, actual = shown_element(self.expected), shown_element(self.actual)
        return f"group {self.group} [{self.index}]: expected {expected}, got {actual}"

    def to_json(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``kind`` is one of ``KINDS``; ``differences`` holds the first ``MAX_DIFFERENCES`` of ``total_differences``.

    ``detail`` says in words what the numbers cannot: the signal of a crash, the compiler's message, why it was refused.
    """

    kind: str
    differences: tuple[Difference, ...] = ()
    total_differences: int = 0
    guards: tuple[Guard, ...] = ()
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.kind == PASS

    def summary(self) -> str:
        """One line: the kind, then what led to it."""
        parts = [guard.message for guard in self.guards[:1]]
        if self.differences:
            noun = "element differs" if self.total_differences == 1 else "elements differ"
            parts.append(f"{self.total_differences} {noun}, first {self.differences[0]}")
        if self.detail:
            parts.append(without_listing(self.detail))
        return " ".join("; ".join([f"{self.kind}: {parts[0]}", *parts[1:]] if parts else [self.kind]).split())

    def to_json(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "differences": [difference.to_json() for difference in self.differences],
            "total_differences": self.total_differences,
            "guards": [guard.to_json() for guard in self.guards],
            "detail": self.detail,
        }


def expected_output(case: Case, output_length: int, writes_tail: bool = True) -> list[list[int]]:
    """What each group's output of ``output_length`` elements must hold after a launch onto ``UNWRITTEN`` everywhere.

    Elements at or past ``max_num_tokens`` are never written. ``writes_tail=False`` is for the paths that write
    [0, num_tokens) only (torch DCP, draft): the tail must keep what it held. Raises ValueError (``qsl-capacity``) when
    the output is shorter than ``max_num_tokens``.
    """
    if output_length < case.max_num_tokens:
        raise ValueError(f"qsl-capacity: max_num_tokens {case.max_num_tokens} exceeds the output's {output_length}")
    written = case.max_num_tokens if writes_tail else case.num_tokens
    untouched = [UNWRITTEN] * (output_length - written)
    return [row[:written] + untouched for row in slot_mapping(case)]


def compare(
    expected: Sequence[Sequence[int]], actual: Sequence[Sequence[int]], guards: Iterable[Guard] = ()
) -> Verdict:
    """Element for element, over the whole output of every group: lists of lists of the same shape.

    A guard violation outranks a mismatch, and the differences are kept beside it. Raises ValueError when the shapes
    differ: then the caller has read something other than the output.
    """
    guards = tuple(guards)
    if expected == actual:
        return Verdict(GUARD if guards else PASS, guards=guards)
    shapes = [[len(row) for row in rows] for rows in (expected, actual)]
    if shapes[0] != shapes[1]:
        raise ValueError(f"cannot compare groups of {shapes[0]} elements with groups of {shapes[1]}")
    kept: list[Difference] = []
    total = 0
    for group, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
        if wanted == got:
            continue
        for index, (want, have) in enumerate(zip(wanted, got, strict=True)):
            if want != have:
                total += 1
                if len(kept) < MAX_DIFFERENCES:
                    kept.append(Difference(group, index, want, have))
    if total == 0:  # equal elements in different sequence types, a list and a tuple say
        return Verdict(GUARD if guards else PASS, guards=guards)
    return Verdict(GUARD if guards else MISMATCH, tuple(kept), total, guards)


def without_listing(message: str) -> str:
    """What Triton's compiler says, which follows a listing of the kernel down to the line concerned and a caret below
    that line. Errors in functions that the kernel calls are listed one after the other, the innermost last.
    """
    lines = message.split("\n")
    listings = [number for number, line in enumerate(lines) if _LISTING.fullmatch(line.strip())]
    for number in range(listings[-1] + 2, len(lines) - 1) if listings else ():
        said = " ".join(lines[number + 1 :]).strip()
        if lines[number].strip() == "^" and said:
            return f"{said} (at: {lines[number - 1].strip()})"
    return message


def shown_element(value: int) -> str:
    """An element of an output in a message."""
    return "nothing written" if value == UNWRITTEN else str(value)
