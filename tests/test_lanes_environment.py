"""What the environment says of Triton's interpreter changes no lane: each sets the variable for its own processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance import lanes
from conformance.execution.session import Session
from conformance.subjects.binding import bind
from conformance.subjects.launching import Settings
from reference.case import Case, Group, Launch
from reference.oracle import slot_mapping

CASE = Case((0, 3), (4, 5, 6), 3, 7, (Group(((5, 3, 8, 1),), 2, 2),))


@pytest.mark.parametrize("name", lanes.names())
def test_every_lane_says_whether_it_is_the_interpreter(name: str) -> None:
    assert lanes.by_name(name).environment()["TRITON_INTERPRET"] == ("1" if name == "interpreter" else "0")


@pytest.mark.parametrize("said", ["0", "1"])
@pytest.mark.parametrize("name", lanes.names())
def test_a_launch_is_the_lane_s_whatever_the_environment_says(
    name: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = lanes.by_name(name)
    reason = lane.unavailable()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv("TRITON_INTERPRET", said)
    with Session(lane, "kernels", None, cache=tmp_path, case_timeout=60.0) as session:
        invocation, launch = bind(session.entries["v1"], CASE, Launch(), Settings(tile=16))
        outcome = session.launch(invocation, launch.fence)
        assert outcome.status == "ok", outcome.message
        assert next(iter(outcome.outputs.values()))[:7] == slot_mapping(CASE)[0]
        assert session.specializations == (None if name == "interpreter" else 1)
