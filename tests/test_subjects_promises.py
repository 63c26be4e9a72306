"""What published versions promise is data that can be read, followed and disputed."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from packaging.specifiers import SpecifierSet

from conformance.engine import AXES, declared, narrowed
from conformance.subjects import NAMES, promises
from conformance.subjects.binding import FAMILIES, bind, outside
from conformance.subjects.binding import clauses as clauses_of
from conformance.subjects.entry import EntryPoint
from conformance.subjects.launching import Settings
from conformance.subjects.promises import PROMISES, Promise, declaration, far
from conformance.subjects.published import PLACES
from reference.case import Case, Group, Launch
from reference.contract import ANSWER_CLAUSES, CLAUSES, violations
from strategies.cases import cases
from strategies.declaration import FEATURES, Declaration
from strategies.specializations import pool

PLACED = {(subject, place.entry): place for subject, places in PLACES.items() for place in places}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: f"{promise.subject}.{promise.name}-{promise.clause}")
def test_a_promise_can_be_disputed(promise: Promise) -> None:
    assert promise.subject in NAMES
    assert (promise.subject, promise.name) in PLACED
    assert promise.clause in CLAUSES
    # The others hold for every case that is drawn: to promise them again would say nothing.
    assert promise.clause not in ANSWER_CLAUSES
    assert len(promise.reason.split()) > 5
    repository = re.escape({"vllm-ascend": "vllm-project/vllm-ascend", "vllm": "vllm-project/vllm"}[promise.subject])
    assert re.search(rf"^{repository}(?: #\d+|, \S+\.md of \S+)$", promise.link)
    assert SpecifierSet(promise.versions) is not None
    for parameter in filter(None, (promise.having, promise.unless)):
        assert parameter in FAMILIES[PLACED[promise.subject, promise.name].family].values


def test_no_promise_is_made_twice() -> None:
    assert len({(each.subject, each.name, each.versions, each.clause) for each in PROMISES}) == len(PROMISES)


def clauses(version: str) -> frozenset[str]:
    return declaration("vllm-ascend", "v2", "v2", version, ()).clauses


@pytest.fixture
def history(monkeypatch: pytest.MonkeyPatch) -> None:
    """One clause for what is old, one for what is new, and one of another entry point."""
    made = (
        Promise("vllm-ascend", "v2", "<0.23", "window", "for this test", "nowhere"),
        Promise("vllm-ascend", "v2", ">=0.26.0rc1", "pos-nonneg", "for this test", "nowhere"),
        Promise("vllm-ascend", "v1", ">=0", "pos-f32", "for this test", "nowhere"),
        Promise("vllm", "v2", ">=0", "pos-f32", "for this test", "nowhere"),
    )
    monkeypatch.setattr(promises, "PROMISES", made)


@pytest.mark.usefixtures("history")
@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.18.0", {"window"}),
        ("0.22.1rc1", {"window"}),
        ("0.23.0", set()),
        ("0.26.0rc1", {"pos-nonneg"}),
        ("0.27.1.dev12+g1234567", {"pos-nonneg"}),
        ("0.0.0", {"pos-nonneg"}),
        ("0+unknown", {"pos-nonneg"}),
        ("0.1.dev1+g27a5ed8", {"pos-nonneg"}),
        ("0.1.1", {"window"}),
        ("unknown", {"pos-nonneg"}),
        ("main branch", {"pos-nonneg"}),
    ],
)
def test_a_promise_holds_in_its_versions_and_an_unknown_one_is_the_newest(version: str, expected: set[str]) -> None:
    assert clauses(version) == expected


def test_published_entry_points_need_small_positions_wherever_integers_are_divided_in_float32() -> None:
    assert far("kernels") == {"pos-f32"}
    assert not far("vllm-ascend")
    assert not far("vllm")


FAR = 1 << 30


@pytest.mark.parametrize(
    ("subject", "positions", "starts", "inside"),
    [
        ("kernels", range(FAR, FAR + 40), (0, 40), True),
        ("kernels", [*range(FAR, FAR + 20), *range(FAR + 70, FAR + 90)], (0, 20, 40), True),
        ("kernels", [*range(FAR, FAR + 20), *range(90, 110)], (0, 20, 40), True),  # no tile has tokens of both
        ("kernels", range(FAR, FAR + 80, 2), (0, 40), False),
        ("vllm-ascend", range(FAR, FAR + 40), (0, 40), False),
    ],
)
def test_consecutive_positions_need_not_be_small(
    subject: str, positions: Sequence[int], starts: tuple[int, ...], inside: bool
) -> None:
    rows = tuple(((5,) * 2048,) * (len(starts) - 1))
    case = Case(starts, tuple(positions), 40, 40, (Group(rows, 1 << 20, 1 << 20),))
    entry = EntryPoint(subject, "1", "v1", "f", "v1", "", 0, (), (), Declaration())
    assert not outside(entry, case, Launch(), Settings())
    assert (not outside(entry.needing(frozenset({"pos-f32"})), case, Launch(), Settings())) == inside


# Features follow from the parameters, whatever the version is called.


@pytest.mark.parametrize(
    ("family", "parameters", "added"),
    [
        ("v1", (), set()),
        ("v1", ("KV_CACHE_BLOCK_SIZE",), {"hybrid"}),
        ("v1", ("IS_CIRCULAR",), {"circular"}),
        ("v2", ("kernel_block_sizes",), {"hybrid"}),
        ("v2", ("slot_mapping_enabled",), {"enabled"}),
        ("v2", ("dcp_sharded",), {"sharded"}),
        ("v2", ("group_cp_sizes", "kernel_block_sizes"), {"sharded", "hybrid"}),
        ("fused", ("is_circular_ptr",), {"circular"}),
        ("v2", ("BLOCK_TABLE_PAD_SIZE", "max_num_tokens"), set()),
    ],
)
def test_a_parameter_adds_the_feature_that_it_serves(family: str, parameters: tuple[str, ...], added: set[str]) -> None:
    without = declaration("vllm-ascend", family, family, "1.0", ()).features
    assert declaration("vllm-ascend", family, family, "1.0", parameters).features - without == added


def test_the_torch_and_numpy_paths_leave_the_tail_and_only_upstream_writes_int64() -> None:
    for (subject, name), place in PLACED.items():
        features = declaration(subject, name, place.family, "1.0", ()).features
        assert features <= FEATURES
        assert ("tail" in features) == (place.kind != "method" and not place.prepares)
        assert ("int64" in features) == (subject == "vllm")
        assert ("idx_mapping" in features) == (name == "v2")
        assert ("replay" in features) == (name == "replay")


# Promises that hang on a parameter.


def test_a_window_is_promised_only_by_versions_that_have_one() -> None:
    assert "window" not in declaration("vllm-ascend", "v2", "v2", "1.0", ("pos",)).clauses
    assert "window" in declaration("vllm-ascend", "v2", "v2", "1.0", ("pos", "BLOCK_TABLE_WINDOW_SIZE")).clauses


def fused(*parameters: str) -> EntryPoint:
    names = (*FAMILIES["fused"].needed, "block_table_strides_ptr", "block_sizes_ptr", *parameters)
    return EntryPoint(
        "vllm-ascend",
        "1.0",
        "fused",
        "compute_slot_mapping_fused_groups",
        "fused",
        "file.py",
        3,
        names,
        (),
        declaration("vllm-ascend", "fused", "fused", "1.0", names),
        conditional=promises.conditional("vllm-ascend", "fused", "1.0", names),
    )


PAGED = Group(((0, 1, 2, 3, 4, 5, 6, 7),), 2, 2)
RING = Group(((5,),), 4, 4, kind="circular")


@pytest.mark.parametrize(
    ("parameters", "groups", "needed"),
    [((), (PAGED,), True), (("is_circular_ptr",), (PAGED,), True), (("is_circular_ptr",), (PAGED, RING), False)],
    ids=["no-parameter", "not-given", "given"],
)
def test_negative_positions_are_promised_by_fused_launches_that_are_told_of_rings(
    parameters: tuple[str, ...], groups: tuple[Group, ...], needed: bool
) -> None:
    entry = fused(*parameters)
    case = Case((0, 2), (-1, 3), 2, 2, groups)
    assert ("pos-nonneg" in clauses_of(entry, case, Launch(), Settings())) == needed
    assert {broken.clause for broken in outside(entry, case, Launch(), Settings())} == (
        {"pos-nonneg"} if needed else set()
    )


def test_a_host_that_chooses_its_tile_is_given_positions_that_suit_any() -> None:
    """The window of 16 tokens holds 16 of these blocks, whatever that of 1024 holds."""
    entry = fused("is_circular_ptr")
    wide = Group((tuple(range(300)),), 2, 2)
    near, far = (Case((0, 2), (0, last), 2, 2, (wide,)) for last in (31, 33))
    assert outside(entry, near, Launch(), Settings()) == ()
    assert {broken.clause for broken in outside(entry, far, Launch(), Settings())} == {"window"}
    consecutive = Case((0, 500), tuple(range(500)), 500, 500, (wide,))
    assert outside(entry, consecutive, Launch(), Settings()) == ()


def test_a_window_of_v2_is_judged_by_its_own_tile() -> None:
    names = (*FAMILIES["v2"].needed, "TRITON_BLOCK_SIZE", "BLOCK_TABLE_WINDOW_SIZE")
    declared_ = declaration("vllm-ascend", "v2", "v2", "1.0", names)
    entry = EntryPoint("vllm-ascend", "1.0", "v2", "kernel", "v2", "file.py", 3, names, names[-2:], declared_)
    case = Case((0, 2), (0, 14), 2, 2, (PAGED,), idx_mapping=(0,))
    assert outside(entry, case, Launch(), Settings(tile=16, window=8)) == ()
    assert {each.clause for each in outside(entry, case, Launch(), Settings(tile=16, window=4))} == {"window"}


def test_what_is_drawn_for_a_published_fused_launch_is_what_it_promises() -> None:
    """Negative positions are drawn where the launch is told of rings, and only there."""
    entry = fused("is_circular_ptr")
    seen = {True: 0, False: 0}  # a negative position in a paged group, by whether it is
    for specialization in pool(entry.declaration, AXES["fused"], 8):
        strategy = cases(narrowed(declared(entry, specialization), specialization), specialization)

        @seed(0)
        @settings(max_examples=60, database=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
        @given(strategy)
        def promised(drawn: tuple[Case, Launch]) -> None:
            case, launch = drawn
            assert outside(entry, case, launch, Settings()) == ()
            if violations(case, {"pos-nonneg"}):
                invocation, _ = bind(entry, case, launch, Settings())
                seen[invocation.arguments["is_circular_ptr"] is not None] += 1

        promised()
    assert seen[True] > 10
    assert seen[False] == 0
