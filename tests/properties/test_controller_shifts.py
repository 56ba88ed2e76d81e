"""Shifts of traffic against naive models: what is counted, which weights follow, and when a guard trips."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller_service.core.desired.shifts import Guard, GuardFigure, ShiftPhase, ShiftRecord
from controller_service.core.loads import NO_ENDS, BackendLoad, CallEnds
from controller_service.core.observed.state import ObservedRouter
from controller_service.core.reconciling.shift_steps import (
    CallFlow,
    ShiftLook,
    StepFigures,
    follow,
    p99,
    still_unknown,
    tripped,
)
from slotmesh.histogram import CALL_TIMES, Histogram
from tests.support.examples import examples

OK, FAILED, UNANSWERED = "ok", "failed", "unanswered"
BACKENDS = ("new", "newer", "other")
"""The last one is not watched."""


@dataclass
class RouterModel:
    """One router: its calls one by one, and which of them the controller has heard of."""

    name: str
    starts: int = 0
    calls: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in BACKENDS})
    """Since its start, oldest first, by backend."""
    heard: dict[str, int] | None = None
    """How many of these the controller has heard of; None: it has never heard of this router."""

    def observed(self) -> ObservedRouter:
        return ObservedRouter(
            router_id=self.name,
            address="127.0.0.1:1",
            started_at=0.0,
            run_id=f"{self.name}-{self.starts}",
            loads=tuple(BackendLoad(backend=name, queued=0, ongoing=0, **self.totals(name)) for name in BACKENDS),
            reported_at=0.0,
        )

    def totals(self, name: str) -> dict[str, Any]:
        calls = self.calls[name]
        times = (calls.count(OK), *(0,) * len(CALL_TIMES))
        return {"sent": len(calls), "ended": CallEnds(len(calls), calls.count(FAILED), calls.count(UNANSWERED), times)}


ACTIONS = st.lists(
    st.one_of(
        st.tuples(
            st.just("call"),
            st.integers(0, 2),
            st.sampled_from(BACKENDS),
            st.sampled_from([OK, FAILED, UNANSWERED]),
            st.integers(1, 5),
        ),
        st.tuples(st.just("report"), st.integers(0, 2)),
        st.tuples(st.just("restart"), st.integers(0, 2)),
        st.tuples(st.just("step")),
    ),
    max_size=40,
)


RESTARTED: Sequence[tuple[object, ...]] = [
    *(("call", 0, "new", OK, 1), ("report", 0)),
    *(("call", 0, "new", OK, 1), ("report", 0)),
    *(("restart", 0), ("call", 0, "new", OK, 5), ("report", 0)),
]
"""All totals are above those of before the restart."""


@example(RESTARTED)
@settings(max_examples=examples(300))
@given(ACTIONS)
def test_each_call_that_is_heard_of_counts_once_and_in_its_step(actions: Sequence[tuple[object, ...]]) -> None:
    routers = [RouterModel(f"r{number}") for number in range(3)]
    watched = BACKENDS[:2]
    figures, counted = StepFigures(watched), {name: list[str]() for name in BACKENDS}
    for action in actions:
        match action:
            case ("call", int(at), str(name), str(how), int(count)):
                routers[at].calls[name] += [how] * count
            case ("restart", int(at)):
                router = routers[at]
                router.starts, router.calls = router.starts + 1, {name: [] for name in BACKENDS}
                router.heard = None if router.heard is None else dict.fromkeys(BACKENDS, 0)
            case ("report", int(at)):
                router = routers[at]
                if (heard := router.heard) is not None:
                    for name in BACKENDS:
                        counted[name] += router.calls[name][heard[name] :]
                router.heard = {name: len(router.calls[name]) for name in BACKENDS}
                figures.add_reports([router.observed()])
            case _:
                figures.begin_step()
                counted = {name: [] for name in BACKENDS}
        for name in watched:
            found, calls = figures.of(name), counted[name]
            assert (found.total, found.failed, found.unanswered) == (
                len(calls),
                calls.count(FAILED),
                calls.count(UNANSWERED),
            )
            assert sum(found.times) == calls.count(OK)
        assert figures.of(BACKENDS[2]) == NO_ENDS


SHARES = st.lists(st.integers(0, 10), min_size=2, max_size=4).filter(any)


def weights_of(parts: Sequence[int]) -> dict[str, float]:
    return {f"b{number}": part / sum(parts) for number, part in enumerate(parts)}


def shift_of(before: dict[str, float], target: dict[str, float], step: float = 0.1, **said: object) -> ShiftRecord:
    terms = {"every_s": 1.0, "guards": (), "min_calls": 10, **said}
    target = {name: weight for name, weight in target.items() if weight}
    return ShiftRecord(endpoint="e", before=before, target=target, step=step, **terms)  # type: ignore[arg-type]


@settings(max_examples=examples(300))
@given(SHARES, SHARES, st.floats(0.01, 1.0))
def test_weights_go_evenly_and_arrive(old: list[int], new: list[int], step: float) -> None:
    before, target = weights_of(old), weights_of(new)
    shift = shift_of(before, target, step)
    rows = [before, *(shift.weights(number) for number in range(1, shift.steps + 1))]
    for earlier, later in itertools.pairwise(rows):
        assert abs(sum(later.values()) - 1.0) < 1e-8
        for name in shift.backends:
            moved = later.get(name, 0.0) - earlier.get(name, 0.0)
            assert abs(moved) <= step + 1e-9
            assert moved * (target.get(name, 0.0) - before.get(name, 0.0)) >= -1e-9, "it never goes the other way"
    for name in shift.backends:
        assert abs(rows[-1][name] - target.get(name, 0.0)) < 1e-9
    widest = max(abs(target.get(it, 0.0) - before.get(it, 0.0)) for it in shift.backends)
    assert (shift.steps - 1) * step < widest + 1e-6


@dataclass(frozen=True)
class Call:
    """One call: how it ended, and how long it took."""

    how: str
    time_s: float


CALLS = st.lists(
    st.builds(
        Call, st.sampled_from([OK, OK, OK, OK, FAILED, UNANSWERED]), st.sampled_from([0.0005, 0.1, 0.2, 0.21, 40.0])
    ),
    max_size=60,
)
GUARDS = st.sampled_from(
    [
        Guard(GuardFigure.ERROR_RATE, 0.0),
        Guard(GuardFigure.ERROR_RATE, 0.1),
        Guard(GuardFigure.P99, 0.2),
        Guard(GuardFigure.P99, 0.1),
        Guard(GuardFigure.P99, 30.0),
    ]
)


def ends_of(calls: Sequence[Call]) -> CallEnds:
    times = Histogram(CALL_TIMES)
    for call in calls:
        if call.how is OK:
            times.observe(call.time_s, 1)
    hows = [call.how for call in calls]
    return CallEnds(len(calls), hows.count(FAILED), hows.count(UNANSWERED), tuple(times.counts))


def timed(calls: Sequence[Call]) -> list[float]:
    return sorted(inf if it.how is UNANSWERED else it.time_s for it in calls if it.how is not FAILED)


RISING = ("n0", "n1", "n2")
"""Backends that get more: each shift has several, and what is wrong may be wrong with any of them."""
OLD = {"old": 1.0}
NEW = dict.fromkeys(RISING, 0.25) | {"old": 0.25}
EACH_CALLS = st.fixed_dictionaries(dict.fromkeys(RISING, CALLS))
SEVERAL_GUARDS = st.lists(GUARDS, min_size=1, max_size=3, unique=True)


def judged(guard: Guard, calls: Sequence[Call]) -> list[bool]:
    """Of the calls that a guard looks at, whether each is bad."""
    if guard.figure is GuardFigure.ERROR_RATE:
        return [it.how is not OK for it in calls]
    return [time > guard.limit for time in timed(calls)]


def trips(guard: Guard, calls: Sequence[Call], min_calls: int) -> bool:
    seen = judged(guard, calls)
    filled = seen + [False] * (min_calls - len(seen))
    return sum(filled) / len(filled) > (guard.limit if guard.figure is GuardFigure.ERROR_RATE else 0.01)


@settings(max_examples=examples(400))
@given(EACH_CALLS, SEVERAL_GUARDS, st.integers(1, 30))
def test_guards_judge_as_if_they_saw_each_call_of_each_backend(
    calls: dict[str, list[Call]], guards: list[Guard], min_calls: int
) -> None:
    """The limits of these guards are bounds of the histogram, so nothing is lost by it."""
    shift = shift_of(OLD, NEW, guards=tuple(guards), min_calls=min_calls)
    assert shift.rising == [*RISING]
    figures = {name: ends_of(each) for name, each in calls.items()}
    bad = [(guard, name) for guard in guards for name in RISING if trips(guard, calls[name], min_calls)]
    found = tripped(shift, figures)
    assert bool(found) == bool(bad)
    if bad:
        guard, name = bad[0]
        assert f"guard {guard} tripped: backend {name} had" in found
    unknown = [(guard, name) for guard in guards for name in RISING if len(judged(guard, calls[name])) < min_calls]
    missing = still_unknown(shift, figures)
    assert bool(missing) == bool(unknown)
    if unknown:
        assert f"calls of backend {unknown[0][1]} have ended that {unknown[0][0]} is judged by" in missing


@settings(max_examples=examples(200))
@given(EACH_CALLS, GUARDS, st.permutations(RISING), st.integers(1, 30))
def test_a_guard_of_a_shadow_looks_at_that_shadow_alone(
    calls: dict[str, list[Call]], guard: Guard, shadows: Sequence[str], min_calls: int
) -> None:
    """Several guards, each of a shadow of its own, in any order."""
    guards = tuple(replace(guard, shadow=name) for name in shadows)
    shift = shift_of(OLD, NEW, guards=guards, min_calls=min_calls)
    ends = {name: ends_of(each) for name, each in calls.items()}
    bad = [name for name in shadows if trips(guard, calls[name], min_calls)]
    found = tripped(shift, {}, ends)
    assert bool(found) == bool(bad)
    assert not bad or f"shadow {bad[0]} had" in found
    assert not tripped(shift, ends), "what became of calls says nothing of copies"


@settings(max_examples=examples(300))
@given(CALLS)
def test_p99_is_the_bound_above_the_call_at_that_place(calls: list[Call]) -> None:
    times = timed(calls)
    found = p99(ends_of(calls))
    if not times:
        assert found is None
        return
    exact = times[ceil(len(times) * 0.99) - 1]
    assert found == next((bound for bound in CALL_TIMES if bound >= exact), inf)


LOOKS = st.lists(
    st.tuples(st.booleans(), EACH_CALLS, st.sampled_from(CallFlow), st.sets(st.sampled_from(RISING))),
    max_size=20,
)


@settings(max_examples=examples(300))
@given(LOOKS, st.lists(GUARDS, max_size=2, unique=True), st.integers(1, 30))
def test_a_shift_takes_one_step_at_a_time_and_none_that_it_knows_too_little_for(
    looks: Sequence[tuple[bool, dict[str, list[Call]], CallFlow, set[str]]], guards: list[Guard], min_calls: int
) -> None:
    shift = shift_of(OLD, NEW, step=0.3, guards=tuple(guards), min_calls=min_calls)
    number = 1
    for at, (is_due, calls, flow, ready) in enumerate(looks):
        figures = {name: ends_of(each) for name, each in calls.items()}
        look = ShiftLook(is_due=is_due, figures=figures, flow=flow, ready=sorted(ready))
        move = follow(shift, look, float(at))
        if not shift.is_under_way:
            assert move.record is None
            assert move.weights is None
            continue
        is_bad = any(trips(guard, each, min_calls) for guard in guards for each in calls.values())
        has_enough = all(len(judged(guard, each)) >= min_calls for guard in guards for each in calls.values())
        lacking = [name for name in RISING if name not in ready]
        if is_bad:
            assert move.record is not None
            assert move.record.phase is ShiftPhase.ROLLED_BACK
            assert move.weights == OLD
        elif is_due and not lacking and (flow is CallFlow.NONE or has_enough):
            assert move.record is not None
            if number < shift.steps:
                number += 1
                assert move.record.number == number
                assert move.record.is_under_way
                assert move.weights == shift.weights(number)
            else:
                assert move.record.phase is ShiftPhase.COMPLETE
                assert move.weights == NEW
        else:
            assert move.record is None
            assert move.weights is None
            assert bool(move.waits_for) == is_due
            assert not (is_due and lacking) or move.waits_for == f"backend {lacking[0]} has no ready replica"
        shift = move.record or shift


@dataclass(frozen=True)
class Said:
    """What one router has said of calls."""

    age_s: float | None
    """Of its newest report; None: it has sent none."""
    counts: bool = True
    run_id: str = "x"
    is_busy: bool = False


SAID = st.builds(Said, st.sampled_from([None, 0.0, 2.5, 2.6]), st.booleans(), st.sampled_from(["x", ""]), st.booleans())


@settings(max_examples=examples(300))
@given(st.lists(SAID, max_size=4), st.integers(0, 3))
def test_that_no_call_was_made_each_router_has_to_say(said: list[Said], of_others: int) -> None:
    """In whatever order they come; what they say of other backends counts for nothing."""
    routers: dict[str, ObservedRouter] = {}
    for number, each in enumerate(said):
        own = BackendLoad(backend="n1", queued=0, ongoing=int(each.is_busy), ended=NO_ENDS if each.counts else None)
        others = [BackendLoad(backend=f"o{it}", queued=3, ongoing=3) for it in range(of_others)]
        routers[f"r{number}"] = ObservedRouter(
            router_id=f"r{number}",
            address="127.0.0.1:1",
            started_at=0.0,
            run_id=each.run_id,
            loads=(*others, own),
            reported_at=None if each.age_s is None else 100.0 - each.age_s,
        )
    figures = StepFigures(RISING)
    figures.add_reports(routers.values())
    silent = [it for it in said if it.age_s is None or it.age_s > 2.5 or not it.run_id or not it.counts]
    if any(it.is_busy for it in said):
        expected = CallFlow.SOME
    else:
        expected = CallFlow.UNKNOWN if silent or not said else CallFlow.NONE
    assert figures.flow(routers, 100.0) is expected
