"""The pool: legal, covering, within its budget, the same in every process, rich enough to reveal known faults."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from reference.case import ContextParallel
from reference.fields import INT32_MAX, INT32_MIN
from strategies.declaration import Declaration
from strategies.geometry import interleave_of, rank_of
from strategies.specializations import (
    V1_AXES,
    Axes,
    Specialization,
    free_specializations,
    pool,
    production_window,
    window_of,
)

ALL = Declaration(features=frozenset({"circular", "cp", "hybrid", "pad_id", "int64"}))

SMALL_AXES = Axes(
    block_sizes=(2, 16),
    blocks_per_kv_block=(1, 3),
    world_sizes=(1, 3),
    ranks=("first", "last"),
    interleaves=("one", "over", "whole"),
    tiles=(16, 64),
    windows=("rule", "half"),
    pad_ids=(-1, -7),
    output_dtypes=("int32",),
)


def settings_with_their_values(axes: Axes) -> dict[Specialization, tuple[object, ...]]:
    """Every legal specialization of ``axes``, counted out by hand, with the values and roles that make it."""
    found = {}
    for values in itertools.product(
        (*((False, world) for world in axes.world_sizes), (True, 1)),
        axes.block_sizes,
        axes.blocks_per_kv_block,
        axes.ranks,
        axes.interleaves,
        axes.tiles,
        axes.windows,
        axes.pad_ids,
        axes.output_dtypes,
    ):
        (circular, world), b, k, rank_role, interleave_role, tile, window_role, pad_id, output_dtype = values
        rank, interleave = rank_of(rank_role, world), interleave_of(interleave_role, b, k)
        window = window_of(window_role, tile, b)
        if None in (rank, interleave, window) or (circular and k > 1):
            continue
        specialization = Specialization(
            b, k, ContextParallel(world, rank, interleave), tile, window, circular, pad_id, output_dtype
        )
        assert specialization not in found
        found[specialization] = values
    return found


@pytest.mark.parametrize("strength", [2, 3])
def test_every_legal_combination_is_covered(strength: int) -> None:
    legal = settings_with_their_values(SMALL_AXES)

    def combinations(specializations):
        return {c for s in specializations for c in itertools.combinations(enumerate(legal[s]), strength)}

    made = pool(ALL, SMALL_AXES, budget=1000, strength=strength)
    assert len(made) < len(legal) / 3
    assert combinations(made) == combinations(legal)
    assert made.covered == made.total == len(combinations(legal))


def test_v1_pool_of_the_default_budget() -> None:
    made = pool(ALL, V1_AXES, 64)
    assert len(made) <= 64
    assert made.covered == made.total > 500
    kinds = [s.kind for s in made]
    assert kinds.count("plain") >= 12
    assert kinds.count("circular") >= 8
    assert kinds.count("cp") >= 24
    assert len(set(made)) == len(made)
    tiles = [s.tile for s in made]
    assert set(tiles) == {16, 64, 256, 1024}
    assert sum(tile <= 64 for tile in tiles) > 0.55 * len(made)
    assert sum(s.pad_id == -1 for s in made) > 0.4 * len(made)
    assert {s.pad_id for s in made} == {-1, 0, INT32_MIN, INT32_MAX}
    assert sum(s.output_dtype == "int32" for s in made) > 0.7 * len(made)


def test_simplest_comes_first() -> None:
    made = list(pool(ALL, V1_AXES, 64))
    assert made[0] == Specialization(2, 1, ContextParallel(), tile=16, window=16)
    assert made[1] == Specialization(2, 1, ContextParallel(), tile=16, window=16, circular=True)
    assert Specialization(2, 1, ContextParallel(2, 0, 1), tile=16, window=16) in made[2:4]


def test_a_ring_has_slots_beyond_int32() -> None:
    """A product of two int32 that is not computed in int64."""
    assert any(s.circular and s.block_size == 1 << 20 and s.output_dtype == "int64" for s in pool(ALL, V1_AXES, 64))


def test_simpler_comes_before_less_simple() -> None:
    def differing(s: Specialization) -> int:
        """Parameters that are not the simplest, but for the window, whose role its value does not tell."""
        cp = s.cp
        mine = (s.kind, cp.rank, cp.interleave, s.block_size, s.blocks_per_kv_block, s.tile, s.pad_id, s.output_dtype)
        return sum(a != b for a, b in zip(mine, ("plain", 0, 1, 2, 1, 16, -1, "int32"), strict=True))

    counts = [differing(s) for s in pool(ALL, V1_AXES, 64)]
    assert all(after >= before - 1 for before, after in itertools.pairwise(counts))


def test_settings_of_serving_are_in_every_pool() -> None:
    for budget in (16, 64):
        serving = [s for s in pool(ALL, V1_AXES, budget) if (s.block_size, s.tile, s.window) == (128, 1024, 16)]
        assert {s.kind for s in serving} == {"plain", "circular", "cp"}


@pytest.mark.parametrize(
    "reveals",
    [
        pytest.param(lambda s: s.cp.size > 1 and s.cp.size != s.cp.interleave, id="ranks-differ-from-interleave"),
        pytest.param(lambda s: s.cp.interleave > s.block_size and s.cp.size > 1, id="interleave-over-the-block"),
        pytest.param(
            lambda s: s.cp.size > 1 and s.cp.interleave > s.block_size and s.cp.interleave % s.block_size,
            id="turn-ends-inside-a-block",
        ),
        pytest.param(lambda s: 0 < s.cp.rank < s.cp.size - 1, id="middle-rank"),
        pytest.param(lambda s: s.cp.size > 1 and s.cp.rank == s.cp.size - 1, id="last-rank"),
        pytest.param(lambda s: not s.circular and s.window < production_window(s.tile, s.block_size), id="window"),
        pytest.param(lambda s: s.block_size & (s.block_size - 1), id="no-power-of-two"),
        pytest.param(lambda s: s.blocks_per_kv_block > 1 and s.kind == "plain", id="hybrid-without-ranks"),
    ],
)
def test_settings_that_reveal_known_faults(reveals) -> None:
    assert sum(bool(reveals(s)) for s in pool(ALL, V1_AXES, 64)) >= 3


def test_no_window_below_the_rule_for_who_needs_the_window() -> None:
    declaration = Declaration(frozenset({"window"}), ALL.features)
    windows = [(s.window, production_window(s.tile, s.block_size)) for s in pool(declaration, V1_AXES, 64)]
    assert all(window >= rule for window, rule in windows)
    assert any(window > rule for window, rule in windows)


def test_undeclared_features_are_left_out() -> None:
    made = list(pool(Declaration(), V1_AXES, 64))
    assert {(s.kind, s.blocks_per_kv_block, s.pad_id, s.output_dtype) for s in made} == {("plain", 1, -1, "int32")}


def test_entry_points_without_tiles_have_none() -> None:
    assert {(s.tile, s.window) for s in pool(ALL, Axes(), 64)} == {(None, None)}


def test_budget_is_kept_and_spent_on_coverage() -> None:
    covered = []
    for budget in (1, 2, 3, 6, 13, 32, 64, 128):
        made = pool(ALL, V1_AXES, budget)
        assert len(made) <= budget
        covered.append(made.covered)
    assert covered == sorted(covered)
    assert covered[5] > 0.88 * covered[-1]
    assert {s.kind for s in pool(ALL, V1_AXES, 3)} == {"plain", "circular", "cp"}


def test_a_larger_budget_covers_each_kind_by_itself() -> None:
    legal = settings_with_their_values(SMALL_AXES)
    made = list(pool(ALL, SMALL_AXES, 1000))
    for kind in ("plain", "circular", "cp"):

        def pairs(specializations, kind=kind):
            of_kind = (s for s in specializations if s.kind == kind)
            return {pair for s in of_kind for pair in itertools.combinations(enumerate(legal[s]), 2)}

        assert pairs(made) == pairs(legal)


def test_description_is_one_line() -> None:
    made = pool(ALL, V1_AXES, 64)
    kinds = [s.kind for s in made]
    assert made.describe() == (
        f"{len(made)} specializations ({kinds.count('plain')} plain, {kinds.count('circular')} circular, "
        f"{kinds.count('cp')} cp), {made.covered} of {made.total} pairs covered"
    )
    assert "3-way combinations covered" in pool(ALL, SMALL_AXES, 9, 3).describe()


def test_another_process_makes_the_same_pool() -> None:
    program = (
        "from strategies.specializations import *\n"
        "from strategies.declaration import Declaration\n"
        f"print(list(pool(Declaration(features=frozenset({sorted(ALL.features)!r})), V1_AXES, 40)))"
    )
    root = Path(__file__).parent.parent
    environment = {**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(list(pool(ALL, V1_AXES, 40)))


def test_impossible_wishes_are_refused() -> None:
    with pytest.raises(ValueError, match="compile budget 0: at least one specialization is needed"):
        pool(ALL, V1_AXES, 0)
    with pytest.raises(ValueError, match=r"strength 1: a covering array here has strength 2\.\.9"):
        pool(ALL, V1_AXES, 64, strength=1)
    with pytest.raises(ValueError, match="unknown clause pos-even: known are circular-no-cp"):
        Declaration(clauses=frozenset({"pos-even"}))
    with pytest.raises(ValueError, match="unknown feature windows: known are circular, cp"):
        Declaration(features=frozenset({"windows"}))
    with pytest.raises(ValueError, match="unknown window 'third': known are rule, double, half, least"):
        window_of("third", 16, 2)


def test_windows_differ_and_are_powers_of_two() -> None:
    assert production_window(1024, 128) == 16
    assert production_window(16, 2) == 16
    assert production_window(16, 1 << 20) == 2
    for tile, b in itertools.product((16, 1024), (1, 3, 48, 128, 1 << 20)):
        windows = [w for w in (window_of(role, tile, b) for role in V1_AXES.windows) if w is not None]
        assert len(windows) == len(set(windows))
        assert all(w >= 2 and w & (w - 1) == 0 for w in windows)


def test_the_production_window_holds_any_consecutive_tile() -> None:
    for tile, b in itertools.product((1, 2, 16, 17), (1, 2, 3, 16, 48)):
        most = max((start + tile - 1) // b - start // b + 1 for start in range(b))
        assert most <= production_window(tile, b)


@settings(max_examples=200, database=None, deadline=None)
@given(free_specializations(Declaration(features=frozenset({"hybrid"}))))
def test_free_settings_have_only_what_is_declared(specialization: Specialization) -> None:
    assert specialization.cp == ContextParallel()
    assert (specialization.tile, specialization.window, specialization.output_dtype) == (None, None, "int32")


def test_free_settings_vary() -> None:
    drawn = []

    @settings(max_examples=200, database=None, deadline=None, derandomize=True)
    @given(free_specializations(ALL))
    def collect(specialization: Specialization) -> None:
        drawn.append(specialization)

    collect()
    assert len(set(drawn)) > 100
    assert {s.output_dtype for s in drawn} == {"int32", "int64"}
    assert {s.cp.size for s in drawn} > {1, 2, 3, 4, 8}
