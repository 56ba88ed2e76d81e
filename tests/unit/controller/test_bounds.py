"""Every bound of the controller's decisions: exactly at it something passes, one step beyond it is refused, or is late.

The numbers are written down by hand, and not asked of the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

import pytest

from controller_service.core.desired.revisions import UNKNOWN_ORIGIN, RevisionRecord, recorded
from controller_service.core.desired.shifts import Guard, GuardFigure
from controller_service.core.desired.state import ChangeSet, Desired
from controller_service.core.event_log import EventBounds, EventKind, FeedEvent, KeptEvents, Notice
from controller_service.core.observed.replicas import UnreplacedExit, with_exit
from controller_service.core.observed.state import ObservedReplica, ReplicaState
from controller_service.core.partition_owners import Incarnation
from controller_service.core.reconciling.shift_planning import RequestedShift, plan_shift
from controller_service.core.roster import IncarnationRoster, ListedIncarnation
from controller_service.shell.changes import requests
from controller_service.shell.changes.requests import ConfigurationBounds
from controller_service.shell.events import EventFeed
from controller_service.shell.replica_logs import LogLines
from slotmesh.convert.specification import backend_to_wire, endpoint_to_wire
from slotmesh.spec.model import Backend, Endpoint, InvalidSpec, TrafficPolicy
from slotmesh.spec.routes import Route
from tests.support.edges import Edge, each_edge

MESH: Final = Desired().apply(
    ChangeSet(
        put_backends=(Backend(name="v1"), Backend(name="v2")),
        put_endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0}, shadows={"v2": 0.5})),),
    )
)


def is_shift(step: float = 0.5, every_s: float = 30.0, min_calls: int = 10, guards: tuple[Guard, ...] = ()) -> bool:
    said = RequestedShift(
        endpoint="e", weights={"v2": 1.0}, step=step, every_s=every_s, guards=guards, min_calls=min_calls
    )
    try:
        return bool(plan_shift(MESH, said, who="", time_s=0.0))
    except InvalidSpec:
        return False


def is_weight(weight: float) -> bool:
    said = RequestedShift(endpoint="e", weights={"v2": weight}, step=0.5, every_s=30.0, guards=())
    try:
        return bool(plan_shift(MESH, said, who="", time_s=0.0))
    except InvalidSpec:
        return False


def guarded(figure: GuardFigure, limit: float) -> bool:
    return is_shift(guards=(Guard(GuardFigure.P99, 0.2, "v2"), Guard(figure, limit)))


NAN: Final = float("nan")


@pytest.mark.parametrize(
    ("passes", "good", "bad"),
    [
        (lambda it: is_shift(step=it), (0.01, 1.0), (0.0099, 1.0001, 0.0, NAN)),
        (lambda it: is_shift(every_s=it), (1.0, 604_800.0), (0.999, 604_800.001, NAN)),
        (lambda it: is_shift(min_calls=it), (1, 1_000_000), (0, 1_000_001)),
        (is_weight, (1e-6, 1.0), (-1e-6, 1.0001, NAN)),
        (lambda it: guarded(GuardFigure.ERROR_RATE, it), (0.0, 0.999), (-0.001, 1.0, NAN)),
        (lambda it: guarded(GuardFigure.P99, it), (0.001, 30.0), (0.0009, 30.001, NAN)),
    ],
    ids=["step", "every", "min_calls", "weight", "error_rate", "p99"],
)
def test_numbers_of_a_shift(passes: Callable[[float], bool], good: Iterable[float], bad: Iterable[float]) -> None:
    assert all(passes(each) for each in good)
    assert not any(passes(each) for each in bad)


# --- sizes and numbers of the configuration ---------------------------------------------------------------------------


def sized(name: str, nbytes: int) -> Backend:
    """A backend that has so many bytes on the wire."""
    length = nbytes
    for _ in range(8):
        backend = Backend(name=name, user_config={"t": "x" * length})
        if (found := backend_to_wire(backend).ByteSize()) == nbytes:
            return backend
        length += nbytes - found
    raise AssertionError(f"no backend of {nbytes} bytes")


def is_kept(desired: Desired, change: ChangeSet) -> bool:
    try:
        ConfigurationBounds().require_kept(desired, change)
    except InvalidSpec:
        return False
    return True


def test_the_bounds_of_a_configuration_are_these() -> None:
    assert requests.MAX_BACKEND_BYTES == 4_194_304
    assert requests.MAX_CONFIGURATION_BYTES == 16_777_216
    assert requests.MAX_BACKENDS == 10_000
    assert (requests.MAX_ENDPOINTS, requests.MAX_ROUTES) == (20_000, 20_000)


@pytest.mark.parametrize("others", [0, 3])
def test_a_backend_has_exactly_the_largest_size(others: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_BACKEND_BYTES", 500)
    small = tuple(sized(f"s{number}", 100) for number in range(others))
    for nbytes, fits in ((499, True), (500, True), (501, False)):
        assert is_kept(Desired(), ChangeSet(put_backends=(*small, sized("b", nbytes)))) is fits, nbytes
        assert is_kept(Desired(), ChangeSet(put_backends=(sized("b", nbytes), *small))) is fits, nbytes
    before = Desired().apply(ChangeSet(put_backends=(sized("b", 700),)))
    for nbytes, fits in ((700, True), (699, True), (701, False)):
        assert is_kept(before, ChangeSet(put_backends=(sized("b", nbytes),))) is fits, "what was there may stay"


@pytest.mark.parametrize("of_one_change", [1, 2, 3, 5])
@pytest.mark.parametrize("deletes", [False, True])
def test_all_that_a_change_puts_counts_together(
    of_one_change: int, deletes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it comes in one change or in several, as backends or as an endpoint, and less what is deleted."""
    monkeypatch.setattr(requests, "MAX_CONFIGURATION_BYTES", 2_000)
    endpoint = Endpoint(name="e")
    there = tuple(sized(f"t{number}", 200) for number in range(3))
    desired = Desired().apply(ChangeSet(put_backends=there))
    left = 2_000 - 600 + 200 * deletes - endpoint_to_wire(endpoint).ByteSize()
    each, rest = divmod(left, of_one_change)
    for more, fits in ((-1, True), (0, True), (1, False)):
        sizes = [each] * (of_one_change - 1) + [each + rest + more]
        for order in (sizes, sizes[::-1]):
            put = tuple(sized(f"p{number}", nbytes) for number, nbytes in enumerate(order))
            gone = ("t1",) if deletes else ()
            change = ChangeSet(put_backends=put, put_endpoints=(endpoint,), delete_backends=gone)
            assert is_kept(desired, change) is fits, order


