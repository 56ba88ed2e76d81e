"""What one caller has too much of is refused with QUOTA_EXCEEDED by the service that counts it; others go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from router_service.core.limits import quotas as session_quota
from slotmesh.security.quotas import Quota, QuotaKind, RateQuota
from slotmesh.v1 import call_pb2, router_service_pb2, slot_service_pb2
from slotmesh.v1 import controller_service_pb2 as pb
from tests.contract.security.role_servers import error_info
from tests.contract.security.secured_mesh import SecuredMesh, by_token, secured_mesh
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")
ALICE, EVE = "client/alice", "client/eve"
BYTES = "application/octet-stream"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredMesh]:
    async with secured_mesh(Path(tmp_path_factory.mktemp("quotas"))) as running:
        yield running


@contextmanager
def of_at_most(quota: Quota, most: int) -> Iterator[Quota]:
    """A quota that is small for a while."""
    before, quota.most = quota.most, most
    try:
        yield quota
    finally:
        quota.most = before


async def refusal(call: Any) -> str:
    """Which quota an rpc passes."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if hasattr(call, "read") else call)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    info = error_info(caught.value)
    assert (info.reason, info.metadata["executed"]) == ("QUOTA_EXCEEDED", "no")
    return info.metadata["quota"]


async def opened(mesh: SecuredMesh, token: str, session: str = "") -> Any:
    """A stream of calls."""
    stream = (await mesh.at_router()).calls.StreamCalls(metadata=by_token(token))
    opening = router_service_pb2.OpenStream(endpoint="mine", session_id=session, epoch=1 if session else 0)
    with suppress(grpc.aio.AioRpcError):  # it may be refused by now, which reading tells
        await stream.write(router_service_pb2.StreamCallsRequest(open=opening))
    return stream


async def ended(stream: Any) -> None:
    await stream.done_writing()
    while await stream.read() is not grpc.aio.EOF:
        pass


def frame(first: int, count: int, payload: bytes, method: str = "wait") -> Any:
    options = call_pb2.CallOptions(method=method, content_type=BYTES)
    batch = router_service_pb2.CallBatch(first_call_id=first, options=options, payloads=[payload] * count)
    return router_service_pb2.StreamCallsRequest(calls=router_service_pb2.CallFrame(batches=[batch]))


async def test_streams(mesh: SecuredMesh) -> None:
    quota = mesh.router.edge.stream_quota
    with of_at_most(quota, 2):
        streams = [await opened(mesh, "alice") for _ in range(2)]
        assert all([(await each.read()).HasField("opened") for each in streams])
        assert await refusal(await opened(mesh, "alice")) == "streams"
        others = await opened(mesh, "eve")
        assert (await others.read()).HasField("opened")
        await ended(streams.pop())
        await wait_until(lambda: quota.held[ALICE] == 1)
        again = await opened(mesh, "alice")
        assert (await again.read()).HasField("opened")
        for each in (*streams, others, again):
            await ended(each)
    await wait_until(lambda: not quota.held)


@pytest.mark.parametrize("kind", ["calls", "bytes"])
async def test_calls_and_their_bytes(mesh: SecuredMesh, kind: str) -> None:
    quotas = mesh.router_quotas.calls
    quota = quotas.calls if kind == "calls" else quotas.bytes
    calls, handler = (await mesh.at_router()).calls, mesh.replica.handler
    handler.gate.clear()
    with of_at_most(quota, 3 if kind == "calls" else 3_000):
        stream = await opened(mesh, "alice")
        await stream.read()
        await stream.write(frame(1, 2, bytes(1_000)))
        waiting = calls.Call(
            router_service_pb2.CallRequest(
                endpoint="mine", options=call_pb2.CallOptions(method="wait", content_type=BYTES), payload=bytes(1_000)
            ),
            metadata=by_token("alice"),
        )
        await wait_until(lambda: quotas.calls.held.get(ALICE) == 3)
        one_more = router_service_pb2.CallRequest(
            endpoint="mine", options=call_pb2.CallOptions(method="echo", content_type=BYTES), payload=b"x"
        )
        assert await refusal(calls.Call(one_more, metadata=by_token("alice"))) == kind
        assert (await calls.Call(one_more, metadata=by_token("eve"))).payload == b"x"
        await stream.write(frame(3, 1, b"y"))
        rejected = (await stream.read()).rejected
        assert (rejected.first_call_id, rejected.failure.reason) == (3, "QUOTA_EXCEEDED")
        handler.gate.set()
        assert (await waiting).payload == bytes(1_000)
        assert len((await stream.read()).results.batches) >= 1
        await ended(stream)
    await wait_until(lambda: not (quotas.calls.held or quotas.bytes.held), what="all was given back")


