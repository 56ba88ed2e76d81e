"""Values on their way to one client: in order, before the end of their call, never dropped, large ones in chunks."""

from __future__ import annotations

from router_service.core.commands import DeliverDone, DeliverResults
from router_service.shell.clients.outbox import MAX_UNREAD_BYTES
from slotmesh.convert.batches import ids_of_results
from slotmesh.streams.chunks import PayloadParts
from slotmesh.streams.features import CHUNKS
from slotmesh.streams.limits import CHUNK_BYTES, LARGE_CHUNK_BYTES
from tests.unit.router.values_client import RUN_ID_OF_CALL, Client
from tests.unit.router.world_callers import options


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
        assert (values.partial, list(ids_of_results(values)), list(values.payloads)) == (
            True,
            [1, 2, 1, 1],
            [b"a", b"x", b"b", b"c"],
        )
        assert (results.partial, list(ids_of_results(results))) == (False, [3])
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


class TestLargeValues:
    def test_what_their_call_says_next_waits_and_others_pass(self) -> None:
        client = Client(CHUNKS)
        large = LARGE_CHUNK_BYTES + 1
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
        client = Client(CHUNKS)
        sizes = [LARGE_CHUNK_BYTES + 1, 2 * LARGE_CHUNK_BYTES, LARGE_CHUNK_BYTES + 2]
        client.values(*[(1, bytes(size)) for size in sizes])
        # So much waits that a frame does not have it all.
        for call_id in range(2, 12):
            client.values((call_id, bytes(LARGE_CHUNK_BYTES)))
        client.failed(1)
        heard = [what for call_id, what in client.heard() if call_id == 1]
        assert heard == [each for size in sizes for each in ("chunk", "chunk", size)] + ["failed"]

    def test_those_of_several_calls_take_turns(self) -> None:
        client = Client(CHUNKS)
        client.values((1, bytes(3 * LARGE_CHUNK_BYTES)), (2, bytes(3 * LARGE_CHUNK_BYTES)))
        chunks = [call_id for call_id, what in client.heard() if what == "chunk"]
        assert chunks == [1, 2, 1, 2, 1, 2]

    def test_they_are_in_one_piece_for_who_does_not_take_chunks(self) -> None:
        client = Client()
        parts = PayloadParts([bytes(CHUNK_BYTES), b"end"])
        client.values((1, b"a"), (1, parts), (1, b"b"))
        assert client.heard() == [(1, b"a"), (1, bytes(CHUNK_BYTES) + b"end"), (1, b"b")]

    def test_an_end_of_several_calls_waits_for_the_one_alone(self) -> None:
        client = Client(CHUNKS)
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
