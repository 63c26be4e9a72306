"""How often a kernel is compiled while one engine serves: never because of what changes from step to step.

The number of requests, of tokens and of padded tokens change with every batch. Where one of them is compiled in, each
new batch waits for the compiler, seconds on an NPU (vllm-ascend issue 17527: 135 compile keys where 7 suffice). So
batches of many shapes are launched over one layout, the same groups, block sizes and types, in a fresh process, which
then says how many specializations it has loaded.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pytest

from conformance.execution.session import Session
from conformance.subjects.binding import bind
from conformance.subjects.entry import TESTABLE, EntryPoint
from conformance.subjects.launching import PRODUCTION_TILE, Settings
from conformance.under_test import UnderTest
from reference.case import Case, Group, Launch, Replay

SHAPES = 200
MOST_REQUESTS = 300
MOST_TOKENS = 2048
"""Of a batch; a single request has half of them at most."""

_OUTPUT_LENGTH = MOST_TOKENS + 64
_MEAN_LENGTHS = (1, 2, 5, 16, 17, 33, 70, 130, 300, 600, 1000)
_PADDING = (0, 1, 7, 16, 48)
_BLOCK_SIZES = (128, 256)
_REPLAY_WINDOW = 300
_SETTINGS = Settings(PRODUCTION_TILE)


@dataclass(frozen=True, slots=True)
class Bound:
    """At most ``keys`` specializations for one layout, for this ``reason``."""

    keys: int
    reason: str


_TILES = Bound(7, "a host chooses among 6 small tiles for short requests and the large one")
_ONE = Bound(1, "nothing that changes from step to step is compiled in, nor told apart as 1 or a multiple of 16")

# Kernels: the integers that change from step to step, as far as a version has them. Triton compiles an integer of 1, a
# multiple of 16 and any other apart unless it is told not to: three kinds each, few and soon met.
CHANGING: Mapping[str, tuple[str, ...]] = {
    "v1": ("num_reqs", "num_tokens", "max_num_tokens"),
    "v2": ("num_tokens", "max_num_tokens"),
    "tiled": ("num_reqs", "num_positions", "max_num_tokens"),
    "parallel": ("num_tokens", "max_num_tokens"),
}
# Host functions launch what they like.
HOSTS: Mapping[str, Bound] = {"fused": _TILES, "replay": _ONE}
# This project's kernels specialize on none of those integers.
OWN = ("v1", "v2", "parallel", "adaptive", "tiled")


def bound_of(entry: EntryPoint) -> Bound:
    """How many specializations one layout may take."""
    if entry.family in HOSTS:
        return HOSTS[entry.family]
    if entry.subject == "kernels" and entry.name in OWN:
        return _ONE
    integers = [name for name in CHANGING[entry.family] if name in entry.parameters]
    return Bound(3 ** len(integers), f"three kinds of each integer that changes: {', '.join(integers)}")


def compiles_for_no_batch(target: UnderTest, *, circular: bool = False) -> None:
    """Launch the batches, and assert that each is right and that the bound holds. Stops at the first that is not, or at
    the first specialization too many.
    """
    session = _fresh(target, circular=circular)
    _serves(target, target.entry, bound_of(target.entry), circular=circular)
    assert session.specializations, "the lane has loaded nothing although everything was launched"


def compiles_nothing_after_the_prewarm(target: UnderTest, *, circular: bool = False) -> None:
    """Prepare for batches like these as an engine does when it starts, launch them, and assert that nothing is loaded
    that was not loaded then.
    """
    entry, engine = target.entry, target.engine
    session = _fresh(target, circular=circular)
    prewarm = session.preparing.get(entry.name)
    if prewarm is None or prewarm.status != TESTABLE:
        pytest.skip(f"{entry.id} {entry.version}: {prewarm.status if prewarm else 'there is no prewarm'}")
    case, launch = next(batches(entry, circular=circular))
    largest = replace(case, max_num_tokens=MOST_TOKENS)
    outcome = session.launch(bind(prewarm, largest, launch, _SETTINGS)[0], launch.fence)
    if outcome.status != "ok":
        pytest.fail(f"{prewarm.id} {prewarm.version}: {outcome.status}: {outcome.message}", pytrace=False)
    if session.specializations is None:
        pytest.skip(f"lane {engine.lane.name} does not say what it compiles")
    # The prewarm is told nothing of types: it prepares for the strides that serving has, int64.
    features = entry.declaration.features - {"stride32"}
    entry = replace(entry, declaration=replace(entry.declaration, features=features))
    _serves(target, entry, Bound(session.specializations, "that many the prewarm has compiled"), circular=circular)


def _fresh(target: UnderTest, *, circular: bool) -> Session:
    """A process that has loaded nothing yet."""
    entry = target.entry
    if circular and "circular" not in entry.declaration.features:
        pytest.skip(f"{entry.id} {entry.version} does not have circular")
    session = target.engine.session(entry.subject)
    session.restart()
    return session


def _serves(target: UnderTest, entry: EntryPoint, limit: Bound, *, circular: bool) -> None:
    engine = target.engine
    session = engine.session(entry.subject)
    drawn = [(case, launch, _SETTINGS) for case, launch in batches(entry, circular=circular)]
    for begin in range(0, len(drawn), engine.lane.batch):
        together = drawn[begin : begin + engine.lane.batch]
        count = begin + len(together)
        if entry is target.entry:
            target.agrees_on_all(together)
        else:
            for finding in engine.run_all(entry, together):
                if not finding.verdict.passed:
                    said = finding.verdict.summary()
                    pytest.skip(f"{entry.id} on lane {engine.lane.name}: {said}, which another test reports")
        if target.unsupported is not None:
            pytest.skip(target.unsupported)
        if session.specializations is None:
            pytest.skip(f"lane {engine.lane.name} does not say what it compiles")
        if session.specializations > limit.keys:
            pytest.fail(
                f"{entry.id} {entry.version}: {session.specializations} specializations of one layout for the first"
                f" {count} batches, at most {limit.keys} are due: {limit.reason}\n{entry.file}:{entry.line}",
                pytrace=False,
            )


def batches(entry: EntryPoint, *, circular: bool) -> Iterator[tuple[Case, Launch]]:
    """``SHAPES`` batches of different shapes over the same tables and outputs."""
    features = entry.declaration.features
    groups = tuple(_group(size) for size in (_BLOCK_SIZES if "groups" in features else _BLOCK_SIZES[:1]))
    if circular:
        groups = (*groups[1:], Group(((0,),) * MOST_REQUESTS, _BLOCK_SIZES[0], _BLOCK_SIZES[0], kind="circular"))
    paged = tuple(index for index, group in enumerate(groups) if group.kind == "paged")
    for index in range(SHAPES):
        num_reqs, num_tokens, max_num_tokens = shape(index)
        bounds = tuple(num_tokens * request // num_reqs for request in range(num_reqs + 1))
        positions = tuple(p for r in range(num_reqs) for p in range(bounds[r + 1] - bounds[r]))
        case = Case(
            bounds,
            positions,
            num_tokens,
            max_num_tokens,
            groups,
            idx_mapping=tuple(range(num_reqs)) if "idx_mapping" in features else None,
            replay=Replay((1,) * num_reqs, _REPLAY_WINDOW, paged) if "replay" in features else None,
        )
        # Who reads too far is told so by other tests; here what is there to read does no harm.
        yield case, Launch("int64" if entry.subject == "vllm" else "int32", _OUTPUT_LENGTH, fence="open")


def shape(index: int) -> tuple[int, int, int]:
    """num_reqs, num_tokens and max_num_tokens of batch ``index``: single tokens, decoding, prefills, all mixed."""
    num_reqs = index * 37 % MOST_REQUESTS + 1
    mean = _MEAN_LENGTHS[index % len(_MEAN_LENGTHS)]
    if mean > 100:
        num_reqs = num_reqs % 6 + 1
    num_tokens = min(max(num_reqs * mean - index % 2, num_reqs), MOST_TOKENS, MOST_TOKENS // 2 * num_reqs)
    return num_reqs, num_tokens, num_tokens + _PADDING[index % len(_PADDING)]


def _group(block_size: int) -> Group:
    """A paged group whose rows have room for the longest request."""
    width = MOST_TOKENS // 2 // block_size
    rows = tuple(tuple(range(row * width, (row + 1) * width)) for row in range(MOST_REQUESTS))
    return Group(rows, block_size, block_size)
