"""The controller's routing table, as the router's core has it."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration

from router_service.core.rosters import KnownDeparture, KnownGeneration, KnownTerm, RosterVersion, TableRoster
from router_service.core.routing_table import RoutingTable
from slotmesh.internal.v1 import membership_service_pb2
from slotmesh.spec.model import Backend, Prospect
from slotmesh.units import MAX_DURATION_S
from slotmesh.v1 import mesh_pb2
from tests.support.fakes.controller import table
from tests.support.tables import reported, table_from_wire


def test_a_table_names_the_owner_of_each_partition() -> None:
    endpoint = table_from_wire(table(3, {"a": "127.0.0.1:1", "b": "127.0.0.1:2"}, epoch=7)).endpoints["echo"]
    assert endpoint.owners[0] == (("a", "life"), 7)
    assert endpoint.owners[1] == (("b", "life"), 7)
    assert table_from_wire(table(3, {})).endpoints["echo"].owners[0] == (None, 1)
    based = table(3, {"a": "127.0.0.1:1"}, epoch=7)
    based.assignments[0].base_epoch = 10**12
    assert table_from_wire(based).endpoints["echo"].owners[0] == (("a", "life"), 10**12 + 7)


def test_a_table_supersedes_older_ones_of_its_generation_and_those_of_others_that_it_covers() -> None:
    routing = table_from_wire(table(3, {}))
    assert routing.supersedes(table_from_wire(table(2, {})))
    assert not routing.supersedes(routing)
    assert not routing.supersedes(table_from_wire(table(4, {})))
    other = table(1, {})
    other.generation = "another"
    assert table_from_wire(other).supersedes(RoutingTable())
    assert not table_from_wire(other).supersedes(routing)
    other.covers.add(generation="g", revision=2)
    assert not table_from_wire(other).supersedes(routing), "a replica may be missing"
    other.covers[0].revision = 3
    assert table_from_wire(other).supersedes(routing)


def test_a_table_says_who_has_departed_and_what_it_covers() -> None:
    wire = table(9, {}, roster_revision=7)
    wire.departed.add(replica_id="r", incarnation="life", generation="old", revision=4)
    wire.covers.add(generation="old", revision=5, departed_since=2)
    wire.departed_since = 1
    wire.term_id = "t2"
    wire.terms.add(term_id="t1", first_revision=1)
    wire.terms.add(term_id="t2", first_revision=6)
    assert table_from_wire(wire).roster == TableRoster(
        RosterVersion("g", 7, "t2"),
        (KnownDeparture(("r", "life"), RosterVersion("old", 4)),),
        1,
        (KnownGeneration("old", 5, 2),),
        (KnownTerm("t1", 1), KnownTerm("t2", 6)),
    )


def test_a_policy_has_weights_and_shadows_or_there_is_none() -> None:
    wire = table(1, {})
    wire.endpoints[0].traffic.CopyFrom(mesh_pb2.TrafficPolicy(weights={"b": 0.9, "c": 0.1}, shadows={"d": 0.2}))
    endpoint = table_from_wire(wire).endpoints["echo"]
    assert (endpoint.weights, endpoint.shadows) == ({"b": 0.9, "c": 0.1}, {"d": 0.2})
    wire.endpoints[0].ClearField("traffic")
    endpoint = table_from_wire(wire).endpoints["echo"]
    assert (endpoint.weights, endpoint.shadows) == (None, {})


def test_settings_of_a_backend_have_their_defaults() -> None:
    assert table_from_wire(table(1, {})).backends["b"].settings == Backend(name="b")


def test_settings_of_a_backend_are_taken_over() -> None:
    said: dict[str, Any] = {"max_queued_calls": 5, "max_queued_bytes": 7, "max_queue_time": Duration(nanos=5 * 10**8)}
    wire = table(1, {}, **said, max_wire_batch_size=9)
    expected = Backend(name="b", max_queued_calls=5, max_queued_bytes=7, max_queue_time_s=0.5, max_wire_batch_size=9)
    assert table_from_wire(wire).backends["b"].settings == expected


@pytest.mark.parametrize(
    ("wire", "prospect"),
    [
        (mesh_pb2.PROSPECT_UNSPECIFIED, Prospect.UNKNOWN),
        (mesh_pb2.PROSPECT_COMING, Prospect.COMING),
        (mesh_pb2.PROSPECT_FAILING, Prospect.FAILING),
        (mesh_pb2.PROSPECT_NONE, Prospect.NONE),
        (99, Prospect.UNKNOWN),
    ],
)
def test_what_becomes_of_a_backend_is_taken_over(wire: int, prospect: Prospect) -> None:
    route = membership_service_pb2.BackendRoute(name="b", prospect=wire)  # type: ignore[arg-type]  # of a newer one, too
    routing = table_from_wire(membership_service_pb2.RoutingTable(backends=[route]))
    assert routing.backends["b"].prospect is prospect


@pytest.mark.parametrize(
    ("wire", "balancer"),
    [
        ("", "least_loaded"),
        ("least_loaded", "least_loaded"),
        ("power_of_two", "power_of_two"),
        ("round_robin", "round_robin"),
        ("my_balancers:Mine", "my_balancers:Mine"),
    ],
)
def test_a_backend_names_its_balancer(wire: str, balancer: str) -> None:
    route = membership_service_pb2.BackendRoute(name="b", backend=mesh_pb2.Backend(name="b", balancer=wire))
    routing = table_from_wire(membership_service_pb2.RoutingTable(backends=[route]))
    assert routing.backends["b"].settings.balancer == balancer


@pytest.mark.parametrize("owner", [2**15, -(2**15) - 1, 2**31 - 1])
def test_owners_that_no_list_could_have_are_refused_as_others_are(owner: int) -> None:
    wire = table(3, {"a": "127.0.0.1:1"})
    wire.assignments[0].partition_owners[0] = owner
    with pytest.raises(ValueError, match="no index of an owner"):
        table_from_wire(wire)


def test_a_duration_beyond_all_bounds_is_passed_on_as_the_longest() -> None:
    wire = table(3, {"a": "127.0.0.1:1"})
    wire.backends[0].backend.max_queue_time.seconds = 2**63 - 1
    back = reported(table_from_wire(wire))
    assert back.backends[0].backend.max_queue_time.seconds == MAX_DURATION_S
