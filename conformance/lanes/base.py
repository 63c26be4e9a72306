"""The interface of a lane."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from conformance.execution.buffer import Buffer


class Lane(ABC):
    """One way to run kernels. The suite asks the first three; the rest is called in the process that holds the
    subject.
    """

    name: ClassVar[str]
    clauses: ClassVar[frozenset[str]] = (
        frozenset()
    )  # what the lane itself needs of a case, whatever the kernel promises

    def unavailable(self) -> str | None:
        """Why the lane cannot run in this environment, or None."""
        return None

    def environment(self) -> Mapping[str, str]:
        """Environment variables that the subject's process must start with."""
        return {}

    @abstractmethod
    def enter(self, cache: str) -> None:
        """Make ``kernel[grid](...)`` run on this lane, before the subject is imported. ``cache`` is a folder for
        compiled code.
        """

    @abstractmethod
    def pointer(self, buffer: Buffer) -> Any:
        """What to pass for a pointer parameter of a kernel."""

    def precompile(self, kernel: Any, arguments: Mapping[str, Any]) -> bool:
        """Compile what a launch with these arguments needs; False when it was there already or the lane does not
        compile.
        """
        return False

    def order(self, *, backwards: bool) -> None:  # noqa: B027  (a device runs its programs as it likes)
        """Run the programs of the launches to come from the last to the first, where the lane has a say in it."""

    def on_compile(self, announce: Callable[[str], None]) -> None:  # noqa: B027  (most lanes have nothing to announce)
        """Call ``announce`` with "compiling" and "launching" around each compilation that a launch has to wait for."""

    def synchronize(self) -> None:  # noqa: B027  (nothing to wait for on a host)
        """Wait until everything launched has been done."""
