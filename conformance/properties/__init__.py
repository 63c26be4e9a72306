"""What holds of a right slot mapping whatever its values are: properties that need no oracle.

Each launches the code under test, most of them several times, and compares the outputs with one another: all ranks of
one batch, a batch and the same one rearranged, a launch and its repetition. None computes what a slot should be, so
what the oracle and a kernel both have wrong is still found.
"""

from conformance.properties import batches, outputs, ranks, slots, tables
from conformance.properties.property import Property

SLOTS: tuple[Property, ...] = (ranks.ONE_OWNER, slots.DISTINCT, slots.FROM_THE_FRONT, slots.INVERSE)
"""Of the slots of one batch, those of all its ranks together."""

BATCHES: tuple[Property, ...] = (
    batches.CHUNKS,
    batches.ORDER,
    batches.SPLIT,
    batches.LENGTH,
    tables.NUMBERS,
    tables.GROUPS,
    outputs.CONTENTS,
)
"""Of a batch and what is made of it."""

ONE_RANK: tuple[Property, ...] = (ranks.ONE_RANK,)

ALL: tuple[Property, ...] = SLOTS + BATCHES + ONE_RANK


def by_name(name: str) -> Property:
    """Raises KeyError for a property that does not exist."""
    return {each.name: each for each in ALL}[name]
