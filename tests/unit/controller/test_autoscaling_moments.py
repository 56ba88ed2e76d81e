"""When the number of replicas changes: at exactly each time, and by the figures of several routers in any order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from typing import Final

import pytest

from controller_service.core.loads import BackendLoad
from controller_service.core.observed.state import Observed, ObservedReplica, ObservedRouter, ReplicaState
from controller_service.core.reconciling.autoscaling import figures_of
from slotmesh.spec.model import Autoscale
from tests.unit.controller.scales import ScaledBackend

RULES: Final = Autoscale(
    min=1, max=20, target_ongoing=5.0, up_delay_s=3.0, down_delay_s=8.0, up_rate=100.0, down_rate=1.0
)
TICK: Final = 1 / 1024
"""A part of a second that adds up exactly."""


def spread(seconds: float) -> list[float]:
    """Looks that are at most 4 s apart: after more than 5 s without one counting begins anew."""
    whole, rest = divmod(seconds, 4.0)
    return [4.0] * int(whole) + ([rest] if rest else [])


def after(backend: ScaledBackend, seconds: float, load: int) -> int:
    number = backend.scale.number
    for step in spread(seconds):
        number = backend.look(load, after=step)
    return number


@pytest.mark.parametrize(("seconds", "number"), [(3.0 - TICK, 1), (3.0, 8), (3.0 + TICK, 8)])
def test_more_start_once_the_load_has_asked_for_exactly_up_delay(seconds: float, number: int) -> None:
    backend = ScaledBackend(RULES, 1)
    assert backend.look(40) == 1
    assert after(backend, seconds, 40) == number


@pytest.mark.parametrize(("seconds", "number"), [(8.0 - TICK, 8), (8.0, 1), (8.0 + TICK, 1)])
def test_fewer_run_once_the_load_has_needed_fewer_for_exactly_down_delay(seconds: float, number: int) -> None:
    backend = ScaledBackend(RULES, 8)
    assert backend.look(0) == 8
    assert after(backend, seconds, 0) == number


@pytest.mark.parametrize(("seconds", "number"), [(20.0 - TICK, 1), (20.0, 0)])
def test_none_runs_once_nothing_was_called_for_exactly_idle_timeout(seconds: float, number: int) -> None:
    backend = ScaledBackend(replace(RULES, min=0, idle_timeout_s=20.0), 1)
    assert backend.look(0) == 1
    assert after(backend, seconds, 0) == number


@pytest.mark.parametrize(("seconds", "number"), [(60.0 - TICK, 8), (60.0, 20)])
def test_a_step_up_is_awaited_for_exactly_the_warm_up(seconds: float, number: int) -> None:
    """One of the eight never gets ready. What was asked for meanwhile counts for nothing."""
    backend = ScaledBackend(replace(RULES, up_delay_s=0.0), 1)
    assert backend.look(40) == 8
    for step in spread(seconds)[:-1]:
        assert backend.look(100, after=step, ready=7) == 8
    assert backend.look(100, after=spread(seconds)[-1], ready=7) == number


@pytest.mark.parametrize(("pause_s", "number"), [(5.0, 8), (5.0 + TICK, 1)])
def test_after_exactly_five_seconds_without_a_look_counting_goes_on(pause_s: float, number: int) -> None:
    backend = ScaledBackend(RULES, 1)
    assert backend.look(40) == 1
    assert backend.look(40, after=pause_s) == number


@pytest.mark.parametrize(("seconds", "number"), [(10.0 - TICK, 8), (10.0, 1)])
def test_a_controller_shrinks_nothing_for_exactly_ten_seconds(seconds: float, number: int) -> None:
    rules = replace(RULES, down_delay_s=0.0)
    backend = ScaledBackend(rules, 8, started_at=0.0)
    assert after(backend, seconds, 0) == number


# --- figures of several routers ---------------------------------------------------------------------------------------


def router(name: str, reported_at: float | None, loads: Sequence[BackendLoad]) -> ObservedRouter:
    return ObservedRouter(
        router_id=name, address="h:1", started_at=0.0, loads=tuple(loads), reported_at=reported_at, run_id="x"
    )


def load(backend: str, queued: int, ongoing: int, queue_time_s: float, sent: int) -> BackendLoad:
    return BackendLoad(backend=backend, queued=queued, ongoing=ongoing, queue_time_s=queue_time_s, sent=sent)


ROUTERS: Final = (
    router("a", 100.0 - 2.5, [load("b", 1, 20, 0.5, 300), load("other", 9, 9, 9.0, 9)]),
    router("b", 100.0 - 2.5 - TICK, [load("other", 9, 9, 9.0, 9), load("b", 2, 30, 0.75, 400)]),
    router("c", None, []),
    router("d", 100.0, [load("b", 3, 40, 0.25, 500)]),
)


@pytest.mark.parametrize("order", list(permutations(range(4)))[::5])
def test_figures_are_of_all_routers_whichever_comes_first(order: Sequence[int]) -> None:
    observed = Observed()
    for number in order:
        observed = observed.with_router(ROUTERS[number])
    ready = ObservedReplica(
        replica_id="1", backend="b", state=ReplicaState.READY, started_at=0.0, incarnation="i", max_ongoing=8
    )
    replicas = [
        *(replace(ready, replica_id=name) for name in "12"),
        replace(ready, replica_id="3", state=ReplicaState.STARTING, max_ongoing=0),
        replace(ready, replica_id="4", gone=True),
        replace(ready, replica_id="5", is_drain_requested=True),
        replace(ready, replica_id="6", backend="other"),
    ]
    figures = figures_of("b", observed.with_replicas(replicas), 7, 100.0)
    assert (figures.queued, figures.ongoing, figures.sent, figures.queue_time_s) == (6, 90, 1_200, 0.75)
    assert (figures.routers, figures.late, figures.silent) == (4, 1, 1)
    assert (figures.number, figures.ready, figures.starting, figures.permits) == (7, 2, 1, 16)
