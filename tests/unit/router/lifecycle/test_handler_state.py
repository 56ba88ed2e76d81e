"""What replicas report of their handlers, as the router keeps it."""

from __future__ import annotations

from math import inf

from router_service import convert
from router_service.core.events import HandlerStateReported
from slotmesh.calls.handler_figures import MAX_FIGURES, MAX_MODELS
from slotmesh.internal.v1 import replica_service_pb2
from tests.unit.router.world import World


def test_the_newest_state_of_a_link_is_kept() -> None:
    world = World({"b": ["r1", "r2"]})
    first, second = world.replicas["r1"], world.replicas["r2"]
    world.step(HandlerStateReported(first, {"kv_free": 0.3}, frozenset({"m1"})))
    world.step(HandlerStateReported(first, {"kv_free": 0.2}, None))
    assert (first.figures, first.models) == ({"kv_free": 0.2}, frozenset({"m1"}))
    assert (second.figures, second.models) == ({}, frozenset())
    world.step(HandlerStateReported(first, {}, frozenset()))
    assert (first.figures, first.models) == ({}, frozenset())


def test_a_new_link_begins_without_a_state() -> None:
    world = World({"b": ["r1"]})
    replica = world.replicas["r1"]
    world.step(HandlerStateReported(replica, {"kv_free": 0.3}, frozenset({"m1"})))
    world.lose("r1")
    world.link("r1")
    assert (replica.figures, replica.models) == ({}, frozenset())


def test_what_a_replica_reports_is_bounded() -> None:
    figures = {"": 1.0, "x" * 65: 1.0, "inf": inf} | {f"n{index}": 1.0 for index in range(MAX_FIGURES + 1)}
    models = [f"m{index}" for index in range(MAX_MODELS + 1)]
    wire = replica_service_pb2.HandlerState(figures=figures, models=models, max_models=2**40)
    replica = World({"b": ["r1"]}).replicas["r1"]
    event = convert.handler_state_of(replica, wire)
    assert len(event.figures) == MAX_FIGURES
    assert not {"", "x" * 65, "inf"} & event.figures.keys()
    assert event.models is not None
    assert len(event.models) == event.max_models == MAX_MODELS
    wire.same_models, wire.max_models = True, -1
    event = convert.handler_state_of(replica, wire)
    assert (event.models, event.max_models) == (None, 0)
