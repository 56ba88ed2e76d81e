"""Which silent replicas a controller counts as ended because they fence themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller_service.core.observed.leases import DRIFT, MARGIN_S, fenced
from controller_service.core.observed.state import Observed, ObservedReplica, ReplicaState
from controller_service.core.observed.transitions import fell_silent
from controller_service.core.partition_owners import Incarnation
from controller_service.core.roster import ListedIncarnation
from controller_service.shell.events import EventFeed
from controller_service.shell.loops.launching import ProcessWatch
from controller_service.shell.mesh_state import Key, MeshState, WorkQueue
from controller_service.store.documents import MEMBER
from tests.support.fakes.clock import FakeClock

SILENT = ObservedReplica(
    replica_id="r",
    incarnation="i",
    backend="b",
    state=ReplicaState.READY,
    started_at=0.0,
    ready_at=0.0,
    suspect_since=1_000.0,
    fenced_after_s=20.0,
)
END = 1_000.0 + 20.0 * (1 + DRIFT) + MARGIN_S
NEVER = float("-inf")


def found(replica: ObservedReplica, now: float, since: float = NEVER) -> list[Incarnation]:
    return [*fenced(Observed().with_replica(replica), now, since=since)]


def test_a_silent_replica_has_ended_when_its_bound_and_the_margin_have_passed() -> None:
    assert found(SILENT, END) == []
    assert found(SILENT, END + 0.001) == [SILENT.owner]
    assert fenced(Observed().with_replica(SILENT), 1_100.0, since=NEVER) == {SILENT.owner: 100.0}


def test_time_counts_from_the_newest_report() -> None:
    reported = replace(SILENT, silent_since=997.0)
    assert found(reported, END - 3.0) == []
    assert found(reported, END - 2.999) == [SILENT.owner]
    assert found(reported, END, since=1_000.0) == []


def test_a_lease_that_ran_out_began_with_the_newest_report() -> None:
    observed = Observed().with_replica(replace(SILENT, suspect_since=None, silent_since=900.0))
    silent = fell_silent(observed, "r", now=1_000.0, lease_s=3.0).observed.replica("r")
    assert silent is not None
    assert (silent.suspect_since, silent.silent_since) == (1_000.0, 997.0)


def test_the_fence_of_a_replica_on_a_lost_node_is_the_only_proof_that_it_has_ended() -> None:
    launched = replace(SILENT, launched=True, is_given_up=True)
    assert found(launched, END) == []
    assert found(launched, END + 0.001) == [launched.owner]


@pytest.mark.parametrize(
    "other",
    [
        replace(SILENT, fenced_after_s=0.0),
        replace(SILENT, suspect_since=None),
        replace(SILENT, ready_at=None, state=ReplicaState.STARTING),
        replace(SILENT, gone=True),
    ],
    ids=["no fence", "it reports", "it has not been ready", "it is gone already"],
)
def test_nothing_follows_for_others(other: ObservedReplica) -> None:
    assert found(other, END + 1_000.0) == []


def test_the_second_of_two_under_one_id_is_found_as_well() -> None:
    elder = replace(SILENT, incarnation="elder")
    observed = Observed().with_replica(replace(SILENT, suspect_since=None)).with_unresolved([elder])
    assert [*fenced(observed, END + 1.0, since=NEVER)] == [elder.owner]


def test_time_on_hold_does_not_count() -> None:
    clock, held = FakeClock(1_000.0), [True]
    state = MeshState(clock, WorkQueue[Key](), EventFeed("e"), Observed().with_replica(SILENT))
    watch = ProcessWatch(state, is_on_hold=lambda: bool(held))

    def looks_after(seconds: float) -> bool:
        clock.advance(seconds)
        watch.look()
        return state.observed.incarnation(SILENT.owner).gone  # type: ignore[union-attr]

    assert not looks_after(100.0), "another controller may lead, and acknowledge"
    held.clear()
    assert not looks_after(END - 1_000.001)
    assert looks_after(0.002)


def test_the_state_file_has_the_fence_of_a_member() -> None:
    member = ListedIncarnation(owner=SILENT.owner, backend="b", address="h:1", max_ongoing=1)
    fences = replace(member, fenced_after_s=20.0)
    assert [MEMBER.read(MEMBER.write(it)) for it in (member, fences)] == [member, fences]
