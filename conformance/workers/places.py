"""Where each worker runs: on a device of its own or, where kernels run on the host, on processor cores of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from conformance.lanes import Lane
from conformance.lanes.device import DeviceLane
from conformance.shards import Shard


class TooManyError(ValueError):
    """There are more workers than devices. The message is one line."""


@dataclass(frozen=True, slots=True)
class Place:
    """Worker number ``number``, from 0, of ``count``. ``cores`` are the processor cores that it keeps to, none where
    there are fewer cores than workers; ``variable`` names its ``device`` to the driver ("": the lane has none).
    """

    number: int
    count: int
    cores: tuple[int, ...] = ()
    variable: str = ""
    device: str = ""

    @property
    def part(self) -> Shard:
        """Its part of what has to be done once, such as compiling."""
        return Shard(self.number + 1, self.count)

    @property
    def compile_workers(self) -> int:
        return max(len(self.cores), 1)

    def take(self) -> None:
        """Keep this process, and what it starts, to the place."""
        if self.cores:
            os.sched_setaffinity(0, self.cores)
        if self.variable:
            os.environ[self.variable] = self.device

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "cores": list(self.cores)}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Place:
        return cls(**{**item, "cores": tuple(item["cores"])})


def places(lane: Lane, count: int) -> list[Place]:
    """One for each of ``count`` workers. Raises TooManyError when there are not as many devices."""
    cores = sorted(os.sched_getaffinity(0))
    shares = [tuple(cores[number::count]) if len(cores) >= count else () for number in range(count)]
    if not isinstance(lane, DeviceLane):
        return [Place(number, count, share) for number, share in enumerate(shares)]
    devices = visible(lane)
    if count > len(devices):
        variable = lane.device.visible_variable
        listed = f"{variable}={os.environ[variable]}" if variable in os.environ else f"{variable} is not set"
        there = f"{len(devices)} device{'s'[: len(devices) != 1]}"
        raise TooManyError(
            f"-n {count}: each worker needs a device of its own, and lane {lane.name} has {there} ({listed})"
        )
    return [
        Place(number, count, share, lane.device.visible_variable, devices[number])
        for number, share in enumerate(shares)
    ]


def visible(lane: DeviceLane) -> list[str]:
    """The devices that this process may use, as the driver's variable names them: numbers or identifiers."""
    listed = os.environ.get(lane.device.visible_variable)
    if listed is None:
        return [str(number) for number in range(lane.device.module().device_count())]
    return [name.strip() for name in listed.split(",") if name.strip() not in ("", "-1")]


def most(lane: Lane) -> int:
    """The workers of ``-n auto``: one a device, or one a core."""
    return len(visible(lane)) if isinstance(lane, DeviceLane) else len(os.sched_getaffinity(0))
