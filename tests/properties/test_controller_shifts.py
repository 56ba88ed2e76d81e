"""Shifts of traffic against naive models: what is counted, which weights follow, and when a guard trips."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, inf

from hypothesis import example, given, settings
from hypothesis import strategies as st

from controller_service.core.backend_load import NO_ENDS, BackendLoad, CallEnds
from controller_service.core.observed import ObservedRouter
from controller_service.core.shifting.figures import CallFlow, StepFigures
from controller_service.core.shifting.following import ShiftLook, follow
from controller_service.core.shifting.judgement import p99, still_unknown, tripped
from controller_service.core.shifting.record import Guard, GuardFigure, ShiftPhase, ShiftRecord
from slotmesh.histogram import CALL_TIMES, Histogram
from tests.support.examples import examples

OK, FAILED, UNANSWERED = "ok", "failed", "unanswered"


@dataclass
class RouterModel:
    """One router: its calls one by one, and which of them the controller has heard of."""

    name: str
    starts: int = 0
    calls: list[str] = field(default_factory=list)
    """Since its start, oldest first."""
    heard: int | None = None
    """How many of these the controller has heard of; None: it has never heard of this router."""

    def observed(self) -> ObservedRouter:
        well = self.calls.count(OK)
        ends = CallEnds(
            len(self.calls),
            self.calls.count(FAILED),
            self.calls.count(UNANSWERED),
            (well, *(0,) * len(CALL_TIMES)),
        )
        load = BackendLoad(backend="new", queued=0, ongoing=0, sent=len(self.calls), ended=ends)
        return ObservedRouter(
            router_id=self.name,
            address="127.0.0.1:1",
            started_at=0.0,
            run_id=f"{self.name}-{self.starts}",
            loads=(load, BackendLoad(backend="other", queued=5, ongoing=5, sent=9, ended=ends)),
            reported_at=0.0,
        )


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.integers(0, 2), st.sampled_from([OK, FAILED, UNANSWERED]), st.integers(1, 5)),
        st.tuples(st.just("report"), st.integers(0, 2)),
        st.tuples(st.just("restart"), st.integers(0, 2)),
        st.tuples(st.just("step")),
    ),
    max_size=40,
)


RESTARTED: Sequence[tuple[object, ...]] = [
    *(("call", 0, OK, 1), ("report", 0)),
    *(("call", 0, OK, 1), ("report", 0)),
    *(("restart", 0), ("call", 0, OK, 5), ("report", 0)),
]
"""All totals are above those of before the restart."""


@example(RESTARTED)
@settings(max_examples=examples(300))
@given(ACTIONS)
def test_each_call_that_is_heard_of_counts_once_and_in_its_step(actions: Sequence[tuple[object, ...]]) -> None:
    routers = [RouterModel(f"r{number}") for number in range(3)]
    figures, counted = StepFigures(["new"]), list[str]()
    for action in actions:
        match action:
            case ("call", int(at), str(how), int(count)):
                routers[at].calls += [how] * count
            case ("restart", int(at)):
                router = routers[at]
                router.starts, router.calls = router.starts + 1, []
                router.heard = None if router.heard is None else 0
            case ("report", int(at)):
                router = routers[at]
                if router.heard is not None:
                    counted += router.calls[router.heard :]
                router.heard = len(router.calls)
                figures.hear([router.observed()])
            case _:
                figures.begin_step()
                counted = []
        found = figures.of("new")
        assert (found.total, found.failed, found.unanswered) == (
            len(counted),
            counted.count(FAILED),
            counted.count(UNANSWERED),
        )
        assert sum(found.times) == counted.count(OK)
        assert figures.of("other") == NO_ENDS


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


@settings(max_examples=examples(400))
@given(CALLS, GUARDS, st.integers(1, 30))
def test_guards_judge_as_if_they_saw_each_call(calls: list[Call], guard: Guard, min_calls: int) -> None:
    """The limits of these guards are bounds of the histogram, so nothing is lost by it."""
    shift = shift_of({"old": 1.0}, {"new": 1.0}, guards=(guard,), min_calls=min_calls)
    if guard.figure is GuardFigure.ERROR_RATE:
        seen = [it.how is not OK for it in calls]
        most = guard.limit
    else:
        seen = [time > guard.limit for time in timed(calls)]
        most = 0.01
    filled = seen + [False] * (min_calls - len(seen))
    figures = {"new": ends_of(calls)}
    assert bool(tripped(shift, figures)) == (sum(filled) / len(filled) > most)
    assert bool(still_unknown(shift, figures)) == (len(seen) < min_calls)


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
    st.tuples(st.booleans(), CALLS, st.sampled_from(CallFlow), st.booleans()),
    max_size=20,
)


@settings(max_examples=examples(300))
@given(LOOKS, st.lists(GUARDS, max_size=1), st.integers(1, 30))
def test_a_shift_takes_one_step_at_a_time_and_none_that_it_knows_too_little_for(
    looks: Sequence[tuple[bool, list[Call], CallFlow, bool]], guards: list[Guard], min_calls: int
) -> None:
    shift = shift_of({"old": 1.0}, {"new": 1.0}, step=0.3, guards=tuple(guards), min_calls=min_calls)
    number = 1
    for at, (is_due, calls, flow, is_ready) in enumerate(looks):
        figures = {"new": ends_of(calls)}
        look = ShiftLook(is_due=is_due, figures=figures, flow=flow, ready=["new"] if is_ready else [])
        move = follow(shift, look, float(at))
        if not shift.is_under_way:
            assert move.record is None
            assert move.weights is None
            continue
        is_bad = bool(tripped(shift, figures))
        is_known = not guards or flow is CallFlow.NONE or not still_unknown(shift, figures)
        if is_bad:
            assert move.record is not None
            assert move.record.phase is ShiftPhase.TAKEN_BACK
            assert move.weights == {"old": 1.0}
            assert "backend new" in move.record.why
        elif is_due and is_ready and is_known:
            assert move.record is not None
            if number < shift.steps:
                number += 1
                assert move.record.number == number
                assert move.record.is_under_way
                assert move.weights == shift.weights(number)
            else:
                assert move.record.phase is ShiftPhase.COMPLETE
                assert move.weights == {"new": 1.0}
        else:
            assert move.record is None
            assert move.weights is None
            assert bool(move.waits_for) == is_due
        shift = move.record or shift
