"""Calls on their way to the client's thread, and their futures on the way back, whichever thread comes first."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, wait

import pytest

import slotmesh
from slotmesh.client.mesh import Mesh
from slotmesh.client.sync import call_future
from slotmesh.client.sync.call_future import CallFuture, Start, ThreadWorkQueue
from slotmesh.client.sync.client_thread import ClientThread


@pytest.fixture
def future() -> CallFuture[int]:
    return CallFuture(ClientThread(Mesh(["localhost:7071"], 1, 1)).work)


def test_whoever_settles_it_after_a_cancel_is_too_late(future: CallFuture[int]) -> None:
    assert not future.done()
    assert future.cancel()
    assert future.done()
    future.set_result(1)
    future.set_exception(ValueError())
    assert future.cancelled()
    assert wait([future], timeout=0).done == {future}
    with pytest.raises(CancelledError):
        future.result()


def test_whoever_cancels_it_after_its_result_is_too_late(future: CallFuture[int]) -> None:
    future.set_result(1)
    assert not future.cancel()
    future.set_result(2)
    assert future.result() == 1


@pytest.mark.asyncio
async def test_what_it_follows_is_cancelled_with_it_even_if_that_came_later(future: CallFuture[int]) -> None:
    future.cancel()
    inner: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.follow(inner)
    assert inner.cancelled()


@pytest.mark.asyncio
async def test_it_fails_where_what_it_follows_was_cancelled_by_others(future: CallFuture[int]) -> None:
    inner: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    future.follow(inner)
    inner.cancel()
    await asyncio.sleep(0)
    assert isinstance(future.exception(0), slotmesh.CallCancelled)


@pytest.mark.asyncio
async def test_work_is_begun_in_order_whenever_it_was_put_until_it_is_too_late() -> None:
    begun: list[object] = []
    late: list[object] = []

    def begin(_: CallFuture[int], what: object) -> None:
        begun.append(what)
        if what == "bad":
            raise KeyError(what)

    def too_late(future: CallFuture[int], start: Start, what: object) -> None:
        late.append(what)

    work = ThreadWorkQueue(too_late)
    thread = ClientThread(Mesh(["localhost:7071"], 1, 1))
    bad: CallFuture[int] = CallFuture(thread.work)
    work.put(CallFuture(thread.work), begin, "before")
    work.open(asyncio.get_running_loop())
    work.put(bad, begin, "bad")
    work.put(CallFuture(thread.work), begin, "after")
    await asyncio.sleep(0)
    assert begun == ["before", "bad", "after"]
    assert isinstance(bad.exception(0), KeyError)
    work.put(CallFuture(thread.work), begin, "later")
    work.end()
    assert late == ["later"]
    work.put(CallFuture(thread.work), begin, "too late")
    await asyncio.sleep(0)
    assert (begun, late) == (["before", "bad", "after"], ["later", "too late"])


@pytest.mark.asyncio
async def test_the_loop_takes_turns_and_all_of_it_when_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_future, "TURN", 4)
    begun: list[object] = []
    work = ThreadWorkQueue(lambda *_: None)
    thread = ClientThread(Mesh(["localhost:7071"], 1, 1))
    work.open(asyncio.get_running_loop())

    def put() -> None:
        begun.clear()
        for what in range(10):
            work.put(CallFuture(thread.work), lambda _, what: begun.append(what), what)

    put()
    for taken in (4, 8, 10):
        await asyncio.sleep(0)
        assert begun == list(range(taken))
    put()
    work.take_all()
    assert begun == list(range(10))


def test_what_comes_while_the_loop_ends_has_an_outcome() -> None:
    thread = ClientThread(Mesh(["localhost:7071"], 1, 1))
    thread.start()
    late: CallFuture[int] = CallFuture(thread.work)

    async def answer() -> int:
        for _ in range(10):
            await asyncio.sleep(0)
        return 1

    async def hand_over_at_the_end() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:  # the loop cancels what is left, and has a few turns for that
            thread.go_on(late, answer)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    left = thread.call(lambda: asyncio.get_running_loop().create_task(hand_over_at_the_end()))
    thread.close(1.0)
    assert left.done()
    assert isinstance(late.exception(10), slotmesh.SlotmeshError)
