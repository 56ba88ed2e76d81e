"""What identities may do beyond their role, in a mesh by TLS: endpoints, slots, sessions, backends and payloads."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import duration_pb2, struct_pb2

from slotmesh.grpc_internals.call_writer import writer_of
from slotmesh.internal.v1 import membership_service_pb2, membership_service_pb2_grpc
from slotmesh.names import MAX_ENDPOINT_CHARS
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.v1 import (
    call_pb2,
    controller_service_pb2,
    direct_service_pb2,
    router_service_pb2,
    slot_service_pb2,
    tap_service_pb2,
)
from tests.contract.security.role_servers import KnownTokens, error_info, refused
from tests.contract.security.secured_mesh import EVE, SecuredMesh, accept_tokens, by_token, greeting, secured_mesh
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")
ECHO = call_pb2.CallOptions(method="echo", content_type="application/octet-stream")
SHORT = duration_pb2.Duration(nanos=50_000_000)
"""Of leases that nobody gives back: replicas wait for them when they stop."""
Slot = slot_service_pb2.Slot


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def mesh(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SecuredMesh]:
    async with secured_mesh(Path(tmp_path_factory.mktemp("tls"))) as running:
        yield running


async def ways_to_call(mesh: SecuredMesh, endpoint: str, token: str) -> dict[str, Any]:
    """Every rpc of a router that names an endpoint, on its way."""
    stubs, who = await mesh.at_router(), {"metadata": by_token(token)}
    stream = stubs.calls.StreamCalls(**who)
    await stream.write(router_service_pb2.StreamCallsRequest(open=router_service_pb2.OpenStream(endpoint=endpoint)))
    slots = (await mesh.at_replica()).slots
    reserve = slot_service_pb2.ReserveSlotRequest(endpoint=endpoint, ttl=SHORT)
    said = struct_pb2.Value(list_value=struct_pb2.ListValue(values=[struct_pb2.Value(string_value="x")]))
    json = router_service_pb2.CallRequest(
        endpoint=endpoint, options=call_pb2.CallOptions(method="greet"), arguments=said
    )
    values = call_pb2.CallOptions(method="stream", content_type="application/json")
    return {
        "Call": stubs.calls.Call(router_service_pb2.CallRequest(endpoint=endpoint, options=ECHO, payload=b"x"), **who),
        "Call with JSON values": stubs.calls.Call(json, **who),
        "CallStreaming": stubs.calls.CallStreaming(
            router_service_pb2.CallStreamingRequest(endpoint=endpoint, options=values, payload=b"[1]"), **who
        ),
        "StreamCalls": stream,
        "ModelInfer": stubs.inference.ModelInfer(greeting(endpoint), **who),
        "ReserveSlot": stubs.slots.ReserveSlot(reserve, **who),
        "ReserveSlot at the replica": slots.ReserveSlot(reserve, **who),
    }


async def test_an_invoker_calls_its_endpoints_only(mesh: SecuredMesh) -> None:
    for way, call in (await ways_to_call(mesh, "theirs", "alice")).items():
        code, reason, message = await refused(call)
        assert (code, reason) == ("PERMISSION_DENIED", "PERMISSION_DENIED"), way
        assert message == "client/alice may not call the endpoint 'theirs'", way
    for way, call in (await ways_to_call(mesh, "made-up", "alice")).items():
        assert (await refused(call))[2] == "client/alice may not call the endpoint 'made-up'", way
    for endpoint, token in (("mine", "alice"), ("theirs", "eve")):
        for call in (await ways_to_call(mesh, endpoint, token)).values():
            await (call.read() if hasattr(call, "read") else call)


async def test_a_name_that_no_endpoint_has_is_refused_unseen(
    mesh: SecuredMesh, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    name = "e" * (MAX_ENDPOINT_CHARS + 1)
    calls = await ways_to_call(mesh, name, "alice")
    stubs, who = await mesh.at_router(), {"metadata": by_token("alice")}
    calls["DescribeEndpoints"] = stubs.calls.DescribeEndpoints(
        router_service_pb2.DescribeEndpointsRequest(endpoint=name), **who
    )
    for at, slots in (("the router", stubs.slots), ("the replica", (await mesh.at_replica()).slots)):
        for rpc, request in (
            (slots.Dispatch, slot_service_pb2.DispatchRequest(endpoint=name)),
            (slots.DispatchStreaming, slot_service_pb2.DispatchStreamingRequest(endpoint=name)),
        ):
            calls[f"{type(request).__name__} at {at}"] = rpc(request, **who)
    for way, call in calls.items():
        code, reason, message = await refused(call)
        assert (code, reason) == ("INVALID_ARGUMENT", "BAD_REQUEST"), way
        assert f"at most {MAX_ENDPOINT_CHARS} characters, got {len(name)}" in message, way
    assert name[:100] not in caplog.text


async def test_an_invoker_with_limits_hears_of_its_endpoints_only(mesh: SecuredMesh) -> None:
    calls = (await mesh.at_router()).calls
    request = router_service_pb2.DescribeEndpointsRequest()
    for token, known in (("alice", ["mine"]), ("eve", ["mine", "theirs"]), ("vera", ["mine", "theirs"])):
        told = await calls.DescribeEndpoints(request, metadata=by_token(token))
        assert [each.name for each in told.endpoints] == known
    theirs = router_service_pb2.DescribeEndpointsRequest(endpoint="theirs")
    assert not (await calls.DescribeEndpoints(theirs, metadata=by_token("alice"))).endpoints
    absent = router_service_pb2.CallRequest(endpoint="absent", options=ECHO, payload=b"x")
    code, _, message = await refused(calls.Call(absent, metadata=by_token("alice")))
    assert (code, "theirs" in message) == ("NOT_FOUND", False)
    assert "theirs" in (await refused(calls.Call(absent, metadata=by_token("eve"))))[2]


async def reserved(stubs: Any, token: str, **fields: Any) -> Slot:
    request = slot_service_pb2.ReserveSlotRequest(endpoint="mine", **fields)
    slot: Slot = (await stubs.slots.ReserveSlot(request, metadata=by_token(token))).slot
    return slot


def uses(stubs: Any, slot: Slot, endpoint: str = "mine") -> dict[str, Any]:
    """What can be done with a slot. Releasing comes last."""
    into = slot_service_pb2.DispatchRequest(token=slot.token, endpoint=endpoint, options=ECHO, payload=b"x")
    values = slot_service_pb2.DispatchStreamingRequest(token=slot.token, endpoint=endpoint, options=ECHO, payload=b"x")
    return {
        "renew": lambda who: stubs.slots.RenewSlot(slot_service_pb2.RenewSlotRequest(token=slot.token), metadata=who),
        "stream": lambda who: stubs.slots.DispatchStreaming(values, metadata=who),
        "dispatch": lambda who: stubs.slots.Dispatch(into, metadata=who),
    }


@pytest.mark.parametrize("at", ["router", "replica"])
async def test_a_slot_is_known_to_who_has_reserved_it(mesh: SecuredMesh, at: str) -> None:
    router = await mesh.at_router()
    stubs = router if at == "router" else await mesh.at_replica()
    for giver in (router, stubs):
        slot = await reserved(giver, "alice")
        for use, call in uses(stubs, slot).items():
            assert (await refused(call(by_token("eve"))))[1] == "SLOT_UNKNOWN", use
        release = slot_service_pb2.ReleaseSlotRequest(token=slot.token)
        await stubs.slots.ReleaseSlot(release, metadata=by_token("eve"))  # no error, as for one that was made up
        assert (await uses(stubs, slot)["dispatch"](by_token("alice"))).payload == b"x"


@pytest.mark.parametrize("at", ["router", "replica"])
async def test_a_slot_is_for_who_may_call_its_endpoint(mesh: SecuredMesh, at: str) -> None:
    """Another token of the same name, limited to another endpoint, is of no use with it."""
    router = await mesh.at_router()
    stubs = router if at == "router" else await mesh.at_replica()
    other, same = by_token("alice-of-others"), by_token("alice-of-both")
    for giver in (router, stubs):
        slot = await reserved(giver, "alice")
        for use, call in uses(stubs, slot, "theirs").items():
            assert (await refused(call(other)))[1] == "SLOT_UNKNOWN", use
        for use, call in uses(stubs, slot, "mine").items():
            expected = "SLOT_UNKNOWN" if use == "renew" else "PERMISSION_DENIED"
            assert (await refused(call(other)))[1] == expected, use
        for who in (other, by_token("alice")):
            for use, call in uses(stubs, slot, "").items():
                if use != "renew":
                    code, _, message = await refused(call(who))
                    assert code == "PERMISSION_DENIED", use
                    assert message == "client/alice may call some endpoints only: name the endpoint of the slot"
        release = slot_service_pb2.ReleaseSlotRequest(token=slot.token)
        await stubs.slots.ReleaseSlot(release, metadata=other)  # no error, as for one that was made up
        await uses(stubs, slot)["renew"](same)
        assert (await uses(stubs, slot)["dispatch"](same)).payload == b"x"


async def test_who_may_call_all_endpoints_need_not_name_the_one_of_a_slot(mesh: SecuredMesh) -> None:
    for stubs in (await mesh.at_router(), await mesh.at_replica()):
        slot = await reserved(stubs, "eve")
        assert (await uses(stubs, slot, "")["dispatch"](by_token("eve"))).payload == b"x"


async def test_a_direct_stream_takes_slots_of_endpoints_that_its_client_may_call(mesh: SecuredMesh) -> None:
    stubs = await mesh.at_replica()
    slot = await reserved(stubs, "alice")

    async def attached(who: str, endpoint: str) -> tuple[str, str]:
        stream = stubs.direct.Attach(metadata=by_token(who))
        await stream.write(direct_service_pb2.AttachRequest(open=direct_service_pb2.OpenAttach()))
        assert (await stream.read()).WhichOneof("frame") == "opened"
        attach = direct_service_pb2.AttachSlot(slot_id=1, token=slot.token, endpoint=endpoint)
        await stream.write(direct_service_pb2.AttachRequest(attach=attach))
        answer = await stream.read()
        stream.cancel()
        kind = answer.WhichOneof("frame")
        return kind, answer.attached.failure.reason if kind == "attached" else ""

    assert (await attached("alice-of-others", "mine"))[1] == "PERMISSION_DENIED"
    assert (await attached("alice-of-others", ""))[1] == "PERMISSION_DENIED"
    assert (await attached("alice-of-others", "theirs"))[1] == "SLOT_UNKNOWN"
    assert (await attached("alice", ""))[1] == "PERMISSION_DENIED"
    assert (await attached("alice-of-both", "mine"))[1] == ""


async def test_ids_of_calls_are_each_callers_own_and_named_as_sent(mesh: SecuredMesh) -> None:
    calls = (await mesh.at_router()).calls

    async def call(token: str, payload: bytes) -> bytes:
        request = router_service_pb2.CallRequest(endpoint="mine", options=ECHO, payload=payload, request_id="order-17")
        return (await calls.Call(request, metadata=by_token(token))).payload  # type: ignore[no-any-return]  # of a stub

    assert (await call("alice", b"x"), await call("eve", b"y")) == (b"x", b"y")
    with pytest.raises(grpc.aio.AioRpcError, match="request_id: 'order-17' is the id of another call"):
        await call("alice", b"y")


async def test_request_ids_are_each_callers_own(mesh: SecuredMesh) -> None:
    for stubs in (await mesh.at_router(), await mesh.at_replica()):
        first, again, other = [await reserved(stubs, who, request_id="same") for who in ("alice", "alice", "eve")]
        assert first.token == again.token != other.token
        for slot, who in ((first, "alice"), (other, "eve")):
            await stubs.slots.ReleaseSlot(slot_service_pb2.ReleaseSlotRequest(token=slot.token), metadata=by_token(who))


async def test_sessions_are_each_callers_own(mesh: SecuredMesh) -> None:
    """Whoever knows the id of another's session does not take it over."""
    calls = (await mesh.at_router()).calls
    opening = router_service_pb2.OpenStream(endpoint="mine", session_id="0" * 32, epoch=1)
    streams = []
    for who in ("alice", "eve"):
        stream = calls.StreamCalls(metadata=by_token(who))
        await stream.write(router_service_pb2.StreamCallsRequest(open=opening))
        assert (await stream.read()).WhichOneof("frame") == "opened"
        streams.append(stream)
    for stream in streams:
        await stream.done_writing()
        assert await stream.code() is grpc.StatusCode.OK


