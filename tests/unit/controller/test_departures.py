"""Who left the table, and how long that is remembered."""

from __future__ import annotations

from collections.abc import Iterable

from controller_service.core.routing import BackendRoute, ReplicaRoute, Routes
from controller_service.shell.departures import KEEP_S, MAX_KEPT, Departures
from slotmesh.spec.model import Backend


def routes(*replicas: str, lives: Iterable[str] = ()) -> Routes:
    """A table with these replicas in their first life, and one replica in other lives."""
    settings = Backend(name="b")
    named = [*((each, "1") for each in replicas), *(("x", life) for life in lives)]
    return Routes(
        backends=(
            BackendRoute(
                name="b",
                replicas=tuple(
                    ReplicaRoute(replica_id=name, incarnation=life, address="h:1", max_ongoing=1, draining=False)
                    for name, life in named
                ),
                max_queued_calls=settings.max_queued_calls,
                max_queued_bytes=settings.max_queued_bytes,
                max_queue_time_s=settings.max_queue_time_s,
                balancer=settings.balancer,
                max_batch_size=settings.max_batch_size,
            ),
        )
    )


def test_who_left_is_remembered_with_the_time_since() -> None:
    departures = Departures()
    departures.announced(routes("a", "b", "c"), 100.0)
    departures.announced(routes("b"), 110.0)
    departures.announced(routes(), 115.0)
    assert departures.ages(120.0) == {("a", "1"): 10.0, ("c", "1"): 10.0, ("b", "1"): 5.0}


def test_each_life_of_a_replica_leaves_for_itself() -> None:
    departures = Departures()
    departures.announced(routes(lives=["1"]), 0.0)
    departures.announced(routes(lives=["2"]), 1.0)
    assert departures.ages(1.0) == {("x", "1"): 0.0}


def test_it_is_forgotten_after_a_while() -> None:
    departures = Departures()
    departures.announced(routes("a", "b"), 0.0)
    departures.announced(routes("b"), 1.0)
    departures.announced(routes(), 2.0)
    assert departures.ages(1.0 + KEEP_S).keys() == {("a", "1"), ("b", "1")}
    assert departures.ages(1.5 + KEEP_S).keys() == {("b", "1")}


def test_not_more_than_so_many_are_remembered() -> None:
    departures = Departures()
    departures.announced(routes("a", "b"), 0.0)
    departures.announced(routes(*(f"r{number}" for number in range(MAX_KEPT))), 1.0)
    departures.announced(routes(), 2.0)
    assert len(departures.ages(3.0)) == MAX_KEPT
    assert ("a", "1") not in departures.ages(3.0)
