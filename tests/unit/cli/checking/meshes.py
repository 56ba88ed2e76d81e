"""A mesh as a check has seen it, with which nothing is wrong, and how to look for one finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from slotmesh.cli.checking.findings import AnnouncedAddress, MeshFinding, Section, SeenMesh, ServerAnswer, Severity
from slotmesh.cli.commands.check import findings_of
from slotmesh.cli.controller_view import READY_STATE, ControllerStatus, Members, Snapshot
from slotmesh.spec.model import Backend, Endpoint, TrafficPolicy
from slotmesh.v1 import mesh_pb2
from slotmesh.v1.info_service_pb2 import ControllerStanding, ExportStanding, GetServerInfoResponse
from tests.support.messages import changed

NOW = 1_800_000_000.0
DAY_S = 86_400.0
REPLICA = mesh_pb2.Replica(replica_id="b-1", backend="b", state=READY_STATE, address="127.0.0.1:3", version="1.0.0")
ROUTER = mesh_pb2.Router(
    router_id="r", address="127.0.0.1:2", generation="g", table_revision=5, linked_replica_ids=frozenset({"b-1"})
)
SNAPSHOT = Snapshot(
    backends=(Backend(name="b", handler="a:B", num_replicas=1),),
    endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights={"b": 1.0})),),
    members=Members(replicas=(REPLICA,), routers=(ROUTER,), generation="g", table_revision=5),
    controller=ControllerStatus("127.0.0.1:1", ControllerStanding(leads=True, term=3)),
)


def on_hold(*newer_members: str) -> ControllerStatus:
    """The controller, when members hold a newer state."""
    return ControllerStatus("127.0.0.1:1", ControllerStanding(leads=True, term=3, newer_members=newer_members))


def announced(kind: str, address: str, server_id: str = "") -> AnnouncedAddress:
    subject = f"{kind}/{server_id}" if server_id else f"{kind} {address}"
    return AnnouncedAddress(subject=subject, kind=kind, address=address, server_id=server_id)


def but(answer: ServerAnswer, **changes: Any) -> ServerAnswer:
    """The answer with these changes: of the answer, of what the server states, or of what a controller states."""
    of_role, of_info = (
        {name: changes.pop(name) for name in list(changes) if name in message.DESCRIPTOR.fields_by_name}
        for message in (ControllerStanding, GetServerInfoResponse)
    )
    if of_role:
        of_info["controller"] = changed(answer.info.controller, **of_role)
    return replace(answer, info=changed(answer.info, **of_info), **changes)


CONTROLLER_ANSWER = but(
    ServerAnswer(announced=announced("controller", "127.0.0.1:1")),
    leads=True,
    leader_address="127.0.0.1:1",
    version="1.0.0",
)
ROUTER_ANSWER = but(
    ServerAnswer(announced=announced("router", "127.0.0.1:2", "r"), ahead_s=0.01, uncertain_s=0.001),
    server_id="r",
    version="1.0.0",
    open_descriptors=50,
    max_descriptors=1_000,
    exports=ExportStanding(),
)
REPLICA_ANSWER = but(ROUTER_ANSWER, announced=announced("replica", "127.0.0.1:3", "b-1"), server_id="b-1")
SEEN = SeenMesh(
    now=NOW, own_version="1.0.0", snapshot=SNAPSHOT, answers=(CONTROLLER_ANSWER, ROUTER_ANSWER, REPLICA_ANSWER)
)


def wrong(seen: SeenMesh, section: Section) -> list[MeshFinding]:
    """What is not well there. Whatever it is, it says what to do."""
    found = [it for it in findings_of(seen) if it.section is section and it.severity is not Severity.OK]
    assert all(it.fix for it in found)
    return found


def one(seen: SeenMesh, section: Section) -> tuple[Severity, str, str]:
    (finding,) = wrong(seen, section)
    return finding.severity, finding.subject, finding.text


def with_router(**changes: Any) -> SeenMesh:
    answers = (CONTROLLER_ANSWER, but(ROUTER_ANSWER, **changes), REPLICA_ANSWER)
    return replace(SEEN, answers=answers)


def with_replicas(*replicas: mesh_pb2.Replica, wanted: int | None = 1) -> SeenMesh:
    members = replace(SNAPSHOT.members, replicas=replicas)
    backends = (Backend(name="b", handler="a:B", num_replicas=wanted),)
    return replace(SEEN, snapshot=replace(SNAPSHOT, members=members, backends=backends))
