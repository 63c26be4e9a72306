"""Two requests of five tokens through the v1 kernel: ``python -m kernels.example [--device
auto|npu|cuda|interpreter]``.

Prints the first ten slots and checks the whole output against the formula. Exit status 0: right, 1: wrong, 2: no
device.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

import torch

BLOCK_SIZE = 128
MAX_NUM_TOKENS = 8192
PAD_ID = -1
QUERY_START_LOC = (0, 5, 10)
POSITIONS = (0, 1, 2, 3, 4, 0, 1, 2, 3, 4)
TABLE_SHAPE = (64, 320)
DEVICES = ("npu", "cuda", "interpreter")


class NoDeviceError(RuntimeError):
    """The kernel cannot run here; the message says what is missing."""


def block_table() -> torch.Tensor:
    """int32 [64, 320]: room for 64 requests of 320 blocks, filled with block numbers below 320 from a fixed seed."""
    return torch.randint(0, 320, TABLE_SHAPE, dtype=torch.int32, generator=torch.Generator().manual_seed(0))


def expected(table: torch.Tensor) -> list[int]:
    """The 8192 slots by the formula, token by token: ``block number * block size + offset``, then padding."""
    slots = [PAD_ID] * MAX_NUM_TOKENS
    for request, start in enumerate(QUERY_START_LOC[:-1]):
        for token in range(start, QUERY_START_LOC[request + 1]):
            block, offset = divmod(POSITIONS[token], BLOCK_SIZE)
            slots[token] = int(table[request, block]) * BLOCK_SIZE + offset
    return slots


def choose_device() -> str:
    """The first of NPU, CUDA and interpreter that is there. Raises NoDeviceError where none is."""
    if importlib.util.find_spec("torch_npu"):
        return "npu"
    ascend = _triton_is_for_ascend()
    if torch.cuda.is_available() and not ascend:
        return "cuda"
    if ascend:
        raise NoDeviceError(
            "no device: triton-ascend is installed without torch_npu, and its interpreter has no tl.gather; "
            "on a machine without an NPU, install `triton` in an environment of its own"
        )
    return "interpreter"


def run(device: str) -> torch.Tensor:
    """Launch the example on one of ``DEVICES``; the slot mapping, int32 [8192], on the host.

    The interpreter is chosen when triton is imported, so ``"interpreter"`` needs a process that has not imported it
    or has TRITON_INTERPRET=1 set. Raises NoDeviceError.
    """
    _require(device)
    from kernels.slot_mapping import compute_slot_mapping  # not sooner: this imports triton

    place = "cpu" if device == "interpreter" else device
    # Not PAD, so that padding which was never written shows.
    slot_mapping = torch.zeros(MAX_NUM_TOKENS, dtype=torch.int32, device=place)
    compute_slot_mapping(
        torch.tensor(QUERY_START_LOC, dtype=torch.int32, device=place),
        torch.tensor(POSITIONS, dtype=torch.int64, device=place),
        block_table().to(place),
        slot_mapping,
        num_tokens=len(POSITIONS),
        max_num_tokens=MAX_NUM_TOKENS,
        block_size=BLOCK_SIZE,
        pad_id=PAD_ID,
    )
    return slot_mapping.cpu()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m kernels.example", description="The v1 kernel on ten tokens.")
    parser.add_argument("--device", choices=("auto", *DEVICES), default="auto")
    device = parser.parse_args(argv).device
    try:
        device = choose_device() if device == "auto" else device
        slots = run(device).tolist()
    except NoDeviceError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{device}: slot_mapping[:{len(POSITIONS)}] = {slots[: len(POSITIONS)]}")
    wanted = expected(block_table())
    wrong = [token for token in range(MAX_NUM_TOKENS) if slots[token] != wanted[token]]
    if wrong:
        token = wrong[0]
        print(
            f"wrong: {len(wrong)} of {MAX_NUM_TOKENS}, first slot_mapping[{token}]: {slots[token]}, not {wanted[token]}"
        )
        return 1
    print(f"right: all {MAX_NUM_TOKENS} elements, {PAD_ID} from {len(POSITIONS)} on")
    return 0


def _triton_is_for_ascend() -> bool:
    """Whether the ``triton`` on the path is triton-ascend's. It must not be imported for that: see ``run``."""
    spec = importlib.util.find_spec("triton")
    if spec is None:
        raise NoDeviceError("no device: neither triton nor triton-ascend is installed")
    return any(Path(folder, "backends", "ascend").is_dir() for folder in spec.submodule_search_locations or ())


def _require(device: str) -> None:
    """Make ``device`` ready, or raise NoDeviceError."""
    ascend = _triton_is_for_ascend()
    if device == "npu":
        if not ascend:
            raise NoDeviceError("no device: the NPU needs triton-ascend, what is installed is another triton")
        try:
            import torch_npu  # noqa: F401 - it registers the device
        except ImportError as error:
            raise NoDeviceError(f"no device: torch_npu cannot be imported ({error})") from error
    elif device == "cuda":
        if ascend:
            raise NoDeviceError("no device: CUDA needs `triton`, what is installed is triton-ascend")
        if not torch.cuda.is_available():
            raise NoDeviceError("no device: torch finds no CUDA GPU")
    elif device == "interpreter":
        if ascend:
            raise NoDeviceError(
                "no device: triton-ascend's interpreter has no tl.gather, the one of `triton` is needed"
            )
        if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
            raise NoDeviceError("no device: triton was imported before TRITON_INTERPRET=1 was set")
        os.environ["TRITON_INTERPRET"] = "1"
    else:
        raise NoDeviceError(f"no device {device!r}, expected one of {', '.join(DEVICES)}")


if __name__ == "__main__":
    sys.exit(main())
