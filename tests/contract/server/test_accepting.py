"""How servers take in rpcs: many at a time, of all methods, until they stop; and where grpc.aio is another one."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import grpc
import pytest
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from slotmesh.grpc_internals import accepting, is_off
from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc
from tests.contract.server.served_router import OLDER, Setting, StatusCode, call, serving
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(is_off(), reason="SLOTMESH_PLAIN_GRPC is set: what this file tests is turned off"),
]
CALLS = 600
KINDS = ("of many", "of few")


async def answered(channel: grpc.aio.Channel, kind: str, timeout_s: float = 30.0) -> StatusCode:
    """One rpc, of a method that is registered by itself, or of one that is not; how it ends."""
    stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
    try:
        if kind == "of many":
            await call(channel, timeout_s=timeout_s)
        else:
            request = router_service_pb2.CallStreamingRequest(payload=b"x")
            rpc = stub.CallStreaming(request, timeout=timeout_s)
            try:
                while await rpc.read() is not grpc.aio.EOF:
                    pass
            finally:
                rpc.cancel()
    except grpc.aio.AioRpcError as error:
        return error.code()
    return StatusCode.OK


@pytest.mark.skipif(OLDER, reason="its own loop takes in everything, as it is older")
async def test_grpc_is_as_expected() -> None:
    """Where this fails after an upgrade, servers work on, and lose half of their unary calls a second."""
    assert accepting._problem() is None
    assert "slotmesh.v1.RouterService/Call" in accepting.MANY
    assert "slotmesh.v1.RouterService/CallStreaming" not in accepting.MANY
    async with serving() as (server, _, _):
        core: Any = server._server._server  # type: ignore[union-attr]
        assert core.is_running()
        assert {*core._handlers} == {f"/{each}".encode() for each in accepting.MANY if "RouterService" in each}


@pytest.mark.skipif(OLDER, reason="its own loop takes in everything, as it is older")
async def test_where_no_more_can_be_taken_in_the_server_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """As grpc's own loop does: a method that nobody serves would look like a slow one for ever."""

    async def broken(_method: bytes) -> None:
        raise OSError("broken")

    async with serving() as (server, _, channel):
        core: Any = server._server._server  # type: ignore[union-attr]
        monkeypatch.setattr(core, "_request_registered_call", broken)
        await answered(channel, "of many", timeout_s=5.0)  # by one that was asked for before
        await wait_until(lambda: not core.is_running(), what="the server ends")


@pytest.mark.parametrize("kind", KINDS)
async def test_all_that_come_at_once_are_taken_in(setting: Setting, kind: str) -> None:
    server, router, channel = setting
    core: Any = server._server._server  # type: ignore[union-attr]
    assert OLDER or {*core._requested.values()} == {accepting.FIRST_OF_METHOD}
    held, met, echo = 0, asyncio.Event(), router.unary

    async def meet(request: Any, context: Any) -> Any:
        nonlocal held
        held += 1
        if held == CALLS:
            met.set()
        await met.wait()
        return await echo(request, context)

    router.unary = meet
    ends = await asyncio.gather(*(answered(channel, kind) for _ in range(CALLS)))
    assert Counter(ends) == {StatusCode.OK: CALLS}
    most = accepting.MOST_OF_METHOD if kind == "of many" else accepting.FIRST_OF_METHOD
    assert OLDER or max(core._requested.values()) == most


