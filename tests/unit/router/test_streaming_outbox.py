"""Values on their way to one client: in order, never dropped, taken when they were written or when it says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from router_service.core.commands import CancelRun, DeliverDone, DeliverFailure, DeliverResults, DeliverValues
from router_service.core.replicas.replica import Replica
from router_service.core.routing.events import TableReceived
from router_service.core.routing.table import BackendRoute, ReplicaRoute, RoutingTable
from router_service.core.scheduler import Scheduler
from router_service.core.sessions.session import Session
from router_service.core.streaming.credits import ALONE, CREDITS, HALF
from router_service.core.unread import Unread
from router_service.shell.clients.outbox import MAX_UNREAD_BYTES, ResultOutbox
from router_service.shell.clients.taken_values import TAKE_BYTES, TAKE_VALUES
from router_service.shell.dispatcher import Dispatcher
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.pacer import Pacer
from slotmesh.spec.model import Backend
from slotmesh.v1 import router_service_pb2
from slotmesh.wire.chunks import Payload, PayloadParts
from slotmesh.wire.limits import CHUNK_BYTES
from tests.support.fakes.clock import FakeClock
from tests.unit.router.world_callers import options, session_caller

Frame = router_service_pb2.StreamCallsResponse

RUN_ID_OF_CALL = 1000
"""Call 7 is run 1007 at the replica."""


class LinkOnPaper:
    """Remembers which values a replica was told are taken."""

    def __init__(self) -> None:
        self.taken: Counter[int] = Counter()
        self.times = 0

    def take(self, run_id: int, count: int) -> None:
        self.taken[run_id] += count
        self.times += 1

    def flush(self) -> None: ...

    def cancel(self, command: CancelRun) -> None: ...

    def reconcile(self, session: Session) -> None: ...

    def retry_in(self, delay_s: float) -> None: ...

    def forget(self, first: int, count: int) -> None: ...

    async def finish(self) -> None: ...

    def close(self) -> None: ...


class Client:
    """An outbox between a replica and a client."""

    def __init__(self, **features: bool) -> None:
        self.link = LinkOnPaper()
        clock = FakeClock()
        dispatcher = Dispatcher(Scheduler(lambda: 0.5), clock, lambda _replica, _dispatcher: self.link)
        route = ReplicaRoute(key=("r", "life"), address="", max_ongoing=4)
        backend = BackendRoute(settings=Backend(name="b"), replicas=[route])
        table = RoutingTable(generation="g", revision=1, endpoints={}, backends={"b": backend})
        dispatcher.post(TableReceived(table))
        self.replica: Replica = next(iter(dispatcher.scheduler.topology.replicas.values()))
        self.caller = session_caller()
        self.outbox = ResultOutbox(
            self.caller, "e", dispatcher, Pacer(lambda: None, clock.now), Unread(clock.now), **features
        )

    def values(self, *values: tuple[int, Payload], content_type: str = "") -> None:
        """Values have come: the call of each, and its payload."""
        ids = [call_id for call_id, _ in values]
        runs = [RUN_ID_OF_CALL + call_id for call_id in ids]
        payloads = [payload for _, payload in values]
        links = self.replica.links
        for call_id in ids:
            self.caller.streams.setdefault(call_id, 0)
        self.outbox.add(DeliverValues(self.caller, ids, list(payloads), content_type, self.replica, runs, links))

    def results(self, *results: tuple[int, bytes]) -> None:
        ids = [call_id for call_id, _ in results]
        payloads = [payload for _, payload in results]
        ends = DeliverResults(self.caller, ids, payloads, "", self.replica, 0, ids[0], 0, options())
        self.outbox.add(ends)

    def done(self, *ids: int) -> None:
        self.outbox.add(DeliverDone(self.caller, ids, 0))

    def failed(self, *ids: int) -> None:
        self.outbox.add(DeliverFailure(self.caller, ids, Failure(reason=Reason.CANCELLED, message="no"), 0))

    def frames(self) -> list[Frame]:
        """All that leaves."""
        frames = []
        while (frame := self.outbox.next_frame()) is not None:
            frames.append(frame)
        return frames

    def heard(self) -> list[Any]:
        """All that leaves, one by one: (call id, payload or size in chunks or how it ended)."""
        return [each for frame in self.frames() for each in said(frame)]


def said(frame: Frame) -> list[tuple[int, object]]:
    if frame.WhichOneof("frame") == "chunk":
        return [(frame.chunk.call_id, "chunk")]
    told: list[tuple[int, object]] = []
    for batch in frame.results.batches:
        sizes: Sequence[int] = batch.chunked_sizes or [0] * len(batch.call_ids)
        told += zip(
            batch.call_ids, (size or each for size, each in zip(sizes, batch.payloads, strict=True)), strict=True
        )
    told += [(call_id, "failed") for errors in frame.results.errors for call_id in errors.call_ids]
    told += [(call_id, "done") for each in frame.results.done for call_id in range(each.first, each.last + 1)]
    return told


class TestFrames:
    def test_values_come_before_the_end_of_their_call_in_one_frame(self) -> None:
        client = Client()
        client.values((1, b"a"), (2, b"x"), (1, b"b"))
        client.results((3, b"result"))
        client.values((1, b"c"))
        client.done(1)
        client.failed(2)
        (frame,) = client.frames()
        values, results = frame.results.batches
        assert (values.partial, list(values.call_ids), list(values.payloads)) == (
            True,
            [1, 2, 1, 1],
            [b"a", b"x", b"b", b"c"],
        )
        assert (results.partial, list(results.call_ids)) == (False, [3])
        assert [(each.first, each.last) for each in frame.results.done] == [(1, 1)]

    def test_content_types_are_told_apart(self) -> None:
        client = Client()
        client.values((1, b"a"), content_type="one")
        client.values((1, b"b"), content_type="two")
        (frame,) = client.frames()
        assert [each.content_type for each in frame.results.batches] == ["one", "two"]

    def test_values_are_no_answer(self) -> None:
        client = Client()
        client.caller.admit(range(1, 3), 10)
        client.values((1, b"a"))
        client.frames()
        assert client.caller.calls == 2
        client.done(1, 2)
        client.frames()
        assert client.caller.calls == 0

    def test_they_are_never_dropped_and_crowd_nobody_out(self) -> None:
        client = Client()
        many = 2 * MAX_UNREAD_BYTES // CHUNK_BYTES
        for _ in range(many):
            client.values((1, bytes(CHUNK_BYTES)))
        client.results((2, b"small"))
        assert client.outbox.unread_bytes == len(b"small")
        heard = client.heard()
        assert [call_id for call_id, _ in heard] == [1] * many + [2]
        assert heard[-1] == (2, b"small")
        assert client.outbox.unread_bytes == 0


class TestTakenByTheRouter:
    def test_values_are_taken_when_they_were_written_and_not_before(self) -> None:
        client = Client()
        client.values(*[(1, b"x")] * TAKE_VALUES)
        assert client.outbox.next_frame() is not None
        assert not client.link.taken, "the write is under way"
        assert client.outbox.next_frame() is None
        assert client.link.taken == {1001: TAKE_VALUES}

    def test_few_of_them_wait_for_others(self) -> None:
        client = Client()
        for _ in range(TAKE_VALUES):
            client.values((1, b"x"), (2, b"y"))
            client.frames()
        assert client.link.taken == {1001: TAKE_VALUES, 1002: TAKE_VALUES}
        assert client.link.times == 2

    def test_bytes_count_as_well(self) -> None:
        client = Client()
        client.values((1, bytes(TAKE_BYTES - 1)))
        client.frames()
        assert not client.link.taken
        client.values((1, b"x"))
        client.frames()
        assert client.link.taken == {1001: 2}

    def test_so_do_bytes_that_left_in_chunks(self) -> None:
        client = Client(takes_chunks=True)
        client.values((1, bytes(CHUNK_BYTES + 1)))
        client.frames()
        assert client.link.taken == {1001: 1}

    def test_who_can_say_no_more_has_all_taken_that_was_written(self) -> None:
        client = Client(takes_items=True)
        client.values(*[(1, b"x")] * 10)
        client.frames()
        assert not client.link.taken
        client.outbox.taking.take_all()
        assert client.link.taken == {1001: 10}
        client.values(*[(1, b"x")] * TAKE_VALUES)
        client.frames()
        assert client.outbox.next_frame() is None
        assert client.link.taken == {1001: 10 + TAKE_VALUES}

    def test_nothing_is_taken_of_a_call_that_has_ended(self) -> None:
        client = Client()
        client.values(*[(1, b"x")] * TAKE_VALUES)
        client.done(1)
        client.frames()
        assert not client.link.taken
        assert not client.outbox.taking.calls, "and nothing is remembered of it"

    def test_nothing_is_taken_on_a_link_that_is_new(self) -> None:
        client = Client()
        client.values(*[(1, b"x")] * TAKE_VALUES)
        client.replica.links += 1
        client.frames()
        assert not client.link.taken

    def test_what_a_client_says_that_did_not_promise_to_changes_nothing(self) -> None:
        client = Client()
        client.values((1, b"x"))
        client.frames()
        client.outbox.taking.take([1], [1])
        assert not client.link.taken


class TestTakenByTheClient:
    def test_ids_are_translated(self) -> None:
        client = Client(takes_items=True)
        client.values((1, b"a"), (2, b"x"), (1, b"b"))
        assert client.outbox.next_frame() is not None
        client.outbox.taking.take([2, 1], [1, 2])
        assert client.link.taken == {1001: 2, 1002: 1}

    def test_the_router_takes_nothing_by_itself(self) -> None:
        client = Client(takes_items=True)
        client.values(*[(1, b"x")] * 4 * TAKE_VALUES)
        client.frames()
        assert not client.link.taken

    def test_no_more_than_was_written_is_taken(self) -> None:
        client = Client(takes_items=True)
        client.values((1, b"a"), (1, b"b"))
        client.outbox.taking.take([1], [1])
        assert not client.link.taken, "nothing was"
        client.frames()
        client.outbox.taking.take([1, 1, 1, 77], [1, 10**9, 5, 1])
        client.outbox.taking.take([1, 1], [-5, 0])
        assert client.link.taken == {1001: 2}

    def test_nothing_is_taken_of_a_call_that_has_ended(self) -> None:
        client = Client(takes_items=True)
        client.values((1, b"a"))
        client.failed(1)
        client.frames()
        client.outbox.taking.take([1], [1])
        assert not client.link.taken


class TestCallersWithManyCalls:
    """Their credits are for the way to the router: what has left it is taken, as long as the client keeps up."""

    LEVEL = 7
    CREDIT = CREDITS[LEVEL]

    def client(self, **features: bool) -> Client:
        client = Client(**features)
        client.caller.streams[1] = self.LEVEL
        return client

    @pytest.mark.parametrize("takes_items", [False, True])
    @pytest.mark.parametrize(("count", "size"), [(CREDIT.values // 2, 1), (1, CREDIT.bytes // 2)])
    def test_what_has_left_is_taken_soon(self, takes_items: bool, count: int, size: int) -> None:
        client = self.client(takes_items=takes_items)
        client.values(*[(1, bytes(size))] * count)
        assert not client.link.taken, "it waits"
        client.frames()
        assert client.link.taken == {1001: count}

    @pytest.mark.parametrize("size", [1, 40_000, HALF.bytes])
    def test_a_client_that_takes_nothing_is_not_left_far_behind(self, size: int) -> None:
        client = self.client(takes_items=True)
        for _ in range(3 * HALF.values):
            client.values((1, bytes(size)))
        client.frames()
        taken = client.link.taken[1001]
        assert taken <= HALF.values
        assert (taken - 1) * size < HALF.bytes
        assert taken == HALF.values or taken * size >= HALF.bytes

    @pytest.mark.parametrize("size", [1, 3000, 40_000, HALF.bytes, 2 * HALF.bytes])
    @pytest.mark.parametrize("level", [0, 1, 2, 7, len(CREDITS) - 1])
    def test_one_that_says_what_it_has_taken_when_that_is_half_gets_all(self, size: int, level: int) -> None:
        client = Client(takes_items=True)
        client.caller.streams[1] = level
        credit, given, told, untold = CREDITS[level], 0, 0, 0
        while told < 300 and told * size < 4 * ALONE.bytes:
            before = (given, told)
            while given - (gone := client.link.taken[1001]) < credit.values and (given - gone) * size < credit.bytes:
                client.values((1, bytes(size)))
                given += 1
            assert given - told <= ALONE.values
            assert (given - told - 2) * size < ALONE.bytes
            untold += len(client.heard())
            if untold >= HALF.values or untold * size >= HALF.bytes:
                client.outbox.taking.take([1], [untold])
                told, untold = told + untold, 0
            assert (given, told) != before, "nothing moves"

    def test_who_can_say_no_more_has_all_taken_that_was_written(self) -> None:
        client = self.client(takes_items=True)
        client.values(*[(1, b"x")] * 2 * HALF.values)
        client.frames()
        client.outbox.taking.take([1], [3])
        client.outbox.taking.take_all()
        assert client.link.taken == {1001: 2 * HALF.values}
        client.values(*[(1, b"x")] * (self.CREDIT.values // 2))
        client.frames()
        client.outbox.next_frame()
        assert client.link.taken == {1001: 2 * HALF.values + self.CREDIT.values // 2}

    def test_a_call_counts_until_its_outcome_has_left(self) -> None:
        client = Client(takes_items=True)
        client.caller.stream([1, 2, 3])
        client.values((1, b"x"))
        client.done(1)
        client.failed(2)
        assert set(client.caller.streams) == {1, 2, 3}
        client.frames()
        assert set(client.caller.streams) == {3}


class TestLargeValues:
    def test_what_their_call_says_next_waits_and_others_pass(self) -> None:
        client = Client(takes_chunks=True)
        large = CHUNK_BYTES + 1
        client.values((1, b"first"), (1, bytes(large)), (1, b"next"), (2, b"other"))
        client.values((1, b"last"), (2, b"more"))
        client.done(1, 2)
        heard = client.heard()
        assert [what for call_id, what in heard if call_id == 1] == [
            b"first",
            "chunk",
            "chunk",
            large,
            b"next",
            b"last",
            "done",
        ]
        assert [what for call_id, what in heard if call_id == 2] == [b"other", b"more", "done"]
        assert heard.index((2, "done")) < heard.index((1, large)), "others pass"
        assert not client.outbox

    def test_two_of_one_call_are_never_in_chunks_at_once(self) -> None:
        client = Client(takes_chunks=True)
        sizes = [CHUNK_BYTES + 1, 2 * CHUNK_BYTES, CHUNK_BYTES + 2]
        client.values(*[(1, bytes(size)) for size in sizes])
        # So much waits that a frame does not have it all.
        for call_id in range(2, 12):
            client.values((call_id, bytes(CHUNK_BYTES)))
        client.failed(1)
        heard = [what for call_id, what in client.heard() if call_id == 1]
        assert heard == [each for size in sizes for each in ("chunk", "chunk", size)] + ["failed"]

    def test_those_of_several_calls_take_turns(self) -> None:
        client = Client(takes_chunks=True)
        client.values((1, bytes(3 * CHUNK_BYTES)), (2, bytes(3 * CHUNK_BYTES)))
        chunks = [call_id for call_id, what in client.heard() if what == "chunk"]
        assert chunks == [1, 2, 1, 2, 1, 2]

    def test_they_are_in_one_piece_for_who_does_not_take_chunks(self) -> None:
        client = Client()
        parts = PayloadParts([bytes(CHUNK_BYTES), b"end"])
        client.values((1, b"a"), (1, parts), (1, b"b"))
        assert client.heard() == [(1, b"a"), (1, bytes(CHUNK_BYTES) + b"end"), (1, b"b")]

    def test_an_end_of_several_calls_waits_for_the_one_alone(self) -> None:
        client = Client(takes_chunks=True)
        client.caller.admit(range(1, 4), 30)
        client.values((2, bytes(CHUNK_BYTES + 1)))
        client.outbox.add(DeliverDone(client.caller, range(1, 4), 30))
        heard = client.heard()
        assert [each for each in heard if each[1] == "done"] == [(1, "done"), (3, "done"), (2, "done")]
        assert (client.caller.calls, client.caller.size) == (0, 0)


class TestLargeResults:
    """Of a client that does not put chunks together."""

    @staticmethod
    def add(client: Client, call_id: int, size: int) -> None:
        parts = PayloadParts([bytes(CHUNK_BYTES)] * (size // CHUNK_BYTES))
        run_id = RUN_ID_OF_CALL + call_id
        client.outbox.add(
            DeliverResults(client.caller, [call_id], [parts], "", client.replica, 0, run_id, 0, options())
        )

    def test_those_that_nobody_reads_are_dropped_like_others(self) -> None:
        client = Client()
        for call_id in range(1, 11):
            self.add(client, call_id, MAX_UNREAD_BYTES)
        assert client.outbox.unread_bytes == MAX_UNREAD_BYTES

    def test_those_that_cannot_be_had_count_for_what_is_said_of_them(self) -> None:
        client = Client()
        for call_id in range(1, 4):
            self.add(client, call_id, 2 * MAX_UNREAD_BYTES)
        assert client.heard() == [(1, "failed"), (2, "failed"), (3, "failed")]
        assert client.outbox.unread_bytes == 0
        assert client.outbox._unread_bytes == 0
