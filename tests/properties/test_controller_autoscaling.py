"""Autoscaling against what must hold of it: the load that was seen justifies each step, and a steady load makes few."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from controller_service.core.reconciling.autoscaling import (
    GRACE_S,
    STOOD_STILL_S,
    TOLERANCE,
    WARM_UP_S,
    choose,
    first_scale,
    need_of,
)
from slotmesh.autoscaling import ScaleFigures
from slotmesh.spec.model import Autoscale
from tests.support.examples import examples
from tests.unit.controller.scales import QUIET, ScaledBackend

TARGET = 5.0

delays = st.sampled_from([0.0, 1.0, 3.0, 10.0, 30.0])


@st.composite
def rules_of_any_kind(draw: st.DrawFn) -> Autoscale:
    least = draw(st.integers(0, 5))
    return Autoscale(
        min=least,
        max=max(1, least) + draw(st.integers(0, 30)),
        target_ongoing=TARGET,
        up_delay_s=draw(delays),
        down_delay_s=draw(delays),
        idle_timeout_s=draw(delays),
        up_rate=draw(st.sampled_from([1.0, 2.0, 4.0, 100.0])),
        down_rate=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


@dataclass(frozen=True)
class Look:
    """What one look saw: `after` is the time since the one before."""

    after: float
    load: int
    missing: int
    """Replicas that should run and are not ready."""
    routers: int
    silent: int


any_look = st.builds(
    Look,
    after=st.sampled_from([0.01, 0.5, 1.0, 1.0, 1.0, 3.0, 20.0]),
    load=st.one_of(st.just(0), st.integers(0, 150)),
    missing=st.sampled_from([0, 0, 0, 1, 50]),
    routers=st.integers(0, 3),
    silent=st.sampled_from([0, 0, 0, 1]),
)


def figures_of_look(look: Look, number: int) -> ScaleFigures:
    silent = min(look.silent, look.routers)
    ready = max(0, number - look.missing)
    return replace(QUIET, number=number, ready=ready, ongoing=look.load, routers=look.routers, silent=silent)


@settings(max_examples=examples(300), deadline=None)
@given(
    rules=rules_of_any_kind(),
    running=st.integers(0, 20),
    looks=st.lists(st.tuples(any_look, st.integers(1, 40)), min_size=1, max_size=12),
    age=st.sampled_from([0.0, 1_000.0]),
)
def test_each_step_is_justified_by_all_that_was_seen_for_its_delay(
    rules: Autoscale, running: int, looks: list[tuple[Look, int]], age: float
) -> None:
    """A naive model: it keeps every look, and reads the whole past at each step."""
    now, everything = 0.0, list[tuple[float, int, ScaleFigures]]()
    seen = everything.copy()
    limited_at = -math.inf
    scale = first_scale(rules, replace(QUIET, number=running), now)
    for look in [look for look, times in looks for _ in range(times)]:
        before, now = scale.number, now + look.after
        if look.after > STOOD_STILL_S:
            everything.clear()
            seen.clear()
        figures = figures_of_look(look, before)
        need = need_of(rules, figures)
        everything.append((now, need.number, figures))
        seen.append(everything[-1])
        scale = choose(scale, rules, need, figures, now, started_at=-age)
        after = scale.number
        assert rules.min <= after <= rules.max
        assert scale.latest.number == after
        if after == before:
            continue
        assert scale.changed is scale.latest
        if after > before:
            assert after <= max(before + 1, int(max(before, 1) * rules.up_rate))
            if before:
                window = [need for at, need, _ in seen if at > now - rules.up_delay_s - 1e-9]
                assert min(window) >= after, "the least that was asked for"
                assert now - seen[0][0] >= rules.up_delay_s - 1e-9
                assert figures.ready, "more than none that gets ready would not help"
        else:
            delay_s = rules.idle_timeout_s if not after else rules.down_delay_s
            past = [(need, figures) for at, need, figures in everything if at > now - delay_s + 1e-9] or [
                (need.number, figures)
            ]
            assert all(figures.is_complete for _, figures in past), "by what all routers said"
            assert now - everything[0][0] >= delay_s - 1e-9
            assert now + age >= GRACE_S
            assert max(need for need, _ in past) <= after
            assert after or not any(figures.load for _, figures in past)
            assert after == 0 or after >= min(before - 1, math.ceil(before * (1.0 - rules.down_rate)))
            if after:
                assert now - limited_at >= delay_s - 1e-9, "what a rate has limited goes on after the delay"
                if after > max(*(need for need, _ in past), rules.min, 1):
                    limited_at = now
        seen.clear()  # What has made a step makes no other one up.


@settings(max_examples=examples(60), deadline=None)
@given(rules=rules_of_any_kind(), running=st.integers(0, 40), load=st.integers(1, 200), start_s=st.integers(0, 20))
def test_a_steady_load_is_followed_in_one_direction_and_then_left_alone(
    rules: Autoscale, running: int, load: int, start_s: int
) -> None:
    """Calls are made one after another, `load` at a time; replicas take a while to start."""
    backend = ScaledBackend(rules, running)
    begun: list[float] = [-1e9] * backend.scale.number
    numbers = [backend.scale.number]
    for _ in range(int(45 * (start_s + rules.up_delay_s + rules.down_delay_s + 1))):
        ready = sum(backend.now + 1.0 - at >= start_s for at in begun)
        number = backend.look(load, ready=ready)
        begun = [*begun, *[backend.now] * (number - len(begun))][:number]
        numbers.append(number)
    steps = [b - a for a, b in pairwise(numbers) if a != b]
    assert all(step > 0 for step in steps) or all(step < 0 for step in steps), "no number is passed twice"
    last = numbers[-1]
    share = load / (TARGET * last)
    is_bound = last in {rules.min, rules.max}
    assert abs(share - 1.0) <= TOLERANCE + 1e-9 or last == math.ceil(load / TARGET) or is_bound
    assert max(numbers) <= max(numbers[0], math.ceil(load / TARGET), rules.min), "never more than are needed"
    assert len(set(numbers[-len(numbers) // 10 :])) == 1, "it has settled"


@settings(max_examples=examples(200), deadline=None)
@given(
    rules=rules_of_any_kind(),
    mean=st.integers(10, 100),
    noise=st.lists(st.floats(-0.1, 0.1), min_size=50, max_size=200),
)
def test_a_load_that_trembles_within_the_tolerance_moves_nothing(
    rules: Autoscale, mean: int, noise: list[float]
) -> None:
    number = mean // int(TARGET)
    backend = ScaledBackend(replace(rules, min=min(rules.min, 1), max=max(rules.max, number)), number)
    load = TARGET * number
    for each in noise:
        assert backend.look(round(load * (1.0 + each) - (0.5 if each > 0 else -0.5))) == number


@settings(max_examples=examples(200), deadline=None)
@given(
    rules=rules_of_any_kind(),
    rate=st.integers(1, 100),
    start_s=st.integers(1, int(WARM_UP_S)),
)
def test_what_piles_up_while_replicas_start_starts_no_more(rules: Autoscale, rate: int, start_s: int) -> None:
    """Calls come at a rate, whether anything serves them or not: the queue grows until replicas are ready."""
    backend = ScaledBackend(replace(rules, min=0), 0)
    first = 0
    for second in range(1, start_s + 1):
        number = backend.look(0, ready=0, queued=rate * second)
        first = first or number
        assert number == first, "one step, however long the queue"
    assert first <= max(1, int(rules.up_rate))
