"""Why a lane cannot run here, and what to do about it."""

from __future__ import annotations

import sys

import pytest

from conformance import lanes
from conformance.lanes.ascend import lane as native

WHEELS = "triton-ascend has wheels for CPython 3.10 and 3.11 on Linux; this is CPython 3."
VERSIONS = {
    (3, 11): "triton-ascend, pybind11 not installed here: use the Python of .venv, which make creates",
    (3, 12): f"triton-ascend, pybind11 not installed ({WHEELS}12 on linux ",
    (3, 9): f"triton-ascend, pybind11 not installed ({WHEELS}9 on linux ",
}


@pytest.mark.parametrize("name", ["lowered", "hivm"])
@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: ".".join(map(str, version)))
def test_lanes_that_need_wheels_name_the_environment_or_the_version(
    version: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPython that there are wheels for, wheels are not what is missing."""
    monkeypatch.setattr(native, "installed", lambda package: "" if package in ("triton-ascend", "pybind11") else "1")
    monkeypatch.setattr(sys, "version_info", (*version, 0, "final", 0))
    monkeypatch.setattr(sys, "platform", "linux")
    reason = lanes.by_name(name).unavailable()
    assert reason is not None
    assert reason.startswith(VERSIONS[version])
    assert (".venv" in reason) == (version == (3, 11))
