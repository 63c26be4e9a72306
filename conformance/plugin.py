"""The pytest side of the suite: options, the ``entry_point`` of each test, compiling before testing, reports after
it.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, Phase, core, settings
from hypothesis.errors import InvalidArgument

from conformance import lanes, recording, saved, subjects
from conformance.engine import Engine, Options
from conformance.execution.session import SubjectError
from conformance.explained import signature
from conformance.subjects import binding
from conformance.subjects.binding import BindingError
from conformance.subjects.entry import EntryPoint
from conformance.under_test import UnderTest
from conformance.verdicts import ConformanceFailure, failures_in
from reference.case import CaseError

_FOLDER = Path(__file__).parent
_SAVED = _FOLDER / "test_saved.py"
_ENGINE = pytest.StashKey[Engine]()
_PAIRS = pytest.StashKey[list[tuple[EntryPoint, saved.SavedCase]]]()
_RECORDER = pytest.StashKey[recording.Recorder]()

DEFAULT_PROFILE = "gate"
_MOST_FAILURES = 8  # different ones that a test goes on after
_LONGEST_TIMEOUT = 86_400.0  # seconds; far below what poll() can wait for
# No database: under another pool of specializations the same entry is another case. A failure travels as a JSON file.
_COMMON = settings(
    database=None,
    deadline=None,
    print_blob=False,
    report_multiple_bugs=True,
    phases=[Phase.explicit, Phase.generate, Phase.target, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
_PROFILES = {"quick": 100, DEFAULT_PROFILE: 1500, "deep": 20_000}
for _name, _examples in _PROFILES.items():
    settings.register_profile(_name, _COMMON, max_examples=_examples)


def pytest_addoption(parser: pytest.Parser) -> None:
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
    group.addoption("--lane", default="auto", metavar="NAME", help=f"auto (default), {', '.join(lanes.names())}")
    group.addoption("--max-examples", type=int, metavar="N", help="examples a test, instead of the profile's")
    group.addoption(
        "--compile-budget", type=int, default=64, metavar="N", help="specializations a kernel and run (default 64)"
    )
    group.addoption(
        "--case-timeout",
        type=float,
        default=10.0,
        metavar="S",
        help="seconds after which a launch counts as hung (default 10)",
    )
    group.addoption(
        "--replay", action="append", default=[], metavar="FILE", help="run saved cases instead of drawing; repeatable"
    )
    group.addoption(
        "--report-dir", default="reports/output", metavar="DIR", help="where reports go (default reports/output)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Refuse wrong options before any plugin meets them: Hypothesis's own raises for a profile that does not exist."""
    _check_options(config)


@pytest.hookimpl(trylast=True)  # after Hypothesis's own, which loads the profile that its option names
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "entry_points(*names): the entry points that a conformance test is about")
    if config.option.hypothesis_profile is None:
        settings.load_profile(DEFAULT_PROFILE)
    if config.option.max_examples is not None:
        settings.register_profile("command line", settings(), max_examples=config.option.max_examples)
        settings.load_profile("command line")
    config.stash[_RECORDER] = recording.Recorder(Path(config.option.report_dir), _seed(config))


def _check_options(config: pytest.Config) -> None:
    option = config.option
    limits = {
        "--max-examples": option.max_examples,
        "--compile-budget": option.compile_budget,
        "--case-timeout": option.case_timeout,
    }
    for name, value in limits.items():
        if value is not None and not value > 0:  # so that nan is refused too
            raise pytest.UsageError(f"{name}: {value} is not above 0")
    if option.case_timeout > _LONGEST_TIMEOUT:
        raise pytest.UsageError(f"--case-timeout: {option.case_timeout} is above {_LONGEST_TIMEOUT:g} seconds, a day")
    try:
        settings.get_profile(option.hypothesis_profile or DEFAULT_PROFILE)
    except InvalidArgument:
        raise pytest.UsageError(
            f"--hypothesis-profile: unknown profile {option.hypothesis_profile!r}, choose among {', '.join(_PROFILES)}"
        ) from None
    chosen = option.subject or ["kernels"]
    for name in chosen:
        if name not in subjects.NAMES:
            raise pytest.UsageError(f"--subject: unknown subject {name!r}, choose among {', '.join(subjects.NAMES)}")
    for name in _sources(config):
        if name not in chosen:
            raise pytest.UsageError(f"--source: {name!r} is not a subject of this run ({', '.join(chosen)})")


def _seed(config: pytest.Config) -> int:
    """The seed of this run: the one asked for, else a fresh one, so that every report can name it."""
    given: int | None = core.global_force_seed
    seed = random.SystemRandom().randrange(2**32) if given is None else int(given)
    setattr(core, "global_force_seed", seed)  # noqa: B010  (declared as None; Hypothesis's own plugin sets it too)
    return seed


def _sources(config: pytest.Config) -> dict[str, str]:
    """``--source [NAME=]PATH``; a bare path belongs to the only subject of the run."""
    chosen = config.option.subject or ["kernels"]
    found = {}
    for item in config.option.source:
        name, equals, path = item.partition("=")
        if not equals or name not in subjects.NAMES:
            if len(chosen) > 1:
                raise pytest.UsageError(f"--source {item}: with several subjects write --source NAME=PATH")
            name, path = chosen[0], item
        if not Path(path).exists():
            raise pytest.UsageError(f"--source: {path} does not exist")
        found[name] = os.path.abspath(path)
    return found


