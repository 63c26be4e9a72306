"""The options of the suite: what they are, what is refused, and what they come to."""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, core, settings

from conformance import lanes, shards, subjects
from conformance.corpus import Corpus
from conformance.engine import Options
from conformance.lanes.hivm import VDIV, HivmLane
from conformance.required import names, unknown
from conformance.shards import Shard
from conformance.stash import PLACE
from conformance.subjects.entry import EntryPoint

_ROOT = Path(__file__).parents[1]
DEFAULT_PROFILE = "gate"
_LONGEST_TIMEOUT = 86_400.0  # seconds; far below what poll() can wait for
# No database: under another pool of specializations the same entry is another case. A failure travels as a JSON file.
# Not derandomized: where Hypothesis sees a CI machine it draws the same cases in every run, whatever the seed.
_COMMON = settings(
    database=None,
    deadline=None,
    derandomize=False,
    print_blob=False,
    report_multiple_bugs=True,
    phases=[Phase.explicit, Phase.generate, Phase.target, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_PROFILES = {"quick": 100, DEFAULT_PROFILE: 600, "deep": 20_000}
for _name, _examples in _PROFILES.items():
    settings.register_profile(_name, _COMMON, max_examples=_examples)


def add(parser: pytest.Parser) -> None:
    """Declare every option of the suite."""
    group = parser.getgroup("conformance", "slot-mapping conformance")
    group.addoption(
        "--subject", action="append", metavar="NAME", help=f"{', '.join(subjects.NAMES)}; repeatable (default: kernels)"
    )
    group.addoption(
        "--source",
        action="append",
        default=[],
        metavar="[NAME=]PATH",
        help="read that subject from a source checkout or an unpacked wheel instead of the installed package",
    )
    group.addoption(
        "--require",
        action="append",
        default=[],
        metavar="LIST",
        help="entry points (v2, vllm-ascend.v2, ...), separated by commas, that must have run cases, or the run fails",
    )
    group.addoption("--lane", default="auto", metavar="NAME", help=f"auto (default), {', '.join(lanes.names())}")
    group.addoption(
        "--vdiv",
        choices=VDIV,
        default=VDIV[0],
        metavar="WHERE",
        help="lane hivm: where quotients of float32 vectors land, as IEEE 754 rounds (exact, the default) or on the"
        " number below or above",
    )
    group.addoption("--max-examples", type=int, metavar="N", help="examples a test, instead of the profile's")
    group.addoption(
        "--compile-budget", type=int, metavar="N", help="specializations a kernel and run (default 64; npu: 48)"
    )
    group.addoption(
        "--case-timeout",
        type=float,
        metavar="S",
        help="seconds after which a launch counts as hung (default 10; interpreter: 60)",
    )
    group.addoption(
        "--replay", action="append", default=[], metavar="FILE", help="run saved cases instead of drawing; repeatable"
    )
    group.addoption(
        "--known-failures",
        action="append",
        default=[],
        metavar="FILE",
        help="accepted failures (TOML), each with its case, which is run first; any other failure is new; repeatable",
    )
    group.addoption(
        "--strict-known", action="store_true", help="fail the run when the case of a known failure passes now"
    )
    group.addoption(
        "--write-known-failures", metavar="FILE", help="write the failures of this run, known ones and new ones, there"
    )
    group.addoption(
        "--corpus", metavar="FOLDER", help="failing cases found anywhere: replayed first, and added to by this run"
    )
    group.addoption(
        "--shard",
        metavar="I/N",
        help="the part of the run that is machine I's of N: other specializations, another seed (docs/workers.md)",
    )
    group.addoption(
        "--report-dir",
        metavar="DIR",
        help="where reports go (default reports/output; with --replay, reports/output/replay)",
    )


def check(config: pytest.Config) -> None:
    """Raise UsageError, one line, for an option that cannot be meant."""
    option = config.option
    if not hasattr(option, "hypothesis_profile"):
        raise pytest.UsageError("cases are drawn by Hypothesis, whose plugin for pytest is switched off")
    for name, value in _named(option):
        if not value.strip():
            raise pytest.UsageError(f"{name}: it is empty; is a variable not set?")
    if option.require and not required(config):
        raise pytest.UsageError(f"--require: {option.require[0]!r} names no entry point")
    limits = {
        "--max-examples": option.max_examples,
        "--compile-budget": option.compile_budget,
        "--case-timeout": option.case_timeout,
    }
    for name, value in limits.items():
        if value is not None and not value > 0:  # so that nan is refused too
            raise pytest.UsageError(f"{name}: {value} is not above 0")
    if option.case_timeout is not None and option.case_timeout > _LONGEST_TIMEOUT:
        raise pytest.UsageError(f"--case-timeout: {option.case_timeout} is above {_LONGEST_TIMEOUT:g} seconds, a day")
    if option.strict_known and not option.known_failures:
        raise pytest.UsageError("--strict-known: no failures are known; name their file with --known-failures FILE")
    if option.write_known_failures is not None and os.path.isdir(option.write_known_failures):
        raise pytest.UsageError(f"--write-known-failures: {option.write_known_failures} is a folder")
    if option.corpus is not None and os.path.exists(option.corpus) and not os.path.isdir(option.corpus):
        raise pytest.UsageError(f"--corpus: {option.corpus} is no folder")
    shard(config)
    if option.hypothesis_profile is not None and option.hypothesis_profile not in _PROFILES:
        raise pytest.UsageError(
            f"--hypothesis-profile: unknown profile {option.hypothesis_profile!r}, choose among {', '.join(_PROFILES)}"
        )
    if option.hypothesis_seed is not None:
        try:
            int(option.hypothesis_seed)
        except ValueError:
            raise pytest.UsageError(f"--hypothesis-seed: {option.hypothesis_seed!r:.80} is no integer") from None
    chosen = option.subject or ["kernels"]
    for name in chosen:
        if name not in subjects.NAMES:
            raise pytest.UsageError(f"--subject: unknown subject {name!r}, choose among {', '.join(subjects.NAMES)}")
    for name in sources(config):
        if name not in chosen:
            raise pytest.UsageError(f"--source: {name!r} is not a subject of this run ({', '.join(chosen)})")


def _named(option: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """(option, value) of those whose value is a name or a path, which to leave empty would mean another one."""
    for item in option.source:
        name, equals, path = item.partition("=")
        yield "--source", path if equals and name in subjects.NAMES else item
    for name in ("require", "known_failures", "replay"):
        yield from (("--" + name.replace("_", "-"), value) for value in getattr(option, name))
    for name in ("corpus", "report_dir", "write_known_failures"):
        value = getattr(option, name)
        yield "--" + name.replace("_", "-"), "-" if value is None else value


def seed(config: pytest.Config) -> int:
    """The seed of this run: the one asked for, else a fresh one, so that every report can name it. What is drawn hangs
    on the shard too.
    """
    given: int | None = getattr(config, "workerinput", {}).get("seed", core.global_force_seed)
    number = random.SystemRandom().randrange(2**32) if given is None else int(given)
    drawing = shard(config).seed(number)
    setattr(core, "global_force_seed", drawing)  # noqa: B010  (declared as None; Hypothesis's own plugin sets it too)
    return number


def shard(config: pytest.Config) -> Shard:
    """What ``--shard`` says; the whole run without it. Raises UsageError."""
    if config.option.shard is None:
        return Shard()
    try:
        return shards.parse(config.option.shard)
    except ValueError as error:
        raise pytest.UsageError(f"--shard: {error}") from None


def sources(config: pytest.Config) -> dict[str, str]:
    """``--source [NAME=]PATH``; a bare path belongs to the only subject of the run."""
    chosen = config.option.subject or ["kernels"]
    found: dict[str, str] = {}
    for item in config.option.source:
        name, equals, path = item.partition("=")
        if not equals or name not in subjects.NAMES:
            if len(chosen) > 1:
                raise pytest.UsageError(f"--source {item}: with several subjects write --source NAME=PATH")
            name, path = chosen[0], item
        if not Path(path).exists():
            raise pytest.UsageError(f"--source: {path} does not exist")
        if name in found:
            raise pytest.UsageError(f"--source {item}: {name} has a source already, {found[name]}")
        found[name] = os.path.abspath(path)
    return found


def required(config: pytest.Config) -> list[str]:
    """The entry points that ``--require`` lists."""
    return names(config.option.require)


def reports(config: pytest.Config) -> Path:
    """Where reports go. A replay leaves the page that it was started from as it is, unless it is told otherwise."""
    given = config.option.report_dir
    if given is None:
        return Path("reports/output/replay" if config.option.replay else "reports/output")
    return Path(given)


def corpus(config: pytest.Config) -> Corpus | None:
    """The folder of ``--corpus``. The controller of pytest-xdist reads its files: every worker must see the same."""
    folder = config.option.corpus
    if folder is None:
        return None
    texts = getattr(config, "workerinput", {}).get("corpus")
    return Corpus(Path(folder), None if texts is None else json.loads(texts))


def check_required(config: pytest.Config, entries: Iterable[EntryPoint]) -> None:
    """Raise UsageError, one line, for a name in ``--require`` that none of ``entries`` has: it could never run."""
    for problem in unknown(required(config), [entry.id for entry in entries]):
        raise pytest.UsageError(problem)


def lane(config: pytest.Config) -> lanes.Lane:
    """The lane of the run, which can run here. Raises UsageError when none can."""
    name = config.option.lane
    try:
        chosen = lanes.automatic() if name == "auto" else lanes.by_name(name)
        if chosen.name == HivmLane.name:
            chosen = HivmLane(config.option.vdiv)
        elif config.option.vdiv != VDIV[0]:
            raise pytest.UsageError(f"--vdiv: an option of lane hivm, and this is lane {chosen.name}")
    except lanes.LaneUnavailable as error:
        raise pytest.UsageError(f"--lane: {error}") from error
    reason = chosen.unavailable()
    if reason is not None:
        raise pytest.UsageError(f"--lane {chosen.name}: {reason}")
    return chosen


def of_run(config: pytest.Config, lane: lanes.Lane) -> Options:
    """What the engine has to know of the command line; what it leaves open is the lane's."""
    option, place = config.option, config.stash.get(PLACE, None)
    return Options(
        subjects=tuple(dict.fromkeys(option.subject or ["kernels"])),
        sources=sources(config),
        compile_budget=option.compile_budget or lane.compile_budget,
        case_timeout=option.case_timeout or lane.case_timeout,
        cache=_ROOT / ".cache",
        compile_workers=place.compile_workers if place else len(os.sched_getaffinity(0)),
        shard=shard(config),
        part=place.part if place else Shard(),
    )
