"""Every seeded fault goes red at profile gate, its smallest case can be read at a glance, and the diagnosis says what
is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance import lanes
from reports.diagnosis import CAUSES, UNKNOWN
from tests.faults.catalogue import CATALOGUE, PACKAGE, Fault
from tests.faults.searching import RIGHT, WRONG, Found, Searches, named

UNAVAILABLE = lanes.by_name("lowered").unavailable()

pytestmark = pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))

NAMED_RIGHTLY = 0.85
"""The part of the faults that a diagnosis must name rightly. None may be named wrongly."""
USUAL_TOKENS, MOST_TOKENS = 3, 8
"""Tokens that the smallest case of nine faults in ten has at most, and that any has."""

_found: dict[str, list[Found]] = {}


@pytest.fixture(scope="module")
def searches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searches]:
    parameters = [item.callspec.params for item in request.session.items if hasattr(item, "callspec")]
    selected = [each["fault"] for each in parameters if isinstance(each.get("fault"), Fault)]
    begun = Searches(list(dict.fromkeys(selected)), tmp_path_factory.mktemp("faults"))
    yield begun
    begun.close()


@pytest.mark.parametrize("fault", CATALOGUE, ids=lambda fault: fault.name)
def test_a_seeded_fault_is_found_and_shrunk(
    fault: Fault, searches: Searches, capsys: pytest.CaptureFixture[str]
) -> None:
    found = searches.of(fault)
    assert found, f"{fault.name} survives profile gate: {fault.summary}"
    _found[fault.name] = found
    with capsys.disabled():
        for each in found:
            said = f"{each.case.num_tokens} tokens: {each.diagnosis.cause}: {each.diagnosis.summary}"
            print(f"\n{fault.name}: found after {each.examples} examples, {said}")
    assert all(each.case.num_tokens <= fault.tokens for each in found)
    assert named(fault, found) != WRONG


def test_most_faults_are_named_and_none_wrongly() -> None:
    """From the runs of the test above."""
    faults = searched()
    names = {fault.name: named(fault, _found[fault.name]) for fault in faults}
    wrong = [name for name, how in names.items() if how == WRONG]
    assert not wrong
    right = sum(how == RIGHT for how in names.values())
    assert right >= NAMED_RIGHTLY * len(faults), f"{right} of {len(faults)}: {names}"


def test_most_smallest_cases_have_three_tokens() -> None:
    """From the same runs."""
    tokens = [max(each.case.num_tokens for each in _found[fault.name]) for fault in searched()]
    assert max(tokens) <= MOST_TOKENS
    assert sum(count <= USUAL_TOKENS for count in tokens) >= 0.9 * len(tokens)


def searched() -> list[Fault]:
    faults = [fault for fault in CATALOGUE if fault.name in _found]
    if len(faults) < len(CATALOGUE):
        pytest.skip(f"{len(faults)} of {len(CATALOGUE)} faults were searched for: select the whole file")
    return faults


def test_the_catalogue_has_faults_in_every_kernel() -> None:
    files = [fault.file for fault in CATALOGUE]
    kernels = {path.name for path in PACKAGE.glob("*.py") if "@triton.jit" in path.read_text(encoding="utf-8")}
    few = {
        name: files.count(name) for name in kernels - {"example.py", "published_designs.py"} if files.count(name) < 4
    }
    assert not few
    assert len(CATALOGUE) >= 45


def test_causes_are_known_and_names_are_unique() -> None:
    assert all(fault.causes and set(fault.causes) <= set(CAUSES) - {UNKNOWN} for fault in CATALOGUE)
    assert len({fault.name for fault in CATALOGUE}) == len(CATALOGUE)
