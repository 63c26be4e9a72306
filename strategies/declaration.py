"""What an entry point needs and can do, as far as drawing cases for it goes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from reference.contract import CLAUSES

FEATURES = frozenset(
    {
        "circular",  # ring groups of one block a request
        "cp",  # context parallelism, W > 1
        "enabled",  # groups that get no slots at all
        "groups",  # several KV-cache groups in one launch
        "hybrid",  # allocated blocks of several kernel blocks, k > 1
        "idx_mapping",  # requests use the rows that idx_mapping names
        "int64",  # an int64 output
        "pad_id",  # another PAD_ID than -1
        "replay",  # tokens recomputed after a prefix-cache hit
        "row_stride",  # rows further apart than they are wide
        "stride32",  # takes the row strides of its tables as int32 as well as int64
        "sharded",  # a flag per group says whether context parallelism applies
        "tail",  # pads [num_tokens, max_num_tokens)
        "total",  # stays inside its buffers whatever positions and tables hold
    }
)


@dataclass(frozen=True)
class Declaration:
    """What an entry point declares.

    ``clauses`` are the clauses of the contract that it needs: every case drawn for it satisfies them. A clause that is
    not listed may be broken where the answer is still defined: without ``pos-nonneg`` positions may be negative,
    without ``window`` they may be as sparse as they like, without ``pos-f32`` they reach to the largest int32. The
    clauses without which there is no answer hold always. Those in ``sparse`` are needed only where a request's
    positions are not consecutive, or too many for their distances (:func:`strategies.geometry.divides_distances`).
    ``features`` are taken from ``FEATURES``; what is not there is not drawn.

    Raises ValueError for a clause or a feature that does not exist.
    """

    clauses: frozenset[str] = frozenset()
    features: frozenset[str] = frozenset()
    sparse: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        _refuse_unknown("clause", self.clauses | self.sparse, CLAUSES)
        _refuse_unknown("feature", self.features, FEATURES)

    @property
    def of_consecutive(self) -> Declaration:
        """What batches are held to in which each request's positions are consecutive."""
        return replace(self, clauses=self.clauses - self.sparse, sparse=frozenset())


def _refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"unknown {what} {', '.join(unknown)}: known are {', '.join(sorted(known))}")
