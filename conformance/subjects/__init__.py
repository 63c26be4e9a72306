"""Who is tested. A subject finds its entry points in a package or a source tree; everything about them is data."""

from __future__ import annotations

from conformance.lanes.base import Lane
from conformance.subjects.entry import LoadedEntry

NAMES = ("kernels", "vllm-ascend", "vllm")


class UnknownSubject(ValueError):
    """Not one of NAMES."""


def load(subject: str, source: str | None, lane: Lane) -> list[LoadedEntry]:
    """Import ``subject`` (from ``source``, else as installed) into this process and return its entry points."""
    if subject == "kernels":
        from conformance.subjects import own

        return own.load(source, lane)
    if subject in NAMES:
        from conformance.subjects import published

        return published.load(subject, source)
    raise UnknownSubject(f"unknown subject {subject!r}: choose one of {', '.join(NAMES)}")
