"""What it took to find a failure and to make its case small."""

from __future__ import annotations

from dataclasses import dataclass

from reference.case import Case


@dataclass(frozen=True, slots=True)
class Shrinking:
    """``examples`` were drawn until the first failure, on the case ``first``; ``launches`` came after it, to look for
    further failures and to make the case smaller.
    """

    examples: int
    launches: int
    first: Case

    def to_json(self, last: Case) -> dict[str, object]:
        return {
            "examples": self.examples,
            "launches": self.launches,
            "before": size_of(self.first),
            "after": size_of(last),
        }


def size_of(case: Case) -> dict[str, int]:
    """How large a case is, in what a reader has to look at."""
    return {
        "groups": len(case.groups),
        "requests": case.num_reqs,
        "tokens": case.num_tokens,
        "max_num_tokens": case.max_num_tokens,
        "block_table_cells": sum(len(group.block_table) * group.row_width for group in case.groups),
    }
