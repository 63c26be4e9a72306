"""The pytest side of the suite: options, the ``entry_point`` of each test, compiling before testing, reports after
it.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from hypothesis import settings

from conformance import corpus, options, progress, recording, saved, search
from conformance.accepted import Accepted
from conformance.engine import Engine
from conformance.execution.memory import NoRoom
from conformance.execution.session import SubjectError
from conformance.interrupts import keep_interrupts
from conformance.known import KnownFailure
from conformance.known import read as read_known
from conformance.stash import ACCEPTED, COMPILED, CORPUS, ENGINE, RECORDER, SAID, draws, is_controller, target_of
from conformance.subjects import binding
from conformance.subjects.binding import BindingError
from conformance.subjects.entry import TESTABLE, EntryPoint
from conformance.under_test import StillFails, UnderTest
from conformance.verdicts import ConformanceFailure
from reference.case import CaseError
from reference.fields import printable
from reference.verdict import without_listing
from reports.files import unwritable
from strategies.specializations import Pool

_FOLDER = Path(__file__).parent
_SAVED, _KNOWN, _CORPUS = (_FOLDER / f"test_{name}.py" for name in ("saved", "known", "corpus"))
_PAIRS = pytest.StashKey[list[tuple[EntryPoint, saved.SavedCase]]]()
_REPLAYS = pytest.StashKey[list[tuple[EntryPoint, saved.SavedCase]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Refuse wrong options before any plugin meets them: Hypothesis's own raises for a profile that does not exist."""
    options.check(config)


@pytest.hookimpl(trylast=True)  # after Hypothesis's own, which loads the profile that its option names
def pytest_configure(config: pytest.Config) -> None:
    config.add_cleanup(keep_interrupts())
    config.addinivalue_line("markers", "entry_points(*names): the entry points that a conformance test is about")
    if config.option.hypothesis_profile is None:
        settings.load_profile(options.DEFAULT_PROFILE)
    if config.option.max_examples is not None:
        settings.register_profile("command line", settings(), max_examples=config.option.max_examples)
        settings.load_profile("command line")
    config.stash[CORPUS] = options.corpus(config)
    config.stash[RECORDER] = recording.Recorder(options.reports(config), options.seed(config), config.stash[CORPUS])


def _start(config: pytest.Config) -> Engine:
    """The run's engine, its subjects loaded. Raises UsageError, one line, when that cannot be."""
    lane = options.lane(config)
    engine = Engine(lane, options.of_run(config, lane))
    config.add_cleanup(engine.close)
    try:
        for entry in engine.entries():
            if entry.status == TESTABLE:
                binding.check(entry)
        for subject in engine.options.subjects:
            engine.session(subject).be_ready()
    except (SubjectError, BindingError, NoRoom) as error:
        raise pytest.UsageError(str(error)) from error
    return engine


def concerns_suite(config: pytest.Config) -> bool:
    """Whether tests of the suite itself are to be collected, and not only others of this repository."""
    folders = [(config.invocation_params.dir / argument.partition("::")[0]).resolve() for argument in config.args]
    return any(path == _FOLDER or path in _FOLDER.parents or _FOLDER in path.parents for path in folders)


def known_failures(config: pytest.Config) -> list[KnownFailure]:
    """Those of ``--known-failures``. Raises UsageError."""
    try:
        return [entry for file in config.option.known_failures for entry in read_known(Path(file))]
    except CaseError as error:
        raise pytest.UsageError(f"--known-failures: {error}") from error


