"""How many replicas a backend should have, look by look."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controller_service.core.reconciling.autoscaling import GRACE_S, WARM_UP_S, PolicyAnswer, need_of
from slotmesh.spec.model import Autoscale, AutoscaleMetric
from tests.unit.controller.scales import QUIET, ScaledBackend, looks

RULES = Autoscale(min=1, max=20, target_ongoing=5.0, up_delay_s=2.0, down_delay_s=30.0, up_rate=100.0, down_rate=1.0)


@pytest.mark.parametrize(
    ("number", "load", "needed"),
    [
        (8, 40, 8),
        (8, 44, 8),
        (8, 36, 8),
        (8, 45, 9),
        (8, 35, 7),
        (1, 40, 8),
        (9, 40, 8),
        (3, 0, 0),
        (1, 5, 1),
        (1, 6, 2),
    ],
)
def test_the_load_asks_for_as_many_as_it_is_meant_for_and_within_a_tenth_for_no_others(
    number: int, load: int, needed: int
) -> None:
    assert need_of(RULES, replace(QUIET, number=number, queued=load // 2, ongoing=load - load // 2)).number == needed


def test_a_step_up_and_back() -> None:
    backend = ScaledBackend(RULES, 1)
    assert looks(backend, 40, 4) == [1, 1, 8, 8], "after up_delay"
    assert backend.scale.changed is not None
    assert backend.scale.changed.why == "40 calls wait or run (0 and 40): at 5 each, that is 8"
    assert looks(backend, 40, 60) == [8] * 60
    assert looks(backend, 0, 29) == [8] * 29
    assert looks(backend, 0, 3) == [1] * 3, "after down_delay, to `min`"


def test_steps_are_as_large_as_rates_let_them_be() -> None:
    backend = ScaledBackend(replace(RULES, up_rate=3.0, down_rate=0.5), 1)
    assert sorted(set(looks(backend, 40, 20))) == [1, 3, 8]
    looks(backend, 40, 100)
    assert sorted(set(looks(backend, 1, 200)), reverse=True) == [8, 4, 2, 1]
    slow = ScaledBackend(replace(RULES, up_rate=1.0, down_rate=0.0), 1)
    assert sorted(set(looks(slow, 20, 20))) == [1, 2, 3, 4], "one at least"
    assert sorted(set(looks(slow, 0, 200))) == [1, 2, 3, 4]


def test_a_peak_that_is_shorter_than_the_delay_changes_nothing() -> None:
    backend = ScaledBackend(RULES, 4)
    assert looks(backend, 20, 5) == [4] * 5
    assert looks(backend, 60, 2) == [4] * 2
    assert looks(backend, 20, 5) == [4] * 5
    assert looks(backend, 5, 29) == [4] * 29
    assert looks(backend, 20, 1) == [4]
    assert looks(backend, 5, 29) == [4] * 29, "4 were needed within down_delay"
    assert "4 were needed 29 s ago, within down_delay" in backend.why
    assert looks(backend, 5, 1) == [1]


def test_the_least_that_was_asked_for_counts_upwards_and_the_most_downwards() -> None:
    backend = ScaledBackend(RULES, 4)
    assert [backend.look(load) for load in (60, 40, 60)] == [4, 4, 8]
    loads = [10, 25] * 20
    assert backend.look(loads[0]) == 8
    assert {backend.look(load) for load in loads[1:]} == {8, 5}
    assert backend.scale.number == 5


def test_what_piles_up_while_replicas_start_is_no_reason_for_more() -> None:
    backend = ScaledBackend(replace(RULES, up_delay_s=0.0), 1)
    assert backend.look(10) == 2
    for load in range(20, 70):
        assert backend.look(load, ready=1) == 2
    assert "1 of 2 replicas are ready: that is awaited first" in backend.why
    assert backend.look(20, ready=2) == 4, "they are ready, and too few"


def test_one_that_never_gets_ready_holds_the_others_up_for_a_while_only() -> None:
    backend = ScaledBackend(replace(RULES, up_delay_s=0.0), 1)
    backend.look(40)
    assert backend.look(60, ready=7) == 8
    for _ in range(int(WARM_UP_S)):
        backend.look(60, ready=7)
    assert backend.scale.number == 12
    broken = ScaledBackend(replace(RULES, up_delay_s=0.0), 1)
    for _ in range(200):
        assert broken.look(60, ready=0) == 1, "where none gets ready, more would not either"


def test_from_none_the_first_call_starts_replicas_at_once() -> None:
    rules = replace(RULES, min=0, up_delay_s=60.0, up_rate=4.0)
    backend = ScaledBackend(rules, 0)
    assert looks(backend, 0, 3) == [0] * 3
    assert backend.look(0, after=0.01, queued=1) == 1
    assert "the first call does not wait" in backend.why
    assert ScaledBackend(rules, 0).look(0, queued=40) == 4, "up_rate, from one"


def test_to_none_when_nothing_was_called_for_idle_timeout() -> None:
    backend = ScaledBackend(replace(RULES, min=0, idle_timeout_s=60.0), 3)
    assert looks(backend, 0, 31)[-1] == 1, "down_delay leaves one"
    assert looks(backend, 0, 29)[-1] == 1
    assert backend.look(0) == 0
    assert backend.why == "nothing has waited or run for 60 s (idle_timeout 60 s)"
    kept = ScaledBackend(replace(RULES, min=1, idle_timeout_s=60.0), 3)
    assert looks(kept, 0, 1000)[-1] == 1


def test_short_calls_between_two_looks_are_no_idleness() -> None:
    backend = ScaledBackend(replace(RULES, min=0, idle_timeout_s=5.0), 1)
    for second in range(100):
        assert backend.look(0, sent=second // 3) == 1
    for _ in range(6):
        backend.look(0, sent=33)
    assert backend.scale.number == 0


def test_nothing_shrinks_by_what_is_not_known() -> None:
    unknowns: list[dict[str, Any]] = [{"routers": 0}, {"routers": 3, "silent": 1}]
    for unknown in unknowns:
        backend = ScaledBackend(replace(RULES, min=0, idle_timeout_s=5.0, down_delay_s=5.0), 8)
        for _ in range(100):
            assert backend.look(0, **unknown) == 8
        backend.look(0)
        assert looks(backend, 0, 4) == [8] * 4, "what counts begins now"
        assert looks(backend, 0, 2)[-1] == 0
    backend = ScaledBackend(replace(RULES, up_delay_s=0.0), 1)
    assert backend.look(40, routers=3, silent=1) == 8, "what is known is too much already"


def test_late_reports_count_as_they_were() -> None:
    backend = ScaledBackend(replace(RULES, down_delay_s=5.0), 8)
    assert [backend.look(40, routers=2, late=1) for _ in range(20)] == [8] * 20
    assert [backend.look(5, routers=2, late=1) for _ in range(6)][-1] == 1


def test_a_controller_that_has_just_started_shrinks_nothing() -> None:
    backend = ScaledBackend(replace(RULES, down_delay_s=0.0), 8, started_at=0.0)
    while backend.now < GRACE_S - 1.0:
        assert backend.look(0) == 8
    assert "not all routers may be back" in backend.why
    assert backend.look(0) == 1


def test_a_controller_that_stood_still_begins_anew() -> None:
    backend = ScaledBackend(RULES, 8)
    looks(backend, 0, 10)
    assert backend.look(0, after=60.0) == 8
    assert looks(backend, 0, 29) == [8] * 29
    assert backend.look(0) == 1


def test_delays_are_of_the_clock() -> None:
    for pause in (0.1, 0.5, 2.0, 4.0):
        backend = ScaledBackend(RULES, 8)
        while backend.look(0, after=pause) == 8:
            assert backend.now < 40.0
        assert 30.0 <= backend.now <= 30.0 + 2.0 * pause


def test_bounds_hold_at_once() -> None:
    backend = ScaledBackend(RULES, 8)
    backend.rules = replace(RULES, max=3)
    assert backend.look(40) == 3
    assert backend.why == "1 … 3 replicas may run"
    backend.rules = replace(RULES, min=6)
    assert backend.look(0) == 6
    assert ScaledBackend(replace(RULES, min=2), 0).scale.number == 2
    assert ScaledBackend(RULES, 50).scale.number == 20
    assert ScaledBackend(RULES, 7).scale.number == 7, "as many as run already"


def test_by_queue_time() -> None:
    rules = replace(RULES, metric=AutoscaleMetric.QUEUE_TIME, target_queue_time_s=0.1, up_rate=4.0)
    backend = ScaledBackend(rules, 2)
    waits: dict[str, Any] = {"queued": 30, "queue_time_s": 0.2}
    assert [backend.look(16, **waits) for _ in range(3)] == [2, 2, 4]
    assert [backend.look(32, queued=9, queue_time_s=0.1) for _ in range(40)] == [4] * 40, "as long as it is meant"
    assert [backend.look(20) for _ in range(40)][-1] == 4, "4 replicas of target_ongoing 5"
    assert [backend.look(10) for _ in range(40)][-1] == 2
    assert backend.scale.changed is not None
    assert "10 wait or run: at 5 each, 2 are enough" in backend.scale.changed.why
    small = replace(QUIET, number=8, ready=8, permits=8, ongoing=4)
    assert need_of(rules, small).number == 4, "a replica cannot have more than its permits"


def test_a_policy_of_ones_own_is_bounded_and_delayed_as_any() -> None:
    rules = replace(RULES, policy="my:policy")
    backend = ScaledBackend(rules, 2)
    says = PolicyAnswer(6)
    assert [backend.look(0, answer=says) for _ in range(3)] == [2, 2, 6]
    assert "policy my:policy returned 6" in backend.why
    assert [backend.look(0, answer=PolicyAnswer(99)) for _ in range(3)][-1] == 20
    assert [backend.look(0, answer=PolicyAnswer(-7)) for _ in range(40)][-1] == 1
    broken = PolicyAnswer(None, "raised ValueError")
    assert [backend.look(100, answer=broken) for _ in range(40)][-1] == 1
    assert backend.why == "policy my:policy raised ValueError: the number stays"
