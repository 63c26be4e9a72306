"""The interface of a lane."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from conformance.execution.buffer import Buffer
from conformance.execution.guard_pages import map_guarded
from conformance.lanes.errors import CompileError

if TYPE_CHECKING:
    import torch

INTERPRET = "TRITON_INTERPRET"
"""The variable by which Triton runs kernels in its interpreter. Every version takes "0" for no."""


class Lane(ABC):
    """One way to run kernels. The suite asks what is set on the class, ``unavailable`` and ``environment``; the rest is
    called in the processes that hold the subject.
    """

    name: ClassVar[str]
    torch_device: ClassVar[str] = "cpu"
    """Torch's name of where tensors are."""
    on_device: ClassVar[bool] = False
    """A device has memory of its own, which no page guards."""
    batch: ClassVar[int] = 1
    """Launches that are waited for together, at most, where many are at hand."""
    clauses: ClassVar[frozenset[str]] = frozenset()
    """What the lane itself needs of a case, whatever the kernel promises."""
    compile_budget: ClassVar[int] = 64
    """Specializations of a kernel that a run compiles, unless it is told otherwise."""
    case_timeout: ClassVar[float] = 10.0
    """Seconds after which a launch counts as hung, unless a run is told otherwise."""
    compile_seconds: ClassVar[float] = 0.5
    """What one costs, about: it decides how many a smaller example is worth."""
    swept: ClassVar[int] = 1 << 24
    """Positions from 0 on that a sweep goes through at most (:mod:`conformance.sweep`)."""
    swept_by_hosts: ClassVar[int] = 1 << 24
    """The same for entry points that choose their tiles themselves."""
    swept_at_once: ClassVar[int] = (1 << 17) - 1
    """Positions of one launch of a sweep: as many tokens as a long prompt has, and no multiple of a block."""
    programs_take_long: ClassVar[bool] = False
    """Some hundred programs take seconds, however few tokens each has."""
    sweep_tile: ClassVar[int | None] = None
    """Tokens of a tile in a sweep, where another one than was compiled costs nothing; None: that of the pool."""

    def unavailable(self) -> str | None:
        """Why the lane cannot run in this environment, or None."""
        return None

    def environment(self) -> Mapping[str, str]:
        """Environment variables that the subject's process must start with. Who has Triton's interpreter switched on
        for something else does not mean the lane.
        """
        return {INTERPRET: "0"}

    def options(self) -> tuple[str, ...]:
        """Words of the command line that the lane was set with, beside its name."""
        return ()

    @abstractmethod
    def enter(self, cache: str) -> None:
        """Make ``kernel[grid](...)`` run on this lane, before the subject is imported. ``cache`` is a folder for
        compiled code.
        """

    def open_memory(self, fd: int) -> int:
        """In a process that launches, before its first launch: make the shared memory ``fd`` reachable for kernels;
        returns the address that its first byte has for them.
        """
        return map_guarded(fd)

    def hardware(self) -> Mapping[str, str]:
        """Device and driver by name, asked of a process that launches; nothing on a host, which the platform tells."""
        return {}

    @abstractmethod
    def pointer(self, buffer: Buffer) -> Any:
        """What to pass for a pointer parameter of a kernel."""

    def tensor(self, buffer: Buffer) -> torch.Tensor:
        """What to pass for a tensor parameter of a host function."""
        return buffer.tensor()

    def upload(self, nbytes: int) -> None:  # noqa: B027  (a host's memory is where kernels look)
        """Take the first ``nbytes`` bytes of the shared memory to where kernels look. Raises DeviceError."""

    def download(self, nbytes: int) -> None:  # noqa: B027
        """Wait until everything launched has been done, and take them back. Raises DeviceError."""

    def is_compile_error(self, error: BaseException) -> bool:
        """Whether a launch that raised this did not compile."""
        return isinstance(error, CompileError)

    def precompile(self, kernel: Any, arguments: Mapping[str, Any]) -> bool:
        """Compile what a launch with these arguments needs; False when it was there already or the lane does not
        compile.
        """
        return False

    def specializations(self) -> int | None:
        """How many specializations of kernels this process has loaded; None where the lane does not say."""
        return None

    def order(self, *, backwards: bool) -> None:  # noqa: B027  (a device runs its programs as it likes)
        """Run the programs of the launches to come from the last to the first, where the lane has a say in it."""

    def on_compile(self, announce: Callable[[str], None]) -> None:  # noqa: B027  (most lanes have nothing to announce)
        """Call ``announce`` with "compiling" and "launching" around each compilation that a launch has to wait for."""