@pytest.mark.skipif(OLDER, reason="its own loop takes in everything, as it is older")
async def test_rpcs_begin_round_the_connections_they_come_by(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    server, _, many = setting
    core: Any = server._server._server  # type: ignore[union-attr]
    begun: list[Any] = []
    taken: list[Any] = []
    starts = core._starts
    add, start = starts.add, starts._start

    def note(each: Any) -> None:
        begun.append(each)
        start(each)

    monkeypatch.setattr(accepting, "IN_A_TURN", 1)
    await call(many)  # from the turn after it on it is one at a time
    starts.begin_by(note)
    monkeypatch.setattr(starts, "add", taken.append)
    async with open_channel(server.address) as few, asyncio.TaskGroup() as tasks:
        for number in range(6):
            tasks.create_task(call(many))
            await wait_until(lambda number=number: len(taken) == number + 1, what="it was taken in")  # type: ignore[misc]
        tasks.create_task(call(few))
        await wait_until(lambda: len(taken) == 7, what="that of another connection as well")
        for each in taken:
            add(each)
    *of_many, of_few = taken
    assert begun.index(of_few) <= 2
    assert [each for each in begun if each is not of_few] == of_many


@pytest.mark.skipif(OLDER, reason="its own loop takes in everything, as it is older")
async def test_what_is_too_much_is_ended(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what comes after it is answered."""
    server, _, channel = setting
    core: Any = server._server._server  # type: ignore[union-attr]
    with monkeypatch.context() as full:
        full.setattr(core._starts, "add", lambda _taken: None)
        assert await answered(channel, "of many") is StatusCode.CANCELLED
    assert await answered(channel, "of many") is StatusCode.OK


@pytest.mark.skipif(OLDER, reason="its own loop takes in everything, as it is older")
async def test_what_waits_as_the_server_stops_is_refused() -> None:
    async with serving() as (server, _, channel):
        core: Any = server._server._server  # type: ignore[union-attr]
        await call(channel)
        taken: list[Any] = []
        add = core._starts.add
        core._starts.add = taken.append
        calling = asyncio.create_task(answered(channel, "of many"))
        await wait_until(lambda: taken, what="it was taken in")
        stopping = asyncio.create_task(server.stop(grace_s=5.0))
        await wait_until(lambda: not core.is_running(), what="the server stops")
        add(taken.pop())
        assert await calling is StatusCode.UNAVAILABLE
        await stopping


@pytest.mark.parametrize("kind", KINDS)
async def test_who_takes_a_call_back_is_heard(setting: Setting, kind: str) -> None:
    _, router, channel = setting
    begun, ended = asyncio.Event(), asyncio.Event()

    async def wait(request: Any, context: Any) -> Any:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    router.unary = wait
    calling = asyncio.create_task(answered(channel, kind))
    async with asyncio.timeout(10):
        await begun.wait()
        calling.cancel()
        await ended.wait()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_server_that_stops_answers_all_that_have_come(kind: str) -> None:
    """Each once, and what was executed is answered so."""
    ends: Counter[StatusCode] = Counter()
    async with serving() as (server, router, _), open_channel(server.address) as channel:
        await channel.channel_ready()  # on a busy machine an attempt to connect fails, with UNAVAILABLE as well
        executed, echo = 0, router.unary

        async def count(request: Any, context: Any) -> Any:
            nonlocal executed
            executed += 1
            return await echo(request, context)

        async def call_on() -> None:
            while ends[StatusCode.UNAVAILABLE] == 0:
                ends[await answered(channel, kind)] += 1

        router.unary = count
        core: Any = server._server._server  # type: ignore[union-attr]
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for _ in range(64):
                tasks.create_task(call_on())
            while ends[StatusCode.OK] < CALLS:  # noqa: ASYNC110 - at the other end of a connection
                await asyncio.sleep(0.005)
            await server.stop(grace_s=5.0)
            assert OLDER or core._ahead._is_closed, "what comes from now on is refused, not left waiting"
    assert ends.keys() <= {StatusCode.OK, StatusCode.UNAVAILABLE, StatusCode.CANCELLED}, ends
    assert ends[StatusCode.OK] == executed, ends


@pytest.mark.parametrize("kind", KINDS)
async def test_servers_come_and_go(kind: str) -> None:
    """Nothing is asked for from one that has stopped: its core is gone."""
    for _ in range(20):
        async with serving() as (_, _, channel):
            assert await answered(channel, kind) is StatusCode.OK


@pytest.mark.parametrize("kind", KINDS)
async def test_where_grpc_is_another_its_own_loop_takes_in_everything(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(accepting._EXPECTED, "_schedule_rpc_coro", ("rpc", "loop"))
    told: list[str] = []
    monkeypatch.setattr(accepting._log, "info", lambda _text, **fields: told.append(fields["why"]))
    async with serving() as (_, _, channel):
        ends = await asyncio.gather(*(answered(channel, kind) for _ in range(50)))
    assert Counter(ends) == {StatusCode.OK: 50}
    assert OLDER or told == ["its _schedule_rpc_coro takes rpc_coro, rpc_state, loop, method_name"]


async def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in accepting._OF_CORES:
        core = type("Core", (), {each: print for each in accepting._OF_CORES if each != name})
        with monkeypatch.context() as another:
            another.setattr(cygrpc, "AioServer", core)
            assert accepting._problem() == f"its servers have no {name}"
