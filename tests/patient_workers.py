"""A plugin (``-p tests.patient_workers``) for runs that are ended on a busy machine: workers get the time they need."""

from __future__ import annotations


def pytest_configure() -> None:
    from conformance.workers import plugin  # not sooner: pytest imports it itself

    plugin.PATIENCE = 100.0
