"""What published versions promise is data that can be read, followed and disputed."""

from __future__ import annotations

import re

import pytest
from packaging.specifiers import SpecifierSet

from conformance.subjects import NAMES, promises
from conformance.subjects.promises import PROMISES, Promise, declaration
from conformance.subjects.published import PLACES
from reference.contract import ANSWER_CLAUSES, CLAUSES
from strategies.declaration import FEATURES

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
        ("unknown", {"pos-nonneg"}),
        ("main branch", {"pos-nonneg"}),
    ],
)
def test_a_promise_holds_in_its_versions_and_an_unknown_one_is_the_newest(version: str, expected: set[str]) -> None:
    assert clauses(version) == expected


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
        assert ("tail" in features) == (place.kind != "method")
        assert ("int64" in features) == (subject == "vllm")
        assert ("idx_mapping" in features) == (name == "v2")
        assert ("replay" in features) == (name == "replay")
