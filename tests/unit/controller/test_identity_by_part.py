"""What has an identity of several parts is another one if exactly one part differs: a row for each part.

Rows name what differs. Of each there is the whole identity too, so that no row passes because nothing does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest

from controller_service.core.event_log import UNKNOWN, EventKind, Notice
from controller_service.core.loads import BackendLoad, CallEnds, EndpointLoad, RouterLoad
from controller_service.core.observed import routers, transitions
from controller_service.core.observed.adoption import ended
from controller_service.core.observed.leases import find_forgettable
from controller_service.core.observed.member_messages import Hello, ObservedReport
from controller_service.core.observed.replica_groups import with_all_unattached
from controller_service.core.observed.state import Observed, ObservedReplica, ObservedRouter, ReplicaState
from controller_service.core.observed.transitions import NamesakeLives
from controller_service.core.partition_owners import Incarnation
from controller_service.core.reconciling.shift_steps import StepFigures
from controller_service.core.roster import (
    CoveredTables,
    DepartedIncarnation,
    EarlierTable,
    HeldTable,
    IncarnationRoster,
    LeaderTerm,
    ListedIncarnation,
    is_newer,
)
from controller_service.shell.events import EventFeed

OWNER: Final = Incarnation("a", "2")
OTHERS: Final = {
    "replica id": Incarnation("b", "2"),
    "incarnation": Incarnation("a", "1"),
    "a later incarnation": Incarnation("a", "3"),
    "no incarnation": Incarnation("a", ""),
    "both": Incarnation("b", "1"),
    "parts that are swapped": Incarnation("2", "a"),
}
LIVING: Final = ObservedReplica(
    replica_id="a",
    incarnation="2",
    backend="v1",
    state=ReplicaState.READY,
    started_at=0.0,
    ready_at=1.0,
    must_fence_through=5,
    suspect_since=3.0,
)
NEIGHBOUR: Final = replace(LIVING, replica_id="b", incarnation="7")
WORLD: Final = Observed().with_replicas((LIVING, NEIGHBOUR))
"""`a/2` and `b/7`: no row of `OTHERS` is any of them."""

each_other = pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)


def reported(owner: Incarnation) -> Observed:
    report = ObservedReport(state=ReplicaState.STOPPED)
    return transitions.reported(WORLD, owner.replica_id, owner.incarnation, report, now=9.0).observed


def fenced(owner: Incarnation) -> Observed:
    return routers.fenced(WORLD, owner, 5, {}).observed


def ends(owner: Incarnation) -> Observed:
    return transitions.ended(WORLD, owner, "gone", now=9.0).observed


def adopted_end(owner: Incarnation) -> Observed:
    return ended(WORLD, owner, 9.0)


CHANGES: Final[dict[str, Callable[[Incarnation], Observed]]] = {
    "its report": reported,
    "its fence": fenced,
    "its end": ends,
    "its end, as a table says": adopted_end,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@each_other
def test_what_is_said_of_another_incarnation_changes_nothing(
    change: Callable[[Incarnation], Observed], other: Incarnation
) -> None:
    assert change(other) is WORLD
    assert change(OWNER) is not WORLD
    assert change(OWNER).replica("b") is NEIGHBOUR


def linked(owner: Incarnation) -> bool:
    router = ObservedRouter(router_id="r", address="h:1", started_at=0.0, linked=frozenset({OWNER}))
    return owner in router.linked


def departed(owner: Incarnation) -> bool:
    listed = DepartedIncarnation(owner=OWNER, generation="g", revision=1, left_at=0.0)
    return IncarnationRoster(departed=(listed,)).has_departed(owner)


def forgettable(owner: Incarnation) -> bool:
    return (
        owner in find_forgettable(WORLD, (), owner.replica_id, owner.incarnation or "none", now=9.0, lease_s=1.0).owners
    )


def emptied(owner: Incarnation) -> bool:
    known = routers.emptied(WORLD, OWNER, {"e": {3: 7}}).observed.handovers["e"].emptied
    return (owner, 3, 7) in known


KNOWN: Final[dict[str, Callable[[Incarnation], bool]]] = {
    "is the record": lambda it: WORLD.incarnation(it) is LIVING,
    "has the link": linked,
    "has departed": departed,
    "may be forgotten": forgettable,
    "has emptied it": emptied,
    "is fenced": lambda it: fenced(OWNER).fenced_through(it) == 5,
    "drains": lambda it: WORLD.with_replica(replace(LIVING, state=ReplicaState.DRAINING)).is_draining(it),
}


@pytest.mark.parametrize("question", KNOWN.values(), ids=KNOWN)
@each_other
def test_what_is_so_of_an_incarnation_is_not_so_of_another(
    question: Callable[[Incarnation], bool], other: Incarnation
) -> None:
    assert question(OWNER)
    assert not question(other)


@pytest.mark.parametrize(
    ("owner", "epochs"),
    [
        (OWNER, {3: 7}),
        (OWNER, {4: 7}),
        (OWNER, {3: 8}),
        (Incarnation("a", "1"), {3: 7}),
        (Incarnation("b", "2"), {3: 7}),
    ],
)
def test_what_was_emptied_counts_for_its_owner_partition_and_epoch(owner: Incarnation, epochs: dict[int, int]) -> None:
    said = routers.emptied(WORLD, owner, {"e": epochs}).observed.handovers["e"].emptied
    assert ((OWNER, 3, 7) in said) is ((owner, epochs) == (OWNER, {3: 7}))


# --- a process that was launched, and who attaches --------------------------------------------------------------------

LAUNCHED: Final = ObservedReplica(
    replica_id="a",
    backend="v1",
    state=ReplicaState.STARTING,
    started_at=0.0,
    launched=True,
    pid=9,
    process="boot:1:1:9:5",
    template="t",
)
HELLO: Final = Hello(replica_id="a", incarnation="2", backend="v1", pid=9, process="boot:1:1:9:5")


@pytest.mark.parametrize(
    ("change", "is_child"),
    [
        ({}, True),
        ({"process": ""}, True),
        ({"backend": "v2"}, False),
        ({"backend": "v2", "process": ""}, False),
        ({"process": "other:1:1:9:5"}, False),
        ({"process": "boot:2:1:9:5"}, False),
        ({"process": "boot:1:2:9:5"}, False),
        ({"process": "boot:1:1:8:5"}, False),
        ({"process": "boot:1:1:9:6"}, False),
    ],
)
def test_a_launched_process_is_known_by_backend_and_process(change: dict[str, str], is_child: bool) -> None:
    observed, hello = Observed().with_replica(LAUNCHED), replace(HELLO, **change)  # type: ignore[arg-type]
    if not is_child:
        with pytest.raises(NamesakeLives, match="process 9, which this controller launched for backend v1"):
            transitions.attached(observed, hello, now=1.0)
        return
    attached = transitions.attached(observed, hello, now=1.0).observed.replica("a")
    assert attached is not None
    assert (attached.launched, attached.incarnation, attached.template) == (True, "2", "t")


@pytest.mark.parametrize("known", ["boot:1:1:9:5", "boot:1:1:9:6", "boot:1:1:8:5", "other:1:1:9:5", ""])
@pytest.mark.parametrize("said", ["boot:1:1:9:5", ""])
def test_a_table_knows_more_of_the_same_process_only(known: str, said: str) -> None:
    observed = Observed().with_replica(replace(LAUNCHED, process=known))
    record = replace(LIVING, process=said, template="")
    after = with_all_unattached(observed, [record])
    if known == said != "":
        merged = after.replica("a")
        assert merged is not None
        assert (merged.launched, merged.pid, merged.template, merged.owner) == (True, 9, "t", OWNER)
        assert not after.unresolved
    else:
        assert set(after.unresolved) == {OWNER}
        kept = after.replica("a")
        assert kept is not None
        assert (kept.incarnation, kept.pid) == ("", 9)


# --- versions: generation and revision, and who counts ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "revision", "covers"),
    [("g", 7, True), ("g", 6, True), ("g", 8, False), ("h", 3, True), ("h", 4, False), ("i", 1, False), ("", 0, False)],
)
def test_a_table_covers_a_generation_up_to_a_revision(generation: str, revision: int, covers: bool) -> None:
    roster = IncarnationRoster(revision=7, covers=(CoveredTables(generation="h", revision=3),))
    assert EarlierTable(generation="g", roster=roster).covers(generation, revision) is covers
    assert (IncarnationRoster(revision=7, covers=(CoveredTables(generation="h", revision=3),))).covered_revision(
        generation
    ) == (3 if generation == "h" else -1)


@pytest.mark.parametrize(
    ("held", "newer"),
    [
        ({}, False),
        ({"revision": 25}, True),
        ({"term_id": "t9"}, True),
        ({"generation": "h", "revision": 25}, False),
        ({"generation": "h", "term_id": "t9"}, False),
        ({"revision": 0, "term_id": "t9"}, False),
        ({"term_id": "t1"}, True),
        ({"term_id": "t1", "revision": 19}, False),
        ({"term_id": "t1", "revision": 20}, True),
    ],
)
def test_a_held_table_is_told_by_generation_term_and_revision(held: dict[str, Any], newer: bool) -> None:
    own = HeldTable(generation="g", revision=24, term_id="t2")
    terms = (LeaderTerm("t1", 5), LeaderTerm("t2", 20))
    assert is_newer(replace(own, **held), generation="g", revision=24, terms=terms) is newer


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("cursor", "first", "missed"),
    [
        ("a1-3", "4", 0),
        ("a2-3", "1", UNKNOWN),
        ("b1-3", "1", UNKNOWN),
        ("a-3", "1", UNKNOWN),
        ("a1-6", "1", UNKNOWN),
        ("a1-0", "1", 0),
    ],
)
async def test_a_cursor_is_of_a_feed_and_a_number(cursor: str, first: str, missed: int) -> None:
    feed = EventFeed("a1")
    for number in range(1, 6):
        feed.publish(0.0, Notice(kind=EventKind.REPLICA_READY, subject="s", message=str(number)))
    with feed.watch(after=cursor) as watcher:
        event, before = await watcher.next()
        assert (event.notice.message, before) == (first, missed)


def counted(router_id: str, run_id: str, backend: str, total: int) -> ObservedRouter:
    load = BackendLoad(backend=backend, queued=0, ongoing=0, sent=total, ended=CallEnds(total, 0, 0))
    return ObservedRouter(router_id=router_id, address="h:1", started_at=0.0, run_id=run_id, loads=(load,))


@pytest.mark.parametrize(
    ("router_id", "run_id", "backend", "fresh"),
    [("r", "x", "new", 3), ("r", "y", "new", 8), ("s", "x", "new", 0), ("r", "x", "old", 0), ("r", "", "new", 0)],
)
def test_totals_go_on_from_those_of_the_same_router_start_and_backend(
    router_id: str, run_id: str, backend: str, fresh: int
) -> None:
    figures = StepFigures(["new", "old"])
    figures.add_reports([counted("r", "x", "new", 5)])
    figures.add_reports([counted(router_id, run_id, backend, 8)])
    assert figures.of("new").total + figures.of("old").total == fresh


@pytest.mark.parametrize(
    ("run_id", "sent", "accepted", "goes_on"),
    [("x", 5, 5, True), ("x", 6, 9, True), ("y", 5, 5, False), ("x", 4, 5, False), ("x", 5, 4, False)],
)
def test_a_report_goes_on_from_one_of_the_same_start_in_each_total(
    run_id: str, sent: int, accepted: int, goes_on: bool
) -> None:
    def load(run_id: str, sent: int, accepted: int) -> RouterLoad:
        backends = [BackendLoad(backend=f"b{it}", queued=0, ongoing=0, sent=sent if it == 2 else 7) for it in range(4)]
        endpoints = [
            EndpointLoad(endpoint=f"e{it}", accepted=accepted if it == 1 else 7, failed=0, waiting=0) for it in range(3)
        ]
        return RouterLoad(run_id=run_id, backends=tuple(backends), endpoints=tuple(endpoints))

    assert load(run_id, sent, accepted).is_since(load("x", 5, 5)) is goes_on


def test_members_of_a_roster_differ_by_each_part() -> None:
    member = ListedIncarnation(owner=OWNER, backend="v1", address="h:1", max_ongoing=1)
    roster = IncarnationRoster().listing((member,), generation="g", revision=1, now=0.0)
    for other in OTHERS.values():
        changed = roster.listing((replace(member, owner=other),), generation="g", revision=2, now=0.0)
        assert (changed.revision, changed.has_departed(OWNER), changed.owners()) == (2, True, frozenset({other}))
    assert roster.listing((member,), generation="g", revision=2, now=0.0) is roster
