"""Broadcasts while replicas are full, drain, are killed and replaced, over real gRPC."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from typer.testing import CliRunner

import slotmesh
import slotmesh.testing
from router_service.core.features import broadcasts
from router_service.core.replicas.frames import OutgoingBatch
from router_service.shell.call_traces import RouterTraces
from router_service.shell.clients.broadcasts import MAX_BROADCASTS
from router_service.shell.dispatcher import Dispatcher
from slotmesh.cli.app import app
from slotmesh.runtime.channels import open_channel
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.testing import Backend
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.support.fakes.router import FakeRouter
from tests.support.spans import KeptSpans, error_of, ids_of_span
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio


class Shared:
    """What all replicas of a test record."""

    def __init__(self) -> None:
        self.executed: Counter[str] = Counter()
        self.may_end = asyncio.Event()


def handler_of(shared: Shared) -> type:
    class Reset:
        async def reset(self) -> str:
            shared.executed[slotmesh.replica().replica_id] += 1
            return slotmesh.replica().replica_id

        async def slow(self) -> str:
            name = await self.reset()
            await shared.may_end.wait()
            return name

    return Reset


async def test_to_50_replicas_while_10_are_replaced_each_result_is_of_its_replica_and_none_comes_twice() -> None:
    shared = Shared()
    async with slotmesh.testing.mesh({"cache": Backend(handler_of(shared), num_replicas=50)}) as mesh:
        endpoint, ids = mesh.endpoint("cache"), mesh.replica_ids("cache")
        broadcast = asyncio.ensure_future(endpoint.broadcast.slow())
        await wait_until(lambda: len(shared.executed) == 50, what="all replicas execute it")
        killed = ids[::5]
        await asyncio.gather(*(mesh.kill_replica(each) for each in killed))
        await within(mesh.wait_ready(), "others are there in their place", timeout=60.0)
        shared.may_end.set()
        result = await within(broadcast, "its end")
        assert sorted(result) == ids, "one outcome of each that was there, and none of those that came later"
        assert dict(result.ok) == {each: each for each in ids if each not in killed}
        assert sorted(result.failed) == sorted(killed)
        assert {type(it) for it in result.failed.values()} == {slotmesh.ReplicaLost}
        assert {getattr(it, "executed", None) for it in result.failed.values()} == {slotmesh.Executed.UNKNOWN}
        assert set(shared.executed.values()) == {1}, "none twice"
        again = await within(endpoint.broadcast.reset(), "another one")
        assert sorted(again.ok) == mesh.replica_ids("cache")
        assert len(set(again.ok) - set(ids)) == 10


async def test_at_full_replicas_it_waits_for_room_and_one_that_drains_never_executes_it() -> None:
    shared = Shared()
    backend = Backend(handler_of(shared), num_replicas=3, max_ongoing=1, settings={"prefetch": 0})
    async with (
        slotmesh.testing.mesh({"cache": backend}) as mesh,
        open_channel(mesh.router_addresses[0]) as channel,
    ):
        endpoint, ids = mesh.endpoint("cache"), mesh.replica_ids("cache")
        holding = [endpoint.slow() for _ in ids]
        await wait_until(lambda: len(shared.executed) == 3, what="all are full")
        stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        options = call_pb2.CallOptions(method="reset")
        call = stub.Broadcast(router_service_pb2.BroadcastRequest(endpoint="cache", options=options))
        targets = (await within(call.read(), "the replicas")).targets
        assert [each.replica_id for each in targets] == ids
        queued = endpoint.slow()
        draining = asyncio.ensure_future(mesh.drain_replica(ids[0]))
        failed = await within(call.read(), "the failure, as soon as the router learns of it")
        assert (failed.replica_id, failed.failure.reason) == (ids[0], "DRAINING")
        assert failed.failure.executed == call_pb2.EXECUTED_NO
        assert set(shared.executed.values()) == {1}
        shared.may_end.set()
        others = [await within(call.read(), "a result") for _ in ids[1:]]
        assert {each.replica_id: each.result.string_value for each in others} == {each: each for each in ids[1:]}
        await within(asyncio.gather(*holding, queued, draining), "all else ends")
        assert shared.executed[ids[0]] == 1


async def test_calls_that_have_not_started_never_start_once_the_caller_has_left_or_the_time_is_over() -> None:
    shared = Shared()
    backend = Backend(handler_of(shared), num_replicas=2, max_ongoing=1, settings={"prefetch": 0})
    async with slotmesh.testing.mesh({"cache": backend}) as mesh:
        endpoint = mesh.endpoint("cache")
        holding = [endpoint.slow(), endpoint.slow()]
        await wait_until(lambda: len(shared.executed) == 2, what="all are full")
        late = await within(endpoint.options(timeout=0.05).broadcast.reset(), "the deadline")
        assert {type(it) for it in late.failed.values()} == {slotmesh.DeadlineInQueue}
        assert len(late.failed) == 2
        left = asyncio.ensure_future(endpoint.broadcast.reset())
        await asyncio.sleep(0)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        shared.may_end.set()
        await within(asyncio.gather(*holding), "the others")
        assert len((await endpoint.broadcast.slow()).ok) == 2
        assert set(shared.executed.values()) == {2}, "the first calls, and the last broadcast"


async def test_one_client_has_no_more_broadcasts_than_it_leaves_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Shared()
    monkeypatch.setattr(broadcasts, "MAX_UNDER_WAY", 2)
    backend = Backend(handler_of(shared), num_replicas=5)
    async with slotmesh.testing.mesh({"cache": backend}) as mesh:
        endpoint = mesh.endpoint("cache")
        many = [asyncio.ensure_future(endpoint.broadcast.slow()) for _ in range(MAX_BROADCASTS // 2)]
        await wait_until(lambda: shared.executed.total() == MAX_BROADCASTS, what="two calls of each run, and no more")
        with pytest.raises(slotmesh.QueueFull, match="8 of them of this client"):
            await endpoint.broadcast.reset()
        async with slotmesh.connect(mesh.router_addresses[0]) as other:
            second = asyncio.ensure_future(other.endpoint("cache").broadcast.slow())
            await wait_until(lambda: shared.executed.total() == MAX_BROADCASTS + 2, what="another client has one")
            shared.may_end.set()
            assert len((await within(second, "its end")).ok) == 5
        results = await within(asyncio.gather(*many), "their ends")
        assert {len(each.ok) for each in results} == {5}
        assert len((await endpoint.broadcast.reset()).ok) == 5, "all were given back"


async def test_responses_name_the_replicas_first_and_are_json_for_a_request_without_payload() -> None:
    shared = Shared()
    async with (
        slotmesh.testing.mesh({"cache": Backend(handler_of(shared), num_replicas=2)}) as mesh,
        open_channel(mesh.router_addresses[0]) as channel,
    ):
        stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        options = call_pb2.CallOptions(method="reset")
        request = router_service_pb2.BroadcastRequest(endpoint="cache", options=options)
        first, *others = [response async for response in stub.Broadcast(request)]
        ids = mesh.replica_ids("cache")
        assert [(it.replica_id, it.backend) for it in first.targets] == [(each, "cache") for each in ids]
        assert {it.replica_id: it.result.string_value for it in others} == {each: each for each in ids}
        assert not any(it.targets for it in others)


async def test_a_sampled_one_has_one_span_until_its_end_as_the_parent_of_all_replicas(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept = KeptSpans()
    spans = kept.ended
    make, shared = Dispatcher.__init__, Shared()

    def make_traced(self: Dispatcher, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        self.traces = RouterTraces(kept.tracing(1.0, 1e6, chance=0.0), "router-1")

    monkeypatch.setattr(Dispatcher, "__init__", make_traced)
    seen: list[OutgoingBatch] = []
    leave = RouterTraces.left

    def note_and_leave(self: RouterTraces, batches: list[OutgoingBatch], *arguments: Any) -> None:
        seen.extend(batches)
        leave(self, batches, *arguments)

    monkeypatch.setattr(RouterTraces, "left", note_and_leave)
    async with slotmesh.testing.mesh({"cache": Backend(handler_of(shared), num_replicas=2)}) as mesh:
        endpoint = mesh.endpoint("cache")
        assert len((await endpoint.broadcast.reset()).ok) == 2
        (span,) = spans
        assert (span.name, (span.attributes or {})["slotmesh.outcome"]) == ("route cache.reset", "completed")
        contexts = {trace.traceparent[3:52] for batch in seen for trace in batch.traces or () if trace}
        assert contexts == {"-".join(ids_of_span(span))}
        with pytest.raises(slotmesh.BackendNotFound):
            await endpoint.broadcast.only("unknown").reset()
        assert (error_of(spans[1]) or "").startswith("BACKEND_NOT_FOUND")
        left = asyncio.ensure_future(endpoint.broadcast.slow())
        await wait_until(lambda: shared.executed.total() == 4, what="it is executed")
        left.cancel()
        await wait_until(lambda: len(spans) == 3, what="the end of its span")
        assert (spans[2].attributes or {})["slotmesh.outcome"] == "caller left"


async def test_threads_have_the_same() -> None:
    shared = Shared()
    async with slotmesh.testing.mesh({"cache": Backend(handler_of(shared), num_replicas=2)}) as mesh:
        address, ids = mesh.router_addresses[0], mesh.replica_ids("cache")

        def in_a_thread() -> dict[str, Any]:
            with slotmesh.connect_sync(address) as sync:
                endpoint = sync.endpoint("cache")
                assert sorted(endpoint.broadcast.only("cache").options(timeout=20).reset()) == ids
                return dict(endpoint.broadcast.reset())

        assert await asyncio.to_thread(in_a_thread) == {each: each for each in ids}


async def test_the_command_prints_a_line_for_each_replica() -> None:
    shared = Shared()
    async with slotmesh.testing.mesh({"cache": Backend(handler_of(shared), num_replicas=2)}) as mesh:
        ids, address = mesh.replica_ids("cache"), mesh.router_addresses[0]
        run = CliRunner().invoke
        said = await asyncio.to_thread(run, app, ["broadcast", "cache", "reset", "--address", address])
        assert (said.exit_code, said.stderr) == (0, "2 replicas executed it, 0 failed\n")
        assert sorted(said.stdout.splitlines()) == [f'{each}  "{each}"' for each in ids]
        failed = await asyncio.to_thread(run, app, ["broadcast", "cache", "nothing", "--address", address])
        assert (failed.exit_code, failed.stdout) == (1, "")
        assert all(each in failed.stderr for each in ids)
        assert "METHOD_NOT_FOUND" in failed.stderr


async def test_without_a_replica_nothing_is_executed_and_the_command_states_it() -> None:
    async with slotmesh.testing.mesh({"cache": Backend(handler_of(Shared()), num_replicas=0)}) as mesh:
        assert dict(await mesh.endpoint("cache").broadcast.reset()) == {}
        arguments = ["broadcast", "cache", "reset", "--address", mesh.router_addresses[0]]
        said = await asyncio.to_thread(CliRunner().invoke, app, arguments)
        assert (said.exit_code, said.stdout) == (0, "")
        assert said.stderr.startswith("no replica is there")


async def test_a_larger_result_than_a_broadcast_may_have_fails_with_what_to_do() -> None:
    class Large:
        async def get(self, size: int) -> bytes:
            return bytes(size)

    async with slotmesh.testing.mesh({"large": Large}) as mesh:
        result = await mesh.endpoint("large").broadcast.get(MAX_INLINE_BYTES)
        (failed,) = result.failed.values()
        assert isinstance(failed, slotmesh.PayloadTooLarge)
        assert failed.executed is slotmesh.Executed.YES
        assert "return less" in str(failed)
        assert "stream" not in str(failed)


async def test_a_router_of_an_earlier_version_is_named() -> None:
    async with FakeRouter() as router, slotmesh.connect(router.address) as mesh:
        with pytest.raises(slotmesh.NotImplementedByPeer, match=r"does not know broadcasts.*update it") as refused:
            await mesh.endpoint("e").broadcast.reset()
        assert refused.value.executed is slotmesh.Executed.NO
        assert router.address in str(refused.value)
