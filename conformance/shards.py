"""``--shard I/N``: which part of a run is this machine's, so that N machines do N different things.

The specializations of every pool are dealt out, tests that draw draw with a seed of the shard's own, and tests that
draw nothing are divided among the shards. Nothing is agreed upon while they run: the same command line is the same
shard, everywhere and every time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from strategies.specializations import SHARES, Pool, Specialization

MOST = 10_000


@dataclass(frozen=True, slots=True)
class Shard:
    """Number ``index``, from 1, of ``count`` shards; ``1/1`` is the whole run."""

    index: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    @property
    def is_whole(self) -> bool:
        return self.count == 1

    @property
    def label(self) -> str:
        """What to add where a pool is said to cover something."""
        return "" if self.is_whole else f" by all {self.count} shards together"

    def seed(self, seed: int) -> int:
        """What this shard draws with in a run of ``seed``: far from what the others have, also in runs of the seeds
        beside it.
        """
        if self.is_whole:
            return seed
        return int.from_bytes(sha256(f"{seed} shard {self}".encode()).digest()[:4], "big")

    def has(self, number: int) -> bool:
        """Whether this shard's is the one with ``number``, from 0, of things that are to be done once."""
        return number % self.count == self.index - 1

    def share(self, pool: Pool) -> Pool:
        """This shard's specializations, simplest first. Together the shards have all of them, each in one shard.

        Only where a kind (plain, circular, cp) has fewer than there are shards does one appear in several: a test of
        that kind must find one in every shard.
        """
        if self.is_whole:
            return pool
        chosen: set[int] = set()
        dealt = 0
        for kind in SHARES:
            own = [number for number, each in enumerate(pool) if each.kind == kind]
            mine = [number for place, number in enumerate(own, dealt) if self.has(place)]
            chosen |= set(mine or own[(self.index - 1) % max(len(own), 1) :][:1])
            dealt += len(own)
        return replace(pool, specializations=_picked(pool.specializations, chosen))


def parse(text: str) -> Shard:
    """``I/N``, I from 1. Raises ValueError, one line."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if found is None:
        raise ValueError(f"{text!r} is not I/N, as in 1/4")
    index, count = int(found[1]), int(found[2])
    if not 1 <= count <= MOST:
        raise ValueError(f"{text}: the number of shards is not within 1..{MOST}")
    if not 1 <= index <= count:
        raise ValueError(f"{text}: shards are numbered from 1 to {count}")
    return Shard(index, count)


def _picked(specializations: Sequence[Specialization], chosen: set[int]) -> tuple[Specialization, ...]:
    return tuple(each for number, each in enumerate(specializations) if number in chosen)
