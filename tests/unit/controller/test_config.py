"""The settings of the controller."""

from __future__ import annotations

import pytest

from controller_service.config import ControllerSettings
from slotmesh.config import SettingsError


def test_a_lease_that_one_late_report_ends_is_refused_by_its_name() -> None:
    with pytest.raises(SettingsError, match=r"^--lease: expected a duration >= 2s and <= 1h .* got '1s'"):
        ControllerSettings.parse(["--lease=1s"], {}, prog="controller")
    assert ControllerSettings.parse(["--lease=2s"], {}, prog="controller").lease.total_seconds() == 2.0