async def test_a_token_that_is_revoked_ends_the_calls_under_way(mesh: SecuredMesh) -> None:
    """As when a client leaves: they are cancelled where they run."""
    edge = mesh.router.edge
    assert edge.authorizer is not None
    tokens = KnownTokens(mallory=EVE)
    edge.authorizer._tokens, edge.streams.look_s = tokens, 0.05
    stream = (await mesh.at_router()).calls.StreamCalls(metadata=by_token("mallory"))
    opening = router_service_pb2.OpenStream(endpoint="theirs")
    waiting = call_pb2.CallOptions(method="wait", content_type="application/octet-stream")
    batch = router_service_pb2.CallBatch(first_call_id=1, options=waiting, payloads=[b"x"])
    frame = router_service_pb2.CallFrame(batches=[batch])
    await stream.write(router_service_pb2.StreamCallsRequest(open=opening))
    await stream.write(router_service_pb2.StreamCallsRequest(calls=frame))
    scheduler = mesh.replica.engine.scheduler
    await wait_until(lambda: mesh.replica.handler.started, what="the call runs")
    tokens.identities.clear()
    info = error_info(await end_of(stream))
    assert (info.reason, info.metadata["executed"]) == ("UNAUTHENTICATED", "unknown")
    await wait_until(lambda: not scheduler.in_use, what="the call is cancelled")
    accept_tokens(mesh.router)


