"""The example: its numbers, its check of itself, and what it says where it cannot run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from kernels import example
from tests.interpreter import ROOT, needs_interpreter


def slots() -> torch.Tensor:
    return torch.tensor(example.expected(example.block_table()), dtype=torch.int32)


def test_the_expected_slots_follow_the_table() -> None:
    table, expected = example.block_table(), example.expected(example.block_table())
    first, second = int(table[0, 0]) * 128, int(table[1, 0]) * 128
    assert expected[:10] == [*range(first, first + 5), *range(second, second + 5)]
    assert expected[10:] == [-1] * (8192 - 10)
    assert first != second


@needs_interpreter
@pytest.mark.parametrize("device", ["auto", "interpreter"])
def test_it_runs_on_the_interpreter(device: str) -> None:
    if device == "auto" and torch.cuda.is_available():
        pytest.skip("auto takes the CUDA GPU")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "kernels.example", "--device", device],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        f"interpreter: slot_mapping[:10] = {slots()[:10].tolist()}",
        "right: all 8192 elements, -1 from 10 on",
    ]


def test_a_wrong_slot_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = slots()
    wrong[[10, 8191]] = 0
    monkeypatch.setattr(example, "run", lambda device: wrong)
    assert example.main(["--device", "cuda"]) == 1
    assert "wrong: 2 of 8192, first slot_mapping[10]: 0, not -1" in capsys.readouterr().out


@pytest.mark.parametrize("device", ["npu", "cuda"])
def test_a_missing_device_is_said_in_one_line(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    assert example.main(["--device", device]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("no device: ")
    assert said.err.count("\n") == 1


def test_the_interpreter_is_refused_once_triton_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setitem(sys.modules, "triton", sys.modules.get("triton", os))
    monkeypatch.setattr(example, "_triton_is_for_ascend", lambda: False)
    with pytest.raises(example.NoDeviceError, match="triton was imported before TRITON_INTERPRET=1"):
        example.run("interpreter")


@pytest.mark.parametrize(
    ("device", "ascend", "reason"),
    [
        ("npu", False, "the NPU needs triton-ascend"),
        ("cuda", True, "CUDA needs `triton`"),
        ("interpreter", True, "triton-ascend's interpreter has no tl.gather"),
    ],
)
def test_the_other_triton_is_named(device: str, ascend: bool, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(example, "_triton_is_for_ascend", lambda: ascend)
    with pytest.raises(example.NoDeviceError, match=reason):
        example.run(device)


def test_an_unknown_device_is_refused() -> None:
    with pytest.raises(example.NoDeviceError, match="no device 'tpu', expected one of npu, cuda, interpreter"):
        example.run("tpu")
