"""Large batches: what they are, and that a kernel which goes wrong only there is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.engine import Engine, Options
from conformance.lanes import by_name
from conformance.large import SHAPES, large_batches
from reference.contract import violations
from reference.verdict import MISMATCH
from tests.faults.catalogue import TILED, V1, Fault, write_variant

_REASON = by_name("lowered").unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

WRONG = {
    "v1-later-requests": (
        V1,
        "v1",
        "    start = tl.load(query_start_loc_ptr + request)\n",
        "    if request >= 19:\n        return\n    start = tl.load(query_start_loc_ptr + request)\n",
    ),
    "v1-later-tokens": (V1, "v1", "in_request = token < end", "in_request = (token < end) & (token < 4096)"),
    "tiled-sampled-offsets": (
        TILED,
        "tiled",
        "left = tl.minimum(((counts >> 16) + 1) * step - 1, num_reqs) - first",
        "left = tl.minimum((counts >> 16) + 1, num_reqs) - first",
    ),
}


def run_of(source: Path | None, cache: Path) -> Engine:
    sources = {} if source is None else {"kernels": str(source)}
    return Engine(by_name("lowered"), Options(("kernels",), sources, 1, 10.0, cache, 1))


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_goes_wrong_only_in_large_batches_is_found(name: str, tmp_path: Path) -> None:
    file, entry, old, new = WRONG[name]
    source = write_variant(Fault(name, "large batches", "", file, ((old, new),), ()), tmp_path)
    run = run_of(source, tmp_path / "cache")
    try:
        target = run.session("kernels").entries[entry]
        found = [run.run(target, *batch).verdict.kind for batch in large_batches(target, shared=False)]
        assert MISMATCH in found
    finally:
        run.close()


@pytest.mark.parametrize("shared", [False, True])
def test_large_batches_are_legal_and_as_large_as_they_say(shared: bool, tmp_path: Path) -> None:
    run = run_of(None, tmp_path / "cache")
    try:
        entries = [each for each in run.entries() if not shared or "cp" in each.declaration.features]
    finally:
        run.close()
    for entry in entries:
        drawn = list(large_batches(entry, shared=shared))
        assert [(case.num_reqs, case.num_tokens // case.num_reqs) for case, *_ in drawn] == list(SHAPES)
        for case, launch, _ in drawn:
            assert violations(case, launch=launch) == ()
            assert entry.cannot_take(case, launch) is None
            assert case.cp.size == (2 if shared else 1)
            for group in case.groups:
                numbers = [number for row in group.block_table for number in row]
                assert len(set(numbers)) == len(numbers)


def test_a_group_of_a_large_batch_is_no_identity(tmp_path: Path) -> None:
    """Else a token that looks in the wrong column would find what it should."""
    run = run_of(None, tmp_path / "cache")
    try:
        entry = run.session("kernels").entries["v2"]
    finally:
        run.close()
    for case, *_ in large_batches(entry, shared=False):
        assert all(group.block_table[0][0] != 0 for group in case.groups)
