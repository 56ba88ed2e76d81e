"""How many replicas a backend should have, left to the controller: the bounds and the manner. Pure.

Each setting is declared here, once, as those of a backend are in `slotmesh.spec.model`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from slotmesh.spec.setting import SettingKind, setting

MAX_REPLICAS: Final = 10_000
"""Replicas that a backend may have."""
_MAX_DELAY_S: Final = 86_400.0


class AutoscaleMetric(Enum):
    """What the number of replicas follows. The values are those of `slotmesh.v1.AutoscaleMetric`."""

    ONGOING = 1
    """Calls that wait or run."""
    QUEUE_TIME = 2
    """How long calls wait at routers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoscale:
    """The controller chooses the number of replicas, by the load that routers report each second."""

    min: int = setting(1, SettingKind.INTEGER, bounds=(0, MAX_REPLICAS))
    """Replicas that run at least. 0: none does while nothing is called; the first call waits until one has started."""
    max: int = setting(10, SettingKind.INTEGER, bounds=(1, MAX_REPLICAS))
    """Replicas that run at most."""
    metric: AutoscaleMetric = setting(AutoscaleMetric.ONGOING, SettingKind.CHOICE)
    """What the number follows: calls that wait or run, or how long calls wait at routers."""
    target_ongoing: float = setting(2.0, SettingKind.NUMBER, bounds=(0.01, 1_000_000.0))
    """Calls that wait or run, for each replica. With `queue_time`: how many a replica may have for one to be spared."""
    target_queue_time_s: float = setting(0.1, SettingKind.DURATION, bounds=(0.001, _MAX_DELAY_S))
    """With `queue_time`: calls that wait for longer want more replicas."""
    up_delay_s: float = setting(3.0, SettingKind.DURATION, bounds=(0.0, _MAX_DELAY_S))
    """More replicas start once the load has asked for them for so long. The first of none starts at once."""
    down_delay_s: float = setting(60.0, SettingKind.DURATION, bounds=(0.0, _MAX_DELAY_S))
    """Replicas drain once the load has not needed them for so long."""
    idle_timeout_s: float = setting(300.0, SettingKind.DURATION, bounds=(0.0, _MAX_DELAY_S))
    """With `min: 0`: the last replicas drain once nothing has waited or run for so long."""
    up_rate: float = setting(4.0, SettingKind.NUMBER, bounds=(1.0, float(MAX_REPLICAS)))
    """How many times as many there may be after one step up; one more always."""
    down_rate: float = setting(0.5, SettingKind.NUMBER, bounds=(0.0, 1.0))
    """The share of them that one step down may take; one always."""
    policy: str = setting("", SettingKind.HANDLER)
    """A function that says how many should run, of those that the controller's `--autoscale-policies` names."""
