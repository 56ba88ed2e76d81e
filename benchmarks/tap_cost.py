"""What `slotmesh tap` costs a router while nobody taps: the look whether somebody does, once an outcome of a run.

A run of one call pays most for it: calls in frames share one look.
"""

from __future__ import annotations

import random
import time
from itertools import repeat
from typing import Final

from benchmarks import findings
from benchmarks.findings import Finding
from router_service.core.features.taps import OpenTaps

MOST_COST: Final = 0.01
_LOOKS: Final = 200_000


def measure(*, rounds: int, decisions_per_s: float) -> Finding:
    """`decisions_per_s`: of runs of one call."""
    taps = OpenTaps(random.Random(1).random)
    look_s = max(0.0, min(_looks_s(taps) - _nothing_s() for _ in range(rounds)) / _LOOKS)
    return findings.at_most(
        "core_tap_off", "share of a decision that looking for taps takes", look_s * decisions_per_s, MOST_COST, _share
    )


def _looks_s(taps: OpenTaps) -> float:
    started = time.process_time()
    for _ in repeat(None, _LOOKS):
        if taps.under_way:
            raise AssertionError("there is no tap")
    return time.process_time() - started


def _nothing_s() -> float:
    started = time.process_time()
    for _ in repeat(None, _LOOKS):
        pass
    return time.process_time() - started


def _share(value: float) -> str:
    return f"{value:.2%}"
