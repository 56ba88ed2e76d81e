"""Every kind of outcome with every ending at a client's outbox: window, unread bytes and frames go to zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from router_service.core.commands import DeliverDone, DeliverFailure, DeliverResults
from slotmesh.errors import Failure, Reason
from slotmesh.streams.features import BLOCKS, CHUNKS
from slotmesh.streams.limits import CHUNK_BYTES
from tests.unit.router.values_client import Client
from tests.unit.router.world_callers import options

pytestmark = pytest.mark.asyncio

IDS: Final = (1, 2, 4, 5, 9)
"""Calls with gaps."""
SIZE: Final = 30
"""Request bytes of each."""
FAILED: Final = Failure(reason=Reason.HANDLER_ERROR, message="no")


def results_of(client: Client, size: int) -> None:
    payloads = [b"x" * size for _ in IDS]
    client.outbox.add(
        DeliverResults(client.caller, [*IDS], payloads, "", client.replica, SIZE * len(IDS), 101, 0, options())
    )


def _small(client: Client) -> None:
    results_of(client, 10)


def _medium(client: Client) -> None:
    results_of(client, 2_000)


def _large(client: Client) -> None:
    results_of(client, 2 * CHUNK_BYTES + 1)


def _of_exactly_a_chunk(client: Client) -> None:
    results_of(client, CHUNK_BYTES)


def _large_beside_small(client: Client) -> None:
    payloads = [b"x" * (CHUNK_BYTES + 1 if at % 2 else 10) for at in range(len(IDS))]
    client.outbox.add(
        DeliverResults(client.caller, [*IDS], payloads, "", client.replica, SIZE * len(IDS), 101, 0, options())
    )


def _done(client: Client) -> None:
    client.outbox.add(DeliverDone(client.caller, [*IDS], SIZE * len(IDS), client.replica, 101, 0))


def _failed(client: Client) -> None:
    client.outbox.add(DeliverFailure(client.caller, [*IDS], FAILED, SIZE * len(IDS), client.replica, 101, 0))


def _values_then_done(client: Client) -> None:
    client.values(*((call_id, b"v" * 100) for call_id in IDS for _ in range(3)))
    _done(client)


def _large_values_then_done(client: Client) -> None:
    client.values(*((call_id, b"v" * (CHUNK_BYTES + 5)) for call_id in IDS for _ in range(2)))
    _done(client)


def _large_value_then_failure(client: Client) -> None:
    client.values((IDS[1], b"v" * (CHUNK_BYTES + 5)))
    _failed(client)


def _one_by_one(client: Client) -> None:
    for at, call_id in enumerate(IDS):
        if at % 2:
            client.outbox.add(DeliverFailure(client.caller, [call_id], FAILED, SIZE, client.replica, 101 + at, 0))
        else:
            client.outbox.add(
                DeliverResults(client.caller, [call_id], [b"r"], "", client.replica, SIZE, 101 + at, 0, options())
            )


KINDS = {
    "small results": _small,
    "results of some size": _medium,
    "results of exactly a chunk": _of_exactly_a_chunk,
    "large results": _large,
    "large results beside small ones": _large_beside_small,
    "ends without a result": _done,
    "failures": _failed,
    "values": _values_then_done,
    "large values": _large_values_then_done,
    "a large value, then failures": _large_value_then_failure,
    "single outcomes": _one_by_one,
}
FEATURES = {"with chunks": (CHUNKS, BLOCKS), "without": ()}
kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
features = pytest.mark.parametrize("named", FEATURES.values(), ids=FEATURES)


def admitted(*named: str) -> Client:
    """A client whose calls are in its window."""
    client = Client(*named)
    assert client.caller.admit([*IDS], SIZE * len(IDS)) is None
    assert (client.caller.calls, client.caller.size) == (5, 150)
    return client


def is_empty(client: Client) -> bool:
    outbox, unread = client.outbox, client.outbox._unread
    return (outbox.unread_bytes, outbox._large_bytes, unread.queued, unread.leaving, outbox._leaving) == (0,) * 5


@features
@kinds
async def test_all_is_given_back_when_a_client_has_read_it(kind: Callable[[Client], None], named: tuple[str]) -> None:
    client = admitted(*named)
    kind(client)
    client.frames()
    assert (client.caller.calls, client.caller.size) == (0, 0)
    assert is_empty(client)
    assert not client.outbox
    assert not client.outbox.taking.calls
    assert not client.outbox._lines
    assert not client.outbox._chunked


@features
@kinds
@pytest.mark.parametrize("frames", [0, 1, 2])
async def test_all_is_given_back_when_a_client_leaves_in_between(
    kind: Callable[[Client], None], named: tuple[str], frames: int
) -> None:
    client = admitted(*named)
    kind(client)
    for _ in range(frames):
        client.outbox.next_frame()
    client.outbox.close()
    assert (client.outbox._unread.queued, client.outbox._unread.leaving) == (0, 0)
    kind(client)
    client.outbox.written()
    assert (client.outbox._unread.queued, client.outbox._unread.leaving) == (0, 0), "what comes later is dropped"


@pytest.mark.parametrize("size", [512, 513, 5_000])
async def test_results_that_are_dropped_give_back_their_bytes_and_not_their_calls(size: int) -> None:
    """Larger ones than 512 bytes are dropped, all of them: replicas keep them for the session."""
    client = admitted()
    for at, call_id in enumerate(IDS):
        client.outbox.add(
            DeliverResults(client.caller, [call_id], [b"x" * size], "", client.replica, SIZE, 101 + at, 0, options())
        )
    client.outbox.shed(is_stuck=True)
    if size <= 512:
        assert (client.caller.calls, client.caller.size) == (5, 150)
        assert client.outbox.unread_bytes == 5 * size
    else:
        assert (client.caller.calls, client.caller.size) == (5, 0)
        assert is_empty(client)


async def test_each_run_is_acknowledged_by_the_frame_that_had_it() -> None:
    client = admitted(CHUNKS)
    forgotten: list[tuple[int, int]] = []
    client.link.forget = lambda first, count: forgotten.append((first, count))  # type: ignore[method-assign]
    _large_beside_small(client)
    frames = [frame.results.frame_no for frame in client.frames() if frame.WhichOneof("frame") == "results"]
    assert len(frames) > 1
    client.outbox.unacknowledged.acknowledge(frames[-1])
    runs = sorted(run for first, count in forgotten for run in range(first, first + count))
    assert runs == [101, 102, 103, 104, 105], "each call has its own run"
