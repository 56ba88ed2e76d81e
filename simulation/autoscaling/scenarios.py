"""The scenarios whose curves docs/autoscaling.md shows."""

from __future__ import annotations

import math
from typing import Final

from simulation.autoscaling.mesh import AutoscalingScenario
from slotmesh.spec.model import Autoscale

_RULES: Final = Autoscale(
    min=1, max=20, target_ongoing=5.0, up_delay_s=2.0, down_delay_s=60.0, up_rate=100.0, down_rate=1.0
)

SCENARIOS: Final = (
    AutoscalingScenario(
        name="step",
        title="From 1 to 40 concurrent calls and back, target_ongoing 5",
        rules=_RULES,
        seconds=300,
        concurrency=lambda now: 40.0 if 20.0 <= now < 180.0 else 1.0,
    ),
    AutoscalingScenario(
        name="zero",
        title="From zero and back: one burst of calls, idle_timeout 60 s",
        rules=Autoscale(min=0, max=20, target_ongoing=5.0, down_delay_s=30.0, idle_timeout_s=60.0),
        seconds=200,
        rate=lambda now: 60.0 if 10.0 <= now < 60.0 else 0.0,
    ),
    AutoscalingScenario(
        name="day",
        title="A load that swells and trembles, one router silent from 200 s to 260 s",
        rules=Autoscale(min=2, max=30, target_ongoing=5.0, up_delay_s=3.0, down_delay_s=60.0),
        seconds=600,
        rate=lambda now: 150.0 + 120.0 * math.sin(now / 600.0 * 4.0 * math.pi),
        silence=(200.0, 260.0),
    ),
)
