"""What a launch does in UB that it must not do, in words."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.lanes.errors import OutOfBounds, Unsupported
from conformance.lanes.hivm import runtime, ub
from conformance.lanes.hivm.program import BITS, Place, Site
from reference.verdict import ON_CHIP, Guard

_MOST_USERS = 3


def _at(what: str, line: str) -> str:
    return f"{what} ({line})" if line else what


def _named(place: Place) -> str:
    return _at(f"{place.what} planned at UB {place.begin:#x}", place.line)


def noted(account: Sequence[int], places: Sequence[Place], sites: Sequence[Site], ub_limit: int) -> Exception:
    """What native code has noted in the account: OutOfBounds, or Unsupported for what a function is not known to do."""
    site = sites[account[ub.SITE]]
    who = _at(site.what, site.line)
    kind = account[ub.KIND]
    if kind == runtime.BEYOND:
        begin, end, number = ub.unpacked(account[ub.WORD])
        first, last = account[ub.FIRST] // 8, -(-account[ub.LAST] // 8)
        place = places[number]
        if end > ub_limit:
            distance, where = end - ub_limit, f"which ends {end - ub_limit} bytes past the end of UB ({ub_limit:#x})"
        elif last > end:
            distance, where = last - end, f"up to {last - end} bytes past its end"
        else:
            distance, where = first - begin, f"from {begin - first} bytes before it"
        return _violation("access", ub.BASE + first, distance, f"{who} touches {_named(place)}, {where}")
    address, size, index = account[ub.WORD] - ub.BASE, account[ub.FIRST], account[ub.LAST]
    given = (ub.unpacked(word) for word in account[ub.GIVEN : ub.GIVEN + ub.MOST_GIVEN] if word)
    there = [places[number] for begin, end, number in given if begin <= address < end]
    # A result, which comes behind the sources, may lie on top of one.
    place = there[-(kind == runtime.WRITTEN_BEYOND)] if there else Place(address, address, "a buffer of i8", "")
    if kind == runtime.LAYOUT:
        return Unsupported(f"{who} gets {_named(place)} in a layout that it is not known for")
    if kind == runtime.STRAY:
        what = f"{who} gathers by index {index} from {_named(place)}, of which it was given {size} elements"
    else:
        verb = "reads" if kind == runtime.READ_BEYOND else "writes to"
        what = f"{who} {verb} element {index} of {_named(place)}, of which it was given {size}"
    elements = index if index < 0 else index - size + 1
    width = max(BITS[place.what.rpartition(" ")[2]] // 8, 1)
    direction = "write" if kind == runtime.WRITTEN_BEYOND else "read"
    return _violation(direction, ub.BASE + address, elements * width, what)


def unwritten(begin: int | None, users: Sequence[Place], stored_at: int | None) -> OutOfBounds:
    """What is stored depends on bytes of UB that the program has not written. ``users`` are the buffers planned at
    ``begin``, one after the other; None: the bytes are not those of one buffer.
    """
    names = list(dict.fromkeys(_at(each.what, each.line) for each in users))
    shown = ", then ".join(names[:_MOST_USERS]) + (", ..." if len(names) > _MOST_USERS else "")
    where = "UB of more than one buffer" if begin is None else f"UB {begin:#x}, where it has {shown}"
    message = f"what the launch stores depends on {where}, which it has not written"
    return OutOfBounds(Guard(ON_CHIP, "read", begin or 0, 0, message), stored_at)


def undefined(site: Site | None, stored_at: int | None) -> OutOfBounds:
    """What is stored depends on what the library function called at ``site`` does not define: a result, or what its
    temporaries hold. None: it takes more than one call.
    """
    who = "library functions leave" if site is None else f"{_at(site.what, site.line)} leaves"
    message = f"what the launch stores depends on what {who} undefined"
    return OutOfBounds(Guard(ON_CHIP, "read", 0, 0, message), stored_at)


def _violation(direction: str, address: int, distance: int, message: str) -> OutOfBounds:
    return OutOfBounds(Guard(ON_CHIP, direction, address - ub.BASE, distance, message))