def _start(config: pytest.Config) -> Engine:
    """The run's engine, its subjects loaded. Raises UsageError, one line, when that cannot be."""
    option = config.option
    try:
        lane = lanes.automatic() if option.lane == "auto" else lanes.by_name(option.lane)
    except lanes.LaneUnavailable as error:
        raise pytest.UsageError(f"--lane: {error}") from error
    reason = lane.unavailable()
    if reason is not None:
        raise pytest.UsageError(f"--lane {lane.name}: {reason}")
    engine = Engine(
        lane,
        Options(
            subjects=tuple(dict.fromkeys(option.subject or ["kernels"])),
            sources=_sources(config),
            compile_budget=option.compile_budget,
            case_timeout=option.case_timeout,
            cache=_FOLDER.parent / ".cache",
            compile_workers=len(os.sched_getaffinity(0)),
        ),
    )
    config.add_cleanup(engine.close)
    try:
        for entry in engine.entries():
            binding.check(entry)
    except (SubjectError, BindingError) as error:
        raise pytest.UsageError(str(error)) from error
    return engine


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Load the subjects before anything is collected, unless what is collected is something else than the suite."""
    config = session.config
    folders = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    if not any(path == _FOLDER or path in _FOLDER.parents or _FOLDER in path.parents for path in folders):
        return
    engine = _start(config)
    try:
        read = [saved.read(Path(file)) for file in config.option.replay]
        config.stash[_PAIRS] = saved.pairs(read, engine.entries())
    except CaseError as error:
        raise pytest.UsageError(f"--replay: {error}") from error
    config.stash[_ENGINE] = engine  # not sooner: a run that never was writes no summary


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--replay`` saved cases are all that runs; without it there are none."""
    if collection_path.parent != _FOLDER or not collection_path.name.startswith("test_"):
        return None
    return True if (collection_path == _SAVED) != bool(config.option.replay) else None


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "entry_point" not in metafunc.fixturenames:
        return
    engine = metafunc.config.stash[_ENGINE]
    if "saved_case" in metafunc.fixturenames:
        found = metafunc.config.stash[_PAIRS]
        metafunc.parametrize(("entry_point", "saved_case"), [_saved_case(engine, *each) for each in found])
        return
    marker = metafunc.definition.get_closest_marker("entry_points")
    names = marker.args if marker else ()
    concerned = [UnderTest(engine, entry) for entry in engine.entries() if entry.name in names]
    if concerned:
        metafunc.parametrize("entry_point", concerned, ids=repr)
        return
    reason = f"{', '.join(engine.options.subjects)}: no entry point {' or '.join(names)}"
    metafunc.parametrize("entry_point", [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")])


def _saved_case(engine: Engine, entry: EntryPoint, case: saved.SavedCase) -> ParameterSet:
    reason = case.why_not(entry)
    marks = [pytest.mark.skip(reason=reason)] if reason is not None else []
    return pytest.param(UnderTest(engine, entry), case, marks=marks, id=f"{case.file.stem}-{entry.id}")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Compile what the selected tests draw from, all cores at work, before the first case."""
    if session.config.option.collectonly or _ENGINE not in session.config.stash or session.config.option.replay:
        return
    engine = session.config.stash[_ENGINE]
    wanted = {target.entry.id: target.entry for target in map(_target, session.items) if target is not None}
    for entry in wanted.values():
        pool = engine.pool(entry)
        if pool is None:
            continue
        started = time.monotonic()
        errors = engine.compile(entry, _progress(session.config, entry.id))
        lines = [
            f"{entry.id}: {pool.describe()}; ready on lane {engine.lane.name} after {time.monotonic() - started:.1f} s"
        ]
        lines += [f"{entry.id}: does not compile: {error.splitlines()[0]}" for error in dict.fromkeys(errors)]
        _say(session.config, lines)


def _target(item: pytest.Item) -> UnderTest | None:
    target = item.callspec.params.get("entry_point") if hasattr(item, "callspec") else None
    return target if isinstance(target, UnderTest) else None


def _say(config: pytest.Config, lines: list[str]) -> None:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        for line in lines:
            terminal.ensure_newline()
            terminal.write_line(line)


def _progress(config: pytest.Config, what: str) -> Any:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or not terminal.isatty:
        return lambda done, total: None

    def show(done: int, total: int) -> None:
        filled = 30 * done // total
        bar = "#" * filled + "." * (30 - filled)
        terminal.rewrite(f"compiling {what} [{bar}] {done}/{total}", erase=done == total)

    return show


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and _ENGINE in item.config.stash:
        failures = list(failures_in(call.excinfo.value))
        if failures:
            engine, recorder = item.config.stash[_ENGINE], item.config.stash[_RECORDER]
            report.longrepr = "\n\n".join(
                recorder.record(engine, item.nodeid, failure.finding, failure.examples) for failure in failures
            )
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Run a test again as long as it finds a new failure beside those it has explained."""
    target = _target(item)
    if target is not None:
        target.begin()
    try:
        return (yield)
    except (ConformanceFailure, BaseExceptionGroup) as error:
        found = list(failures_in(error))
        if target is None or not found or item.path == _SAVED:
            raise
    for _ in range(_MOST_FAILURES):
        new = {signature(failure.finding) for failure in found} - target.explained
        if not new or None in new:
            break
        target.explained |= {each for each in new if each is not None}
        try:
            target.begin()
            item.runtest()
            break
        except (ConformanceFailure, BaseExceptionGroup) as error:
            found += failures_in(error)
    smallest = [target.smallest(failure) for failure in found]
    raise ExceptionGroup(f"{len(found)} failures", smallest) if len(found) > 1 else smallest[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if _ENGINE in config.stash and not config.option.collectonly:
        for line in config.stash[_RECORDER].finish(config.stash[_ENGINE]):
            terminalreporter.write_line(line)
