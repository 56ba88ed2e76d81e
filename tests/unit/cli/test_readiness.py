"""When a local mesh counts as ready."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from slotmesh.cli.controller_view import FAILED_STATE, READY_STATE, STARTING_STATE, Members, Snapshot
from slotmesh.cli.local.order import Order, first_failure, lacks, mesh_of_handler
from slotmesh.spec.model import Backend, Mesh
from slotmesh.spec.rules import mesh_violations
from slotmesh.v1 import mesh_pb2
from tests.support.messages import changed

ORDER = Order(
    mesh=mesh_of_handler("package.module:Digits", {}, 2),
    routers=2,
    router_port=0,
    state="memory",
    controller_port=0,
    start_timeout=timedelta(minutes=1),
    log_level="warning",
)
A = mesh_pb2.Replica(replica_id="a", backend="Digits", state=READY_STATE)
B = mesh_pb2.Replica(replica_id="b", backend="Digits", state=READY_STATE)
FIRST, SECOND = (
    mesh_pb2.Router(
        router_id=router_id, address="h:1", generation="g", table_revision=7, linked_replica_ids=frozenset({"a", "b"})
    )
    for router_id in ORDER.router_ids
)
READY = Members(replicas=(A, B), routers=(FIRST, SECOND), generation="g", table_revision=7)


def snapshot(members: Members, mesh: Mesh = ORDER.mesh) -> Snapshot:
    """What a controller says that has this configuration."""
    return Snapshot(backends=mesh.backends, endpoints=mesh.endpoints, members=members)


def test_endpoint_and_backend_are_named_after_the_handler() -> None:
    mesh = ORDER.mesh
    assert [backend.name for backend in mesh.backends] == ["Digits"]
    assert [endpoint.name for endpoint in mesh.endpoints] == ["Digits"]
    assert mesh.backends[0].num_replicas == 2
    assert mesh.backends[0].user_config == {}
    assert mesh_of_handler("m:H", {"k": [1]}, 1).backends[0].user_config == {"k": [1]}
    assert not mesh_violations(mesh)


def test_ready_is_when_every_router_reaches_every_replica_by_the_newest_table() -> None:
    assert lacks(ORDER, snapshot(READY)) == ""


@pytest.mark.parametrize(
    ("members", "missing"),
    [
        (replace(READY, replicas=()), "0 of 2 replicas"),
        (replace(READY, replicas=(A, changed(B, state=STARTING_STATE))), "1 of 2 replicas"),
        (replace(READY, replicas=(A, changed(B, backend="other"))), "1 of 2 replicas"),
        (replace(READY, routers=(FIRST,)), "1 of 2 routers"),
        (replace(READY, routers=(FIRST, changed(FIRST, router_id="stranger"))), "1 of 2 routers"),
        (replace(READY, routers=(FIRST, changed(SECOND, table_revision=6))), "1 of 2 routers"),
        (replace(READY, routers=(FIRST, changed(SECOND, generation="old"))), "1 of 2 routers"),
        (replace(READY, routers=(changed(FIRST, linked_replica_ids=frozenset("a")), SECOND)), "1 of 2 routers"),
        (replace(READY, table_revision=8), "0 of 2 routers"),
    ],
)
def test_what_is_missing_is_told(members: Members, missing: str) -> None:
    assert missing in lacks(ORDER, snapshot(members))


def test_a_replaced_replica_that_is_still_listed_does_not_hold_it_up() -> None:
    gone = mesh_pb2.Replica(replica_id="c", backend="Digits", state=mesh_pb2.REPLICA_STATE_STOPPED)
    assert lacks(ORDER, snapshot(replace(READY, replicas=(A, B, gone)))) == ""


def test_a_failure_with_its_traceback_goes_before_one_without() -> None:
    reaped = changed(A, state=FAILED_STATE, error="exited with status 1")
    told = changed(B, state=FAILED_STATE, error="Traceback:\nValueError: no model")
    assert first_failure(ORDER, READY) is None
    assert first_failure(ORDER, replace(READY, replicas=(reaped, told))) is told
    assert first_failure(ORDER, replace(READY, replicas=(reaped,))) is reaped
    assert first_failure(ORDER, replace(READY, replicas=(changed(told, backend="other"),))) is None


def test_each_backend_is_waited_for_as_the_controller_has_it() -> None:
    two = Mesh(backends=(*ORDER.mesh.backends, Backend(name="v2", handler="m:Two", num_replicas=1)), endpoints=())
    order = replace(ORDER, mesh=two)
    assert lacks(order, snapshot(READY, two)) == "2 of 3 replicas ready"
    third = changed(A, replica_id="c", backend="v2")
    with_third = replace(READY, replicas=(A, B, third))
    assert lacks(order, snapshot(with_third, two)) == "all replicas ready; 0 of 2 routers linked to them"
    # Scaled to 1 meanwhile, and a backend that the order does not know.
    scaled = Mesh(backends=(replace(two.backends[0], num_replicas=1), Backend(name="x", num_replicas=3)), endpoints=())
    assert lacks(ORDER, snapshot(replace(READY, replicas=(A,)), scaled)) == ""
    assert first_failure(order, replace(READY, replicas=(changed(third, state=FAILED_STATE),))) is not None
