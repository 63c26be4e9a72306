"""Cases that failed anywhere are replayed first, those that fail here are added, and no file or disk ends a run."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from conformance import corpus as corpora
from conformance import corpus_run, options
from conformance.corpus import Corpus, kind_of, name_of, text_of
from conformance.properties import ALL as PROPERTIES
from conformance.properties import by_name
from conformance.saved import Asked, SavedCase
from conformance.stash import CORPUS
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from conformance.test_corpus import test_case_of_the_corpus_agrees as corpus_test
from reference.case import Case, ContextParallel, Group, Launch
from strategies.declaration import Declaration
from tests.commands import Done, pytest_, together
from tests.faults.catalogue import by_name as fault
from tests.faults.catalogue import write_variant

PARAMETERS = ("req_indices", "positions", "block_table", "slot_mapping", "block_size", "kv_cache_block_size", "pad_id")
ENTRY = EntryPoint("kernels", "1", "dcp", "f", "dcp", "", 1, PARAMETERS, (), Declaration(frozenset(), frozenset()))
CASE = Case((0, 1), (0,), 1, 1, (Group(((3,),), 2, 2),))
RING = Case((0, 3), (6, 7, -1), 3, 4, (Group(((5,),), 4, 4, kind="circular"),))
BARE = json.dumps(CASE.to_json())
FEW = ("-k", "test_plain_slots or corpus", "--max-examples", "60", "--compile-budget", "2")
"""Tests of one entry point. Two specializations compile in no time."""

NO_CASES = {
    "cut-short.json": BARE[: len(BARE) // 2],
    "empty.json": "",
    "a-list.json": "[1, 2]",
    "of-another-schema.json": BARE.replace('"schema": 1', '"schema": 7'),
    "a-report-of-the-future.json": json.dumps({"schema": 3, "case": CASE.to_json()}),
    "a-summary.json": json.dumps({"schema": 1, "cases": 17}),
    "no-answer.json": BARE.replace('"positions": [0]', '"positions": [9]'),
    "nested.json": "[" * 100_000,
    "names.json": json.dumps({"case": CASE.to_json(), "entry_points": "v1"}),
}


def added(folder: Path, case: Case = CASE) -> Corpus:
    corpus = Corpus(folder)
    corpus.add(ENTRY, case, Launch(), Settings())
    return corpus


def test_what_is_added_is_found_again(tmp_path: Path) -> None:
    corpus = added(tmp_path / "not" / "there")
    assert (corpus.added, corpus.unkept, corpus.problems) == (1, [], [])
    ((entry, saved),) = Corpus(corpus.folder).pairs([ENTRY])
    assert (entry, saved.case, saved.launch, saved.settings) == (ENTRY, CASE, Launch(), Settings())
    assert name_of(entry, saved) == f"plain-{saved.file.stem.removeprefix('dcp-')}-kernels.dcp"


def test_two_finders_write_one_file(tmp_path: Path) -> None:
    assert [added(tmp_path).added, added(tmp_path).added] == [1, 0]
    added(tmp_path, RING)
    assert len(list(tmp_path.iterdir())) == 2
    # whoever it was found on
    Corpus(tmp_path).add(ENTRY.__class__(**{**_fields(ENTRY), "subject": "vllm"}), CASE, Launch(), Settings())
    assert len(list(tmp_path.iterdir())) == 2


def _fields(entry: EntryPoint) -> dict[str, object]:
    return {name: getattr(entry, name) for name in entry.__dataclass_fields__}


def test_a_file_that_was_damaged_is_written_again(tmp_path: Path) -> None:
    added(tmp_path)
    (file,) = tmp_path.iterdir()
    text = file.read_text()
    file.write_text(text[:40])
    assert added(tmp_path).added == 1
    assert file.read_text() == text


def test_a_case_is_for_those_that_its_file_names(tmp_path: Path) -> None:
    other = EntryPoint(**{**_fields(ENTRY), "name": "draft"})
    elsewhere = EntryPoint(**{**_fields(ENTRY), "subject": "vllm-ascend"})
    everybody = [ENTRY, other, elsewhere]
    (tmp_path / "bare.json").write_text(BARE)
    assert [entry for entry, _ in Corpus(tmp_path).pairs(everybody)] == everybody
    (tmp_path / "bare.json").write_text(
        json.dumps({"schema": 2, "subject": "kernels", "entry_point": "dcp", "case": CASE.to_json()})
    )
    assert [entry for entry, _ in Corpus(tmp_path).pairs(everybody)] == [ENTRY, elsewhere]


def test_nobody_is_given_a_case_that_is_not_for_it(tmp_path: Path) -> None:
    added(tmp_path, RING)
    corpus = Corpus(tmp_path)
    assert len(corpus.cases()) == 1
    assert corpus.pairs([ENTRY]) == []
    assert corpus.problems == []


def test_the_same_case_in_several_files_is_replayed_once(tmp_path: Path) -> None:
    added(tmp_path)
    (file,) = tmp_path.iterdir()
    document = json.loads(file.read_text())
    (tmp_path / "report.json").write_text(json.dumps({**document, "schema": 2, "verdict": {"kind": "crash"}}))
    (tmp_path / "artifact").mkdir()
    shutil.copy(file, tmp_path / "artifact")
    assert len(Corpus(tmp_path).cases()) == 1


ASKED = Asked(by_name("slots lead back"), RING, Launch(), Settings(), 3)


def test_a_property_that_did_not_hold_is_asked_again(tmp_path: Path) -> None:
    Corpus(tmp_path).add(ENTRY, CASE, Launch(), Settings(), ASKED)
    (file,) = tmp_path.iterdir()
    (saved,) = Corpus(tmp_path).cases()
    assert saved.asked == ASKED
    assert text_of(saved) == file.read_text()
    report = json.loads(file.read_text())
    report["property"] |= {"statement": "", "message": "", "launches": []}  # as in the report of a failure
    (tmp_path / "report.json").write_text(json.dumps({"schema": 2, **report}))
    added(tmp_path)  # the same case without it is another
    assert [case.asked for case in Corpus(tmp_path).cases()].count(ASKED) == 1
    assert len(Corpus(tmp_path).cases()) == 2
    calls = asked_of(saved, ENTRY)
    assert calls == [ASKED, saved.drawn(ENTRY)]


def test_a_property_that_says_nothing_of_an_entry_point_is_not_asked(tmp_path: Path) -> None:
    of_some = next(each for each in PROPERTIES if each.features)
    Corpus(tmp_path).add(ENTRY, CASE, Launch(), Settings(), replace(ASKED, property=of_some))
    (saved,) = Corpus(tmp_path).cases()
    assert asked_of(saved, ENTRY) == [saved.drawn(ENTRY)]


def asked_of(saved: SavedCase, entry: EntryPoint) -> list[object]:
    """What the test of the corpus asks."""
    calls = list[object]()
    target = SimpleNamespace(entry=entry, upholds_saved=calls.append, agrees_on=calls.append)
    corpus_test(target, saved)  # type: ignore[arg-type]
    return calls


def test_a_link_to_a_folder_is_named_and_not_followed(tmp_path: Path) -> None:
    added(tmp_path / "corpus")
    added(tmp_path / "elsewhere", RING)
    (tmp_path / "corpus" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "round").symlink_to(tmp_path / "corpus")
    corpus = Corpus(tmp_path / "corpus")
    assert [saved.case for saved in corpus.cases()] == [CASE]
    said = "not replayed: a link to a folder, which is not followed"
    assert corpus.problems == [f"{tmp_path}/corpus/{name}: {said}" for name in ("linked", "round")]
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")  # the folder itself may be one
    assert [saved.case for saved in Corpus(tmp_path / "link").cases()] == [RING]


def test_what_is_no_case_is_named_and_the_rest_is_there(tmp_path: Path) -> None:
    for name, text in NO_CASES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "not-utf-8.json").write_bytes(b"\xff\xfe{}")
    (tmp_path / "a-folder.json").mkdir()
    os.mkfifo(tmp_path / "a-pipe.json")
    (tmp_path / "leads-nowhere.json").symlink_to(tmp_path / "nothing")
    (tmp_path / "hostile\x1b[31m.json").write_text("{")
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(1 << 40)
    for name in (".hidden.json", "readme.md", "half.json.part"):
        (tmp_path / name).write_text("{")
    added(tmp_path)
    corpus = Corpus(tmp_path)
    assert [saved.case for saved in corpus.cases()] == [CASE]
    told = sorted(problem.removeprefix(f"{tmp_path}/").partition(":")[0] for problem in corpus.problems)
    others = ["not-utf-8.json", "a-pipe.json", "leads-nowhere.json", "hostile\\x1b[31m.json", "huge.json"]
    assert told == sorted([*NO_CASES, *others])
    assert all(problem.isprintable() and len(problem) <= 400 for problem in corpus.problems)
    reasons = " ".join(corpus.problems)
    for reason in ("not JSON", "schema: expected 1, got 7", "up to 2, got 3", "no regular file", "more than 16 MiB"):
        assert reason in reasons


def test_a_case_with_constants_that_no_kernel_has_is_for_nobody(tmp_path: Path) -> None:
    names = ("TILE_BLOCK_SIZE", "BLOCK_TABLE_WINDOW_SIZE")
    kernel = EntryPoint(**{**_fields(ENTRY), "name": "v1", "family": "v1", "parameters": names, "constants": names})
    for number, tile in enumerate((0, -1, 1 << 62, True)):
        launch = Launch(constants={"TILE_BLOCK_SIZE": tile, "BLOCK_TABLE_WINDOW_SIZE": 8}).to_json()
        (tmp_path / f"{number}.json").write_text(json.dumps({"case": CASE.to_json(), "launch": launch}))
    assert Corpus(tmp_path).pairs([kernel]) == []


def test_only_so_many_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "MOST_FILES", 2)
    for number in range(4):
        (tmp_path / f"{number}.json").write_text(BARE.replace("[[3]]", f"[[{number}]]"))
    corpus = Corpus(tmp_path)
    assert [saved.file.name for saved in corpus.cases()] == ["0.json", "1.json"]
    assert corpus.problems == [f"{tmp_path}: not replayed: more than 2 files; the first are replayed, no others"]


def test_a_case_that_cannot_be_written_is_kept_by_whoever_adds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    corpus = added(tmp_path)
    (unkept,) = corpus.unkept
    assert unkept.problem == f"cannot write {tmp_path}/{name(unkept.text)}: No space left on device"
    assert json.loads(unkept.text)["case"] == CASE.to_json()
    assert corpus.added == 0


def name(text: str) -> str:
    return f"dcp-{corpora._digest(text)}.json"


def test_a_case_that_is_too_large_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpora, "MOST_BYTES", 100)
    corpus = added(tmp_path)
    assert "is not written: it would have more than" in corpus.unkept[0].problem
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("case", "words"),
    [
        (CASE, "plain"),
        (RING, "circular"),
        (Case((0, 1), (0,), 1, 1, (Group(((3,),), 2, 2),), cp=ContextParallel(2, 0, 1)), "cp"),
    ],
    ids=["plain", "circular", "parallel"],
)
def test_keywords_find_the_cases_that_they_are_about(case: Case, words: str) -> None:
    assert kind_of(case) == words


def test_workers_are_given_what_the_controller_has_read_and_tell_what_they_have_added(tmp_path: Path) -> None:
    """Files may come and go in the folder while workers of pytest-xdist collect: all must collect the same tests."""
    added(tmp_path)
    controller = Corpus(tmp_path)
    config = SimpleNamespace(stash={CORPUS: controller})
    node = SimpleNamespace(config=config, workerinput={}, workeroutput={})
    corpus_run.pytest_configure_node(node)
    shutil.rmtree(tmp_path)
    option = SimpleNamespace(corpus=str(tmp_path))
    worker = options.corpus(SimpleNamespace(option=option, workerinput=node.workerinput))  # type: ignore[arg-type]
    assert worker is not None
    assert [saved.case for saved in worker.cases()] == [CASE]
    tmp_path.write_text("a file where the folder was")
    worker.add(ENTRY, RING, Launch(), Settings())
    session = SimpleNamespace(config=SimpleNamespace(stash={CORPUS: worker}, workeroutput=node.workeroutput))
    corpus_run.pytest_sessionfinish(session)  # type: ignore[arg-type]
    corpus_run.pytest_testnodedown(node)
    assert controller.unkept == worker.unkept
    assert len(controller.unkept) == 1


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_variant(fault("row-end-unguarded"), tmp_path_factory.mktemp("wrong"))


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory, wrong: Path) -> tuple[Path, Done]:
    """A corpus to which a run on wrong kernels has added, and that run."""
    folder = tmp_path_factory.mktemp("found")
    where = ("--corpus", folder / "corpus", "--report-dir", folder / "reports")
    return folder / "corpus", pytest_("conformance", *FEW, "--source", f"kernels={wrong}", *where)


def test_a_run_adds_what_it_finds(found: tuple[Path, Done]) -> None:
    corpus, done = found
    assert done.status == 1, done.tail
    assert f"corpus {corpus}: 0 cases, 0 replays, 1 added" in done.lines
    (file,) = corpus.iterdir()
    (report,) = (json.loads(path.read_text()) for path in (corpus.parent / "reports").glob("failure-*.json"))
    document = json.loads(file.read_text())
    assert (document["case"], document["launch"]) == (report["case"], report["launch"])


@pytest.fixture(scope="module")
def later(found: tuple[Path, Done], wrong: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done, Done]:
    """A folder, and two runs with a corpus in it: ``again`` on the wrong kernels, ``right`` on the right ones, where
    much is that is no case.
    """
    folder = tmp_path_factory.mktemp("later")
    corpora_of = {name: shutil.copytree(found[0], folder / name) for name in ("again", "right")}
    for each, text in NO_CASES.items():
        (folder / "right" / each).write_text(text)
    where = {
        name: ("--corpus", corpus, "--report-dir", folder / f"reports-{name}") for name, corpus in corpora_of.items()
    }
    again = ("conformance", "-v", *FEW, "--source", f"kernels={wrong}", *where["again"])
    right = ("conformance", "-k", "corpus", *where["right"])
    first, second = together([again, right])
    return folder, first, second


def test_the_next_run_replays_it_first_and_reports_it_once(later: tuple[Path, Done, Done]) -> None:
    folder, done, _ = later
    (file,) = (folder / "again").iterdir()
    assert done.status == 1, done.tail
    tests = [line for line in done.lines if line.startswith("conformance/") and "::" in line]
    assert "test_corpus.py::test_case_of_the_corpus_agrees[plain-" in tests[0]
    assert file.stem.removeprefix("v1-") in tests[0]
    assert "FAILED" in tests[0]
    assert f"corpus {folder / 'again'}: 1 case, 1 replay (1 failed), 0 added" in done.lines
    assert any(line.startswith("1 failure of 1 cause (in 2 tests)") for line in done.lines), done.tail
    assert json.loads((folder / "reports-again" / "summary.json").read_text())["failures"] == 1


def test_on_right_kernels_it_passes_whatever_else_is_in_the_folder(later: tuple[Path, Done, Done]) -> None:
    folder, _, done = later
    corpus = folder / "right"
    assert done.status == 0, done.tail
    assert f"corpus {corpus}: 1 case, 1 replay (1 passed), 0 added" in done.lines
    for each in NO_CASES:
        assert sum(line.startswith(f"corpus: {corpus / each}: not replayed: ") for line in done.lines) == 2, each


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = pytest_("conformance", "--corpus", tmp_path / "file", "--collect-only")
    assert done.status == 4
    assert f"ERROR: --corpus: {tmp_path / 'file'} is no folder" in done.lines
