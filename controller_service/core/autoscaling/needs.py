"""How many replicas the load asks for at one moment, whatever bounds, delays and rates then make of it.

Invariants: a load within `TOLERANCE` of what the present number is meant for asks for no other number; what is asked
for by `ongoing` does not depend on how many replicas there are, so that those that start are not asked for twice.
Owner: pure functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from slotmesh.autoscaling import ScaleFigures
from slotmesh.spec.autoscale import Autoscale, AutoscaleMetric
from slotmesh.spec.rules import number as written

TOLERANCE: Final = 0.1
"""The number stays while the load is within this share of what it is meant for."""
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Need:
    """What the load asks for."""

    number: int
    why: str
    """For a person, with the figures."""


@dataclass(frozen=True, slots=True)
class PolicyAnswer:
    """What a policy of the operator's own has said, or why it has said nothing."""

    number: int | None
    error: str = ""


def need_of(rules: Autoscale, figures: ScaleFigures, answer: PolicyAnswer | None = None) -> Need:
    """What is asked for now. `answer` is that of the policy that the rules name."""
    if rules.policy:
        if answer is None or answer.number is None:
            error = "has not answered" if answer is None else answer.error
            return Need(figures.number, f"policy {rules.policy} {error}: the number stays")
        return Need(max(0, answer.number), f"policy {rules.policy} says {written(answer.number)}")
    if rules.metric is AutoscaleMetric.QUEUE_TIME:
        return _by_queue_time(rules, figures)
    return _by_ongoing(rules, figures)


def _by_ongoing(rules: Autoscale, figures: ScaleFigures) -> Need:
    number, load = figures.number, figures.load
    what = f"{load} calls wait or run ({figures.queued} and {figures.ongoing})"
    share = load / (rules.target_ongoing * number) if number else math.inf
    if number and abs(share - 1.0) <= TOLERANCE + _ROUNDING:
        return Need(number, f"{what}: {share:.2f} of what {number} replicas are meant for")
    needed = _ceiling(load / rules.target_ongoing)
    return Need(needed, f"{what}: at {rules.target_ongoing:g} each, that is {needed}")


def _by_queue_time(rules: Autoscale, figures: ScaleFigures) -> Need:
    number, target_s = figures.number, rules.target_queue_time_s
    what = f"calls wait for {figures.queue_time_s:.3g} s ({figures.queued} of them) where {target_s:g} s are meant"
    share = figures.queue_time_s / target_s if figures.queued else 0.0
    if share > 1.0 + TOLERANCE + _ROUNDING:
        # Some may wait for so long that no number would do: it grows step by step.
        needed = max(number + 1, _ceiling(number * min(share, rules.up_rate)))
        return Need(needed, f"{what}: more than {number} are needed")
    if share >= 1.0 - TOLERANCE:
        return Need(number, what)
    each = rules.target_ongoing
    if figures.ready:
        each = min(each, figures.permits / figures.ready) or each
    fewer = min(number, max(_ceiling(figures.load / each), 1 if figures.load else 0))
    return Need(fewer, f"{what}, and {figures.load} wait or run: at {each:g} each, {fewer} are enough")


def _ceiling(value: float) -> int:
    return math.ceil(value - _ROUNDING)
