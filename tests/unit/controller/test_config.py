"""The settings of the controller."""

from __future__ import annotations

import pytest

from controller_service.config import ControllerSettings
from slotmesh.config import SettingsError


def test_a_lease_that_one_late_report_ends_is_refused_by_its_name() -> None:
    with pytest.raises(SettingsError, match=r"^--lease: 1s is shorter than two reports of members.*; 2s or more$"):
        ControllerSettings.parse(["--lease=1s"], {}, prog="controller")
    assert ControllerSettings.parse(["--lease=2s"], {}, prog="controller").lease.total_seconds() == 2.0


def test_a_replica_is_suspect_before_it_is_dead() -> None:
    with pytest.raises(SettingsError, match=r"--dead-after \(5s\) is shorter than --lease \(6s\)"):
        ControllerSettings.parse(["--lease=6s", "--dead-after=5s"], {}, prog="controller")
    settings = ControllerSettings.parse(["--lease=6s", "--dead-after=6s"], {}, prog="controller")
    assert settings.dead_after == settings.lease


def test_replicas_outlive_their_controller_for_five_minutes_unless_told_otherwise() -> None:
    settings = ControllerSettings.parse([], {}, prog="controller")
    assert (settings.orphan_timeout.total_seconds(), settings.on_stop) == (300.0, None)
    with pytest.raises(SettingsError, match="--orphan-timeout"):
        ControllerSettings.parse(["--orphan-timeout=0s"], {}, prog="controller")


def test_pods_go_on_where_their_controller_is_stopped_and_processes_drain() -> None:
    def drains(*flags: str) -> bool:
        return ControllerSettings.parse([*flags], {}, prog="controller").drains_on_stop

    assert drains()
    assert not drains("--launcher=kubernetes")
    assert drains("--launcher=kubernetes", "--on-stop=drain")
    assert not drains("--on-stop=leave")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--kubernetes-owner=mesh"], "--kubernetes-owner is for --launcher kubernetes: leave it out"),
        (["--launcher=external", "--pod-template=pod.yaml"], "--pod-template is for --launcher kubernetes"),
        (["--launcher=kubernetes", "--watch-pods=app=mesh"], "--watch-pods is for --launcher external"),
        (["--mesh-name=my mesh"], "'my mesh' is no value of a Kubernetes label"),
    ],
)
def test_what_another_launcher_would_ignore_is_refused(flags: list[str], problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        ControllerSettings.parse(flags, {}, prog="controller")
