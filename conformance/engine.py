"""One run of the suite: the subjects loaded on a lane, their specializations, what was drawn and what was found."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from conformance.execution.session import Session
from conformance.explored import Explored
from conformance.lanes import Lane
from conformance.shards import Shard
from conformance.subjects.binding import bind, clauses
from conformance.subjects.entry import EntryPoint
from conformance.subjects.held import holding
from conformance.subjects.launching import Settings, has_flags
from conformance.verdicts import Finding, judge
from reference import verdict as v
from reference.case import Case, Group, Launch
from reports.coverage import Coverage
from strategies.declaration import Declaration
from strategies.specializations import FUSED_AXES, TILED_AXES, V1_AXES, V2_AXES, Axes, Pool, Specialization, pool

# Host functions choose tile and window themselves, and launch kernels that are tested on their own: few settings do.
# One block is longer than their tile.
_HOST_AXES: dict[str, Any] = {
    "tiles": (None,),
    "windows": (None,),
    "block_sizes": (16, 3, 1 << 20),
    "blocks_per_kv_block": (1, 3),
    "world_sizes": (1, 2, 3),
    "ranks": ("first", "last"),
    "interleaves": ("one", "over", "whole"),
    "pad_ids": (-1, 0),
}
_HOST_BUDGET = 10
HOSTS = ("v1-host", "v2-host", "tiled-host")

# Families with compile-time parameters; the others are drawn freely.
AXES: dict[str, Axes] = {
    "v1": V1_AXES,
    "v2": V2_AXES,
    "tiled": TILED_AXES,
    # Without context parallelism an allocated block plays no part.
    "fused": replace(FUSED_AXES, blocks_per_kv_block=(1,), block_sizes=(1, 3, 16, 128)),
    "v1-host": replace(V1_AXES, **_HOST_AXES),
    "v2-host": replace(V2_AXES, **_HOST_AXES),
    "tiled-host": replace(TILED_AXES, **_HOST_AXES),
    # On one rank it launches some of what "fused" does, on several it leaves the work to torch.
    "allocating": replace(V2_AXES, tiles=(None,), windows=(None,), block_sizes=(16, 1), pad_ids=(-1, 0)),
    "parallel": replace(V2_AXES, world_sizes=(1,), blocks_per_kv_block=(1,), rings=True),
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line chose, as far as a run depends on it."""

    subjects: tuple[str, ...]
    sources: dict[str, str]
    compile_budget: int
    case_timeout: float
    cache: Path
    compile_workers: int
    shard: Shard = field(default_factory=Shard)
    part: Shard = field(default_factory=Shard)  # of the pools: what this process compiles before the first test


@dataclass(slots=True)
class Tally:
    """What one entry point was given so far; ``compared``: of how many cases there was an output to compare.
    ``unsupported``: launches that the lane could not do, by its reason; they are no cases.
    """

    cases: int = 0
    compared: int = 0
    specializations: set[object] = field(default_factory=set)
    verdicts: Counter[str] = field(default_factory=Counter)
    unsupported: Counter[str] = field(default_factory=Counter)


