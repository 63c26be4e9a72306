"""Each property can fail, and fails for what it is about: mappings that are wrong in one way each, and which properties
see that. Then the same of code under test, from the launch to the replay.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import Phase, given, seed, settings

from conformance.execution.array import Array
from conformance.execution.session import Invocation
from conformance.properties import ALL
from conformance.properties.prepared import apart
from conformance.properties.property import Rows
from conformance.properties.tables import _names
from conformance.subjects.entry import EntryPoint
from conformance.subjects.held import holding
from conformance.subjects.launching import Launching, Settings
from conformance.subjects.own import V2
from reference.case import Case, ContextParallel, Group, Launch
from reference.oracle import slot_mapping
from reference.steps import SHARDED, placing, rule_of
from reference.verdict import UNWRITTEN
from strategies.cases import cases
from strategies.declaration import Declaration
from strategies.specializations import Specialization
from tests.commands import Done, together
from tests.faults.catalogue import DCP, Fault, write_variant

ENTRY = EntryPoint("kernels", "", "v2", "f", "v2", "", 0, (), (), Declaration(frozenset(), V2.features - {"enabled"}))
FAR = 5000
"""Beyond the longest prefill that is drawn: what is wrong only from here on cannot be seen in one."""

Wrong = Callable[[Case, int, int, int], int | None]
"""(case, group, request, token) -> the slot of that token; None: as it is right; KEPT: nothing is written."""


class Pretended:
    """Launches a mapping that is right but for what ``wrong`` says."""

    def __init__(self, wrong: Wrong) -> None:
        self._wrong = wrong

    def __call__(self, what: str, case: Case, held: Rows | None = None) -> Rows:
        rows = slot_mapping(case)
        for index, row in enumerate(rows):
            for request in range(case.num_reqs):
                for token in range(case.query_start_loc[request], case.query_start_loc[request + 1]):
                    slot = self._wrong(case, index, request, token)
                    if slot is KEPT:
                        row[token] = held[index][token] if held and held[index][token] > 0 else row[token]
                    elif slot is not None:
                        row[token] = slot
        return rows


KEPT = -12345
"""What an element held that is not written."""


def below_zero(when: Callable[[Case, int, int, int], bool]) -> Wrong:
    """A negative position gets the first slot of its row where ``when`` holds, instead of none."""

    def wrong(case: Case, index: int, request: int, token: int) -> int | None:
        if case.positions[token] >= 0 or not when(case, index, request, token):
            return None
        return first_block(case, index, request) * case.groups[index].block_size

    return wrong


def first_block(case: Case, index: int, request: int) -> int:
    row = case.groups[index].block_table[case.row_of(request)]
    return row[0] if row else 0


def far_away(slot: Callable[[Case, Group, int, int], int]) -> Wrong:
    """A local token far in its sequence gets another slot: (case, group, block number, offset) -> slot."""

    def wrong(case: Case, index: int, request: int, token: int) -> int | None:
        position, group = case.positions[token], case.groups[index]
        if position < FAR or not group.enabled:
            return None
        _, _, owner, _, column, offset = placing(case, group)(position)
        if owner != case.cp.rank:
            return None
        return slot(case, group, group.block_table[case.row_of(request)][column], offset)

    return wrong


def not_packed(case: Case, index: int, request: int, token: int) -> int | None:
    """The other ranks' runs leave gaps in this rank's blocks."""
    position, group = case.positions[token], case.groups[index]
    if position < 0 or rule_of(case, group) != SHARDED:
        return None
    virtual, within, owner, _, _, _ = placing(case, group)(position)
    if owner != case.cp.rank or virtual is None or within is None:
        return None
    column = virtual * group.blocks_per_kv_block + within // group.block_size
    row = group.block_table[case.row_of(request)]
    return row[column % len(row)] * group.block_size + within % group.block_size


# What is wrong with a mapping -> it, and the properties that see it. Where one implies another both do: a slot that two
# tokens share leads back to one of them, and so does one that is not the next of its blocks.
FAULTS: dict[str, tuple[Wrong, set[str]]] = {
    "tokens far in a sequence are nobody's": (
        far_away(lambda case, group, number, offset: case.pad_id),
        {"one owner"},
    ),
    "tokens far in a sequence share the first slot of their block": (
        far_away(lambda case, group, number, offset: number * group.block_size),
        {"distinct slots", "slots lead back"},
    ),
    "blocks far in a sequence are filled from behind": (
        far_away(lambda case, group, number, offset: (number + 1) * group.block_size - 1 - offset),
        {"slots lead back"},
    ),
    "runs are not packed": (not_packed, {"filled from the front", "slots lead back", "distinct slots"}),
    "only the first token of a request may be below zero": (
        below_zero(lambda case, group, request, token: token > case.query_start_loc[request]),
        {"chunks"},
    ),
    "rows of odd numbers have no negative positions": (
        below_zero(lambda case, group, request, token: case.row_of(request) % 2 == 1),
        {"order"},
    ),
    "a request alone is not like one of several": (
        below_zero(lambda case, group, request, token: case.num_reqs == 1),
        {"split"},
    ),
    "padding to an odd length has no negative positions": (
        below_zero(lambda case, group, request, token: case.max_num_tokens % 2 == 1),
        {"length"},
    ),
    "a row that begins with an odd block has no negative positions": (
        below_zero(lambda case, group, request, token: first_block(case, group, request) % 2 == 1),
        {"block numbers"},
    ),
    "an even number of groups has no negative positions": (
        below_zero(lambda case, group, request, token: len(case.groups) % 2 == 0),
        {"groups"},
    ),
    "what is to be padded is left as it was": (
        lambda case, group, request, token: KEPT if case.positions[token] < 0 else None,
        {"contents of the output"},
    ),
    "one rank with an interleave has no negative positions": (
        below_zero(lambda case, group, request, token: case.cp.size == 1 < case.cp.interleave),
        {"one rank"},
    ),
}


def seen_by(wrong: Wrong, asked: list[Case]) -> set[str]:
    """The properties that do not hold of a mapping in some of these cases."""
    launch = Pretended(wrong)
    return {
        each.name
        for each in ALL
        if any(each.check(launch, case, number % 7, ENTRY) is not None for number, case in enumerate(asked))
    }


@pytest.fixture(scope="module")
def drawn() -> list[Case]:
    """Cases of one rank and of several, with several groups, rows that idx_mapping names and negative positions."""
    found: list[Case] = []
    for sharing in (ContextParallel(), ContextParallel(2, 1, 4), ContextParallel(3, 0, 2)):
        specialization = Specialization(
            block_size=4,
            blocks_per_kv_block=2,
            cp=sharing,
            pad_id=-1,
            tile=64,
            window=None,
            circular=False,
            output_dtype="int64",
        )

        @seed(5)
        @settings(max_examples=60, database=None, phases=[Phase.generate], deadline=None)
        @given(cases(ENTRY.declaration, specialization, max_tokens=400))
        def draw(example: tuple[Case, object]) -> None:
            found.append(example[0])

        draw()
    return found


def test_a_right_mapping_has_every_property(drawn: list[Case]) -> None:
    assert seen_by(lambda case, group, request, token: None, drawn) == set()


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_mapping_lacks_the_properties_that_it_should(fault: str, drawn: list[Case]) -> None:
    wrong, properties = FAULTS[fault]
    assert seen_by(wrong, drawn) == properties


def test_every_property_is_what_some_fault_lacks() -> None:
    assert set().union(*(properties for _, properties in FAULTS.values())) == {each.name for each in ALL}


def test_outputs_hold_what_they_are_given() -> None:
    """One buffer for all groups, whose rows are longer, or one for each, which the launch reaches by its address."""
    group = Group(((1, 2),), 4, 4)
    case = Case((0, 2), (0, 1), 2, 3, (group, group))
    launching = Launching(case, Launch(output_length=3), Settings(), ())
    rows = [[5, 6, UNWRITTEN], [7, 8, 9]]
    arguments = {"one": launching.slot_mappings, "each": launching.slot_mapping_addresses, "pos": launching.positions}
    held = holding(Invocation("v2", (1,), arguments), rows).arguments
    assert isinstance(one := held["one"], Array)
    assert one.data is not None
    assert one.data[:, :3].tolist() == rows
    assert set(one.data[:, 3:].flat) <= {UNWRITTEN}
    assert isinstance(each := held["each"], Array)
    assert [array.data.tolist() for array in each.addresses_of if array.data is not None] == rows
    assert held["pos"] is launching.positions


# From a launch to the replay. The torch path compiles nothing.

KEEPS_SLOTS = Fault(
    "torch-keeps-what-was-there",
    "padding",
    "a token without a slot keeps the one that an earlier batch left in its element",
    DCP,
    (
        (
            "offset, pad_id))",
            "offset, torch.where(output > 0, output, pad_id)))",
        ),
    ),
    ("stale element",),
)
EVERYBODY_S = Fault(
    "torch-first-rank-takes-all",
    "context parallelism",
    "rank 0 takes the tokens of the others, too",
    DCP,
    (("(owner == geometry.cp_rank)", "((owner == geometry.cp_rank) | (geometry.cp_rank == 0))"),),
    ("ownership",),
)


@dataclass(frozen=True)
class Ran:
    """A run of the suite's tests of the torch path: what pytest did, the reports, and where the kernels are."""

    done: Done
    reports: list[dict[str, Any]]
    pages: list[str]
    source: Path
    file: Path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Kernels with each fault, asked for their properties; the first compared with the oracle, too."""
    folder = tmp_path_factory.mktemp("properties")
    faults = (KEEPS_SLOTS, EVERYBODY_S)
    sources = [write_variant(fault, folder / fault.name) for fault in faults]
    options = "conformance/test_properties.py -k dcp --hypothesis-seed 3 --max-examples 800".split()
    commands: list[list[str | Path]] = [
        [*options, "--source", source, "--report-dir", source / "reports", "--corpus", source / "corpus", *more]
        for source, more in zip(sources, (["conformance/test_dcp.py"], []), strict=True)
    ]
    found = {}
    for fault, source, done in zip(faults, sources, together(commands), strict=True):
        files = sorted((source / "reports").glob("failure-*.json"))
        assert files, done.tail
        pages = [file.with_suffix(".md").read_text() for file in files]
        found[fault.name] = Ran(done, [json.loads(file.read_text()) for file in files], pages, source, files[0])
    return found


def test_what_the_oracle_does_not_see_is_reported_with_the_property(runs: dict[str, Ran]) -> None:
    ran = runs[KEEPS_SLOTS.name]
    assert "1 failed, 2 passed" in ran.done.output, ran.done.tail  # the comparison with the oracle is one of the two
    (report,), (page,) = ran.reports, ran.pages
    (kept,) = (json.loads(file.read_text())["property"] for file in (ran.source / "corpus").iterdir())
    assert kept == {name: report["property"][name] for name in kept}
    assert report["property"]["name"] == "contents of the output"
    assert report["verdict"]["kind"] == "mismatch"
    assert report["case"]["num_tokens"] == 1
    assert len(report["property"]["launches"]) == 2
    assert [each["held"] is None for each in report["property"]["launches"]] == [True, False]
    assert "Property `contents of the output` does not hold" in page
    assert "Property <bdi>contents of the output: element 0" in (ran.file.parent / "index.html").read_text()
    assert "kernels.dcp: contents of the output: element 0 of group 0" in ran.done.output


def test_what_the_oracle_sees_too_is_diagnosed_and_small(runs: dict[str, Ran]) -> None:
    reports = runs[EVERYBODY_S.name].reports
    (report,) = (each for each in reports if each["property"] is not None)
    assert report["diagnosis"]["cause"] in EVERYBODY_S.causes
    assert report["property"]["name"] in {"one owner", "distinct slots", "slots lead back", "filled from the front"}
    assert report["property"]["case"]["num_tokens"] <= 2


def test_a_replay_asks_the_property_again(runs: dict[str, Ran], tmp_path: Path) -> None:
    ran = runs[KEEPS_SLOTS.name]
    replay: list[str | Path] = ["conformance", "--replay", ran.file, "--report-dir", tmp_path]
    wrong, right = together([[*replay, "--source", f"kernels={ran.source}"], replay])
    assert wrong.status == 1, wrong.tail
    assert "kernels.dcp: contents of the output: element 0" in wrong.output, wrong.tail
    assert right.status == 0, right.tail


def test_renumbered_blocks_have_slots_that_fit() -> None:
    """Where every block that there can be is in use, those from 1 on would be one too many."""
    rows = tuple(tuple(range(row * 1024, (row + 1) * 1024)) for row in range(2))
    group = Group(rows, 1 << 20, 1 << 20)
    for choice in range(2):
        names = _names(group, -1, choice)
        assert sorted(names.values()) == list(range(2048))
        assert names[0] != 0
    case = apart(Case((0,), (), 0, 1, (group,), pad_id=5))
    assert (case.pad_id, case.groups) == (-1, (group,))
