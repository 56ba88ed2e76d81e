"""Few outcomes wait for others on their way to a client; values and chunks do not wait with them."""

from __future__ import annotations

import pytest

from router_service.core.limits.unread_results import MAX_LEAVING_BYTES
from slotmesh.convert.batches import ids_of_results
from slotmesh.streams.features import CHUNKS
from slotmesh.streams.limits import CHUNK_BYTES, MAX_FRAME_BYTES
from slotmesh.streams.pacing import FULL_CALLS, STEADY
from tests.unit.router.values_client import Client

pytestmark = pytest.mark.asyncio


def busy_client() -> Client:
    """Hundreds of its calls are unanswered, and as many small frames have left as may follow one another."""
    client = Client(CHUNKS)
    client.caller.calls = 1000
    for call_id in range(1, STEADY.burst + 1):
        client.results((call_id, b"x"))
        assert client.frames()
    return client


async def test_few_outcomes_wait_where_many_calls_are_unanswered() -> None:
    client = busy_client()
    client.results((100, b"x"))
    assert client.frames() == []
    client.results(*((call_id, b"x") for call_id in range(101, 101 + FULL_CALLS)))
    (frame,) = client.frames()
    assert len(ids_of_results(frame.results.batches[0])) == 1 + FULL_CALLS


async def test_the_last_outcome_does_not_wait() -> None:
    client = busy_client()
    client.caller.calls = 1
    client.results((100, b"x"))
    assert len(client.frames()) == 1


async def test_values_leave_at_once_and_take_outcomes_along() -> None:
    client = busy_client()
    client.results((100, b"x"))
    client.values((200, b"value"))
    client.results((101, b"x"))
    assert {call_id for call_id, _ in client.heard()} == {100, 101, 200}


async def test_chunks_go_on_while_outcomes_wait() -> None:
    client = busy_client()
    client.results((300, b"x" * (5 * CHUNK_BYTES)))
    first = client.outbox.next_frame()
    client.results((100, b"x"))
    second = client.outbox.next_frame()
    assert first is not None
    assert second is not None
    assert [each.WhichOneof("frame") for each in (first, second)] == ["chunk", "chunk"]


LARGEST = b"x" * MAX_FRAME_BYTES
"""Fits into a frame."""


async def test_a_large_result_that_nothing_waits_before_leaves_whole() -> None:
    client = Client(CHUNKS)
    client.results((1, LARGEST))
    assert client.heard() == [(1, LARGEST)]
    client.results((2, LARGEST + b"x"))
    assert client.heard() == [(2, "chunk")] * 2 + [(2, len(LARGEST) + 1)]


async def test_a_large_result_behind_another_leaves_in_chunks() -> None:
    client = Client(CHUNKS)
    client.results((1, b"small"))
    client.results((2, LARGEST))
    assert client.heard() == [(1, b"small"), *[(2, "chunk")] * 4, (2, len(LARGEST))], "as small ones may follow"
    client = Client(CHUNKS)
    client.results((3, LARGEST), (4, LARGEST))
    assert client.heard() == [(3, LARGEST), (4, "chunk"), (4, len(LARGEST))]


async def test_a_large_result_leaves_in_chunks_while_frames_of_other_streams_take_the_memory() -> None:
    client = Client(CHUNKS)
    client.unread.leaving = MAX_LEAVING_BYTES // 2
    client.results((1, LARGEST))
    assert client.heard() == [(1, "chunk"), (1, len(LARGEST))]


async def test_large_results_of_values_stay_in_chunks() -> None:
    client = Client(CHUNKS)
    client.values((1, b"v" * (CHUNK_BYTES + 1)))
    assert client.heard() == [(1, "chunk"), (1, CHUNK_BYTES + 1)]
