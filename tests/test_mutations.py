"""What measures the suite: operators do what they say, the matrix goes on where it was interrupted, and wrong code of
every sort is killed.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cosmic_ray", reason="the operators: pip install --no-deps -r requirements/faults.txt")

from hypothesis import settings
from hypothesis import strategies as st

from conformance import lanes
from conformance.subjects.own import PLACES as ENTRY_PLACES
from reference.case import Case
from reference.contract import CLAUSES, violations
from tests.faults import matrix
from tests.faults.__main__ import expected, main
from tests.faults.catalogue import CATALOGUE, PACKAGE
from tests.faults.equivalents import equivalents
from tests.faults.further import FURTHER
from tests.faults.killing import ALIKE, CONFORMANCE, INVALID, KILLED, PUBLISHED, RANDOM, ROOT, SURVIVED, Result
from tests.faults.matrix import Fault, Job, faults, hunt, missing, run, searches
from tests.faults.mutants import MORE, MOST, PLACES, mutants
from tests.faults.naive import CASES, naive
from tests.faults.operators import changes
from tests.faults.published import SETS, published
from tests.faults.results import SUITE, Key, Results, subject_digest, suite_digest
from tests.faults.table import document, lines
from tests.faults.tables import tables
from tests.faults.trials import Trial, _draw, trials

LOWERED = lanes.by_name("lowered").unavailable()

KERNEL = '''
@jit
def kernel(start, end, positions_ptr, query_start_loc_ptr, WINDOW):
    """Two tokens - or 3."""
    check_it(start, end)
    if start > end:
        refuse("start", "past the end")
    for tile in range(start, end, WINDOW):
        token = tile + 16
        value = load(positions_ptr + token, mask=token < end, other=-1).to(int32)
        if value is not None and not WINDOW:
            value = where(value >= 0, value // WINDOW, value % WINDOW)
        store(token, value)
'''


def made(operator: str) -> set[str]:
    """The lines that an operator makes of KERNEL, as they then stand there."""
    (function,) = (node for node in ast.parse(KERNEL).body if isinstance(node, ast.FunctionDef))
    before = KERNEL.splitlines()
    found = set()
    for change in changes(KERNEL, function):
        if change.operator == operator:
            after = change.source.splitlines()
            ast.parse(change.source)
            (different,) = (new for old, new in zip(before, after, strict=True) if old != new)
            found.add(different.strip())
    return found


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        (
            "Add->Sub",
            {"token = tile - 16", "value = load(positions_ptr - token, mask=token < end, other=-1).to(int32)"},
        ),
        ("Lt->LtE", {"value = load(positions_ptr + token, mask=token <= end, other=-1).to(int32)"}),
        ("GtE->Gt", {"value = where(value > 0, value // WINDOW, value % WINDOW)"}),
        ("FloorDiv->Mod", {"value = where(value >= 0, value % WINDOW, value % WINDOW)"}),
        ("Mod->FloorDiv", {"value = where(value >= 0, value // WINDOW, value // WINDOW)"}),
        ("IsNot->Is", {"if value is None and not WINDOW:"}),
        ("and", {"if value is not None or not WINDOW:"}),
        ("sign", {"value = load(positions_ptr + token, mask=token < end, other=1).to(int32)"}),
        (
            "number",
            {
                "token = tile + 17",
                "token = tile + 15",
                "value = load(positions_ptr + token, mask=token < end, other=-2).to(int32)",
                "value = load(positions_ptr + token, mask=token < end, other=-0).to(int32)",
                "value = where(value >= 1, value // WINDOW, value % WINDOW)",
                "value = where(value >= -1, value // WINDOW, value % WINDOW)",
            },
        ),
        ("drop-mask", {"value = load(positions_ptr + token).to(int32)"}),
        ("drop-conversion", {"value = load(positions_ptr + token, mask=token < end, other=-1)"}),
        ("drop-branch", {"if True:", "if False:"}),
        ("one-tile", {"for tile in range(start, tl.minimum(end, start + 1), WINDOW):"}),
        ("drop-statement", {"pass"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_operator_makes_what_it_says(operator: str, expected: set[str]) -> None:
    # The library leaves a blank before a number that it puts in.
    assert {re.sub(r"(?<=[(=-]) ", "", " ".join(line.split())) for line in made(operator)} == {
        re.sub(r"(?<=[(=-]) ", "", line) for line in expected
    }


def test_names_and_arguments_are_exchanged_for_others_of_their_kind() -> None:
    assert "value = load(query_start_loc_ptr + token, mask=token < end, other=-1).to(int32)" in made("wrong-name")
    assert "for tile in range(end, start, WINDOW):" in made("swap-arguments")
    assert "value = where(value >= 0, value % WINDOW, value // WINDOW)" in made("swap-arguments")
    assert "value = (value // WINDOW)" in made("drop-condition")


def test_nothing_is_changed_in_what_is_said_and_in_what_only_refuses() -> None:
    (function,) = (node for node in ast.parse(KERNEL).body if isinstance(node, ast.FunctionDef))
    lines_changed = {change.start[0] for change in changes(KERNEL, function)}
    kept = [number for number, line in enumerate(KERNEL.splitlines(), 1) if "check_it" in line or "Two tokens" in line]
    assert not lines_changed & set(kept)
    (first,) = (number for number, line in enumerate(KERNEL.splitlines(), 1) if "if start > end" in line)
    assert not lines_changed & {first, first + 1}


# All of them.


def test_mutants_differ_and_keep_their_names_when_lines_move(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from tests.faults import mutants as module

    there = [mutant for mutant in mutants() if mutant.entry_point == "replay"]
    moved = tmp_path / "kernels"
    moved.mkdir()
    text = (PACKAGE / "replay.py").read_text(encoding="utf-8")
    head, mark, tail = text.partition("# One kernel for every batch")
    assert mark
    (moved / "replay.py").write_text(f"{head}SOMETHING_NEW = 1\n\n{mark}{tail}", encoding="utf-8")
    monkeypatch.setattr(module, "PACKAGE", moved)
    again = module._chosen(list(module._of_entry("replay")))
    assert [mutant.name for mutant in again] == [mutant.name for mutant in there]
    assert [mutant.line for mutant in again] == [mutant.line + 2 for mutant in there]


def test_there_are_enough_of_them_everywhere() -> None:
    of = {entry: [mutant for mutant in mutants() if mutant.entry_point == entry] for entry in PLACES}
    assert set(of) >= {place.entry for place in ENTRY_PLACES if not place.prepares}
    assert {entry: len(found) for entry, found in of.items() if len(found) < 20} == {}
    assert {entry: len(found) for entry, found in of.items() if len(found) > MORE.get(entry, MOST)} == {}
    # What nothing can tell is none. What does not run is not known here: `make faults` leaves it out.
    told = {entry: [each for each in found if each.name not in equivalents()] for entry, found in of.items()}
    assert {entry: len(found) for entry, found in told.items() if len(found) < 20} == {}
    sources = [(mutant.file, mutant.source) for mutant in mutants()]
    assert len(set(sources)) == len(sources) >= 250
    assert len({fault.name for fault in faults()}) == len(faults()) == len(mutants()) + len(CATALOGUE) + len(FURTHER)


def test_no_equivalent_is_stale_and_each_has_a_reason() -> None:
    names = {mutant.name for mutant in mutants()}
    assert [name for name in equivalents() if name not in names] == []
    assert [name for name, untold in equivalents().items() if len(untold.reason.split()) < 5] == []
    for test in {untold.test for untold in equivalents().values()} - {""}:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (PACKAGE.parent / file).read_text(encoding="utf-8")


def test_every_trial_is_a_test_of_the_suite_for_that_entry_point() -> None:
    for entry in PLACES:
        for trial in trials(entry):
            file, _, name = trial.test.partition("::")
            tree = ast.parse((PACKAGE.parent / "conformance" / file).read_text(encoding="utf-8"))
            (function,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
            marks = [ast.unparse(each) for each in function.decorator_list]
            assert any(f"'{entry}'" in mark or mark == "HOSTS" for mark in marks), f"{entry}: {trial.test} {marks}"


@pytest.mark.parametrize("part", [1, 3, 4])
def test_the_first_examples_are_the_same_at_both_profiles(part: int) -> None:
    drawn: dict[str, list[Any]] = {"quick": [], "gate": []}
    trial = Trial("", "", None, part)
    for name, found in drawn.items():
        _draw(st.lists(st.integers(0, 10**6), max_size=6), found.append, trial, settings.get_profile(name), 7)
    alike = trial.examples(settings.get_profile("quick")) // ALIKE
    assert alike >= 2
    assert drawn["quick"][:alike] == drawn["gate"][:alike]
    assert len(drawn["quick"]) < len(drawn["gate"])


# The suites to compare with.


@pytest.mark.parametrize("place", [place for place in ENTRY_PLACES if not place.prepares], ids=lambda each: each.entry)
def test_published_and_random_cases_are_legal(place: Any) -> None:
    own = published(place.entry)
    assert own
    drawn = naive(place.declaration, 0)
    assert len(drawn) == CASES
    assert naive(place.declaration, 0) == drawn != naive(place.declaration, 1)
    answer = frozenset(CLAUSES) - {"pos-f32", "pos-nonneg", "window"}
    for case, _ in [*own, *drawn[:10]]:
        assert violations(case, answer) == ()
        assert Case.from_json(case.to_json()) == case


def test_published_sets_name_their_sources() -> None:
    assert all(each.source.startswith("vllm-project/") and each.cases and each.entries for each in SETS)


# Results: kept, resumed, told.


def result(status: str = KILLED, **more: Any) -> dict[str, Any]:
    return Result(status, "test_plain.py::test_x", 3, "test_plain.py::test_x", 3, "mismatch", **more).to_json()


def test_results_survive_an_interruption_and_not_another_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.jsonl"
    one, two = Key("a", "1", "conformance", 0), Key("a", "1", "conformance", 1)
    Results.read(file).add(one, result())
    with file.open("a", encoding="utf-8") as cut_off:
        cut_off.write('{"digest": "')
    again = Results.read(file)
    assert set(again.known) == {one}
    again.add(two, result())
    assert set(Results.read(file).known) == {one, two}
    monkeypatch.setattr("tests.faults.results.suite_digest", lambda suite: "another")
    assert Results.read(file).known == {}


def test_a_digest_is_of_what_is_executed() -> None:
    texts = {path.stem: path.read_text(encoding="utf-8") for path in PACKAGE.glob("*.py")}
    before = subject_digest(texts, "replay")
    assert subject_digest({**texts, "tiled": "changed = 1"}, "replay") == before
    assert subject_digest({**texts, "replay": "# a comment\n" + texts["replay"]}, "replay") == before
    assert subject_digest({**texts, "arguments": texts["arguments"] + "\nchanged = 1\n"}, "replay") != before
    assert len({suite_digest(suite) for suite in ("conformance", PUBLISHED, RANDOM)}) == 3


@pytest.mark.parametrize(
    "changed",
    [
        "strategies/batches.py",
        "reference/oracle.py",
        "conformance/subjects/own.py",
        "conformance/subjects/binding.py",
        "conformance/subjects/host_binding.py",
        "conformance/subjects/host_functions.py",
    ],
)
def test_what_draws_launches_and_judges_belongs_to_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    digest = suite_digest.__wrapped__
    for pattern, _ in (*SUITE, ("tests/faults/*.py", ())):
        for file in ROOT.glob(pattern):
            copy = tmp_path / file.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr("tests.faults.results.ROOT", tmp_path)
    assert digest("conformance") == suite_digest("conformance")
    with (tmp_path / changed).open("a", encoding="utf-8") as file:
        file.write("\n# a comment\n")
    assert digest("conformance") == suite_digest("conformance")
    with (tmp_path / changed).open("a", encoding="utf-8") as file:
        file.write("\nchanged = 1\n")
    assert digest("conformance") != suite_digest("conformance")


def test_how_long_it_takes_is_known_from_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "results.jsonl"
    chosen = [fault("one"), fault("two"), fault("nothing", equivalent="said in five words or more")]
    results = Results.read(file)
    for search in searches(chosen[:1], range(2), "conformance", results):
        results.add(search.key, result(seconds=30.0 + 20 * search.seed))
    again = Results.read(file)
    assert again.likely_seconds("one", "conformance") == again.likely_seconds("two", "conformance") == 40
    left = missing(searches(chosen, range(3), "conformance", again), again)
    assert [(each.fault.name, each.seed) for each in left] == [
        ("one", 2),
        *(("two", n) for n in range(3)),
        ("nothing", 0),
    ]
    told = list(expected(chosen, range(3), again, workers=2, compare=True))
    assert told[0] == "conformance: 7 searches, 2 of them known, about 2 min"
    assert [line.partition(",")[0] for line in told[1:]] == [
        "published: 2 searches",
        "random: 6 searches",
        "about 2 min in all",
    ]
    # Of the sources of another day nothing is known but that.
    monkeypatch.setattr("tests.faults.results.suite_digest", lambda suite: "another")
    stale = Results.read(file)
    assert not stale.known
    assert stale.likely_seconds("one", "conformance") == 40


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """What the matrix looks for, with the searches replaced by answers."""
    asked: list[tuple[str, tuple[int, ...]]] = []

    def each(jobs: Any, scratch: Path, workers: int) -> Iterator[Any]:
        for job in jobs:
            asked.append((job.fault.name, job.seeds))
            yield job, [(seed, result(SURVIVED if "survivor" in job.fault.name else KILLED)) for seed in job.seeds]

    monkeypatch.setattr(matrix, "_each", each)
    return asked


def fault(name: str, *, equivalent: str = "") -> Fault:
    text = (PACKAGE / "replay.py").read_text(encoding="utf-8")
    return Fault(name, "replay", "number", "", ("plain",), True, "replay.py", f"{text}\n# {name}\n", equivalent)


def test_the_matrix_goes_on_where_it_was(tmp_path: Path, started: list[tuple[str, tuple[int, ...]]]) -> None:
    file = tmp_path / "results.jsonl"
    chosen = [fault("one"), fault("two")]
    run(chosen[:1], range(2), Results.read(file), workers=1)
    assert started == [("one", (0,)), ("one", (1,))]
    started.clear()
    told: list[tuple[int, int]] = []
    found = run(
        chosen, range(3), Results.read(file), workers=1, tell=lambda done, total, *_: told.append((done, total))
    )
    assert started == [("two", (0,)), ("one", (2,)), ("two", (1, 2))]
    assert told[0] == (2, 6)
    assert told[-1] == (6, 6)
    assert {name: sorted(seeds) for name, seeds in found.items()} == {"one": [0, 1, 2], "two": [0, 1, 2]}


def test_the_table_counts_what_runs(tmp_path: Path, started: list[tuple[str, tuple[int, ...]]]) -> None:
    chosen = [fault("one"), fault("a survivor"), fault("nothing", equivalent="said in five words or more")]
    found = run(chosen, range(2), Results.read(tmp_path / "results.jsonl"), workers=1)
    found["one"][1]["examples"] = 5
    report = document([*chosen, fault("broken")], {**found, "broken": {0: result(INVALID)}}, range(2))
    summary = report["summary"]
    assert [row["status"] for row in report["faults"]] == [KILLED, SURVIVED, "killed although equivalent", INVALID]
    assert (summary["faults"], summary["do_not_run"], summary["equivalent"]) == (2, 1, 0)
    assert (summary["killed_with_every_seed"], summary["survivors"]) == (1, ["a survivor"])
    assert (summary["median_examples"], summary["as_it_should_be"]) == (4, False)
    told = "\n".join(lines(report))
    assert "SURVIVES 2 of 2 seeds" in told
    assert "killed although equivalent: nothing" in told
    printed = list(tables(report))
    assert "| searches that kill at profile gate | 2 of 4 (50.0%) |" in printed
    assert printed[-1] == "| `a survivor` | `replay` | 0 of 2 |"
    assert "| `one \\| more` | " in "\n".join(
        tables({**report, "faults": [{**report["faults"][1], "name": "one | more"}]})
    )


def test_the_command_writes_the_matrix(
    tmp_path: Path, started: list[tuple[str, tuple[int, ...]]], capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "faults.json"
    words = ["--only", "replay-window-one-too-long", "--seeds", "2", "--results", str(tmp_path / "kept")]
    assert main([*words, "--report", str(report)]) == 0
    written = json.loads(report.read_text(encoding="utf-8"))
    assert written["schema"] == 1
    assert [row["name"] for row in written["faults"]] == ["replay-window-one-too-long"]
    assert "1 faults" in capsys.readouterr().out
    assert main([*words, "--report", str(report), "--compare"]) == 0
    written = json.loads(report.read_text(encoding="utf-8"))
    assert written["compared"]["published"]["by_entry_point"] == {"replay": [1, 1]}
    assert written["compared"]["random"]["killed"] == 1
    assert "replay" in capsys.readouterr().out
    assert main(["--tables", "--report", str(report)]) == 0
    printed = capsys.readouterr().out
    assert "| killed at profile gate with each of 2 seeds | 1 of 1 |" in printed
    assert "| `replay` | 1 | 0 | 1 | 3 | 3 |" in printed
    assert "| `replay` | 1 | 1 | 1 | 1 | 6 |" in printed
    assert "| all | 1 | 1 | 1 | 1 | |" in printed
    with pytest.raises(SystemExit):
        main(["--tables", "--report", str(tmp_path / "missing.json")])
    with pytest.raises(SystemExit):
        main(["--only", "no such fault"])


# For real: one change of every sort.


SORTS = ("FloorDiv->Mod", "GtE->Gt", "Mul->Add", "drop-condition")


@pytest.mark.skipif(LOWERED is not None, reason=str(LOWERED))
@pytest.mark.parametrize(("runs", "status"), [(False, INVALID), (True, KILLED)])
def test_what_is_refused_in_every_case_is_no_fault_unless_it_has_run(runs: bool, status: str, tmp_path: Path) -> None:
    """With one seed all first cases may be such that they are refused, with another none."""
    text = (PACKAGE / "torch_dcp.py").read_text(encoding="utf-8") + "\ndel torch\n"
    gone = Fault("gone", "dcp", "name", "", ("cp",), True, "torch_dcp.py", text)
    found = hunt(Job(gone, (1, 2), CONFORMANCE, gone.texts(), runs), str(tmp_path))
    assert [(seed, result["status"]) for seed, result in found] == [(1, status), (2, status)]


def test_one_mutant_of_a_sort_is_killed(tmp_path: Path) -> None:
    """Of the torch path, which compiles nothing."""
    of_sort: dict[str, Fault] = {}
    for each in faults():
        if each.kind in SORTS and each.entry_point == "dcp" and not each.equivalent:
            of_sort.setdefault(each.kind, each)
    assert set(of_sort) == set(SORTS)
    found = run(list(of_sort.values()), range(1), Results.read(tmp_path / "results.jsonl"), workers=1)
    assert {name: seeds[0]["status"] for name, seeds in found.items()} == {
        each.name: KILLED for each in of_sort.values()
    }
    assert all(seeds[0]["examples"] <= 100 and seeds[0]["tokens"] <= 8 for seeds in found.values())
