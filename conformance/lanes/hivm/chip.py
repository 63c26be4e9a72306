"""The one chip that a process has: UB, the functions that kernels call, and how a launch is run on it twice."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from conformance.lanes.errors import OutOfBounds, Unsupported
from conformance.lanes.hivm import runtime, ub, violations
from conformance.lanes.hivm.linking import Linker
from conformance.lanes.hivm.program import Function, Place, Site

POISON = (0xA5, 0x5A)
"""What UB is filled with before each program of the first and the second run, and the bytes of what library functions
leave undefined: no bit is the same in both.
"""
_WORDS = {byte: int.from_bytes([byte] * 8, "little", signed=True) for byte in POISON}
_NO_SITE = -1

Grid = tuple[int, int, int, int, bool]
"""Address of the arguments' words, programs in each dimension, and whether the last runs first."""

Launch = Callable[..., int]
"""A compiled kernel's ``launch``: called with a Grid, the byte that fills UB, and a part of UB (first byte, bytes) with
the byte that fills it instead. Returns 1 when it noted a violation.
"""


@dataclass(frozen=True, slots=True)
class Facts:
    """What there is to say about a compiled kernel."""

    functions: tuple[Function, ...]
    places: tuple[Place, ...]
    sites: tuple[Site, ...]
    ub_limit: int


@dataclass(slots=True)
class _Log:
    """Memory that native code logs to, and enlarges."""

    address: int = 0
    capacity: int = 0
    used: int = 0

    def contents(self) -> bytes:
        return ctypes.string_at(self.address, self.used) if self.used else b""

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """(address, what was stored there), one store after the other."""
        data, at = self.contents(), 0
        while at < len(data):
            address, size = (int.from_bytes(data[at + k : at + k + 8], "little") for k in (0, 8))
            yield address, data[at + 16 : at + 16 + size]
            at += 24 + -(-size // 8) * 8


class Chip:
    """Maps UB when it is made. Raises NoUb."""

    def __init__(self, linker: Linker) -> None:
        self._account = ub.mapped()
        self._linker = linker
        self._undo = ctypes.CFUNCTYPE(None)(linker.runtime().address("hivm_undo"))
        self._same = ctypes.CDLL(None).memcmp
        self._same.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._logs = (_Log(), _Log(), _Log())
        self._account[ub.ODD_UNDEFINED] = _WORDS[POISON[1]]

    def link(self, functions: Iterable[Function]) -> None:
        self._linker.load(functions)

    def run(self, launch: Launch, grid: Grid, facts: Facts) -> None:
        """One launch. Raises OutOfBounds for an access outside what is planned, and where it makes something of UB that
        it has not written or of what is undefined; Unsupported when it stores more than can be kept.
        """
        self._account[ub.LIMIT] = 8 * facts.ub_limit
        first, second, _ = self._logs
        self._logged(first, runtime.KEEP_OLD, facts, launch, (*grid, POISON[0], 0, 0, 0), POISON[0])
        self._undo()
        self._logged(second, runtime.KEEP_NEW, facts, launch, (*grid, POISON[1], 0, 0, 0), POISON[1])
        if not self._equal(first, second):
            raise self._culprit(launch, grid, facts)

    def _logged(
        self,
        log: _Log,
        mode: int,
        facts: Facts,
        launch: Launch,
        arguments: Sequence[int],
        undefined: int,
        odd_site: int = _NO_SITE,
    ) -> None:
        account = self._account
        account[ub.UNDEFINED], account[ub.ODD_SITE] = _WORDS[undefined], odd_site
        account[ub.MODE], account[ub.LOG], account[ub.USED] = mode, log.address, 0
        account[ub.CAPACITY], account[ub.FULL] = log.capacity, 0
        violated = launch(*arguments)
        log.address, log.capacity, log.used = account[ub.LOG], account[ub.CAPACITY], account[ub.USED]
        if violated:
            raise violations.noted(list(account), facts.places, facts.sites, facts.ub_limit)
        if account[ub.FULL]:
            raise Unsupported(f"the launch stores more than {log.capacity} bytes, which cannot be kept to compare")

    def _equal(self, one: _Log, other: _Log) -> bool:
        return one.used == other.used and (not one.used or not self._same(one.address, other.address, one.used))

    def _culprit(self, launch: Launch, grid: Grid, facts: Facts) -> OutOfBounds:
        """What the difference comes from: the call, or else the part of UB, that alone makes it, with other bytes than
        the rest.
        """
        first, second, _ = self._logs
        stored_at = _first_difference(first, second)
        usual = (*grid, POISON[0], 0, 0, 0)
        try:
            if self._differs(facts, launch, usual, POISON[1]):
                sites = range(len(facts.sites))
                odd = (site for site in sites if self._differs(facts, launch, usual, POISON[0], site))
                site = next(odd, None)
                return violations.undefined(None if site is None else facts.sites[site], stored_at)
            for begin, end in dict.fromkeys((each.begin, each.end) for each in facts.places if each.end > each.begin):
                if self._differs(facts, launch, (*grid, POISON[0], begin, end - begin, POISON[1]), POISON[0]):
                    users = [each for each in facts.places if (each.begin, each.end) == (begin, end)]
                    return violations.unwritten(begin, users, stored_at)
        except OutOfBounds as violation:
            return violation
        return violations.unwritten(None, (), stored_at)

    def _differs(
        self, facts: Facts, launch: Launch, arguments: Sequence[int], undefined: int, odd_site: int = _NO_SITE
    ) -> bool:
        """Whether such a run stores something else than the first; memory is as before afterwards."""
        first, _, third = self._logs
        self._logged(third, runtime.KEEP_OLD, facts, launch, arguments, undefined, odd_site)
        self._undo()
        return not self._equal(first, third)


def _first_difference(one: _Log, other: _Log) -> int | None:
    """The lowest address that ends up with another byte."""
    left, right = _stored(one), _stored(other)
    return min((at for at in left.keys() | right.keys() if left.get(at) != right.get(at)), default=None)


def _stored(log: _Log) -> dict[int, int]:
    return {address + k: byte for address, data in log.entries() for k, byte in enumerate(data)}
