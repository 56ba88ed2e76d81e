"""The rules that hold always: each breach is seen, and what is allowed is not called one."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from google.protobuf import duration_pb2

from slotmesh.calls.payload_block import sizes_to_wire
from slotmesh.conformance.record import PADDING, ClientRecord
from slotmesh.conformance.rules import StreamRules
from slotmesh.streams.limits import MIN_CHUNK_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2

Request = router_service_pb2.StreamCallsRequest
SESSION_ID = "0123456789abcdef" * 2
AGE = duration_pb2.Duration(seconds=1)


def opening(**fields: Any) -> Request:
    return Request(open=router_service_pb2.OpenStream(endpoint="e", **fields))


def batch(first: int, *names: str, **fields: Any) -> Request:
    payloads = [name.encode() for name in names]
    one = router_service_pb2.CallBatch(first_call_id=first, payloads=payloads, **fields)
    return Request(calls=router_service_pb2.CallFrame(batches=[one]))


def ids(*ranges: tuple[int, int]) -> list[call_pb2.IdRange]:
    return [call_pb2.IdRange(first=first, last=last) for first, last in ranges]


def cancel(first: int, last: int) -> Request:
    return Request(cancel=router_service_pb2.CancelCalls(calls=ids((first, last))))


def ack(frame: int) -> Request:
    return Request(ack=router_service_pb2.AckResults(through_frame=frame))


def session_of(*names: str, key: str = "") -> ClientRecord:
    session = ClientRecord()
    for name in names:
        session.make(name, key)
    return session


def breaches(*frames: Request, key: str = "") -> list[str]:
    """What is wrong with a stream of these frames; the application made the calls a, b and c."""
    session = session_of("a", "b", "c", key=key)
    rules = StreamRules(session)
    for frame in frames:
        rules.request(frame)
    return [str(breach) for breach in session.breaches]


KEYED = call_pb2.CallOptions(ordering_key="k")
SHORT = call_pb2.CallOptions(timeout=duration_pb2.Duration(seconds=1))
STREAMING = call_pb2.CallOptions(stream=call_pb2.StreamOptions(each_value=True))
OPEN = opening()
IN_SESSION = opening(session_id=SESSION_ID, epoch=1)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        ([batch(1, "a")], "first frame is open"),
        ([OPEN, OPEN], "open comes once"),
        ([Request(open=router_service_pb2.OpenStream())], "endpoint is required"),
        ([opening(epoch=1)], "need a session"),
        ([opening(session_id="ab", epoch=1)], "32 hexadecimal"),
        ([opening(session_id=SESSION_ID, epoch=2)], "the epoch after 0 is 1"),
        ([opening(session_id=SESSION_ID, epoch=1, unanswered=ids((1, 1)))], "nothing was sent before"),
        ([OPEN, batch(1)], "at least one payload"),
        ([OPEN, batch(0, "a")], "ids are 1"),
        ([OPEN, batch(2**53, "a")], "ids are 1"),
        ([OPEN, batch(2, "a"), batch(2, "b")], "strictly increase"),
        ([OPEN, batch(0, "a", "b", call_ids=[3, 2])], "strictly increase"),
        ([OPEN, batch(0, "a", "b", call_ids=[3])], "call_ids for"),
        ([OPEN, batch(1, "x")], "made no call"),
        ([OPEN, batch(1, "a"), batch(2, "a")], "sent again"),
        ([OPEN, batch(1, "a", resend=True)], "resend needs a session"),
        ([OPEN, cancel(1, 1)], "before it was sent"),
        ([OPEN, batch(1, "a"), cancel(2, 1)], "goes up"),
        (
            [OPEN, batch(1, "a", "b"), Request(cancel=router_service_pb2.CancelCalls(calls=ids((2, 2), (1, 1))))],
            "ranges of ids ascend",
        ),
        ([OPEN, ack(1)], "acks are for"),
        ([IN_SESSION, ack(1)], "0 were sent"),
        ([OPEN, Request()], "no router knows"),
    ],
)
def test_a_breach_is_named(frames: list[Request], words: str) -> None:
    assert any(words in str(breach) for breach in breaches(*frames)), breaches(*frames)


def test_what_is_allowed_is_no_breach() -> None:
    assert not breaches(OPEN, batch(7, "a", "b"), cancel(7, 8), batch(0, "c", call_ids=[100]))
    assert not breaches(IN_SESSION, batch(1, "a"), Request(heartbeat=call_pb2.Heartbeat(stamp=1)))


def test_calls_of_a_key_stay_in_order() -> None:
    assert not breaches(OPEN, batch(1, "a", "b", options=KEYED), batch(3, "c", options=KEYED), key="k")
    assert "after a later one" in breaches(OPEN, batch(1, "b", "a", options=KEYED), key="k")[0]
    assert "lost its ordering key" in breaches(OPEN, batch(1, "a"), key="k")[0]


def test_the_window_binds_once_it_is_known() -> None:
    session = session_of("a", "b", "c")
    rules = StreamRules(session)
    rules.window(1, 1_000_000)
    for frame in (OPEN, batch(1, "a"), batch(2, "b")):
        rules.request(frame)
    assert not session.breaches, "it may not have come yet"
    rules.answered([1])
    rules.caught_up()
    rules.request(batch(3, "c"))
    assert "the window is 1 calls" in str(session.breaches[0])


@pytest.mark.parametrize(
    ("frames", "is_breach"),
    [
        ([batch(1, "a....."), batch(2, "b"), batch(3, "c")], False),
        ([batch(1, "b"), batch(2, "c"), batch(3, "a.....")], False),
        ([batch(1, "a....."), batch(2, "b"), batch(3, "c..")], True),
        ([batch(1, "a....."), batch(2, "b.....")], True),
        ([batch(1, "a.....", "b")], True),
    ],
)
def test_one_call_may_be_larger_than_the_window_in_a_batch_of_its_own(frames: list[Request], is_breach: bool) -> None:
    session = session_of("a", "b", "c")
    rules = StreamRules(session)
    rules.window(5, 2)
    rules.caught_up()
    for frame in (OPEN, *frames):
        rules.request(frame)
    assert [each.rule for each in session.breaches] == ["W2"] * is_breach


def test_payloads_in_a_block_are_read() -> None:
    sizes = sizes_to_wire(array("I", [1, 1]))
    block = router_service_pb2.CallBatch(first_call_id=1, block=b"ab", payload_sizes=sizes)
    assert not breaches(OPEN, Request(calls=router_service_pb2.CallFrame(batches=[block])), cancel(1, 2))
    block.block = b"abc"
    assert "the sum of payload_sizes" in breaches(OPEN, Request(calls=router_service_pb2.CallFrame(batches=[block])))[0]


def test_no_calls_after_go_away() -> None:
    session = session_of("a", "b")
    rules = StreamRules(session)
    rules.request(OPEN)
    rules.go_away()
    rules.request(batch(1, "a"))
    assert not session.breaches, "it was on its way"
    rules.caught_up()
    rules.request(batch(2, "b"))
    assert session.breaches == [("B15", "calls arrived after GoAway")]


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (
            [opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 2))), batch(1, "a", "b", resend=True, age=AGE)],
            "",
        ),
        ([opening(session_id=SESSION_ID, epoch=3, unanswered=ids((1, 2)))], "the epoch after 1 is 2"),
        ([opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 1)))], "lacks ['b']"),
        ([opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 3)))], "never sent"),
        ([opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 2))), batch(1, "a")], "not marked as resend"),
        ([opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 2))), batch(1, "a", resend=True)], "has an age"),
        (
            [opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 2))), batch(4, "a", resend=True, age=AGE)],
            "another id or payload",
        ),
        (
            [
                opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 2))),
                batch(1, "a", resend=True, age=AGE, options=KEYED),
            ],
            "other options",
        ),
        (
            [
                opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 2))),
                batch(1, "a", resend=True, age=AGE, options=SHORT),
            ],
            "other options",
        ),
        (
            [
                opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 2))),
                batch(3, "c"),
                batch(1, "a", resend=True, age=AGE),
            ],
            "go first",
        ),
        ([opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 2))), batch(1, "c")], "not above those"),
        ([opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 2))), batch(3, "c")], "before resent_all"),
    ],
)
def test_a_session_goes_on(frames: list[Request], words: str) -> None:
    session = session_of("a", "b", "c")
    first = StreamRules(session)
    first.request(IN_SESSION)
    first.request(batch(1, "a", "b"))
    second = StreamRules(session)
    for frame in frames:
        second.request(frame)
    assert any(words in str(breach) for breach in session.breaches) if words else not session.breaches, session.breaches


def take(call_id: int, count: int) -> Request:
    return Request(take=call_pb2.TakeItems(call_ids=[call_id], counts=[count]))


@pytest.mark.parametrize(
    ("opened", "frames", "words"),
    [
        (opening(features=["take_items"]), [take(1, 2), take(1, 1)], ""),
        (OPEN, [take(1, 1)], "needs the feature"),
        (opening(features=["take_items"]), [take(1, 2), take(1, 2)], "1 were written"),
        (opening(features=["take_items"]), [take(1, 0)], "0 values"),
        (opening(features=["take_items"]), [take(2, 1)], "0 were written"),
        (opening(features=["take_items"]), [Request(take=call_pb2.TakeItems(call_ids=[1]))], "1 calls have 0 counts"),
    ],
)
def test_no_more_is_taken_than_has_come(opened: Request, frames: list[Request], words: str) -> None:
    session = session_of("a")
    rules = StreamRules(session)
    rules.request(opened)
    rules.request(batch(1, "a", options=STREAMING))
    rules.values([1, 1, 1])
    for frame in frames:
        rules.request(frame)
    assert any(words in str(breach) for breach in session.breaches) if words else not session.breaches, session.breaches


@pytest.mark.parametrize(("size", "words"), [(MIN_CHUNK_BYTES, ""), (MIN_CHUNK_BYTES - 1, "at least")])
def test_payloads_do_not_come_in_crumbs(size: int, words: str) -> None:
    total = 2 * MIN_CHUNK_BYTES
    session = ClientRecord()
    session.make("a", "", total)
    rules = StreamRules(session)
    rules.request(OPEN)
    announced = router_service_pb2.CallBatch(first_call_id=1, payloads=[b""], chunked_sizes=[total])
    rules.request(Request(calls=router_service_pb2.CallFrame(batches=[announced])))
    rules.request(Request(chunk=call_pb2.Chunk(call_id=1, total=total, data=b"a".ljust(size, PADDING.encode()))))
    assert any(words in str(breach) for breach in session.breaches) if words else not session.breaches, session.breaches


@pytest.mark.parametrize(("unanswered", "words"), [(ids((2, 2)), ""), (ids((1, 2)), "do not outlive")])
def test_calls_that_stream_do_not_outlive_their_connection(unanswered: list[call_pb2.IdRange], words: str) -> None:
    session = session_of("a", "b")
    first = StreamRules(session)
    for frame in (IN_SESSION, batch(1, "a", options=STREAMING), batch(2, "b")):
        first.request(frame)
    StreamRules(session).request(opening(session_id=SESSION_ID, epoch=2, unanswered=unanswered))
    assert any(words in str(breach) for breach in session.breaches) if words else not session.breaches, session.breaches


def test_what_was_reported_is_not_unanswered() -> None:
    session = session_of("a", "b")
    first = StreamRules(session)
    for frame in (IN_SESSION, batch(1, "a", "b")):
        first.request(frame)
    first.reported(["a"])
    StreamRules(session).request(opening(session_id=SESSION_ID, epoch=2, unanswered=ids((2, 2))))
    assert not session.breaches


@pytest.mark.parametrize(("first_s", "is_breach"), [(60, False), (59, False), (20, True)])
def test_the_timeout_of_a_first_sending_may_be_shorter_by_the_time_that_the_call_waited(
    first_s: int, is_breach: bool
) -> None:
    session = session_of("a")
    first, second = StreamRules(session), StreamRules(session)
    first.request(IN_SESSION)
    first.request(batch(1, "a", options=_timeout(first_s)))
    second.request(opening(session_id=SESSION_ID, epoch=2, unanswered=ids((1, 1))))
    second.request(batch(1, "a", resend=True, age=AGE, options=_timeout(60)))
    assert any("other options" in str(breach) for breach in session.breaches) == is_breach, session.breaches


def _timeout(seconds: int) -> call_pb2.CallOptions:
    return call_pb2.CallOptions(timeout=duration_pb2.Duration(seconds=seconds))
