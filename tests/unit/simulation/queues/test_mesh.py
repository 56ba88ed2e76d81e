"""Small meshes of the real cores: what is simulated, and that the figures mean something."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from simulation.ledger import Violation
from simulation.payloads import payload_of
from simulation.queues.figures import Figures
from simulation.queues.link import QueuesLink
from simulation.queues.mesh import QueuesMesh
from simulation.queues.settings import QueuesSettings
from simulation.queues.theory import probability_of_waiting, waiting_time
from slotmesh.balancers import Calls
from slotmesh.spec.model import BUILT_IN_BALANCERS

if TYPE_CHECKING:
    from router_service.core.replicas.replica import RoutedReplica

pytestmark = [pytest.mark.slow, pytest.mark.long]

SMALL = QueuesSettings(routers=4, replicas=60, slots=2, load=0.9, calls=6000, warm_up=5.0)


def simulate(settings: QueuesSettings) -> Figures:
    return QueuesMesh(settings).run()


class AlwaysTheFirst:
    """A seeded defect: whatever their load, the first replica with room."""

    def __init__(self) -> None:
        self._known: dict[RoutedReplica, None] = {}

    def changed(self, replica: RoutedReplica, /) -> None:
        self._known[replica] = None

    def pick(self, _calls: Calls, _candidates: Sequence[RoutedReplica], /) -> RoutedReplica | None:
        return next((replica for replica in self._known if replica.free > 0), None)


@pytest.mark.parametrize("balancer", BUILT_IN_BALANCERS)
def test_every_call_runs_once_and_has_one_outcome(balancer: str) -> None:
    """The books raise a violation otherwise, and so do too many calls in the slots of a replica."""
    figures = simulate(replace(SMALL, balancer=balancer))
    assert (figures.calls, figures.failed) == (SMALL.calls, 0)
    assert 0.0 <= figures.p50 <= figures.p99 <= figures.longest
    assert figures.refusals > 0.0
    assert figures.pushes > 0.0


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    first = simulate(SMALL)
    assert simulate(SMALL) == first
    assert simulate(replace(SMALL, seed=2)) != first


def test_one_router_without_delay_is_one_queue() -> None:
    """With perfect knowledge the mesh is M/M/c, for which there is a formula."""
    settings = QueuesSettings(routers=1, replicas=5, slots=2, load=0.8, link_delay=0.0, calls=60_000, warm_up=20.0)
    figures = simulate(settings)
    assert figures.refusals == figures.pushes == figures.idle_while_queued == 0.0
    assert figures.p50 == waiting_time(10, settings.arrival_rate, 0.5) == 0.0
    assert figures.p99 == pytest.approx(waiting_time(10, settings.arrival_rate, 0.99), rel=0.15)
    assert figures.mean == pytest.approx(probability_of_waiting(10, 8.0) / (10 - 8.0), rel=0.15)


def test_a_freed_slot_waits_a_round_trip_for_its_next_call() -> None:
    settings = QueuesSettings(routers=1, replicas=20, slots=1, load=0.7, link_delay=0.1, calls=20_000, warm_up=20.0)
    figures = simulate(settings)
    assert figures.p99 > 1.5 * waiting_time(20, settings.arrival_rate, 0.99)
    assert figures.p99 == pytest.approx(waiting_time(20, settings.arrival_rate, 0.99, occupied=1.2), rel=0.25)


def test_routers_that_share_replicas_wait_less_than_routers_with_replicas_of_their_own() -> None:
    settings = replace(SMALL, slots=1, load=0.85, calls=10_000)
    figures = simulate(settings)
    share = settings.slots * settings.replicas // settings.routers
    assert figures.p99 < 0.7 * waiting_time(share, settings.arrival_rate / settings.routers, 0.99, occupied=1.04)


def test_a_balancer_that_always_picks_the_first_is_caught() -> None:
    settings = replace(SMALL, load=0.6)
    sound, broken = simulate(settings), QueuesMesh(settings, AlwaysTheFirst).run()
    assert sound.refusals < 0.1
    assert broken.refusals > 0.5
    assert broken.p99 > sound.p99 + 2 * settings.link_delay


def test_replicas_that_tell_nobody_of_room_are_caught() -> None:
    settings = replace(SMALL, slots=1, load=0.8)
    sound, broken = simulate(settings), simulate(replace(settings, capacity_gap=100.0))
    assert broken.pushes < 0.5 * sound.pushes
    assert broken.p99 > 1.5 * sound.p99


def test_calls_that_arrive_together_are_batches() -> None:
    figures = simulate(replace(SMALL, batch=8))
    assert (figures.calls, figures.failed) == (SMALL.calls, 0)
    assert figures.mean > simulate(SMALL).mean


def test_a_replica_that_takes_too_much_is_caught() -> None:
    mesh = QueuesMesh(SMALL)
    mesh.replicas[7].core._state.permits.max_ongoing += 1
    with pytest.raises(Violation, match="3 calls run in the 2 slots of one replica"):
        mesh.run()


def test_mixed_up_results_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = QueuesLink.answer
    monkeypatch.setattr(QueuesLink, "answer", lambda link, run_id, _: answer(link, run_id, payload_of(0)))
    with pytest.raises(Violation, match="has the result of call 0"):
        simulate(SMALL)


def test_progress_ends_at_all() -> None:
    heard: list[float] = []
    QueuesMesh(replace(SMALL, calls=100)).run(heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


@pytest.mark.parametrize(
    ("field", "value"), [("routers", 0), ("slots", 0), ("load", 1.0), ("load", 0.0), ("link_delay", -0.1), ("calls", 0)]
)
def test_settings_that_make_no_sense_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{field}: "):
        replace(SMALL, **{field: value})  # type: ignore[arg-type]
