"""``summary.json`` read again, and several of them as one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from reference.fields import INT64_MAX, CaseError, integer, items, shown
from reports.summary import NOT_RUN, SCHEMA, STILL_FAILS, Known, Run, Summary, Tally

MOST_SHARDS = 10_000
"""Of one run, as ``--shard`` has it."""
MOST_SECONDS = 1e12
"""So that those of many runs together are still a number."""


def together(found: Sequence[tuple[str, Summary]], failures: Mapping[str, int]) -> Summary:
    """The runs in these folders as one. ``failures`` counts those of each entry point that differ from one another.

    Specializations that several runs had count once; of a run that does not say which it had, it is only known that
    there are at least so many. Which files hold the failures is left to the caller.
    """
    summaries = [each for _, each in found]
    names = dict.fromkeys(name for each in summaries for name in each.entry_points)
    compiled = {name: _union(each.compiled.get(name, ()) for each in summaries) for name in names}
    tallies = {}
    for name in names:
        had = [each.entry_points[name] for each in summaries if name in each.entry_points]
        specializations = max(len(compiled[name]), *(tally.specializations for tally in had))
        cases, compared, unsupported = (
            sum(getattr(tally, key) for tally in had) for key in ("cases", "compared", "unsupported")
        )
        tallies[name] = Tally(cases, specializations, failures.get(name, 0), compared, unsupported)
    seeds = {each.seed for each in summaries}
    return Summary(
        subjects=_union(each.subjects for each in summaries),
        lane=", ".join(_union(each.lane.split(", ") for each in summaries)),
        seconds=max(each.seconds for each in summaries),
        entry_points=tallies,
        seed=seeds.pop() if len(seeds) == 1 else None,
        environment=_environment(summaries),
        known_failures=_known(summaries),
        compiled=compiled,
        runs=tuple(run for folder, each in found for run in (each.runs or (_run(folder, each),))),
    )


def missing_shards(runs: Iterable[Run]) -> list[str]:
    """Shards of which some others are there."""
    shards = {run.shard: None for run in runs if run.shard}
    counts = dict.fromkeys(each.partition("/")[2] for each in shards)
    wanted = [f"{index}/{count}" for count in counts for index in range(1, int(count) + 1)]
    return [each for each in wanted if each not in shards]


def _run(folder: str, summary: Summary) -> Run:
    return Run(
        folder, summary.lane, summary.cases, summary.failures, round(summary.seconds, 3), summary.seed, summary.shard
    )


def _union(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(each for some in lists for each in some))


def _environment(summaries: Iterable[Summary]) -> dict[str, str]:
    """Where machines differ, all that there is."""
    found: dict[str, dict[str, None]] = {}
    for each in summaries:
        for name, value in each.environment.items():
            found.setdefault(name, {}).update(dict.fromkeys(value.split("; ")))
    return {name: "; ".join(values) for name, values in found.items()}


def _known(summaries: Iterable[Summary]) -> tuple[Known, ...]:
    """Each known failure once. Of what became of it, that it does something else comes first, then that it fails."""
    cases: Counter[Known] = Counter()
    status: dict[Known, str] = {}
    for each in (known for summary in summaries for known in summary.known_failures):
        bare = replace(each, status="", cases=0)
        cases[bare] += each.cases
        status[bare] = max(status.get(bare, each.status), each.status, key=_telling)
    return tuple(replace(known, status=said, cases=cases[known]) for known, said in status.items())


def _telling(status: str) -> int:
    return {NOT_RUN: 0, STILL_FAILS: 1}.get(status, 2)


def of_document(document: object) -> Summary:
    """What ``summary.json`` holds, also that of a version that wrote less into it. Raises CaseError, one line."""
    if not isinstance(document, dict):
        raise CaseError(f"expected an object, got {shown(document)}")
    if document.get("schema") != SCHEMA or isinstance(document["schema"], bool):
        raise CaseError(f"schema: expected {SCHEMA}, got {shown(document.get('schema'))}")
    try:
        return _of_document(document)
    except KeyError as error:
        raise CaseError(f"{error.args[0]}: missing") from None
    except (TypeError, AttributeError) as error:
        raise CaseError(f"not the summary of a run: {error}") from None


def _of_document(document: Mapping[str, Any]) -> Summary:
    return Summary(
        subjects=tuple(_text(document, "subject").split(",")),
        lane=_text(document, "lane"),
        seconds=_seconds(document),
        entry_points={
            str(name): Tally(
                **{key: _count_of(tally, key) for key in ("cases", "specializations", "failures")},
                **{key: _count_of({key: 0} | tally, key) for key in ("compared", "unsupported")},
            )
            for name, tally in document["entry_points"].items()
        },
        reports=_texts(document, "reports"),
        seed=_seed(document),
        environment={str(name): str(value) for name, value in document.get("environment", {}).items()},
        known_failures=tuple(
            Known(
                **{key: _text(each, key) for key in ("entry_point", "kind", "cause", "buffer", "reason", "status")},
                cases=_count_of(each, "cases"),
            )
            for each in items(document.get("known_failures", []), "known_failures")
        ),
        outside_the_contract=_texts(document, "outside_the_contract"),
        shard=_shard({"shard": "", **document}),
        compiled={
            str(name): tuple(map(str, items(ids, f"compiled.{name}")))
            for name, ids in document.get("compiled", {}).items()
        },
        runs=tuple(
            Run(
                **{key: _text(each, key) for key in ("folder", "lane")},
                shard=_shard(each),
                cases=_count_of(each, "cases"),
                failures=_count_of(each, "failures"),
                seconds=_seconds(each),
                seed=_seed(each),
            )
            for each in items(document.get("runs", []), "runs")
        ),
    )


def _text(values: Mapping[str, Any], name: str) -> str:
    if not isinstance(values[name], str):
        raise CaseError(f"{name}: expected a text, got {shown(values[name])}")
    return str(values[name])


def _texts(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    return tuple(map(str, items(values.get(name, []), name)))


def _shard(values: Mapping[str, Any]) -> str:
    """``I/N``, or "" for a whole run."""
    text = _text(values, "shard")
    found = re.fullmatch(r"([1-9][0-9]{0,8})/([1-9][0-9]{0,8})", text)
    if text and (found is None or not int(found[1]) <= int(found[2]) <= MOST_SHARDS):
        raise CaseError(f"shard: expected I/N of at most {MOST_SHARDS} shards, got {shown(text)}")
    return text


def _count_of(values: Mapping[str, Any], name: str) -> int:
    return integer(values[name], name, 0, INT64_MAX)


def _seconds(values: Mapping[str, Any]) -> float:
    seconds = values["seconds"]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MOST_SECONDS:
        raise CaseError(f"seconds: expected a number within 0..{MOST_SECONDS:g}, got {shown(seconds)}")
    return float(seconds)


def _seed(values: Mapping[str, Any]) -> int | None:
    seed = values.get("seed")
    if seed is not None and type(seed) is not int:
        raise CaseError(f"seed: expected an integer or null, got {shown(seed)}")
    return seed
