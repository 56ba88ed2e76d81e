"""The drive of the router's core: it measures only what ends well."""

from __future__ import annotations

import pytest

from benchmarks.core import CoreDrive


@pytest.mark.parametrize("frame", [1, 64])
def test_every_decision_is_taken_through(frame: int) -> None:
    drive = CoreDrive(replicas=3)
    assert drive.decisions_per_s(640, frame) > 0
    assert drive.decisions_per_s(640, frame) > 0, "and again"