async def test_calls_of_a_client_that_leaves_are_given_back(mesh: SecuredMesh) -> None:
    quotas, handler = mesh.router_quotas.calls, mesh.replica.handler
    handler.gate.clear()
    stream = await opened(mesh, "alice")
    await stream.write(frame(1, 5, b"x"))
    await wait_until(lambda: quotas.calls.held.get(ALICE) == 5)
    stream.cancel()
    await wait_until(lambda: not (quotas.calls.held or quotas.bytes.held))
    handler.gate.set()


async def test_sessions_with_those_that_were_left(mesh: SecuredMesh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_quota, "KEPT_S", 3_600.0)
    quota = mesh.router_quotas.sessions.quota
    with of_at_most(quota, 2):
        left = [await opened(mesh, "alice", f"{number:032x}") for number in range(2)]
        for each in left:
            assert (await each.read()).HasField("opened")
            each.cancel()
        assert await refusal(await opened(mesh, "alice", "f" * 32)) == "sessions"
        others = await opened(mesh, "eve", f"{0:032x}")
        assert (await others.read()).HasField("opened")
        await ended(others)
        assert EVE not in quota.held
        assert quota.held[ALICE] == 2


async def test_slots_that_are_reserved(mesh: SecuredMesh) -> None:
    """Three quarters of the eight that the handler has."""
    slots, quota = (await mesh.at_router()).slots, mesh.replica.engine.scheduler.slots.quota
    request = slot_service_pb2.ReserveSlotRequest(endpoint="mine")
    held = [(await slots.ReserveSlot(request, metadata=by_token("alice"))).slot for _ in range(6)]
    assert quota.held == {ALICE: 6}
    assert await refusal(slots.ReserveSlot(request, metadata=by_token("alice"))) == "slots"
    direct = (await mesh.at_replica()).slots
    assert await refusal(direct.ReserveSlot(request, metadata=by_token("alice"))) == "slots"
    held += [(await slots.ReserveSlot(request, metadata=by_token("eve"))).slot]
    echo = call_pb2.CallOptions(method="echo", content_type=BYTES)
    into = slot_service_pb2.DispatchRequest(token=held.pop(0).token, endpoint="mine", options=echo, payload=b"x")
    assert (await slots.Dispatch(into, metadata=by_token("alice"))).payload == b"x"
    held += [(await slots.ReserveSlot(request, metadata=by_token("alice"))).slot]
    for slot in held:
        release = slot_service_pb2.ReleaseSlotRequest(token=slot.token)
        for who in ("alice", "eve"):
            await slots.ReleaseSlot(release, metadata=by_token(who))
    await wait_until(lambda: not quota.held)


async def test_changes_a_second(mesh: SecuredMesh) -> None:
    edge = mesh.controller_edge
    before, edge.change_quota = edge.change_quota, RateQuota(QuotaKind.CHANGES, 1, "max_changes_per_caller")
    try:
        one, other = [(await mesh.at_controller(name=name)).controller for name in ("one", "other")]
        drain = pb.DrainReplicaRequest(replica_id="none")
        reasons = []
        for _ in range(11):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await one.DrainReplica(drain)
            reasons.append(error_info(caught.value).reason)
        assert reasons[:10] == ["REPLICA_NOT_FOUND"] * 10
        assert reasons[10] == "QUOTA_EXCEEDED"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await other.DrainReplica(drain)
        assert error_info(caught.value).reason == "REPLICA_NOT_FOUND"
        await one.ListReplicas(pb.ListReplicasRequest())
    finally:
        edge.change_quota = before
