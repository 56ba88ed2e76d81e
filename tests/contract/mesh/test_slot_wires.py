"""What goes over each wire, from a client through a real router to a replica: no more than is needed, and once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
import pytest_asyncio

import slotmesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import router_service_pb2_grpc, slot_service_pb2, slot_service_pb2_grpc
from tests.support.fakes.replica import FakeReplica, fail, hold
from tests.support.replicas import running_replica
from tests.support.router_bench import RouterBench, router_bench
from tests.support.slot_doors import reserve_request
from tests.support.tcp_proxy import Direction, TcpProxy, tcp_proxy
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

DOWN = frozenset({Direction.DOWN})


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[RouterBench]:
    async with router_bench() as bench:
        await bench.with_slots(8, bench.replicas[0])
        yield bench


@pytest.fixture
def replica(bench: RouterBench) -> FakeReplica:
    return bench.replicas[0]


@pytest.fixture
def rpcs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of all rpcs that the client begins, in order."""
    begun: list[str] = []

    def counted(make_stub: Callable[[grpc.aio.Channel], Any]) -> Callable[[grpc.aio.Channel], Any]:
        def make(channel: grpc.aio.Channel) -> Any:
            stub = make_stub(channel)
            for name, rpc in vars(stub).items():
                setattr(stub, name, counting(name, rpc))
            return stub

        return make

    def counting(name: str, rpc: Callable[..., Any]) -> Callable[..., Any]:
        def begin(*arguments: Any, **options: Any) -> Any:
            begun.append(name)
            return rpc(*arguments, **options)

        return begin

    for module, name in ((slot_service_pb2_grpc, "SlotServiceStub"), (router_service_pb2_grpc, "RouterServiceStub")):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    return begun


def asked(replica: FakeReplica) -> list[list[str]]:
    """The operations on slots that the replica got, by frame."""
    return [[str(op.WhichOneof("op")) for op in frame.slots.ops] for frame in replica.frames if frame.slots.ops]


async def unary(slot: slotmesh.Slot) -> None:
    assert await slot.m(b"x") == b"x"


async def streaming(slot: slotmesh.Slot) -> None:
    assert [value async for value in slot.m.stream(b"x")] == [b"x"]


async def failing(slot: slotmesh.Slot) -> None:
    with pytest.raises(slotmesh.HandlerError):
        await slot.m(b"x")


# -- the happy path ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("use", "dispatch"), [(unary, "Dispatch"), (streaming, "DispatchStreaming"), (failing, "Dispatch")]
)
async def test_a_call_in_a_slot_is_two_rpcs_and_two_operations(
    bench: RouterBench, replica: FakeReplica, rpcs: list[str], use: Callable[[slotmesh.Slot], Any], dispatch: str
) -> None:
    if use is failing:
        replica.answer = fail
    async with slotmesh.connect(bench.address) as mesh:
        for _ in range(3):
            async with mesh.endpoint("echo").options(content_type=OCTET_STREAM).reserve() as slot:
                await use(slot)
    assert rpcs == ["ReserveSlot", dispatch] * 3
    assert asked(replica) == [["reserve"], ["dispatch"]] * 3, "and nothing is released"
    cancels = [frame for frame in replica.frames if frame.cancel.runs]
    assert not cancels
    assert not replica.runs, "a call in a slot is no run of its own"


async def test_an_unused_slot_is_one_release(bench: RouterBench, replica: FakeReplica, rpcs: list[str]) -> None:
    async with slotmesh.connect(bench.address) as mesh:
        async with mesh.endpoint("echo").reserve():
            pass
    assert rpcs == ["ReserveSlot", "ReleaseSlot"]
    assert asked(replica) == [["reserve"], ["release"]]


async def test_all_or_none_where_the_second_one_is_full(
    bench: RouterBench, replica: FakeReplica, rpcs: list[str]
) -> None:
    await bench.with_slots(1, replica)
    async with slotmesh.connect(bench.address) as mesh:
        with pytest.raises(slotmesh.NoSlot):
            async with mesh.reserve_all("echo", "echo", timeout=1.0):
                raise AssertionError
        await wait_until(lambda: replica.slots.reserved == 0, what="the router gives back what was granted too late")
        assert rpcs.count("ReserveSlot") - rpcs.count("ReleaseSlot") >= 1, "one failed, the others were given back"
        async with mesh.endpoint("echo").reserve(timeout=20):
            assert replica.slots.reserved == 1


# -- replies that are lost ---------------------------------------------------------------------------------------------


async def lose_the_reply(proxy: TcpProxy, is_granted: Callable[[], object]) -> None:
    """The slot was granted, and the connection breaks before the client hears of it."""
    await wait_until(is_granted, what="the slot is granted")
    await wait_until(lambda: proxy.held_bytes, what="its reply is under way")
    proxy.cut()
    assert proxy.refused
    proxy.heal()


