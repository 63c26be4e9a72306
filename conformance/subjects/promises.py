"""What published entry points promise, by version: the clauses of the contract that each needs, with the reason, so
that a reader can dispute it.

A case outside what an entry point promises is never drawn for it. What follows from a function's own parameters (a
ring flag, a table of sharding flags) is not promised here but read off them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from strategies.declaration import Declaration

ANY = ">=0"


@dataclass(frozen=True, slots=True)
class Promise:
    """``subject``'s entry point ``name`` in ``versions`` needs ``clause``, for this ``reason``; ``link``: repository
    and number.
    """

    subject: str
    name: str
    versions: str
    clause: str
    reason: str
    link: str


_NEGATIVE = "negative positions occur in circular groups only, which this entry point does not serve"

PROMISES: tuple[Promise, ...] = (
    Promise("vllm-ascend", "v1", ANY, "pos-nonneg", _NEGATIVE, "vllm-project/vllm-ascend #16537"),
    Promise(
        "vllm-ascend",
        "v1",
        ANY,
        "window",
        "one window a tile: sparse positions have to lie within it; consecutive ones always do",
        "vllm-project/vllm-ascend, compute_slot_mapping.md of 0.26",
    ),
    Promise("vllm-ascend", "v2", ANY, "pos-nonneg", _NEGATIVE, "vllm-project/vllm-ascend #16537"),
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
    features = _FEATURES[family] | {_ADDED_BY[each] for each in parameters if each in _ADDED_BY}
    if subject in _WIDE:
        features |= {"int64"}
    clauses = {
        promise.clause
        for promise in PROMISES
        if (promise.subject, promise.name) == (subject, name) and _within(version, promise.versions)
    }
    return Declaration(frozenset(clauses), features)


def _within(version: str, versions: str) -> bool:
    try:
        parsed = Version(version)
    except InvalidVersion:
        parsed = Version("9999")
    return SpecifierSet(versions).contains(parsed, prereleases=True)
