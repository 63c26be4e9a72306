"""What published entry points promise, by version: the clauses of the contract that each needs, with the reason, so
that a reader can dispute it.

A case outside what an entry point promises is never drawn for it. What follows from a function's own parameters (a
ring flag, a table of sharding flags) is not promised here but read off them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from strategies.declaration import Declaration

ANY = ">=0"
_NEWEST = Version("9999")


@dataclass(frozen=True, slots=True)
class Promise:
    """``subject``'s entry point ``name`` in ``versions`` needs ``clause``, for this ``reason``; ``link``: repository
    and number.

    Two conditions on a parameter of the function: with ``having`` the clause is needed where there is such a parameter,
    with ``unless`` only in launches that give it nothing.
    """

    subject: str
    name: str
    versions: str
    clause: str
    reason: str
    link: str
    having: str = ""
    unless: str = ""


_NEGATIVE = "negative positions occur in circular groups only, which this entry point does not serve"
_SPARSE = "one window a tile: sparse positions have to lie within it; consecutive ones always do"

PROMISES: tuple[Promise, ...] = (
    Promise("vllm-ascend", "v1", ANY, "pos-nonneg", _NEGATIVE, "vllm-project/vllm-ascend #16537"),
    Promise(
        "vllm-ascend",
        "v1",
        ANY,
        "window",
        _SPARSE,
        "vllm-project/vllm-ascend, compute_slot_mapping.md of 0.26",
    ),
    Promise("vllm-ascend", "v2", ANY, "pos-nonneg", _NEGATIVE, "vllm-project/vllm-ascend #16537"),
    Promise(
        "vllm-ascend",
        "v2",
        ANY,
        "window",
        _SPARSE,
        "vllm-project/vllm-ascend, compute_slot_mapping.md of 0.26",
        having="BLOCK_TABLE_WINDOW_SIZE",
    ),
    Promise(
        "vllm-ascend",
        "fused",
        ANY,
        "pos-nonneg",
        "a negative position gives PAD where rings can be in the launch, and only a launch that is told which can be",
        "vllm-project/vllm-ascend #17529",
        unless="is_circular_ptr",
    ),
    Promise(
        "vllm-ascend",
        "fused",
        ANY,
        "window",
        _SPARSE,
        "vllm-project/vllm-ascend, compute_slot_mapping.md of 0.26",
    ),
    Promise("vllm-ascend", "dcp", ANY, "pos-nonneg", _NEGATIVE, "vllm-project/vllm-ascend #16537"),
    Promise("vllm-ascend", "draft", ANY, "pos-nonneg", _NEGATIVE, "vllm-project/vllm-ascend #16537"),
    Promise("vllm", "v1", ANY, "pos-nonneg", _NEGATIVE, "vllm-project/vllm #56469"),
    Promise("vllm", "v2", ANY, "pos-nonneg", _NEGATIVE, "vllm-project/vllm #56469"),
)

# What each family has whatever its parameters are called, and what a parameter adds.
_FEATURES: dict[str, frozenset[str]] = {
    "v1": frozenset({"cp", "pad_id", "row_stride", "tail"}),
    "v2": frozenset({"cp", "groups", "idx_mapping", "pad_id", "row_stride", "tail"}),
    "fused": frozenset({"groups", "hybrid", "pad_id", "row_stride", "tail"}),
    "prewarm": frozenset(),
    "replay": frozenset({"groups", "hybrid", "pad_id", "replay", "row_stride", "tail"}),
    "block-table": frozenset({"cp", "hybrid"}),
    "draft": frozenset({"hybrid"}),
}
_ADDED_BY: dict[str, str] = {
    "KV_CACHE_BLOCK_SIZE": "hybrid",
    "kernel_block_sizes": "hybrid",
    "IS_CIRCULAR": "circular",
    "is_circular_ptr": "circular",
    "slot_mapping_enabled": "enabled",
    "dcp_sharded": "sharded",
    "group_cp_sizes": "sharded",
}
# Upstream writes int64 slots, the Ascend port int32 ones.
_WIDE = frozenset({"vllm"})


def declaration(subject: str, name: str, family: str, version: str, parameters: Iterable[str]) -> Declaration:
    """What the entry point can be given. A version that is not known is held to what the newest promises."""
    parameters = tuple(parameters)
    features = _FEATURES[family] | {_ADDED_BY[each] for each in parameters if each in _ADDED_BY}
    if subject in _WIDE:
        features |= {"int64"}
    given = frozenset(parameters)
    clauses = {each.clause for each in _promises(subject, name, version, given) if each.unless not in given}
    return Declaration(frozenset(clauses), features)


def far(subject: str) -> frozenset[str]:
    """The clauses that the entry points of ``subject`` need on no lane where positions are consecutive: ``pos-f32,
    exactly`` of docs/contract.md.
    """
    return frozenset({"pos-f32"}) if subject == "kernels" else frozenset()


def conditional(subject: str, name: str, version: str, parameters: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """(clause, parameter) for each clause that is needed only in launches which give the parameter nothing."""
    given = frozenset(parameters)
    found = _promises(subject, name, version, given)
    return tuple((promise.clause, promise.unless) for promise in found if promise.unless in given)


def _promises(subject: str, name: str, version: str, parameters: frozenset[str]) -> Iterator[Promise]:
    """Those of this entry point, as far as version and parameters tell."""
    for promise in PROMISES:
        whose = (promise.subject, promise.name) == (subject, name)
        if whose and promise.having in ("", *parameters) and within(version, promise.versions):
            yield promise


def within(version: str, versions: str) -> bool:
    """Whether ``version`` is one of ``versions``; one that is not known is taken for the newest.

    So is what a build without tags calls itself: 0.0.0, 0+unknown, or 0.1.dev1 with a commit (setuptools-scm).
    """
    try:
        parsed = Version(version)
    except InvalidVersion:
        parsed = _NEWEST
    if parsed.release < (0, 1) or (parsed.is_devrelease and parsed.release[:2] == (0, 1)):
        parsed = _NEWEST
    return SpecifierSet(versions).contains(parsed, prereleases=True)
