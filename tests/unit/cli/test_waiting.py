"""What a mesh that was changed still lacks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from slotmesh.cli.console import NOT_IN_TIME
from slotmesh.cli.controller_view import FAILED_STATE, READY_STATE, STARTING_STATE, Members, Snapshot
from slotmesh.cli.operator import Operator
from slotmesh.cli.waiting import KnownRouters, _not_ready, still_lacks
from slotmesh.spec.model import Backend
from slotmesh.v1 import mesh_pb2, rollout_pb2


def replica(
    name: str,
    state: mesh_pb2.ReplicaState.ValueType = READY_STATE,
    *,
    outdated: bool = False,
    error: str = "",
) -> mesh_pb2.Replica:
    return mesh_pb2.Replica(replica_id=name, backend="v1", state=state, outdated=outdated, error=error)


def router(*linked: str, revision: int = 7) -> mesh_pb2.Router:
    return mesh_pb2.Router(
        router_id="r", address="h:1", generation="g", revision=revision, linked_replica_ids=frozenset(linked)
    )


def lacking(*replicas: mesh_pb2.Replica, at: mesh_pb2.Router | None = None, wanted: int | None = 2) -> list[str]:
    members = Members(replicas=replicas, routers=() if at is None else (at,), generation="g", revision=7)
    snapshot = Snapshot(backends=(Backend(name="v1", num_replicas=wanted),), endpoints=(), members=members)
    return still_lacks(snapshot, {"v1"}, 7)


def test_all_are_ready_and_linked() -> None:
    assert lacking(replica("a"), replica("b"), at=router("a", "b")) == []
    assert lacking(replica("a"), replica("b")) == [], "no router is attached"
    assert lacking(wanted=None) == [], "somebody else starts replicas"


def test_replicas_that_are_missing_and_why() -> None:
    assert lacking(replica("a"), replica("b", STARTING_STATE)) == ["v1: 1 of 2 replicas ready"]
    failed = replica("b", FAILED_STATE, error="Traceback\nValueError: no model\n")
    assert lacking(replica("a"), failed) == ["v1: 1 of 2 replicas ready; b failed: ValueError: no model"]


def test_replicas_of_before_count_for_nothing_and_have_to_go() -> None:
    old = [replica("a", outdated=True), replica("b", outdated=True, error="an old one")]
    assert lacking(*old) == ["v1: 0 of 2 new replicas ready"], "the old ones still serve"
    new = [replica("c"), replica("d")]
    assert lacking(*old, *new) == ["v1: 2 replicas ready, 2 that were there before drain"]
    ended = [replica("a", mesh_pb2.REPLICA_STATE_STOPPED, outdated=True), replica("b", FAILED_STATE, outdated=True)]
    assert lacking(*ended, *new) == []


def test_routers_that_are_behind_or_not_linked() -> None:
    both = replica("a"), replica("b")
    assert lacking(*both, at=router("a", "b", revision=6)) == ["routers: 1 of 1 do not have the change yet"]
    assert lacking(*both, at=router("a")) == ["routers: r not linked to all replicas yet"]


def test_routers_of_before_are_missing_at_another_controller_until_they_attach() -> None:
    connection = SimpleNamespace(reconnects=0)
    known = KnownRouters(cast("Operator", SimpleNamespace(connection=connection)))
    attached = Members(replicas=(), routers=(router(),), generation="g", revision=7)
    none = Members(replicas=(), routers=(), generation="g", revision=7)
    assert known.missing(attached) == ()
    assert known.missing(none) == (), "it has left"
    assert known.missing(attached) == ()
    connection.reconnects = 1
    assert [it.router_id for it in known.missing(none)] == ["r"]
    assert known.missing(attached) == ()


def test_a_failure_names_the_other_backends_of_the_change_and_their_state() -> None:
    replicas = (
        mesh_pb2.Replica(replica_id="u-1", backend="u", state=READY_STATE),
        mesh_pb2.Replica(replica_id="w-1", backend="w", state=STARTING_STATE),
        mesh_pb2.Replica(replica_id="x-1", backend="x", state=READY_STATE),
    )
    members = Members(replicas=replicas, routers=(router(revision=6),), generation="g", revision=7)
    backends = tuple(Backend(name=name, handler="a:B", version="2", num_replicas=1) for name in ("u", "v", "w", "x"))
    snapshot = Snapshot(backends=backends, endpoints=(), members=members)
    failure = _not_ready("applied, and taken back:", ["v: it died"], snapshot, {"u", "v", "w"})
    assert failure.exit_code == NOT_IN_TIME
    assert str(failure).splitlines() == [
        "applied, and taken back:",
        "  v: it died",
        "  the other backends of this change:",
        "    u: ready, with 1 replicas of a:B 2",
        "    w: 0 of 1 replicas ready",
    ]
    alone = _not_ready("applied, and taken back:", ["v: it died"], snapshot, {"v"})
    assert str(alone) == "applied, and taken back:\n  v: it died"


def test_a_rollout_that_is_not_complete_is_waited_for_as_status_shows_it() -> None:
    members = Members(replicas=(replica("a"), replica("b")), routers=(), generation="g", revision=7)
    backends = (Backend(name="v1", num_replicas=2),)
    for phase, lines in (
        (rollout_pb2.ROLLOUT_PHASE_PROGRESSING, ["v1: 1 of 2 replicas have been ready for its min_ready, "]),
        (rollout_pb2.ROLLOUT_PHASE_COMPLETE, []),
        (rollout_pb2.ROLLOUT_PHASE_PAUSED, []),
    ):
        rollout = rollout_pb2.Rollout(backend="v1", phase=phase, available=1, wanted=2)
        snapshot = Snapshot(backends=backends, endpoints=(), members=members, rollouts=(rollout,))
        found = still_lacks(snapshot, {"v1"}, 7)
        assert [line.partition("the rollout")[0] for line in found] == lines
