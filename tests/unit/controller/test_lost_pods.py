"""Replicas that another system has not started yet, has lost, or has reported as ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from controller_service.core.desired.handler_code import template_of
from controller_service.core.desired.state import Desired
from controller_service.core.event_log import EventKind
from controller_service.core.observed import launches
from controller_service.core.observed.member_messages import Hello
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState
from controller_service.core.observed.transitions import attached
from controller_service.core.partition_owners import Incarnation, PartitionOwnership, count_partitions
from controller_service.core.reconciling.backends import (
    FORGET_AFTER_S,
    START_TIMEOUT_S,
    DrainReplica,
    ForgetReplica,
    StartReplicas,
    find_endings,
    reconcile_backend,
)
from controller_service.shell.loops.pod_events import ended_with_pods
from slotmesh.spec.model import Backend

BACKEND = Backend(name="b", handler="a:A", num_replicas=2)


def launched(replica_id: str = "r", *, waits_for: str = "", now: float = 0.0) -> Observed:
    template = "t"
    observed = launches.launched(Observed(), replica_id, "b", template=template, pid=0, now=now).observed
    return launches.waits(observed, replica_id, waits_for, now=now).observed if waits_for else observed


def one(observed: Observed) -> ObservedReplica:
    (replica,) = observed.replicas()
    return replica


def test_one_that_is_not_started_is_not_given_up_and_has_its_time_from_its_start_on() -> None:
    observed = launched(waits_for="Unschedulable: no CPU")
    late = START_TIMEOUT_S * 10
    endings = find_endings(observed.replicas(), late, launches=True, give_up_after_s=7.0)
    assert (endings.hung, endings.again_after_s) == ({}, None)
    observed = launches.waits(observed, "r", "", now=late).observed
    assert (one(observed).waits_for, one(observed).started_at) == ("", late)
    just = find_endings(observed.replicas(), late + START_TIMEOUT_S - 1.0, launches=True, give_up_after_s=7.0)
    assert just.hung == {}
    over = find_endings(observed.replicas(), late + START_TIMEOUT_S, launches=True, give_up_after_s=7.0)
    assert [*over.hung] == ["r"]


def test_one_that_has_attached_began_when_it_did() -> None:
    observed = launched(waits_for="its container is being created")
    observed = attached(observed, Hello(replica_id="r", incarnation="i", backend="b"), now=5.0).observed
    observed = launches.waits(observed, "r", "", now=9.0).observed
    assert (one(observed).waits_for, one(observed).started_at) == ("", 0.0)


def test_nothing_waits_that_is_unknown_or_says_nothing_new() -> None:
    observed = launched(waits_for="x")
    assert launches.waits(observed, "r", "x", now=1.0).observed is observed
    assert launches.waits(observed, "other", "x", now=1.0).observed is observed


def test_a_lost_replica_is_not_gone_and_leaves_its_place_to_another_one() -> None:
    ready = replace(one(launched()), state=ReplicaState.READY, incarnation="i", ready_at=1.0, fenced_after_s=60.0)
    change = launches.lost(Observed().with_replica(ready), "r", "its pod was deleted", now=100.0)
    record = one(change.observed)
    assert (record.gone, record.launched, record.is_over) == (False, False, False)
    assert (record.takes_calls, record.state, record.is_drain_requested) == (False, ReplicaState.DRAINING, True)
    assert record.suspect_since is None, "it may well report"
    assert [it.kind for it in change.notices] == [EventKind.REPLICA_SUSPECT]
    assert [it.how for it in change.observed.unreplaced] == ["its pod was deleted"]
    desired = Desired(backends={"b": BACKEND}, configured_at=1)
    outcome = reconcile_backend("b", desired, change.observed, 100.0, owners=["r"], launches=True, time_of_day_s=0.0)
    assert [it for it in outcome.actions if not isinstance(it, DrainReplica)] == [StartReplicas(BACKEND, 2)]


def test_one_that_was_asked_to_end_or_was_given_up_leaves_no_second_place() -> None:
    alike = one(launched())
    for record in (replace(alike, is_drain_requested=True), replace(alike, is_given_up=True)):
        change = launches.lost(Observed().with_replica(record), "r", "gone", now=1.0)
        assert change.observed.unreplaced == ()
        assert not change.observed.restarts


def test_a_lost_replica_that_never_attached_is_suspect_and_forgotten_in_the_end() -> None:
    observed = launches.lost(launched(), "r", "gone", now=7.0).observed
    assert one(observed).suspect_since == 7.0
    desired = Desired(backends={"b": BACKEND}, configured_at=1)
    outcome = reconcile_backend(
        "b", desired, observed, 7.0 + FORGET_AFTER_S, owners=(), launches=True, time_of_day_s=0.0
    )
    assert ForgetReplica("r") in outcome.actions


def test_a_replica_that_was_not_launched_or_has_ended_cannot_be_lost() -> None:
    alike = one(launched())
    for record in (replace(alike, launched=False), replace(alike, reaped=True, gone=True)):
        observed = Observed().with_replica(record)
        assert launches.lost(observed, "r", "gone", now=1.0).observed is observed


def test_the_end_of_a_pod_ends_the_incarnations_that_have_reported_it() -> None:
    first = ObservedReplica(
        replica_id="r", incarnation="1", backend="b", state=ReplicaState.READY, started_at=0.0, pod_uid="u1"
    )
    second = replace(first, incarnation="2", pod_uid="u2")
    observed = Observed().with_replica(second).with_unresolved([first])
    assert ended_with_pods(observed, {"u1"}) == [first]
    assert ended_with_pods(observed, {"u2", "u3"}) == [second]
    assert ended_with_pods(observed, {""}) == []
    assert ended_with_pods(Observed().with_replica(replace(second, gone=True)), {"u2"}) == []


def stops(*replicas: ObservedReplica, owned: Any = ()) -> list[str]:
    observed = Observed().with_replicas(replicas)
    desired = Desired(backends={"b": replace(BACKEND, num_replicas=1)}, configured_at=1, ownership=dict(owned))
    outcome = reconcile_backend("b", desired, observed, 50.0, owners=(), launches=True, time_of_day_s=0.0)
    return [it.replica_id for it in outcome.actions if isinstance(it, DrainReplica)]


def test_those_that_are_not_started_go_first_then_those_that_start_then_those_with_the_fewest_partitions() -> None:
    base = replace(one(launched()), template=template_of(BACKEND), incarnation="i")
    ready = [replace(base, replica_id=it, state=ReplicaState.READY, ready_at=1.0, started_at=1.0) for it in "abc"]
    starting = replace(base, replica_id="s", started_at=2.0)
    waiting = replace(base, replica_id="w", incarnation="", waits_for="Unschedulable", started_at=1.0)
    owners = tuple(Incarnation(it, "i") for it in "abc")
    ownership = PartitionOwnership(owners=owners, partition_owners=(0, 0, 1, 2, 2, 2), epochs=(1,) * 6)
    assert stops(*ready, starting, waiting, owned={"e": ownership}.items()) == ["w", "s", "b", "a"]


def test_replicas_whose_rank_is_beyond_the_number_go_before_those_with_the_fewest_partitions() -> None:
    base = replace(one(launched()), template=template_of(BACKEND), incarnation="i", state=ReplicaState.READY)
    replicas = [replace(base, replica_id=it, rank=rank, ready_at=1.0) for it, rank in (("a", 3), ("b", 0), ("c", 1))]
    owners = tuple(Incarnation(it, "i") for it in "abc")
    ownership = PartitionOwnership(owners=owners, partition_owners=(0, 0, 0, 1, 2, 2), epochs=(1,) * 6)
    assert stops(*replicas, owned={"e": ownership}.items()) == ["c", "a"]


def test_partitions_are_counted_once_for_endpoints_that_share_their_owners() -> None:
    shared = PartitionOwnership(
        owners=(Incarnation("a", "i"), Incarnation("b", "i")), partition_owners=(0, 1, 1, -1), epochs=(1,) * 4
    )
    other = PartitionOwnership(owners=(Incarnation("a", "i"),), partition_owners=(0, 0, 0, 0), epochs=(1,) * 4)
    assert count_partitions([shared, shared, other], {"a", "b"}) == {"a": 5, "b": 2}
    assert count_partitions([shared, other], {"b"}) == {"b": 2}
    assert count_partitions([shared], {"c"}) == {}
