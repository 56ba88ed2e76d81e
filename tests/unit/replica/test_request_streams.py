"""Requests of rpcs that take several, between the router's stream and a handler on whichever loop or thread."""

from __future__ import annotations

import asyncio
import threading

import pytest

from replica_service.shell.handler.rpc_requests import RequestsLost, RouterRequests
from slotmesh.calls.result_envelopes import MAX_REQUESTS_AHEAD
from slotmesh.errors import BadRequest
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.streams.limits import MAX_INLINE_BYTES

pytestmark = pytest.mark.asyncio
Batch = replica_service_pb2.RequestBatch


def frame(*batches: Batch) -> replica_service_pb2.RequestItems:
    return replica_service_pb2.RequestItems(batches=batches)


class Router:
    """What a router is told of run 7, and what it sends."""

    def __init__(self) -> None:
        self.woken = 0
        self.requests = RouterRequests(self._wake)
        self.requests.expect(7, 1)
        stream = self.requests.of(7)
        assert stream is not None
        self.stream = stream

    def _wake(self) -> None:
        self.woken += 1

    def send(self, *payloads: bytes, is_cut: bool = False, is_last: bool = False) -> None:
        self.requests.add(frame(Batch(run_id=7, payloads=payloads, is_cut=is_cut, is_last=is_last)))

    def told(self) -> dict[int, int]:
        said = self.requests.taken()
        return {} if said is None else dict(zip(said.call_ids, said.counts, strict=True))


async def test_the_router_is_told_that_a_handler_has_begun_and_what_it_took() -> None:
    router = Router()
    assert router.told() == {}
    router.stream.begin()
    assert (router.told(), router.woken) == ({7: 0}, 1)
    router.send(*[b"x"] * MAX_REQUESTS_AHEAD)
    for _ in range(MAX_REQUESTS_AHEAD // 2 - 1):
        await router.stream.take()
    assert router.told() == {}
    await router.stream.take()
    assert router.told() == {7: MAX_REQUESTS_AHEAD // 2}


async def test_large_requests_are_told_sooner() -> None:
    router = Router()
    router.send(b"x" * 200_000)
    await router.stream.take()
    assert router.told() == {7: 1}


async def test_what_was_cut_is_one_request_again() -> None:
    router = Router()
    router.send(b"a", b"b", is_cut=True)
    router.send(b"c", is_cut=True)
    router.send(b"d", b"e", is_last=True)
    assert [await router.stream.take() for _ in range(4)] == [b"a", b"bcd", b"e", None]
    with pytest.raises(BadRequest, match=r"requests\.batches\.payloads"):
        router.send(b"x" * (MAX_INLINE_BYTES + 1), is_cut=True)


async def test_a_handler_that_waits_is_woken_on_its_loop_and_in_its_thread() -> None:
    router = Router()
    waiting = asyncio.ensure_future(router.stream.take())
    await asyncio.sleep(0)
    router.send(b"a")
    assert await waiting == b"a"

    got: list[bytes | None] = []
    thread = threading.Thread(target=lambda: got.append(router.stream.take_in_thread()))
    thread.start()
    router.send(b"b")
    await asyncio.to_thread(thread.join, 10)
    assert got == [b"b"]

    other = asyncio.to_thread(lambda: asyncio.run(router.stream.take()))
    task = asyncio.ensure_future(other)
    await asyncio.sleep(0)
    router.send(b"c")
    assert await task == b"c"


@pytest.mark.parametrize("how", ["cancel", "ended", "close"])
async def test_a_handler_that_nobody_waits_for_is_woken_and_told(how: str) -> None:
    router = Router()
    waiting = asyncio.ensure_future(router.stream.take())
    await asyncio.sleep(0)
    match how:
        case "cancel":
            router.requests.cancel([(1, 2**50)])
        case "ended":
            router.requests.ended(7, 1)
        case _:
            router.requests.close()
    with pytest.raises(RequestsLost):
        await waiting
    with pytest.raises(RequestsLost):
        router.stream.take_in_thread()


async def test_what_comes_for_calls_that_have_ended_is_dropped_and_not_told() -> None:
    router = Router()
    router.requests.ended(7, 1)
    router.send(b"late")
    router.stream.begin()
    assert router.told() == {}
    assert router.requests.of(7) is None