async def answered(rpc: Callable[[], Any]) -> Any:
    """What the rpc brings: the connection that was cut takes others with it until gRPC knows that it is gone."""
    async with asyncio.timeout(10):
        while True:
            try:
                return await rpc()
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise


async def test_the_reply_of_a_reservation_is_lost_and_asked_for_again(
    bench: RouterBench, replica: FakeReplica, rpcs: list[str]
) -> None:
    async with tcp_proxy(bench.address) as proxy, slotmesh.connect(proxy.address) as mesh:
        echo = mesh.endpoint("echo").options(content_type=OCTET_STREAM)
        async with echo.reserve() as slot:
            await slot.m(b"connected")
        rpcs.clear()
        replica.frames.clear()
        proxy.stall(DOWN)
        entering = asyncio.create_task((reservation := echo.reserve()).__aenter__())
        await lose_the_reply(proxy, lambda: replica.slots.reserved == 1)
        slot = await asyncio.wait_for(entering, 10)
        assert slot.token == next(token for token, each in replica.slots.slots.items() if each.state == "reserved")
        assert await slot.m(b"x") == b"x"
        await reservation.__aexit__(None, None, None)
    # The connection that was cut takes others with it until gRPC knows that it is gone.
    assert rpcs == ["ReserveSlot"] * max(2, len(rpcs) - 1) + ["Dispatch"]
    assert asked(replica) == [["reserve"], ["dispatch"]], "one slot, whose lease nobody has to wait for"


@pytest.mark.parametrize("asks_again", [True, False])
async def test_the_reply_of_a_replica_itself_is_lost(asks_again: bool) -> None:
    """Without a request id, the slot is left to its lease."""
    async with running_replica("tests.contract.slot_handlers:Handler") as replica, tcp_proxy(replica.address) as proxy:
        slots = replica.engine.scheduler.slots
        request = reserve_request(0.5 if not asks_again else 10, request_id="a" if asks_again else "")
        async with open_channel(proxy.address) as channel:
            stub: Any = slot_service_pb2_grpc.SlotServiceStub(channel)
            await channel.channel_ready()
            proxy.stall(DOWN)
            reserving = stub.ReserveSlot(request)
            await lose_the_reply(proxy, lambda: slots.granted == 1)
            with pytest.raises(grpc.aio.AioRpcError):
                await reserving
            if asks_again:
                again = await answered(lambda: stub.ReserveSlot(request, wait_for_ready=True))
                assert (again.slot.ongoing, slots.granted) == (1, 1)
                await stub.ReleaseSlot(slot_service_pb2.ReleaseSlotRequest(token=again.slot.token))
            else:
                await wait_until(lambda: slots.reserved == 0)
                assert (slots.granted, slots.released + slots.expired) == (1, 1)
                assert replica.engine.scheduler.is_idle


async def test_a_dispatch_whose_reply_is_lost_is_not_sent_again(
    bench: RouterBench, replica: FakeReplica, rpcs: list[str]
) -> None:
    async with tcp_proxy(bench.address) as proxy, slotmesh.connect(proxy.address) as mesh:
        async with mesh.endpoint("echo").options(content_type=OCTET_STREAM).reserve() as slot:
            proxy.stall(DOWN)
            calling = slot.m(b"x")
            await lose_the_reply(proxy, lambda: [each.state for each in replica.slots.slots.values()] == ["done"])
            with pytest.raises(slotmesh.RouterLost) as caught:
                await calling
            assert caught.value.executed is slotmesh.Executed.UNKNOWN
    assert rpcs.count("Dispatch") == 1
    assert replica.slots.kinds.count("dispatch") == 1


# -- leaving -----------------------------------------------------------------------------------------------------------


async def hold_it(_slot: slotmesh.Slot) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("use", [hold_it, unary, streaming])
async def test_who_is_cancelled_holds_nothing_at_the_replica(
    bench: RouterBench, replica: FakeReplica, use: Callable[[slotmesh.Slot], Any]
) -> None:
    replica.answer = hold
    async with slotmesh.connect(bench.address) as mesh:
        entered = []

        async def program() -> None:
            async with mesh.endpoint("echo").options(content_type=OCTET_STREAM).reserve() as slot:
                entered.append(slot)
                await use(slot)

        task = asyncio.create_task(program())
        await wait_until(lambda: entered and (use is hold_it or replica.held), what="it has come so far")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        if use is hold_it:
            assert replica.slots.kinds == ["reserve", "release"]
            assert replica.slots.reserved == 0, "before anybody hears of it"
        else:
            op_id = replica.slots.ops[1].op_id
            await wait_until(
                lambda: any(each.first == op_id for frame in replica.frames for each in frame.cancel.runs),
                what="the replica is told",
            )
