"""What the device lanes share, on torch's own host device: red zones, and a process that ends with its device."""

from __future__ import annotations

import importlib
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from conformance import lanes
from conformance.execution.array import Array, of_addresses, of_values
from conformance.execution.buffer import Buffer
from conformance.execution.memory import NoRoom, Placed
from conformance.execution.red_zones import CAPACITY, ZONE_BYTES, RedZones, extent
from conformance.execution.server import run
from conformance.lanes.device import Device, DeviceLane
from conformance.subjects.entry import EntryPoint, LoadedEntry
from reference.verdict import UNWRITTEN, Guard
from strategies.declaration import Declaration


class Hosted(Device):
    """A device that is the host. ``reported`` is what its next synchronizations report."""

    reported: ClassVar[str | None] = None

    def staging(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def synchronize(self) -> None:
        if self.reported is not None:
            raise RuntimeError(self.reported)


class HostedLane(DeviceLane):
    """A device lane whose device is the host."""

    name = "hosted"
    device = Hosted("cpu", "libc.so.6", ("torch",), Path("/nonexistent"))

    def hardware(self) -> dict[str, str]:
        return {"device": "none"}


@pytest.fixture
def lane() -> HostedLane:
    return HostedLane()


@pytest.fixture
def memory(lane: HostedLane) -> Iterator[RedZones]:
    zones = RedZones()
    zones.base = lane.open_memory(zones.fd)
    yield zones
    zones.close()


def launched(memory: RedZones, lane: HostedLane, body: Callable[..., None], *arrays: Array) -> dict[str, Placed]:
    """What a launch of ``body`` on tensors of ``arrays`` leaves in the shared memory."""
    placed = memory.place(arrays, "after")
    memory.fill(placed)
    lane.upload(extent(placed))
    body(*(lane.tensor(Buffer.from_json(json.loads(json.dumps(item.describe())))) for item in placed.values()))
    lane.download(extent(placed))
    return placed


def guards_of(memory: RedZones, lane: HostedLane, body: Callable[..., None]) -> list[tuple[str, str, int]]:
    arrays = (of_values("positions", "int64", [4, 5, 6]), Array("slot_mapping", "int32", (5,), writable=True))
    found: list[Guard] = memory.writes_outside(launched(memory, lane, body, *arrays))
    return [(each.buffer, each.direction, each.distance) for each in found]


def test_inputs_arrive_and_outputs_come_back(memory: RedZones, lane: HostedLane) -> None:
    table = Array("table", "int32", (2, 3), torch.arange(8).reshape(2, 4).int().numpy(), strides=(4, 1))
    output = Array("slot_mapping", "int64", (4,), writable=True)

    def body(table: torch.Tensor, output: torch.Tensor) -> None:
        assert table.tolist() == [[0, 1, 2], [4, 5, 6]]
        assert output.tolist() == [UNWRITTEN] * 4
        output[1:3] = table[1, :2]

    placed = launched(memory, lane, body, table, output)
    assert memory.output(placed["slot_mapping"]).tolist() == [UNWRITTEN, 4, 5, UNWRITTEN]
    assert memory.writes_outside(placed) == []


def test_tables_of_addresses_hold_the_addresses_on_the_device(memory: RedZones, lane: HostedLane) -> None:
    first, second = of_values("a", "int32", [1]), Array("b", "int32", (1,), writable=True)
    seen: list[int] = []

    def body(addresses: torch.Tensor, *arrays: torch.Tensor) -> None:
        assert addresses.tolist() == [array.data_ptr() for array in arrays]
        seen.extend(addresses.tolist())

    launched(memory, lane, body, of_addresses("addresses", [first, second]), first, second)
    assert all((address - memory.base) % 256 == 0 for address in seen)


@pytest.mark.parametrize(
    ("buffer", "element", "distance"),
    [("slot_mapping", 5, 4), ("slot_mapping", -1, -4), ("slot_mapping", 40, 144)],
)
def test_a_write_beside_an_output_is_found(
    memory: RedZones, lane: HostedLane, buffer: str, element: int, distance: int
) -> None:
    def body(positions: torch.Tensor, output: torch.Tensor) -> None:
        everything = torch.as_strided(output, (200,), (1,), output.storage_offset() - 100)
        everything[100 + element] = 1

    assert guards_of(memory, lane, body) == [(buffer, "write", distance)]


def test_a_write_into_an_input_is_found(memory: RedZones, lane: HostedLane) -> None:
    def body(positions: torch.Tensor, output: torch.Tensor) -> None:
        positions[1] = 7

    assert guards_of(memory, lane, body) == [("positions", "write", 0)]


def test_a_write_beside_an_input_is_found(memory: RedZones, lane: HostedLane) -> None:
    def body(positions: torch.Tensor, output: torch.Tensor) -> None:
        torch.as_strided(positions, (4,), (1,), positions.storage_offset())[3] = 0

    assert guards_of(memory, lane, body) == [("positions", "write", 8), ("positions", "write", 15)]


def test_zones_are_as_wide_as_promised(memory: RedZones) -> None:
    one, other = (Array(name, "int32", (3,), writable=True) for name in "ab")
    placed = memory.place([one, other], "before")
    assert placed["a"].start >= ZONE_BYTES
    assert placed["b"].start - (placed["a"].start + one.nbytes) >= 2 * ZONE_BYTES


def test_what_does_not_fit_is_refused(memory: RedZones) -> None:
    with pytest.raises(NoRoom, match=f"'big' of {4 * CAPACITY} bytes does not fit: .* may take {CAPACITY} bytes"):
        memory.place([Array("big", "int32", (CAPACITY,), writable=True)], "after")


def _entry(call: Callable[..., object]) -> LoadedEntry:
    nothing = Declaration(frozenset(), frozenset())
    description = EntryPoint("kernels", "1", "host", "call", "dcp", "", 0, ("output",), (), nothing)
    return LoadedEntry(description, call=call)


def _answers(memory: RedZones, lane: HostedLane, call: Callable[..., object], launches: int) -> list[dict[str, Any]]:
    """What a process that launches says to ``launches`` requests, as far as it goes on answering."""
    ours, theirs = socket.socketpair()
    process = threading.Thread(
        target=run, args=(Connection(theirs.detach()), lane, {"host": _entry(call)}, memory.fd), daemon=True
    )
    suite = Connection(ours.detach())
    process.start()
    answers = [json.loads(suite.recv_bytes())]
    memory.base = answers[0]["base"]
    placed = memory.place([Array("output", "int32", (4,), writable=True)], "after")
    for _ in range(launches):
        memory.fill(placed)
        arguments = {name: item.describe() for name, item in placed.items()}
        item = {"entry": "host", "grid": (), "arguments": arguments, "backwards": False}
        suite.send_bytes(json.dumps({"launches": [item], "extent": extent(placed)}).encode())
        answer = json.loads(suite.recv_bytes())
        answers += answer.get("outcomes", [answer])
        if "broken" in answer:
            break
    suite.close()
    process.join(10)
    assert not process.is_alive()
    return answers


def test_a_process_that_launches_names_its_device_and_goes_on(memory: RedZones, lane: HostedLane) -> None:
    ready, *answers = _answers(memory, lane, lambda output: output.fill_(3), launches=2)
    assert ready["hardware"] == {"device": "none"}
    assert [answer["status"] for answer in answers] == ["ok", "ok"]
    assert (
        memory.output(memory.place([Array("output", "int32", (4,), writable=True)], "after")["output"]).tolist()
        == [3] * 4
    )


def test_an_exception_on_the_host_leaves_the_device_as_it_was(memory: RedZones, lane: HostedLane) -> None:
    def call(output: torch.Tensor) -> None:
        raise ValueError("too many tokens")

    answers = _answers(memory, lane, call, launches=2)[1:]
    assert [answer["status"] for answer in answers] == ["raised", "raised"]
    assert answers[0]["message"].startswith("ValueError: too many tokens")


def test_an_error_of_the_device_ends_the_process(
    memory: RedZones, lane: HostedLane, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(output: torch.Tensor) -> None:
        monkeypatch.setattr(Hosted, "reported", "an illegal memory access was encountered\nCompile with ...")

    answers = _answers(memory, lane, call, launches=2)[1:]
    assert answers == [{"broken": "cpu: an illegal memory access was encountered"}]


def test_a_device_that_cannot_be_set_up_says_so(memory: RedZones, lane: HostedLane) -> None:
    def open_memory(fd: int) -> int:
        raise RuntimeError("no memory left on the device")

    lane.open_memory = open_memory  # type: ignore[method-assign]
    ours, theirs = socket.socketpair()
    run(Connection(theirs.detach()), lane, {}, memory.fd)
    answer = json.loads(Connection(ours.detach()).recv_bytes())
    assert answer == {"error": "RuntimeError: no memory left on the device"}


@pytest.mark.parametrize("name", ["cuda", "npu"])
def test_a_lane_without_its_device_says_what_is_missing(name: str) -> None:
    reason = lanes.by_name(name).unavailable()
    if reason is None:
        pytest.skip(f"a device of lane {name} is here")
    assert "not installed" in reason or "no driver here" in reason or "finds no" in reason


def test_what_a_first_launch_would_prepare_is_there_before_the_first_fork(
    lane: HostedLane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = [importlib.import_module(name) for name in ("triton.runtime.cache", "triton.compiler.compiler")]
    (digest, *_) = [vars(home)["triton_key"] for home in homes if "triton_key" in vars(home)]
    digest.cache_clear()
    monkeypatch.setenv("TRITON_CACHE_DIR", "")
    lane.enter(str(tmp_path))
    assert digest.cache_info().currsize == 1
    assert find_spec("triton.experimental") is None or "triton.experimental.gluon" in sys.modules


def test_the_npu_lane_draws_only_what_float32_division_can_hold() -> None:
    assert lanes.by_name("npu").clauses == {"pos-f32"}


@pytest.mark.parametrize(
    ("text", "version"), [("NVRM version: NVIDIA 580.159.04  Release", "580.159.04"), ("", "unknown")]
)
def test_the_driver_version_is_read_from_its_file(tmp_path: Path, text: str, version: str) -> None:
    file = tmp_path / "version"
    file.write_text(text)
    assert Device("cpu", "", (), file).driver_version() == version
    assert Device("cpu", "", (), tmp_path / "none").driver_version() == "unknown"