class Engine:
    """Starts a subject's process when it is first asked for, and ends all of them in ``close``."""

    def __init__(self, lane: Lane, options: Options) -> None:
        self.lane, self.options = lane, options
        self.tallies: dict[str, Tally] = {}
        self.coverage = Coverage()
        self._sessions: dict[str, Session] = {}
        self._pools: dict[str, Pool] = {}
        self._entries: list[EntryPoint] | None = None
        self.explored: Explored | None = None  # by which the pools are chosen, where earlier runs are to decide that

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()
        self._sessions.clear()

    def session(self, subject: str) -> Session:
        if subject not in self._sessions:
            self._sessions[subject] = Session(
                self.lane,
                subject,
                self.options.sources.get(subject),
                cache=self.options.cache,
                case_timeout=self.options.case_timeout,
            )
        return self._sessions[subject]

    def entries(self) -> list[EntryPoint]:
        """Every entry point of the chosen subjects. Raises SubjectError when one cannot be loaded."""
        if self._entries is not None:
            return self._entries
        return [entry for subject in self.options.subjects for entry in self.session(subject).entries.values()]

    def adopt(self, entries: Sequence[EntryPoint]) -> None:
        """Take ``entries`` for those of the subjects, which are loaded elsewhere."""
        self._entries = list(entries)

    def pool(self, entry: EntryPoint) -> Pool | None:
        """The specializations that this run compiles for ``entry``; None where it has no compile-time parameters."""
        axes = AXES.get(entry.family)
        if axes is None:
            return None
        if entry.id not in self._pools:
            budget = self.options.compile_budget
            if entry.family in HOSTS:
                budget = min(budget, _HOST_BUDGET)
            made = self.explored.pool(entry, axes, budget) if self.explored else pool(entry.declaration, axes, budget)
            self._pools[entry.id] = self.options.shard.share(made)
        return self._pools[entry.id]

    def compile(self, entry: EntryPoint, progress: Callable[[int, int], None]) -> list[str]:
        """Compile the pool of ``entry`` before the first case; the messages of what does not compile.

        Nothing is lost by a failure here: the same specialization fails again, with a case, when it is drawn.
        """
        specializations = self.pool(entry) or ()
        drawn = self.coverage.of(entry.id)
        invocations = []
        for number, each in enumerate(specializations):
            case, launch = _empty(each)
            invocation, launch = bind(entry, case, launch, settings_of(each))
            if self.options.part.has(number):
                invocations.append(invocation)
            drawn.count_compiled(case, launch)
        session = self.session(entry.subject)
        started = time.perf_counter()
        errors = session.compile(invocations, workers=self.options.compile_workers, progress=progress)
        drawn.compile_seconds += time.perf_counter() - started
        return [error for error in errors if error is not None]

    def run(
        self,
        entry: EntryPoint,
        case: Case,
        launch: Launch,
        settings: Settings,
        promised: Sequence[Sequence[int | None]] | None = None,
        held: Sequence[Sequence[int]] | None = None,
    ) -> Finding:
        """Launch ``case`` and judge the outcome, by what is ``promised`` where the case has no answer or none is asked
        for. ``held`` is what the outputs hold before, a row a group; else nothing.
        """
        invocation, launch = bind(entry, case, launch, settings)
        if held is not None:
            invocation = holding(invocation, held)
        session = self.session(entry.subject)
        started = time.perf_counter()
        outcome = session.launch(invocation, launch.fence, launch.open_buffers)
        if promised is None:
            self.coverage.of(entry.id).count(case, launch, time.perf_counter() - started)
        session.hurried = session.hurried or outcome.status == "hang"
        return self._counted(replace(judge(entry, case, launch, outcome, promised), settings=settings))

    def run_all(self, entry: EntryPoint, cases: Sequence[tuple[Case, Launch, Settings]]) -> list[Finding]:
        """``run`` for each, waited for together where the lane can (:meth:`Session.launch_all`).

        Where one does not agree, what counts is what it does alone: another one of the batch may have done it. If it
        agrees alone, what it did in the batch stands.
        """
        bound = [bind(entry, case, launch, settings) for case, launch, settings in cases]
        session = self.session(entry.subject)
        started = time.perf_counter()
        outcomes = session.launch_all(bound)
        seconds = (time.perf_counter() - started) / max(len(cases), 1)
        session.hurried = session.hurried or any(each.status == "hang" for each in outcomes)
        findings = []
        for (case, _, settings), (_, launch), outcome in zip(cases, bound, outcomes, strict=True):
            self.coverage.of(entry.id).count(case, launch, seconds)
            finding = self._counted(replace(judge(entry, case, launch, outcome), settings=settings))
            if self.lane.batch > 1 and finding.verdict.kind == v.MISMATCH:
                alone = self.run(entry, case, launch, settings)
                finding = finding if alone.verdict.passed else alone
            findings.append(finding)
        return findings

    def _counted(self, finding: Finding) -> Finding:
        entry, launch = finding.entry, finding.launch
        tally = self.tallies.setdefault(entry.id, Tally())
        tally.verdicts[finding.verdict.kind] += 1
        if finding.verdict.kind == v.UNSUPPORTED:
            tally.unsupported[finding.verdict.detail] += 1
            return finding
        tally.cases += 1
        tally.compared += bool(finding.actual)
        tally.specializations.add((launch.output_dtype, tuple(launch.constants.items())))
        return finding


def settings_of(specialization: Specialization) -> Settings:
    if specialization.tile is None:
        return Settings()
    return Settings(specialization.tile, specialization.window)


def declared(entry: EntryPoint, specialization: Specialization) -> Declaration:
    """What ``entry`` promises for every launch with this specialization."""
    needed = clauses(entry, *_empty(specialization), settings_of(specialization))
    return Declaration(needed, entry.declaration.features, frozenset(entry.sparse))


def narrowed(declaration: Declaration, specialization: Specialization) -> Declaration:
    """What is drawn for one specialization of an entry point that takes several groups.

    Flags and rings are pointers that may be absent, which is a compilation of its own: half of the specializations have
    them always, the other half never, so that a run compiles each once and not up to eight times. Block tables, which
    alone have rings beside replicated groups, have all of it always: on several ranks they compile nothing, on one
    little.
    """
    features = declaration.features
    if "groups" not in features or features >= {"circular", "sharded"}:
        return declaration
    s = specialization
    flags = has_flags(settings_of(s), s.block_size, s.cp, s.pad_id)
    absent = set() if flags else {"enabled", "sharded"}
    if s.tile is None and s.block_size % s.cp.interleave:
        absent.discard("sharded")  # a host must take blocks that the interleave does not divide: only these groups' may
    if not (flags or s.circular):
        absent.add("circular")
    return replace(declaration, features=declaration.features - absent)


def _empty(specialization: Specialization) -> tuple[Case, Launch]:
    """A launch without requests, which compiles what every launch of ``specialization`` needs."""
    group = Group(
        block_table=(tuple(range(specialization.blocks_per_kv_block)),),
        block_size=specialization.block_size,
        kv_cache_block_size=specialization.kv_cache_block_size,
        kind="circular" if specialization.circular else "paged",
    )
    case = Case((0,), (), 0, 1, (group,), cp=specialization.cp, pad_id=specialization.pad_id)
    return case, Launch(output_dtype=specialization.output_dtype)
