"""The causes that a diagnosis may name: stable words, each with what it means. docs/diagnosis.md shows this table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

UNKNOWN = "unknown"

CAUSES: Mapping[str, str] = MappingProxyType(
    {
        # Which token, which row.
        "position": "a token is given the position of another one",
        "foreign request": "a token is handled as one of a request that does not own it",
        "foreign group": "the table, the sizes or the flags of another group are used",
        "idx_mapping": "the row is not the one that idx_mapping names",
        "table row": "a wrong row of the block table is read",
        "row stride": "rows are taken to be as far apart as they are wide",
        # The five steps.
        "virtual block": "the virtual block is not B*W tokens long, so that ranks share something else",
        "ownership": "a token is taken for another rank's, or another rank's for this one's",
        "local offset": "the place among this rank's own tokens of the virtual block is wrong",
        "kernel block index": "the column of the row is computed wrongly from virtual block and local offset",
        "table column": "a wrong column of the right row is read",
        "block offset": "the place inside the block is wrong",
        "slot": "block number and offset are put together wrongly",
        # Which rule.
        "replicated group sharded": "context parallelism is applied to a group that every rank has whole",
        "sharded group replicated": "context parallelism is not applied to a group that ranks share",
        "circular": "a ring is handled as a growing row, or a growing row as a ring",
        "disabled group": "a group that is not enabled gets slots, or one that is gets none",
        "replay window": "the wrong tokens lose their slots after a prefix-cache hit",
        # What is read and written.
        "window": "a block outside the staged part of the row is not looked up",
        "tile": "tokens behind the first tile of a request are left out",
        "stale element": "an element that should have been written was not",
        "padding start": "padding begins at the wrong element",
        "padding end": "padding ends at the wrong element",
        "padding missing": "nothing is padded at all",
        "padding value": "what gets no slot holds something else than PAD_ID",
        "out of bounds read before": "memory before a buffer is read",
        "out of bounds read past": "memory past a buffer is read",
        "out of bounds write before": "memory before a buffer is written",
        "out of bounds write past": "memory past a buffer is written",
        "out of bounds access before": "memory before a buffer is touched",
        "out of bounds access past": "memory past a buffer is touched",
        "input written": "an input is written",
        "read before it is written": "on-chip memory is read that nothing was written to",
        # Arithmetic.
        "sign": "a negative position gets a slot, or moves what other tokens get",
        "float32": "a number above 2^24 went through float32 and lost its last bits",
        "int32 overflow": "a number wrapped at 2^31",
        "output width": "the output is written as elements of another width",
        # No output at all.
        "compile error": "the kernel does not compile",
        "hang": "the launch does not end",
        "crash": "the launch ends its process or raises",
        "refused": "the host refuses a legal case",
        UNKNOWN: "none of these, or more than one of them alike",
    }
)

GENERAL: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "ownership": frozenset({"virtual block", "sharded group replicated"}),
        "table row": frozenset({"idx_mapping", "foreign request", "row stride"}),
        "table column": frozenset({"virtual block", "local offset", "kernel block index", "circular"}),
        "block offset": frozenset({"virtual block", "local offset"}),
        "stale element": frozenset({"tile", "padding start", "padding end", "padding missing"}),
    }
)
"""What is true of a failure as well when it has one of these causes: it is told where they cannot be told apart."""