@pytest.mark.parametrize("kind", ["backends", "endpoints", "routes"])
@pytest.mark.parametrize("there", [0, 2])
def test_a_mesh_has_exactly_as_many_as_it_may(kind: str, there: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, f"MAX_{kind.upper()}", 5)

    def put(first: int, count: int) -> ChangeSet:
        numbers = range(first, first + count)
        if kind == "backends":
            return ChangeSet(put_backends=tuple(Backend(name=f"b{it}") for it in numbers))
        if kind == "endpoints":
            return ChangeSet(put_endpoints=tuple(Endpoint(name=f"e{it}") for it in numbers))
        return ChangeSet(put_routes=tuple(Route(path=f"/r{it}", endpoint="e", method="m") for it in numbers))

    desired = Desired().apply(put(0, there))
    for count, fits in ((4, True), (5, True), (6, False)):
        assert is_kept(desired, put(there, count - there)) is fits, count
        assert is_kept(desired, put(0, count)) is fits, "what is put again counts once"
    full = Desired().apply(put(0, 5))
    assert is_kept(full, put(0, 5)), "a change of what is there is none more"
    gone = {
        "backends": ChangeSet(delete_backends=("b0", "b1")),
        "endpoints": ChangeSet(delete_endpoints=("e0", "e1")),
        "routes": ChangeSet(delete_routes=("/r0", "/r1")),
    }[kind]
    more = put(5, 3)
    for count, fits in ((2, True), (3, False)):
        change = replace(
            gone,
            put_backends=more.put_backends[:count],
            put_endpoints=more.put_endpoints[:count],
            put_routes=more.put_routes[:count],
        )
        assert is_kept(full, change) is fits


