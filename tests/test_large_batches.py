"""Large batches: what they are, and that a kernel which goes wrong only there is found."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from conformance.engine import Engine, Options
from conformance.lanes import by_name
from conformance.large import SEARCHED, SHAPES, TILES, large_batches, shapes
from conformance.subjects.launching import PRODUCTION_TILE
from conformance.subjects.own import PLACES
from reference.contract import violations
from reference.verdict import MISMATCH
from tests.faults.catalogue import REPLAY, TILED, V1, Fault, write_variant

_REASON = by_name("lowered").unavailable()
pytestmark = pytest.mark.skipif(_REASON is not None, reason=str(_REASON))

SAMPLED = "left = tl.minimum(((counts >> 16) + 1) * step - 1, num_reqs) - first"
WRONG = {
    "v1-later-requests": (
        V1,
        "v1",
        "    start = tl.load(query_start_loc_ptr + request)\n",
        "    if request >= 19:\n        return\n    start = tl.load(query_start_loc_ptr + request)\n",
    ),
    "v1-later-tokens": (V1, "v1", "in_request = token < end", "in_request = (token < end) & (token < 4096)"),
    "replay-ends-past-the-window": (
        REPLAY,
        "replay",
        "        for tile_start in range(tl.load(query_start_loc_ptr + request), end, TILE_BLOCK_SIZE):\n",
        "        first = tl.load(query_start_loc_ptr + request)\n"
        "        head = first + tl.arange(0, TILE_BLOCK_SIZE)\n"
        "        least = tl.min(tl.load(positions_ptr + head, mask=head < end, other=2147483647), axis=0)\n"
        "        end = tl.where(least - replay_start >= window, tl.minimum(end, first + TILE_BLOCK_SIZE), end)\n"
        "        for tile_start in range(first, end, TILE_BLOCK_SIZE):\n",
    ),
    "tiled-sampled-offsets": (TILED, "tiled", SAMPLED, "left = tl.minimum((counts >> 16) + 1, num_reqs) - first"),
    "tiled-every-second-at-most": (
        TILED,
        "tiled",
        "step = num_reqs // SAMPLES + 1",
        "step = tl.where(num_reqs < SAMPLES, 1, 2)",
    ),
    "tiled-last-sample": (TILED, "tiled", SAMPLED, "left = tl.minimum((counts >> 16) * step, num_reqs) - first"),
    "tiled-every-request-sampled": (
        TILED,
        "tiled_host",
        SAMPLED,
        f"{SAMPLED}\n        left = tl.where(step == 1, tl.minimum(left, 1), left)",
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
        found = [run.run(target, *batch).verdict.kind for batch in large_batches(target, run.lane, shared=False)]
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
        drawn = list(large_batches(entry, run.lane, shared=shared))
        searched = SEARCHED if entry.family.startswith("tiled") else ()
        assert [(case.num_reqs, case.num_tokens // case.num_reqs) for case, *_ in drawn] == [*SHAPES, *searched]
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
    for case, *_ in large_batches(entry, run.lane, shared=False):
        assert all(group.block_table[0][0] != 0 for group in case.groups)


def test_tiles_are_those_of_the_host_functions() -> None:
    modules = {each.family: import_module(f"kernels.{each.module}") for each in PLACES if each.is_kernel}
    tiles = {family: getattr(module, "TILE_BLOCK_SIZE", PRODUCTION_TILE) for family, module in modules.items()}
    assert {family: tile for family, tile in tiles.items() if tile != PRODUCTION_TILE} == TILES


def test_where_programs_take_long_there_are_no_more_of_them() -> None:
    lane = by_name("interpreter")
    assert shapes("v1", lane) == SHAPES
    assert shapes("v1-host", lane) == shapes("tiled-host", lane) == ()
    assert shapes("tiled", lane) == ((1, 32_768), *SHAPES[1:], *SEARCHED)
