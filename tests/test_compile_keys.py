"""What is compiled over batches of many shapes is counted, and a number that changes from step to step is found where
it is compiled in.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import lanes
from conformance.compile_keys import (
    CHANGING,
    HOSTS,
    MOST_REQUESTS,
    MOST_TOKENS,
    SHAPES,
    batches,
    bound_of,
    compiles_for_no_batch,
    compiles_nothing_after_the_prewarm,
    shape,
)
from conformance.engine import Engine, Options
from conformance.subjects.binding import FAMILIES
from conformance.subjects.entry import EntryPoint
from conformance.under_test import UnderTest
from reference.contract import violations
from strategies.declaration import Declaration
from tests.commands import ROOT
from tests.faults.catalogue import FUSED, V1, Fault, write_variant
from tests.test_kernels_fused_groups import COMPILED_IN

LANE = lanes.automatic()
LOWERED = lanes.by_name("lowered").unavailable()

needs_lowered = pytest.mark.skipif(LOWERED is not None, reason=str(LOWERED))


def entry_point(family: str, *parameters: str, subject: str = "vllm", features: str = "") -> EntryPoint:
    declaration = Declaration(features=frozenset(features.split()))
    return EntryPoint(subject, "1.0", family, "kernel", family, "file.py", 3, parameters, (), declaration)


def engine(source: Path | None, lane: str) -> Engine:
    sources = {} if source is None else {"kernels": str(source)}
    return Engine(lanes.by_name(lane), Options(("kernels",), sources, 1, 10.0, ROOT / ".cache", 1))


# What is launched


def test_shapes_differ_in_everything_that_changes_from_step_to_step() -> None:
    shapes = [shape(index) for index in range(SHAPES)]
    assert len(set(shapes)) > 0.9 * SHAPES
    requests, tokens, padded = (set(each) for each in zip(*shapes, strict=True))
    assert len(requests) > 100
    assert 1 in requests & tokens & padded  # what Triton compiles apart: 1, multiples of 16, others
    for numbers in (requests, tokens, padded):
        assert sum(number % 16 == 0 for number in numbers) > 3
    assert max(requests) <= MOST_REQUESTS
    assert max(tokens) <= MOST_TOKENS
    means = {min(max(1 << (-(-t // r) - 1).bit_length(), 16), 1024) for r, t, _ in shapes}
    assert means == {16, 32, 64, 128, 256, 512, 1024}  # every tile that a host may choose


@pytest.mark.parametrize("features", ["", "groups idx_mapping", "groups circular", "groups circular replay"])
def test_batches_are_inside_the_contract_and_share_one_layout(features: str) -> None:
    circular = "circular" in features
    launched = list(batches(entry_point("v2", features=features), circular=circular))
    assert len(launched) == SHAPES
    assert len({(case.groups, case.cp, case.pad_id, launch.output_length) for case, launch in launched}) == 1
    assert any(group.kind == "circular" for group in launched[0][0].groups) == circular
    for case, launch in launched[::10]:
        assert violations(case, launch=launch) == ()


# Bounds


def test_every_family_that_launches_kernels_of_its_own_has_a_bound() -> None:
    assert CHANGING.keys() | HOSTS.keys() <= FAMILIES.keys()
    assert {family: bound_of(entry_point(family)).keys for family in HOSTS} == {"fused": 7, "replay": 1}


def test_a_published_kernel_may_compile_three_kinds_of_each_integer_that_it_has() -> None:
    assert bound_of(entry_point("v1", "num_tokens", "max_num_tokens")).keys == 9
    assert bound_of(entry_point("v1", "num_reqs", "num_tokens", "max_num_tokens", "block_size")).keys == 27
    assert bound_of(entry_point("v2", "max_num_tokens", "cp_rank")).keys == 3
    assert bound_of(entry_point("v1", "num_tokens", "max_num_tokens", subject="kernels")).keys == 1


# What is found


def checked(source: Path | None, lane: str, name: str) -> None:
    run = engine(source, lane)
    try:
        compiles_for_no_batch(UnderTest(run, run.session("kernels").entries[name]))
    finally:
        run.close()


TOLD_APART = (('@triton.jit(do_not_specialize=["num_tokens", "max_num_tokens"])', "@triton.jit"),)
COMPILED = (("    num_tokens,\n    max", "    num_tokens: tl.constexpr,\n    max"),)


@needs_lowered
@pytest.mark.parametrize(
    ("name", "file", "replacements", "said"),
    [
        ("v1", V1, TOLD_APART, "2 specializations of one layout for the first [0-9]+ batches, at most 1 are due"),
        ("v1", V1, COMPILED, "2 specializations of one layout for the first 2 batches, at most 1 are due"),
        ("fused", FUSED, COMPILED_IN["num_reqs"], "8 specializations of one layout for the first .* at most 7 are due"),
    ],
    ids=["told-apart", "token-count", "request-count"],
)
def test_what_changes_with_every_step_is_found_where_it_is_compiled_in(
    name: str, file: str, replacements: tuple[tuple[str, str], ...], said: str, tmp_path: Path
) -> None:
    source = write_variant(Fault("compiled-in", "compile keys", "", file, replacements, ()), tmp_path)
    with pytest.raises(pytest.fail.Exception, match=rf"kernels\.{name} .*: {said}"):
        checked(source, "lowered", name)


@needs_lowered
def test_a_prewarm_that_leaves_something_out_is_found(tmp_path: Path) -> None:
    largest_left_out = (("    while tile <= largest:\n", "    while tile < largest:\n"),)
    source = write_variant(Fault("largest-left-out", "compile keys", "", FUSED, largest_left_out, ()), tmp_path)
    run = engine(source, "lowered")
    try:
        target = UnderTest(run, run.session("kernels").entries["fused"])
        compiles_for_no_batch(target)
        with pytest.raises(pytest.fail.Exception, match="that many the prewarm has compiled"):
            compiles_nothing_after_the_prewarm(target)
    finally:
        run.close()


@needs_lowered
def test_kernels_without_a_prewarm_skip_what_asks_for_one(tmp_path: Path) -> None:
    renamed = (
        (
            "def prewarm_fused_slot_mapping_kernels(",
            "def prewarm(",
        ),
    )
    source = write_variant(Fault("no-prewarm", "compile keys", "", FUSED, renamed, ()), tmp_path)
    run = engine(source, "lowered")
    try:
        target = UnderTest(run, run.session("kernels").entries["fused"])
        with pytest.raises(pytest.skip.Exception, match=r"no prewarm_\w+ in kernels/fused_groups\.py"):
            compiles_nothing_after_the_prewarm(target)
    finally:
        run.close()


@pytest.mark.skipif(LANE.name == "lowered", reason="this lane compiles")
def test_a_lane_that_does_not_compile_says_so() -> None:
    with pytest.raises(pytest.skip.Exception, match=f"lane {LANE.name} does not say what it compiles"):
        checked(None, LANE.name, "v1")


@needs_lowered
def test_a_fresh_process_has_compiled_nothing() -> None:
    run = engine(None, "lowered")
    try:
        session = run.session("kernels")
        target = UnderTest(run, session.entries["v1"])
        for _ in range(2):
            compiles_for_no_batch(target)
            assert session.specializations == 1
    finally:
        run.close()