# --- what is kept -----------------------------------------------------------------------------------------------------


def lines_of(nbytes: int) -> int:
    lines = LogLines()
    lines.feed(b"x" * nbytes + b"\n")
    return len(lines.tail(10))


def kept_lines(count: int) -> int:
    """Of lines of 936 characters, which cost 1,000 bytes each."""
    lines = LogLines(10_000)
    lines.feed((b"x" * 936 + b"\n") * count)
    return len(lines.tail(100))


def kept_departures(count: int) -> int:
    owners = [Incarnation(f"r{number:04}", "1") for number in range(count)]
    members = [ListedIncarnation(owner=it, backend="b", address="h:1", max_ongoing=1) for it in owners]
    roster = IncarnationRoster().listing(members, generation="g", revision=1, now=0.0)
    return len(roster.listing((), generation="g", revision=2, now=0.0).departed)


def kept_records(count: int) -> int:
    history: tuple[RevisionRecord, ...] = ()
    for number in range(count):
        record = RevisionRecord(revision=number + 1, origin=UNKNOWN_ORIGIN, changes=(), base=number)
        history = recorded(history, record)
    return len(history)


def kept_retired(count: int) -> int:
    replica = ObservedReplica(replica_id="a", backend="b", state=ReplicaState.READY, started_at=0.0)
    return len(replica.having_replaced(*map(str, range(1, count + 1))).retired)


def kept_exits(count: int) -> int:
    exits: tuple[UnreplacedExit, ...] = ()
    for _ in range(count):
        exits = with_exit(exits, UnreplacedExit(backend="b", template="t", restarts=0, how=""))
    return len(exits)


def kept_events(count: int, bounds: EventBounds) -> int:
    """Of events of 103 bytes each."""
    kept = KeptEvents(bounds)
    for number in range(1, count + 1):
        kept.add(FeedEvent("a", number, 0.0, Notice(kind=EventKind.REPLICA_READY, subject="s", message="mm")))
    return len(kept)


EDGES: Final = (
    Edge("events", 5, lambda n: kept_events(n, EventBounds(5, 10_000)) == n),
    Edge("bytes of events", 5, lambda n: kept_events(n, EventBounds(9, 515)) == n),
    Edge("bytes of a line of a log", 8_192, lambda n: lines_of(n) == 1),
    Edge("lines of a log", 10, lambda n: kept_lines(n) == n),
    Edge("departures of a roster", 512, lambda n: kept_departures(n) == n),
    Edge("records of the history", 200, lambda n: kept_records(n) == n),
    Edge("replaced incarnations of a replica", 16, lambda n: kept_retired(n) == n),
    Edge("places of replicas that have ended", 256, lambda n: kept_exits(n) == n),
)


@each_edge(EDGES)
def test_exactly_at_the_bound_all_is_kept_and_one_beyond_it_is_not(edge: Edge) -> None:
    edge.check()


@pytest.mark.asyncio
@pytest.mark.parametrize("kept", [1, 3, 4])
async def test_a_watcher_that_does_not_read_keeps_exactly_its_bound(kept: int) -> None:
    feed = EventFeed("a", bound=3, kept=EventBounds(4))
    with feed.watch() as watcher, feed.watch() as other:
        for number in range(kept):
            feed.publish(0.0, Notice(kind=EventKind.REPLICA_READY, subject="s", message=str(number)))
        assert (watcher.unread, other.unread) == (min(kept, 3), min(kept, 3))
        assert (await watcher.next())[1] == max(0, kept - 3)
    with feed.watch(from_oldest=True) as late:
        assert (await late.next())[1] == 0
