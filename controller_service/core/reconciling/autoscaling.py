"""Chooses the number of replicas: what the load needs, within bounds, delays and rates.

Purpose: `(scale, rules, need, figures, now) -> scale`. The number grows once all looks during `up_delay` have needed
more, to the lowest number needed during it; it shrinks once all looks during `down_delay` needed fewer, to the highest.
Invariants: within `min` and `max`; replicas that are starting count as running, so nothing more starts while they are
awaited; the number never shrinks by what is unknown: a router that has not reported, no router at all, a controller
that has just started or stood still; from zero the first call starts replicas immediately. Delays are of the clock:
they do not depend on how often the load is read. A load within `TOLERANCE` of what the present number is meant for
needs no other number; the need by `ongoing` does not depend on the number of replicas, so that those that start are not
counted twice. What a router reported last counts until the router is gone, however old it is; a router that has not
reported is missing, which is not the same as having no load.
Owner: pure functions, for `shell.loops.autoscaler`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

from controller_service.core.observed.state import BackendScale, LoadStreak, NeedWindow, Observed, ScaleDecision
from controller_service.core.reconciling.endpoints import is_coming
from slotmesh.autoscaling import ScaleFigures
from slotmesh.spec.model import Autoscale, AutoscaleMetric
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
    """The number that a policy of the operator's own has returned, or why it has returned none."""

    number: int | None
    error: str = ""


def need_of(rules: Autoscale, figures: ScaleFigures, answer: PolicyAnswer | None = None) -> Need:
    """What is asked for now. `answer` is that of the policy that the rules name."""
    if rules.policy:
        if answer is None or answer.number is None:
            error = "has not answered" if answer is None else answer.error
            return Need(figures.number, f"policy {rules.policy} {error}: the number stays")
        return Need(max(0, answer.number), f"policy {rules.policy} returned {written(answer.number)}")
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
        # Some may have waited longer than any number could make up for: it grows step by step.
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


STOOD_STILL_S: Final = 5.0
"""After a longer time without a look, figures from before it do not count for the time in between."""
WARM_UP_S: Final = 60.0
"""For this time after a step up, the next one waits for the replicas of that: what piles up before they are ready is no
sign that they are too few."""
GRACE_S: Final = 10.0
"""For this time after the controller's start nothing shrinks: routers come back within it."""


def first_scale(rules: Autoscale, figures: ScaleFigures, now: float) -> BackendScale:
    """The first look at a backend: as many replicas as run already, within the bounds."""
    number = _bounded(rules, figures.number)
    why = f"{figures.number} replicas run at the first look, {rules.min} … {rules.max} may"
    first = ScaleDecision(at=now, before=figures.number, number=number, why=why, figures=figures)
    return BackendScale(number=number, latest=first, changed=None if number == figures.number else first)


def choose(
    scale: BackendScale, rules: Autoscale, need: Need, figures: ScaleFigures, now: float, *, started_at: float
) -> BackendScale:
    """The next look. `started_at` is when the controller started."""
    number = scale.number
    if (bounded := _bounded(rules, number)) != number:
        return _changed(
            replace(scale, needed=None), bounded, f"{rules.min} … {rules.max} replicas may run", figures, now
        )
    if now - scale.latest.at > STOOD_STILL_S:
        scale = replace(scale, more=None, needed=None, idle_since=None)
    scale = _with_idleness(scale, figures, now)
    wanted = min(max(need.number, rules.min, 1 if number else 0), rules.max)
    held = _why_not_fewer(figures, now - started_at)
    window = None if held else (scale.needed or NeedWindow(now)).with_need(now, wanted, rules.down_delay_s)
    scale = replace(scale, needed=window)
    if not number:
        if not (figures.load or need.number):
            return _kept(scale, f"{need.why}: none has to run", figures, now)
        first = min(max(wanted, 1), _most(rules, 0))
        return _changed(scale, first, f"{need.why}: the first call does not wait", figures, now)
    if wanted > number:
        return _more(scale, rules, Need(wanted, need.why), figures, now)
    scale = replace(scale, more=None)
    if window is None:
        return _kept(replace(scale, idle_since=None), f"{need.why}; {held}", figures, now)
    if not rules.min and scale.idle_since is not None and now - scale.idle_since >= rules.idle_timeout_s:
        why = f"nothing has waited or run for {now - scale.idle_since:.0f} s (idle_timeout {rules.idle_timeout_s:g} s)"
        return _changed(scale, 0, why, figures, now)
    if wanted < number:
        return _fewer(scale, window, rules, need.why, figures, now)
    return _kept(scale, need.why, figures, now)


