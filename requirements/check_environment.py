"""Is this environment the one its lane needs? Prints what is installed, or one line saying what is wrong (status 1).

    python requirements/check_environment.py LANE

The question that matters is which ``triton`` gets imported: ``triton`` and ``triton-ascend`` install a package of that
name into the same folder, and whatever pip installed last has overwritten the other one.

Standard library only, and no import of this project: it runs in environments that turn out to be broken.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType

LOCKED_LANES = ("lowered", "interpreter")
DEVICE_LANES = ("cuda", "npu")
SHOWN = ("torch", "triton-ascend", "triton", "ascendnpu-ir", "llvmlite", "numpy", "hypothesis", "pytest", "torch-npu")


class WrongEnvironmentError(Exception):
    """What is wrong, in one line, and what to do about it."""


def locked(lane: str) -> dict[str, str]:
    """Every ``name: version`` that the lock files of a lane pin."""
    folder = Path(__file__).resolve().parent
    text = "\n".join((folder / name).read_text() for name in (f"{lane}.txt", f"{lane}-triton.txt"))
    pins = (line.split("#")[0].strip().partition("==") for line in text.splitlines())
    return {name: version for name, _, version in pins if name}


def installed(name: str) -> str | None:
    """The version of an installed distribution, without a local label (``2.13.0+cpu`` is 2.13.0), or None."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def load(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:
        reason = re.sub(r"\s+", " ", str(error))
        raise WrongEnvironmentError(f"`import {module}` fails: {type(error).__name__}: {reason}") from error


def check_triton(package: str, version: str | None) -> None:
    """The ``triton`` that gets imported comes from the distribution ``package``, at ``version`` where one is pinned."""
    other = "triton" if package == "triton-ascend" else "triton-ascend"
    if installed(other) is not None:
        raise WrongEnvironmentError(
            f"{other} {installed(other)} is installed beside or over {package}: both install the package `triton`; "
            f"uninstall both, then install {package} with --no-deps"
        )
    if installed(package) is None:
        raise WrongEnvironmentError(f"{package} is not installed")
    found = getattr(load("triton"), "__version__", "of no version")
    if version is not None and found != version:
        raise WrongEnvironmentError(f"`import triton` finds triton {found}, expected {version} from {package}")
    if package == "triton-ascend":
        load("triton.backends.ascend.compiler")


def check_locked(lane: str) -> None:
    pins = locked(lane)
    for name, version in pins.items():
        if (found := installed(name)) != version:
            raise WrongEnvironmentError(f"{name} is {found or 'not installed'}, the lock file says {version}")
    package = "triton-ascend" if lane == "lowered" else "triton"
    check_triton(package, pins[package])
    load("torch")
    if lane == "lowered":
        check_lowering_tool()


def check_lowering_tool() -> None:
    tool = Path(load("ascendnpuir").__file__ or "").parent / "bin" / "bishengir-opt"
    if not os.access(tool, os.X_OK):
        raise WrongEnvironmentError(f"{tool} is missing or not executable")
    try:
        subprocess.run([tool, "--version"], check=True, capture_output=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise WrongEnvironmentError(f"{tool} does not run: {error}") from error


def check_device(lane: str) -> None:
    """On a device the versions are the machine's; what is needed is the device and its compiler."""
    check_triton("triton-ascend" if lane == "npu" else "triton", None)
    torch = load("torch")
    if lane == "npu":
        load("torch_npu")
    if not getattr(torch, lane).is_available():
        raise WrongEnvironmentError(f"torch {torch.__version__} sees no {lane} device")


def describe(lane: str) -> str:
    versions = {name: metadata.version(name) for name in SHOWN if installed(name) is not None}
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"lane {lane}: {platform.python_implementation()} {platform.python_version()}, {packages}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in LOCKED_LANES + DEVICE_LANES:
        print(f"usage: check_environment.py {'|'.join(LOCKED_LANES + DEVICE_LANES)}", file=sys.stderr)
        return 2
    lane = arguments[0]
    try:
        if lane in LOCKED_LANES:
            check_locked(lane)
        else:
            check_device(lane)
    except WrongEnvironmentError as problem:
        print(f"this environment cannot run lane {lane}: {problem}", file=sys.stderr)
        return 1
    print(describe(lane))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
