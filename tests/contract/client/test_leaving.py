"""A router that leaves while handlers yield: those calls end where they are, everything else goes on elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Executed, Failure, Reason
from tests.support.fakes.router import FakeRouter
from tests.support.fakes.router_stream import FakeStream
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


@dataclass
class Leaving:
    """A client whose router is told to go. `one` answers nothing by itself."""

    one: FakeRouter
    two: FakeRouter
    mesh: slotmesh.Mesh

    @property
    def digits(self) -> slotmesh.Endpoint:
        return self.mesh.endpoint("digits").options(content_type=OCTET_STREAM)

    async def begin(self, *calls: asyncio.Future[Any], iterations: int = 1) -> FakeStream:
        """Waits until the first router has all calls, and tells the client to go. The stream to that router."""
        await self.one.until(lambda: self.one.calls() == len(calls) + iterations)
        (stream,) = self.one.streams
        self.one.go_away()
        if calls:
            await self.two.until(lambda: self.two.opened == 1)
        else:  # nothing to open a stream for
            assert await self.digits.echo(b"moved") == b"moved"
        return stream

    async def gone(self) -> None:
        await self.one.until(lambda: not self.one.streams)


@pytest_asyncio.fixture
async def leaving() -> AsyncIterator[Leaving]:
    async with FakeRouter() as one, FakeRouter() as two:
        one.held = True
        async with slotmesh.connect([one.address, two.address], close_grace=5) as mesh:
            yield Leaving(one, two, mesh)
        assert not one.breaches + two.breaches


async def test_an_iteration_goes_on_while_other_calls_have_moved(leaving: Leaving) -> None:
    values = leaving.digits.count.stream(b"")
    sent = leaving.digits.echo(b"sent before")
    stream = await leaving.begin(sent)
    assert await sent == b"sent before"
    assert await leaving.digits.echo(b"new") == b"new"
    for value in (b"0", b"1"):
        stream.say_values([1], [value], OCTET_STREAM)
        assert await anext(values) == value
    stream.end_ids([1])
    assert [value async for value in values] == []
    await leaving.gone()
    assert [list(each.ids) for each in leaving.two.batches] == [[2], [3]]
    assert not leaving.one.cancels


async def test_what_comes_over_the_stream_that_was_left_settles_and_acknowledges_nothing(leaving: Leaving) -> None:
    leaving.two.held = True
    values = leaving.digits.count.stream(b"")
    sent = leaving.digits.echo(b"sent before")
    stream = await leaving.begin(sent)
    await leaving.two.until(lambda: leaving.two.calls() == 1)
    stream.answer_ids([2], [b"late"], OCTET_STREAM)
    stream.say_values([1], [b"0"], OCTET_STREAM)
    assert await anext(values) == b"0"
    assert not sent.done()
    leaving.two.release()
    assert await sent == b"sent before"
    await leaving.two.until(lambda: leaving.two.acks == [1])
    assert leaving.one.acks == []
    await values.aclose()


async def test_a_large_iteration_that_stays_is_nothing_to_the_next_stream() -> None:
    async with FakeRouter(window_bytes=1_000) as one, FakeRouter(window_bytes=1_000) as two:
        one.held = two.held = True
        async with slotmesh.connect([one.address, two.address], close_grace=5) as mesh:
            digits = Leaving(one, two, mesh).digits
            values = digits.count.stream(b"x" * 5_000)
            await one.until(lambda: one.calls() == 1)
            (stream,) = one.streams
            one.go_away()
            first = digits.echo(b"y" * 900)
            await two.until(lambda: two.calls() == 1)
            large, second = digits.ordered("k").echo(b"z" * 2_000), digits.echo(b"y" * 900)
            await two.until(lambda: two.calls() == 2)
            assert [list(batch.sizes) for batch in two.batches] == [[900], [2_000]]
            two.release()
            assert list(map(len, await asyncio.gather(first, second, large))) == [900, 900, 2_000]
            stream.end_ids([1])
            assert [value async for value in values] == []
        assert not one.breaches + two.breaches


async def test_an_iteration_is_lost_when_its_router_is_gone(leaving: Leaving) -> None:
    values = leaving.digits.count.stream(b"")
    stream = await leaving.begin()
    stream.say_values([1], [b"0"], OCTET_STREAM)
    stream.end()
    assert await anext(values) == b"0"
    with pytest.raises(slotmesh.RouterLost) as lost:
        await anext(values)
    assert lost.value.executed is Executed.YES
    assert await leaving.digits.echo(b"new") == b"new"


async def test_an_iteration_that_is_left_is_taken_back(leaving: Leaving) -> None:
    values = leaving.digits.count.stream(b"")
    await leaving.begin()
    await values.aclose()
    await leaving.one.until(lambda: [list(each) for frame in leaving.one.cancels for each in frame] == [[1]])
    await leaving.gone()


@pytest.mark.parametrize("reason", [Reason.SESSION_FENCED, Reason.STALE_TABLE])
async def test_an_iteration_that_had_not_begun_is_made_again_elsewhere(leaving: Leaving, reason: Reason) -> None:
    values = leaving.digits.count.stream(b"payload")
    stream = await leaving.begin()
    stream.fail([1], Failure(reason=reason, message="the session went on", executed=Executed.NO))
    assert [value async for value in values] == [b"payload"]
    await leaving.gone()
    _, again = leaving.two.batches
    assert (list(again.ids), again.payloads) == ([3], [b"payload"])


async def test_the_timeout_of_an_iteration_that_is_made_again_goes_on(leaving: Leaving) -> None:
    values = leaving.digits.options(timeout=60).count.stream(b"payload")
    unhurried = leaving.digits.count.stream(b"any time")
    stream = await leaving.begin(iterations=2)
    stream.fail([1, 2], Failure(reason=Reason.SESSION_FENCED, message="the session went on", executed=Executed.NO))
    assert [value async for value in values] == [b"payload"]
    assert [value async for value in unhurried] == [b"any time"]
    await leaving.gone()
    left = {batch.payloads[0]: batch.options.timeout.ToTimedelta().total_seconds() for batch in leaving.two.batches}
    assert 0 < left[b"payload"] < 60
    assert left[b"any time"] == 0, "there is none"


async def test_an_iteration_of_a_lane_is_not_made_again_behind_later_calls(leaving: Leaving) -> None:
    values = leaving.digits.ordered("k").count.stream(b"payload")
    stream = await leaving.begin()
    stream.fail([1], Failure(reason=Reason.SESSION_FENCED, message="the session went on", executed=Executed.NO))
    with pytest.raises(slotmesh.SlotmeshError) as failed:
        await anext(values)
    assert (failed.value.reason, failed.value.executed) == (Reason.SESSION_FENCED, Executed.NO)


async def test_a_mesh_that_is_closed_waits_for_iterations_at_routers_that_leave(leaving: Leaving) -> None:
    values = leaving.digits.count.stream(b"")
    stream = await leaving.begin()
    await leaving.digits.echo(b"new")
    closing = asyncio.create_task(leaving.mesh.aclose())
    await leaving.two.until(lambda: leaving.two.half_closed == 1)
    stream.say_values([1], [b"0"], OCTET_STREAM)
    assert await anext(values) == b"0"
    assert not closing.done()
    stream.end_ids([1])
    assert [value async for value in values] == []
    await closing


async def test_a_mesh_waits_for_iterations_at_routers_that_leave_while_it_is_closed(leaving: Leaving) -> None:
    values = leaving.digits.count.stream(b"")
    await leaving.one.until(lambda: leaving.one.calls() == 1)
    (stream,) = leaving.one.streams
    closing = asyncio.create_task(leaving.mesh.aclose())
    await asyncio.sleep(0)
    leaving.one.go_away()
    await wait_until(lambda: "slotmesh-client-linger" in {task.get_name() for task in asyncio.all_tasks()})
    await wait_until(lambda: "slotmesh-client-digits" not in {task.get_name() for task in asyncio.all_tasks()})
    stream.say_values([1], [b"0"], OCTET_STREAM)
    assert await anext(values) == b"0"
    assert not closing.done()
    stream.end_ids([1])
    assert [value async for value in values] == []
    await closing


async def test_a_mesh_that_is_closed_without_grace_takes_them_back(leaving: Leaving) -> None:
    values = leaving.digits.count.stream(b"")
    await leaving.begin()
    await leaving.mesh.aclose(0)
    with pytest.raises(slotmesh.CallCancelled):
        await anext(values)
    await wait_until(lambda: [list(each) for frame in leaving.one.cancels for each in frame] == [[1]])


async def test_without_another_router_all_end_where_they_are() -> None:
    async with FakeRouter() as router:
        router.held = True
        async with slotmesh.connect(router.address, close_grace=5) as mesh:
            digits = mesh.endpoint("digits").options(content_type=OCTET_STREAM)
            values, sent = digits.count.stream(b""), digits.echo(b"a")
            await router.until(lambda: router.calls() == 2)
            (stream,) = router.streams
            router.go_away()
            stream.say_values([1], [b"0"], OCTET_STREAM)
            assert await anext(values) == b"0"
            waits = digits.echo(b"b")
            stream.end_ids([1])
            assert [value async for value in values] == []
            router.release()
            assert [await sent, await waits] == [b"a", b"b"]
            assert router.opened == 2
        assert not router.breaches