def begin(config: pytest.Config, engine: Engine, known: Sequence[KnownFailure]) -> None:
    """From here on there is a run, whose engine has entry points; one that never was writes no summary. Raises
    UsageError.
    """
    thorough = bool(known) or config.option.write_known_failures is not None
    try:
        config.stash[ACCEPTED] = Accepted(known, engine, thorough)
    except CaseError as error:
        raise pytest.UsageError(f"--known-failures: {error}") from error
    config.stash[ENGINE] = engine


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Load the subjects before anything is collected, unless what is collected is something else than the suite, or by
    workers.
    """
    config = session.config
    if not concerns_suite(config) or is_controller(config):
        return
    known = known_failures(config)
    engine = _start(config)
    options.check_required(config, engine.entries())
    try:
        read = [saved.read(Path(file), boundary=True) for file in config.option.replay]
        config.stash[_PAIRS] = saved.pairs(read, engine.entries())
    except CaseError as error:
        raise pytest.UsageError(f"--replay: {error}") from error
    folder = config.stash[CORPUS]
    config.stash[_REPLAYS] = [] if folder is None or config.option.replay else folder.pairs(engine.entries())
    begin(config, engine, known)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``--replay`` saved cases are all that runs, beside known failures; without it there are none but those of
    the corpus.
    """
    if collection_path.parent != _FOLDER or not collection_path.name.startswith("test_"):
        return None
    if collection_path == _KNOWN:
        return None if config.option.known_failures else True
    if collection_path == _CORPUS:
        return None if config.stash.get(_REPLAYS, ()) else True
    return True if (collection_path == _SAVED) != bool(config.option.replay) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A file that ``--replay`` names is run, or the run is refused: never some other test instead of it. Of the tests
    that draw nothing, each shard has some.
    """
    if config.option.replay and not any(item.path == _SAVED for item in items):
        raise pytest.UsageError("--replay: no saved case was collected; name the folder conformance and no single test")
    first = [_KNOWN, _CORPUS]  # what is known comes first
    items.sort(key=lambda item: first.index(item.path) if item.path in first else len(first))
    shard = options.shard(config)
    once = [item for item in items if item.path not in (*first, _SAVED) and target_of(item) and not draws(item)]
    elsewhere = [item for number, item in enumerate(once) if not shard.has(number)]
    if elsewhere:
        config.hook.pytest_deselected(items=elsewhere)
        items[:] = [item for item in items if item not in elsewhere]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "entry_point" not in metafunc.fixturenames:
        return
    engine, known = metafunc.config.stash[ENGINE], metafunc.config.stash[ACCEPTED]
    if "known_failure" in metafunc.fixturenames:
        strict = metafunc.config.option.strict_known
        parameters = [_known_failure(known, each, number, strict) for number, each in enumerate(known.known, 1)]
        metafunc.parametrize(("entry_point", "known_failure"), parameters)
        return
    if "saved_case" in metafunc.fixturenames:
        found = metafunc.config.stash[_PAIRS]
        metafunc.parametrize(("entry_point", "saved_case"), [_saved_case(known, *each) for each in found])
        return
    if "corpus_case" in metafunc.fixturenames:
        metafunc.parametrize(
            ("entry_point", "corpus_case"),
            [
                pytest.param(UnderTest(engine, entry, known), case, id=corpus.name_of(entry, case))
                for entry, case in metafunc.config.stash[_REPLAYS]
            ],
        )
        return
    marker = metafunc.definition.get_closest_marker("entry_points")
    names = marker.args if marker else ()
    concerned = [entry for entry in engine.entries() if entry.name in names]
    if concerned:
        metafunc.parametrize("entry_point", [_parameter(known, entry) for entry in concerned])
        return
    reason = f"{', '.join(engine.options.subjects)}: no entry point {' or '.join(names)}"
    metafunc.parametrize("entry_point", [pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")])


def _parameter(known: Accepted, entry: EntryPoint) -> ParameterSet:
    marks = [] if entry.status == TESTABLE else [pytest.mark.skip(reason=f"{entry.id}: {entry.status}")]
    return pytest.param(UnderTest(known.engine, entry, known), marks=marks, id=entry.id)


def _known_failure(known: Accepted, each: KnownFailure, number: int, strict: bool) -> ParameterSet:
    """Still failing is expected, passing is not; anything else that it does is a failure."""
    entry, why = known.entry(each), known.why_not(each)
    target = None if entry is None else UnderTest(known.engine, entry, known)
    expected = pytest.mark.xfail(raises=StillFails, strict=strict, reason=each.reason)
    marks = [expected] if why is None else [pytest.mark.skip(reason=why)]
    return pytest.param(target, each, marks=marks, id=f"{each.entry_point}-{number}")


def _saved_case(known: Accepted, entry: EntryPoint, case: saved.SavedCase) -> ParameterSet:
    reason = case.why_not(entry)
    marks = [pytest.mark.skip(reason=reason)] if reason is not None else []
    return pytest.param(UnderTest(known.engine, entry, known), case, marks=marks, id=f"{case.file.stem}-{entry.id}")


def pools(session: pytest.Session) -> list[tuple[EntryPoint, Pool]]:
    """What the selected tests draw from, and what is compiled before the first case."""
    config = session.config
    if config.option.collectonly or ENGINE not in config.stash or config.option.replay:
        return []
    engine = config.stash[ENGINE]
    items = [item for item in session.items if item.path != _CORPUS]  # each needs no more than its own
    targets = [target for target in map(target_of, items) if target is not None]
    wanted = {target.entry.id: target.entry for target in targets if target.entry.status == TESTABLE}
    found = [(entry, engine.pool(entry)) for entry in wanted.values()]
    return [(entry, pool) for entry, pool in found if pool is not None]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> None:
    """Compile what the selected tests draw from, all cores at work, before the first case."""
    for entry, pool in pools(session):
        engine = session.config.stash[ENGINE]
        started = time.monotonic()
        try:
            with progress.compiling(session.config, entry.id) as tell:
                errors = engine.compile(entry, tell)
        except SubjectError as error:
            raise pytest.UsageError(str(error)) from error
        took = f"ready on lane {engine.lane.name} after {time.monotonic() - started:.1f} s"
        lines = {entry.id: f"{entry.id}: {pool.describe()}{engine.options.shard.label}; {took}"}
        for message in errors:
            line = f"{entry.id}: does not compile: {printable(without_listing(message).splitlines()[0])}"
            lines[line] = line
        session.config.stash.setdefault(SAID, {}).update(lines)
        say(session.config, lines.values())
    session.config.stash.get(COMPILED, _nothing)()


def _nothing() -> None:
    pass


def say(config: pytest.Config, lines: Iterable[str]) -> None:
    """Print lines of their own, where pytest prints anything."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        for line in lines:
            terminal.ensure_newline()
            terminal.write_line(line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """A drawing test goes on as long as it finds something new. One whose cases could not be run, or that ran one saved
    case and met what is known, did not pass.
    """
    target = target_of(item)
    if target is None:
        return (yield)
    target.begin()
    try:
        yield
    except (ConformanceFailure, BaseExceptionGroup) as error:
        draws = item.path not in (_SAVED, _KNOWN, _CORPUS)
        failure = search.all_failures(target, error, item.runtest) if draws else None
        if failure is None:
            raise
        raise failure from None
    if target.unsupported is not None:
        pytest.skip(target.unsupported)
    if target.excused and item.path in (_SAVED, _CORPUS):
        pytest.xfail(f"known failure: {target.excused[0].reason}")
    if target.excused and not target.compared:
        excused = ", ".join(each.describe() for each in target.excused)
        pytest.fail(f"no case left an output that could be compared, known failures explain them all: {excused}", False)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Whose code is tested, where it stands, and why some of it is not; this project's own needs no introduction. And
    what cannot be written: nothing is lost by it, but somebody has to know before hours are spent.
    """
    if ENGINE not in config.stash:
        return []
    engine = config.stash[ENGINE]
    lines = [entry.describe() for entry in engine.entries() if entry.subject != "kernels" or entry.status != TESTABLE]
    if config.option.collectonly:
        return lines
    if reason := unwritable(config.stash[RECORDER].folder):
        lines.append(f"{reason}: no reports will be there, what is found is printed at the end")
    if engine.lane.compile_seconds and (reason := unwritable(engine.options.cache)):
        lines.append(f"{reason}: every process compiles for itself, which takes longer")
    return lines
