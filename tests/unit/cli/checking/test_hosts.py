"""What would stop without a host, and what is not known of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slotmesh.cli.checking.findings import IngressFacts, SeenMesh, ServerAnswer, Severity
from slotmesh.cli.checking.hosts import is_on, without_host
from slotmesh.cli.controller_view import READY_STATE, ControllerStatus
from slotmesh.spec.routes import Route
from slotmesh.v1 import mesh_pb2
from slotmesh.v1.info_service_pb2 import ControllerStanding
from tests.unit.cli.checking.meshes import SEEN, SNAPSHOT, announced

HOST = "10.0.0.7"
OTHER = "10.0.0.8"
CONTROLLERS = (
    "the controllers are only on 10.0.0.7 (controller 10.0.0.7:1): calls go on, but nothing is changed, scaled or"
    " replaced"
)


@pytest.mark.parametrize(
    ("host", "address", "wanted"),
    [
        (HOST, f"{HOST}:1", True),
        (HOST, f"{HOST}1:1", False),
        (HOST, "127.0.0.1:1", None),
        (HOST, "localhost:1", None),
        (HOST, "node-a:1", None),
        (HOST, "", None),
        ("node-a", "Node-A:1", True),
        ("node-a", "node-b:1", False),
        ("node-a", f"{HOST}:1", None),
        ("127.0.0.1", "127.0.0.1:1", True),
        ("::1", "[::1]:1", True),
    ],
)
def test_whether_a_member_is_there_is_unknown_where_addresses_do_not_tell(
    host: str, address: str, wanted: bool | None
) -> None:
    assert is_on(host, address) is wanted


def mesh(*, controllers: str, routers: str, replicas: str, ingresses: str = "") -> SeenMesh:
    """The hosts of each role, with spaces between them; the first controller leads."""
    leader, *standbys = (f"{it}:1" for it in controllers.split())
    members = replace(
        SNAPSHOT.members,
        routers=tuple(mesh_pb2.Router(router_id=f"r-{it}", address=f"{it}:2") for it in routers.split()),
        replicas=tuple(
            mesh_pb2.Replica(replica_id=f"b-{it}", backend="b", state=READY_STATE, address=f"{it}:3")
            for it in replicas.split()
        ),
    )
    standing = ControllerStatus(leader, ControllerStanding(leads=True, standby_addresses=standbys))
    answers = tuple(
        ServerAnswer(announced=announced("ingress", f"{it}:4"), ingress=IngressFacts(by_tls=False))
        for it in ingresses.split()
    )
    return replace(SEEN, snapshot=replace(SNAPSHOT, members=members, controller=standing), answers=answers)


def told(seen: SeenMesh) -> list[tuple[Severity, str]]:
    return [(it.severity, it.text) for it in without_host(seen, HOST)]


def test_what_is_only_there_stops() -> None:
    seen = mesh(controllers=HOST, routers=HOST, replicas=HOST, ingresses=HOST)
    lines = [
        CONTROLLERS,
        "the routers are only on 10.0.0.7 (r-10.0.0.7): no call gets through",
        "the ready ingresses named with --http are only on 10.0.0.7 (ingress 10.0.0.7:4): HTTP requests fail",
        "b has ready replicas only on 10.0.0.7 (b-10.0.0.7): its calls fail or wait",
    ]
    assert told(seen) == [(Severity.ERROR, line) for line in lines]


def test_what_is_elsewhere_too_goes_on() -> None:
    both = f"{HOST} {OTHER}"
    seen = mesh(controllers=both, routers=both, replicas=both, ingresses=both)
    assert told(seen) == [(Severity.OK, "nothing that works now is only on 10.0.0.7, where 4 members are")]


def test_a_replica_elsewhere_that_is_not_ready_does_not_help() -> None:
    both = f"{HOST} {OTHER}"
    seen = mesh(controllers=both, routers=both, replicas=both)
    there, starting = seen.snapshot.members.replicas
    starting.state = mesh_pb2.REPLICA_STATE_STARTING
    members = replace(seen.snapshot.members, replicas=(there, starting))
    (found,) = without_host(replace(seen, snapshot=replace(seen.snapshot, members=members)), HOST)
    assert (found.severity, found.subject) == (Severity.ERROR, "backend/b")


def test_unknown_is_not_no() -> None:
    seen = mesh(controllers=f"{HOST} {OTHER}", routers=f"{HOST} {OTHER}", replicas=f"{HOST} node-b")
    ((severity, text),) = told(seen)
    assert severity is Severity.WARNING
    assert "the host of b-node-b is not known" in text
    routes = (Route(path="/b", endpoint="e", method="b"),)
    assert "no controller lists them" in told(replace(seen, routes=routes))[-1][1]


def test_a_host_where_nobody_is_is_a_mistake_and_hosts_are_named() -> None:
    ((severity, text),) = told(mesh(controllers=OTHER, routers=OTHER, replicas=OTHER))
    assert (severity, text) == (
        Severity.ERROR,
        "no member announces an address on 10.0.0.7; they are on 10.0.0.8",
    )