def _more(scale: BackendScale, rules: Autoscale, wanted: Need, figures: ScaleFigures, now: float) -> BackendScale:
    number = scale.number
    is_awaited = figures.ready < number and now - scale.grown_at < WARM_UP_S
    if is_awaited or not figures.ready:
        why = f"{wanted.why}; {figures.ready} of {number} replicas are ready: that is awaited first"
        return _kept(replace(scale, more=None), why, figures, now)
    more = scale.more or LoadStreak(now, wanted.number)
    more = replace(more, number=min(more.number, wanted.number))
    left_s = more.since + rules.up_delay_s - now
    if left_s > 0.0:
        return _kept(replace(scale, more=more), f"{wanted.why}; up_delay: {left_s:.1f} s to go", figures, now)
    next_number = min(more.number, _most(rules, number))
    limit = "" if next_number == more.number else f"; up_rate: {next_number} first"
    return _changed(scale, next_number, f"{wanted.why}{limit}", figures, now)


def _fewer(
    scale: BackendScale, window: NeedWindow, rules: Autoscale, why: str, figures: ScaleFigures, now: float
) -> BackendScale:
    number, largest = scale.number, window.largest
    left_s = window.since + rules.down_delay_s - now
    if left_s > 0.0:
        return _kept(scale, f"{why}; down_delay: {left_s:.0f} s to go", figures, now)
    if largest >= number:
        since_s = now - window.peaks[0][0]
        return _kept(scale, f"{why}; {largest} were needed {since_s:.0f} s ago, within down_delay", figures, now)
    least = min(number - 1, math.ceil(number * (1.0 - rules.down_rate)))
    if largest >= least:
        return _changed(scale, largest, f"{why}; in {rules.down_delay_s:g} s at most {largest} were", figures, now)
    # The next step is a down_delay away.
    limited = replace(scale, needed=None)
    return _changed(limited, least, f"{why}; down_rate: {least} first", figures, now)


def _with_idleness(scale: BackendScale, figures: ScaleFigures, now: float) -> BackendScale:
    """Short calls run between looks: the count of calls sent in between reveals them."""
    if figures.load or figures.sent != scale.latest.figures.sent or not figures.is_complete:
        return replace(scale, idle_since=None)
    return scale if scale.idle_since is not None else replace(scale, idle_since=now)


def _why_not_fewer(figures: ScaleFigures, age_s: float) -> str:
    """Why the number must not become smaller now, for a person; empty where it may."""
    if not figures.routers:
        return "no router is attached: nothing is known of the load"
    if figures.silent:
        return f"{figures.silent} of {figures.routers} routers have not reported yet"
    if age_s < GRACE_S:
        return f"the controller started {age_s:.1f} s ago: not all routers may be back"
    return ""


def _bounded(rules: Autoscale, number: int) -> int:
    return min(max(number, rules.min), rules.max)


def _most(rules: Autoscale, number: int) -> int:
    """How many there may be after one step up from `number`."""
    return min(rules.max, max(number + 1, math.floor(max(1, number) * rules.up_rate)))


def _kept(scale: BackendScale, why: str, figures: ScaleFigures, now: float) -> BackendScale:
    latest = ScaleDecision(at=now, before=scale.number, number=scale.number, why=why, figures=figures)
    return replace(scale, latest=latest)


def _changed(scale: BackendScale, number: int, why: str, figures: ScaleFigures, now: float) -> BackendScale:
    """Another number: what spoke for more is used up."""
    decision = ScaleDecision(at=now, before=scale.number, number=number, why=why, figures=figures)
    return BackendScale(
        number=number,
        latest=decision,
        changed=decision,
        needed=scale.needed,
        idle_since=scale.idle_since,
        grown_at=now if number > scale.number else scale.grown_at,
    )


LATE_AFTER_S: Final = 2.5
"""A router whose newest report is older is late: reports are a second apart."""


def figures_of(backend: str, observed: Observed, number: int, now: float) -> ScaleFigures:
    """`number` is how many replicas should run, as it was decided last."""
    replicas = [*observed.replicas(backend)]
    ready = [replica for replica in replicas if replica.takes_calls]
    routers = observed.routers.values()
    reported = [router.reported_at for router in routers if router.reported_at is not None]
    loads = [load for router in routers for load in router.loads if load.backend == backend]
    return ScaleFigures(
        number=number,
        ready=len(ready),
        starting=sum(map(is_coming, replicas)),
        permits=sum(replica.max_ongoing for replica in ready),
        queued=sum(load.queued for load in loads),
        ongoing=sum(load.ongoing for load in loads),
        queue_time_s=max((load.queue_time_s for load in loads), default=0.0),
        sent=sum(load.sent for load in loads),
        routers=len(routers),
        late=sum(now - at > LATE_AFTER_S for at in reported),
        silent=len(routers) - len(reported),
    )