async def end_of(stream: Any) -> grpc.aio.AioRpcError:
    """How a stream ends; its frames before that are read."""
    try:
        while await stream.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error
    raise AssertionError("the stream ended well")


async def test_a_replica_attaches_for_its_own_backend_only(mesh: SecuredMesh) -> None:
    hello = membership_service_pb2.ReplicaHello(replica_id="r", incarnation="0" * 32, backend="other")
    said = {}
    for kind, name in (("replica", "other"), ("replica", "echo-v1"), ("router", ""), ("operator", "ops")):
        dialer = Dialer(mesh.authority.source(kind, name))
        async with dialer.open(mesh.controller, Role.CONTROLLER) as channel:
            stub: Any = membership_service_pb2_grpc.MembershipServiceStub(channel)
            stream = stub.AttachReplica()
            try:
                await writer_of(stream)(membership_service_pb2.AttachReplicaRequest(hello=hello))
                said[kind, name] = (await stream.read()).WhichOneof("frame")
            except grpc.aio.AioRpcError as error:
                said[kind, name] = error.details()
            hello.replica_id += "r"
    rpc = "slotmesh.internal.v1.MembershipService/AttachReplica"
    assert said == {
        ("replica", "other"): "configuration",
        ("replica", "echo-v1"): "replica/echo-v1 may not serve as a replica of the backend 'other'",
        ("router", ""): f"{rpc} needs the role replica, which router does not have",
        ("operator", "ops"): f"{rpc} needs the role replica, which operator/ops does not have",
    }


