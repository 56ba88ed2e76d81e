"""Switches the sampling of a router that runs: for a comparison within one process.

Two processes of the same program differ by a few per cent for their whole life, which is more than traces cost. So a
router that the benchmark starts takes signals. Installed by `startup/sitecustomize.py`.
"""

from __future__ import annotations

import signal
import time
from typing import Any, Final

OFF: Final = signal.SIGUSR1
"""No call is sampled that its caller has not sampled."""
AS_CONFIGURED: Final = signal.SIGUSR2
WITHOUT_RATE: Final = signal.SIGRTMIN
"""The share of calls that is configured, however many they are."""


def install() -> None:
    """Has signals to this process change its samplers."""
    from slotmesh.telemetry.tracing import GapSampler

    made: list[tuple[GapSampler, float, float]] = []
    begin = GapSampler.__init__

    def begin_and_keep(self: GapSampler, ratio: float, rate: float, chance: Any) -> None:
        begin(self, ratio, rate, chance)
        made.append((self, ratio, rate))

    def switch(number: int, _frame: object) -> None:
        for sampler, ratio, rate in made:
            # Or each turn would begin with what the rate has allowed meanwhile.
            sampler._allowed, sampler._at = 0.0, time.monotonic()
            sampler._ratio = 0.0 if number == OFF else ratio
            sampler._rate = 1e9 if number == WITHOUT_RATE else rate
            sampler._most_at_once = max(1.0, sampler._rate / 10)
            sampler._gap = sampler._draw()

    GapSampler.__init__ = begin_and_keep  # type: ignore[method-assign]
    for each in (OFF, AS_CONFIGURED, WITHOUT_RATE):
        signal.signal(each, switch)
