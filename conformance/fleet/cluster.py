"""Rounds as tasks of a Ray cluster. What is Ray's in a fleet is here."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from conformance.fleet import rounds
from conformance.fleet.exchange import Exchange, News
from conformance.fleet.orders import FleetError, Lost, Order, Result

RESOURCES = {"npu": "NPU", "cuda": "GPU"}
"""What a task of a lane needs one of; of the other lanes, a CPU."""
_RETRIES = 5  # of a round whose worker is lost
_ANSWER = 30.0  # seconds for the exchange to answer


class _Told:
    """The exchange, seen from a round: where it cannot be asked, the time that it gave last goes on."""

    def __init__(self, actor: Any) -> None:
        self._actor, self._deadline = actor, time.monotonic()

    def begin(self, name: str, host: str, process: int) -> tuple[list[str], float]:
        cases, left = ray.get(self._actor.begin.remote(name, host, process), timeout=_ANSWER)
        self._deadline = time.monotonic() + left
        return cases, left

    def tell(self, cases: Iterable[str]) -> float:
        with suppress(RayActorError, GetTimeoutError):  # they come back with the result
            self._deadline = time.monotonic() + ray.get(self._actor.tell.remote(list(cases)), timeout=_ANSWER)
        return self._deadline - time.monotonic()


def _round(order: Order, actor: Any) -> Result:
    return rounds.run(order, _Told(actor))


@contextmanager
def connected(address: str) -> Iterator[None]:
    """A cluster: ``local``, one of this machine alone that ends with the fleet, or one that is there (``auto``, or its
    address). Raises FleetError.
    """
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    if address == "local":
        own = {"num_cpus": len(os.sched_getaffinity(0)), "_node_ip_address": "127.0.0.1"}
        options |= own | {"include_dashboard": False, "object_store_memory": 256 << 20}
    try:
        ray.init(address, **options)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise FleetError(f"--address {address}: {' '.join(str(error).split())[:300]}") from error
    try:
        yield
    finally:
        ray.shutdown()


class Cluster:
    """Gives rounds to the cluster that is connected. ``lane`` decides what each needs."""

    def __init__(self, lane: str, cases: Iterable[str], seconds: float) -> None:
        self.resource = RESOURCES.get(lane, "CPU")
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(Exchange).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
        self._exchange: Any = actor.remote(list(cases), time.time() + seconds)
        self._task = ray.remote(_round).options(max_retries=_RETRIES, retry_exceptions=False, **self._needed())
        self._running: dict[Any, Order] = {}

    def devices(self) -> int:
        """How many rounds can run at once."""
        resources: dict[str, float] = ray.cluster_resources()
        return int(resources.get(self.resource, 0))

    def give(self, order: Order) -> None:
        self._running[self._task.remote(order, self._exchange)] = order

    @property
    def running(self) -> list[Order]:
        return list(self._running.values())

    def ended(self, seconds: float) -> list[Result | Lost]:
        """The rounds that end within these seconds; at once, when one has."""
        done, _ = ray.wait(list(self._running), timeout=seconds) if self._running else ([], [])
        return [self._result(reference, self._running.pop(reference)) for reference in done]

    def news(self, found: Iterable[str]) -> News:
        """What the exchange was told since. If it has died, it begins again with what it had at the start and what was
        ``found``; whatever it was not asked for before comes back with the results.
        """
        try:
            news: News = ray.get(self._exchange.news.remote(), timeout=_ANSWER)
        except RayError:
            self._exchange.tell.remote(list(found))
            return News()
        return news

    def stop(self) -> None:
        """Ask every round to end and to come back with what it has."""
        with suppress(RayError):
            ray.get(self._exchange.stop.remote(), timeout=_ANSWER)

    def give_up(self) -> list[Lost]:
        """End what is still running."""
        left = [Lost(order, "it did not end in time") for order in self._running.values()]
        for reference in self._running:
            ray.cancel(reference, force=True)
        self._running.clear()
        return left

    def _result(self, reference: Any, order: Order) -> Result | Lost:
        try:
            result: Result = ray.get(reference)
        except RayTaskError as error:
            return Lost(order, f"{type(error.cause).__name__}: {' '.join(str(error.cause).split())[:300]}")
        except RayError as error:
            return Lost(order, f"its worker was lost {_RETRIES + 1} times: {' '.join(str(error).split())[:200]}")
        return result

    def _needed(self) -> dict[str, Any]:
        named: dict[str, dict[str, Any]] = {"CPU": {"num_cpus": 1}, "GPU": {"num_cpus": 0, "num_gpus": 1}}
        return named.get(self.resource, {"num_cpus": 0, "resources": {self.resource: 1}})