async def test_payloads_are_for_operators(mesh: SecuredMesh) -> None:
    taps = (await mesh.at_router("operator", "ops")).taps
    request = tap_service_pb2.TapCallsRequest(endpoint="mine", with_payloads=True)
    code, _, message = await refused(taps.TapCalls(request, metadata=by_token("vera")))
    assert (code, message) == (
        "PERMISSION_DENIED",
        "payloads need the role operator, which viewer/vera does not have",
    )
    for said, who in ((request, None), (tap_service_pb2.TapCallsRequest(endpoint="mine"), by_token("vera"))):
        tap = taps.TapCalls(said, metadata=who)
        await tap.initial_metadata()
        tap.cancel()


async def test_ordering_keys_of_listed_calls_are_for_operators(mesh: SecuredMesh) -> None:
    taps = (await mesh.at_router("operator", "ops")).taps
    request = tap_service_pb2.ListCallsRequest(with_ordering_keys=True)
    code, _, message = await refused(taps.ListCalls(request, metadata=by_token("vera")))
    assert code == "PERMISSION_DENIED"
    assert message == "payloads need the role operator, which viewer/vera does not have"
    for said, who in ((request, None), (tap_service_pb2.ListCallsRequest(), by_token("vera"))):
        assert not (await taps.ListCalls(said, metadata=who)).calls


async def test_reserved_metadata_reaches_no_handler(mesh: SecuredMesh) -> None:
    calls = (await mesh.at_router()).calls
    for key in ("authorization", "grpc-internal", "slotmesh-client"):
        options = call_pb2.CallOptions(method="echo", metadata={key: "secret"})
        request = router_service_pb2.CallRequest(endpoint="mine", options=options)
        code, _, message = await refused(calls.Call(request, metadata=by_token("eve")))
        assert (code, "is reserved" in message) == ("INVALID_ARGUMENT", True)


async def test_the_audit_log_has_who_was_refused_and_who_changed_what(
    mesh: SecuredMesh, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "slotmesh.audit")
    controller = (await mesh.at_controller()).controller
    change = controller_service_pb2.DeleteEndpointRequest(name="theirs", validate_only=True)
    await controller.DeleteEndpoint(change)
    restoring = await controller.GetEndpoint(controller_service_pb2.GetEndpointRequest(name="theirs"))
    deleted = await controller.DeleteEndpoint(controller_service_pb2.DeleteEndpointRequest(name="theirs"))
    restoring.endpoint.ClearField("etag")  # the endpoint that had it is gone
    restored = await controller.ApplyEndpoint(controller_service_pb2.ApplyEndpointRequest(endpoint=restoring.endpoint))
    viewer = (await mesh.at_controller("viewer", "vera")).controller
    await refused(viewer.DeleteEndpoint(change))
    service = "slotmesh.v1.ControllerService"
    lines = [record.getMessage() for record in caplog.records if record.name == "slotmesh.audit"]
    lines = [line for line in lines if f"method={service}/" in line]
    who, what = "changed who=operator/ops", "object=endpoint/theirs"
    assert lines[:2] == [
        f"{who} method={service}/DeleteEndpoint {what} before={restoring.revision} after={deleted.revision}",
        f"{who} method={service}/ApplyEndpoint {what} before={deleted.revision} after={restored.revision}",
    ]
    assert lines[2].startswith(
        f"denied who=viewer/vera method={service}/DeleteEndpoint reason=PERMISSION_DENIED role=operator peer="
    )
    history = await controller.ListRevisions(controller_service_pb2.ListRevisionsRequest())
    assert history.revisions[0].who.startswith("operator/ops by ")
