"""What follows from the limits of a server's edge."""

from __future__ import annotations

import pytest

from slotmesh.streams.limits import EdgeLimits


@pytest.mark.parametrize(
    ("timeout_s", "heartbeat_s"), [(3_600.0, 60.0), (0.0, 60.0), (60.0, 20.0), (6.0, 2.0), (3.0, 0.0), (0.5, 0.0)]
)
def test_idle_sessions_send_three_heartbeats_in_the_time_that_a_stream_may_be_silent(
    timeout_s: float, heartbeat_s: float
) -> None:
    assert EdgeLimits(stream_idle_timeout_s=timeout_s).idle_heartbeat_s == heartbeat_s
