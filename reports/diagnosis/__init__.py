"""Which step of the slot mapping went wrong, as far as expected and actual output, trace and guards can tell.

Every known mistake is a hypothesis: the contract's mapping with one step done in another way. One that predicts all
of an output, the elements that differ and those that do not, explains it. Where the hypotheses that do are of one
cause, that is the diagnosis. Where they are of several, what the elements show by themselves is, if it is true
whichever of them it is; and where there is none, if all elements show the same. Anything else is ``unknown``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from reference import verdict as v
from reference.case import Case, Launch
from reports.diagnosis import memory
from reports.diagnosis.causes import CAUSES as CAUSES
from reports.diagnosis.causes import GENERAL as GENERAL
from reports.diagnosis.causes import UNKNOWN as UNKNOWN
from reports.diagnosis.mapping import Observation as Observation
from reports.diagnosis.observations import shown, shown_by_all
from reports.diagnosis.refuting import explaining, standing, supported


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``cause`` is one of ``CAUSES`` (``unknown`` rather than a guess), ``summary`` a sentence for whoever mends the
    kernel. ``buffer`` is what is concerned: the memory, without its group, or what a crash, a refusal or the compiler
    says, without its numbers ("" where none is).
    """

    cause: str
    summary: str
    buffer: str = ""

    @property
    def key(self) -> str | None:
        """What failures of one cause have in common; None where the cause is not known: nothing is grouped with it."""
        return None if self.cause == UNKNOWN else f"{self.cause} {self.buffer}".rstrip()

    def to_json(self) -> dict[str, str]:
        return {"cause": self.cause, "summary": self.summary, "buffer": self.buffer}


def diagnose(
    case: Case,
    launch: Launch,
    verdict: v.Verdict,
    expected: Sequence[Sequence[int]],
    actual: Sequence[Sequence[int]],
    evidence: Iterable[Observation] = (),
) -> Diagnosis:
    """The cause of ``verdict``; ``expected`` and ``actual`` are one row of elements a group, ``actual`` empty where
    nothing was compared.

    ``evidence`` are other launches of the same code, passed and failed. A small failure often has several
    explanations; what they predict for other launches tells them apart.

    Never raises: an output may hold anything.
    """
    seen = Observation(case, launch, expected, actual)
    try:
        return _diagnosis(seen, verdict, tuple(evidence))
    except Exception as error:  # the report of a failure must not fail
        return Diagnosis(UNKNOWN, f"{verdict.summary()} (no diagnosis: {type(error).__name__})")


def _diagnosis(seen: Observation, verdict: v.Verdict, evidence: tuple[Observation, ...]) -> Diagnosis:
    if verdict.guards:
        guard = verdict.guards[0]
        sentence = memory.sentence_of(guard, seen.case, seen)
        return Diagnosis(memory.cause_of(guard), sentence, memory.buffer_of(guard))
    if verdict.kind == v.HANG:
        return Diagnosis(verdict.kind, verdict.summary())
    if verdict.kind == v.COMPILE_ERROR:
        return Diagnosis(verdict.kind, verdict.summary(), memory.without_numbers(_compiler_s(verdict.detail)))
    if verdict.kind in (v.CRASH, v.REFUSED):
        return _ended(seen, verdict)
    if not seen.actual or not seen.differing:
        return Diagnosis(UNKNOWN, verdict.summary())
    return _of_values(seen, verdict, evidence)


def _compiler_s(detail: str) -> str:
    """What the compiler says, without the lines of the kernel that it shows first: they end with a mark."""
    return re.split(r"^\s*\^[\s^]*$", detail, flags=re.MULTILINE)[-1]


def _ended(seen: Observation, verdict: v.Verdict) -> Diagnosis:
    if verdict.detail.startswith("IndexError") and (found := memory.look_up_without_slot(seen)):
        cause, sentence = found
        return Diagnosis(cause, f"{sentence} ({verdict.detail})", "block_table")
    return Diagnosis(verdict.kind, verdict.summary(), memory.without_numbers(verdict.detail))


def _of_values(seen: Observation, verdict: v.Verdict, evidence: tuple[Observation, ...]) -> Diagnosis:
    supposed = standing(explaining(seen), seen, evidence)
    causes = dict.fromkeys(hypothesis.cause for hypothesis in supposed)
    firm = [each for each in supposed if supported(each, (seen, *evidence))] if len(causes) == 1 else []
    if firm:
        return Diagnosis(firm[0].cause, firm[0].sentence(seen))
    found = shown(seen)
    if found is not None:
        true_of_all = causes.keys() <= {found[0], *GENERAL.get(found[0], ())}
        if true_of_all and (causes or shown_by_all(found[0], evidence)):
            return Diagnosis(*found)
    if causes:
        return Diagnosis(UNKNOWN, f"{verdict.summary()} (it could be any of: {', '.join(causes)})")
    return Diagnosis(UNKNOWN, verdict.summary())
