"""Answers of a process that runs code under test: read against a deadline, and taken for nothing that they are not.

Whatever that code does, it may have written to the connection: half a message, a length of two gigabytes, no JSON.
"""

from __future__ import annotations

import json
import math
import os
import select
import time
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

MOST_BYTES = 1 << 24
"""Of an answer. What a process has to say, a batch's exceptions at their longest, takes a tenth of it."""
END_TIMEOUT = 2.0
"""Seconds in which a process that has closed its connection has to be gone."""

_STATUSES = frozenset({"ok", "raised", "compile", "unsupported", "guard"})
_GUARD = {"buffer": str, "direction": str, "address": int, "distance": int, "message": str}


class NoAnswer(Exception):
    """What was written to the connection is not what a process of this suite writes there."""

    def __init__(self) -> None:
        super().__init__("the process wrote something else than an answer")


def receive(connection: Connection, timeout: float) -> dict[str, Any]:
    """The next message, which has to be there completely after ``timeout`` seconds. Raises TimeoutError, EOFError or
    OSError where the other end is closed, and NoAnswer.
    """
    deadline = time.monotonic() + timeout
    size = int.from_bytes(_exactly(connection, 4, deadline), "big", signed=True)
    if not 0 <= size <= MOST_BYTES:
        raise NoAnswer
    try:
        answer = json.loads(_exactly(connection, size, deadline))
    except (ValueError, RecursionError) as error:
        raise NoAnswer from error
    if not isinstance(answer, dict):
        raise NoAnswer
    return answer


def _exactly(connection: Connection, size: int, deadline: float) -> bytes:
    descriptor = connection.fileno()
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    chunks: list[bytes] = []
    while size > 0:
        if not poll.poll(max(deadline - time.monotonic(), 0) * 1000):
            raise TimeoutError
        read = os.read(descriptor, size)
        if not read:
            raise EOFError
        chunks.append(read)
        size -= len(read)
    return b"".join(chunks)


def check_announced(reply: Mapping[str, Any]) -> None:
    """Raise NoAnswer unless ``reply`` says that a compilation begins or is over."""
    if reply["event"] not in ("compiling", "launching"):
        raise NoAnswer


def check_launched(reply: Mapping[str, Any], launches: int) -> None:
    """Raise NoAnswer unless ``reply`` says what became of that many launches, or of the device."""
    if "broken" in reply:
        good = isinstance(reply["broken"], str)
    else:
        outcomes = reply.get("outcomes")
        good = isinstance(outcomes, list) and len(outcomes) == launches and all(map(_is_outcome, outcomes))
    if not good:
        raise NoAnswer


def _is_outcome(said: object) -> bool:
    if not (isinstance(said, dict) and isinstance(said.get("status"), str) and said["status"] in _STATUSES):
        return False
    if not isinstance(said.get("specializations", ""), int | None):
        return False
    if said["status"] == "ok":
        seconds = said.get("seconds")
        return isinstance(seconds, int | float) and 0 <= seconds < math.inf
    if said["status"] != "guard":
        return isinstance(said.get("message"), str)
    guard = said.get("guard")
    return (
        isinstance(guard, dict)
        and guard.keys() == _GUARD.keys()
        and all(isinstance(guard[name], kind) for name, kind in _GUARD.items())
        and isinstance(said.get("stored_at", ""), int | None)
    )


def check_ready(ready: Mapping[str, Any]) -> None:
    """Raise NoAnswer unless ``ready`` says where the memory is for kernels, and on what device, or why not."""
    hardware = ready.get("hardware")
    if isinstance(ready.get("error"), str):
        return
    if not (isinstance(ready.get("base"), int) and isinstance(hardware, dict)):
        raise NoAnswer
    if not all(isinstance(value, str) for value in hardware.values()):
        raise NoAnswer
