"""`google.api.field_behavior` states what servers do with fields of requests.

They refuse a request without a field that is REQUIRED, but not without others; they ignore fields that are OUTPUT_ONLY.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.api import field_behavior_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

import slotmesh.testing
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error, from_wire
from slotmesh.v1 import (
    call_pb2,
    controller_service_pb2,
    controller_service_pb2_grpc,
    direct_service_pb2,
    direct_service_pb2_grpc,
    http_route_service_pb2,
    http_route_service_pb2_grpc,
    info_service_pb2,
    info_service_pb2_grpc,
    mesh_pb2,
    operations_pb2,
    rollout_pb2,
    router_service_pb2,
    router_service_pb2_grpc,
    slot_service_pb2,
    slot_service_pb2_grpc,
    tap_service_pb2,
    tap_service_pb2_grpc,
    traffic_shift_pb2,
)
from tests.support.controllers import violations

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODULES = (
    *(call_pb2, router_service_pb2, slot_service_pb2, direct_service_pb2, tap_service_pb2, info_service_pb2),
    *(controller_service_pb2, http_route_service_pb2, mesh_pb2, operations_pb2, rollout_pb2, traffic_shift_pb2),
)
OPTIONS = call_pb2.CallOptions(method="__call__")
CALL: dict[str, Any] = {"endpoint": "echo", "options": OPTIONS, "payload": b"x"}
BACKEND = mesh_pb2.Backend(name="other", handler="module:Name")
TRAFFIC = mesh_pb2.TrafficPolicy(weights={"echo": 1.0})
ENDPOINT = mesh_pb2.Endpoint(name="other", traffic=TRAFFIC)
ROUTE = mesh_pb2.HttpRoute(name="/echo", endpoint="echo", method="__call__")
pb = controller_service_pb2
MERELY: dict[str, Any] = {"validate_only": True}
GUARD = traffic_shift_pb2.ShiftGuard(figure=traffic_shift_pb2.SHIFT_FIGURE_ERROR_RATE, max_error_rate=0.5)
VALID: dict[str, Any] = {
    "RouterService/Call": router_service_pb2.CallRequest(**CALL),
    "RouterService/CallStreaming": router_service_pb2.CallStreamingRequest(**CALL),
    "RouterService/Broadcast": router_service_pb2.BroadcastRequest(**CALL),
    "RouterService/DescribeEndpoints": router_service_pb2.DescribeEndpointsRequest(endpoint="echo"),
    "RouterService/StreamCalls": router_service_pb2.OpenStream(endpoint="echo", default_options=OPTIONS),
    "SlotService/ReserveSlot": slot_service_pb2.ReserveSlotRequest(endpoint="echo"),
    "SlotService/RenewSlot": slot_service_pb2.RenewSlotRequest(token="$TOKEN"),
    "SlotService/ReleaseSlot": slot_service_pb2.ReleaseSlotRequest(token="$TOKEN"),
    "SlotService/Dispatch": slot_service_pb2.DispatchRequest(token="$TOKEN", **CALL),
    "SlotService/DispatchStreaming": slot_service_pb2.DispatchStreamingRequest(token="$TOKEN", **CALL),
    "DirectService/Attach: attach": direct_service_pb2.AttachSlot(slot_id=1, token="$TOKEN", endpoint="echo"),
    "DirectService/Attach: call": direct_service_pb2.SlotCall(slot_id=1, call_id=1, options=OPTIONS, payload=b"x"),
    "TapService/TapCalls": tap_service_pb2.TapCallsRequest(endpoint="echo"),
    "TapService/ListCalls": tap_service_pb2.ListCallsRequest(endpoint="echo"),
    "InfoService/GetServerInfo": info_service_pb2.GetServerInfoRequest(),
    "HttpRouteService/WatchHttpRoutes": http_route_service_pb2.WatchHttpRoutesRequest(),
    "ControllerService/ApplyMesh": pb.ApplyMeshRequest(
        mesh=mesh_pb2.Mesh(backends=[BACKEND], endpoints=[ENDPOINT], routes=[ROUTE]), **MERELY
    ),
    "ControllerService/ApplyBackend": pb.ApplyBackendRequest(backend=BACKEND, **MERELY),
    "ControllerService/GetBackend": pb.GetBackendRequest(name="echo"),
    "ControllerService/ListBackends": pb.ListBackendsRequest(page_size=1),
    "ControllerService/DeleteBackend": pb.DeleteBackendRequest(name="spare", **MERELY),
    "ControllerService/ApplyEndpoint": pb.ApplyEndpointRequest(endpoint=ENDPOINT, **MERELY),
    "ControllerService/GetEndpoint": pb.GetEndpointRequest(name="echo"),
    "ControllerService/ListEndpoints": pb.ListEndpointsRequest(page_size=1),
    "ControllerService/DeleteEndpoint": pb.DeleteEndpointRequest(name="echo", **MERELY),
    "ControllerService/ApplyHttpRoute": pb.ApplyHttpRouteRequest(route=ROUTE, **MERELY),
    "ControllerService/GetHttpRoute": pb.GetHttpRouteRequest(name="/there"),
    "ControllerService/ListHttpRoutes": pb.ListHttpRoutesRequest(page_size=1),
    "ControllerService/DeleteHttpRoute": pb.DeleteHttpRouteRequest(name="/there", **MERELY),
    "ControllerService/SetTraffic": pb.SetTrafficRequest(endpoint="echo", traffic=TRAFFIC, **MERELY),
    "ControllerService/ShiftTraffic": pb.ShiftTrafficRequest(
        endpoint="echo", weights={"spare": 0.5}, step=0.1, every=Duration(seconds=1), guards=[GUARD], **MERELY
    ),
    "ControllerService/ListRevisions": pb.ListRevisionsRequest(page_size=1),
    "ControllerService/Rollback": pb.RollbackRequest(revision=0, **MERELY),
    "ControllerService/ListReplicas": pb.ListReplicasRequest(page_size=1),
    "ControllerService/ListRouters": pb.ListRoutersRequest(page_size=1),
    "ControllerService/GetSnapshot": pb.GetSnapshotRequest(),
    "ControllerService/DrainReplica": pb.DrainReplicaRequest(replica_id="none"),
    "ControllerService/AdoptState": pb.AdoptStateRequest(source=pb.STATE_SOURCE_STORE),
    "ControllerService/ForgetReplica": pb.ForgetReplicaRequest(replica_id="none"),
    "ControllerService/PauseRollout": pb.PauseRolloutRequest(backend="echo", **MERELY),
    "ControllerService/WaitOperations": operations_pb2.WaitOperationsRequest(names=["revision/1"]),
    "ControllerService/WatchEvents": pb.WatchEventsRequest(from_oldest=True, until_newest=True),
    "ControllerService/ReadLogs": pb.ReadLogsRequest(replica_id="none"),
}
"""A valid request of each rpc, or of streams each frame with required fields; `$TOKEN` is a fresh slot."""

REFUSED = {
    "ControllerService/DrainReplica": Reason.REPLICA_NOT_FOUND,
    "ControllerService/ForgetReplica": Reason.REPLICA_NOT_FOUND,
    "ControllerService/ReadLogs": Reason.REPLICA_NOT_FOUND,
    "ControllerService/AdoptState": Reason.BAD_REQUEST,
}
"""Requests that have all fields, and have no effect on this mesh."""
REQUIRED_ONEOFS = {
    "slotmesh.v1.RollbackRequest.target",
    "slotmesh.v1.ReadLogsRequest.source",
    "slotmesh.v1.ShiftGuard.limit",
}
"""Of which one field is required, as their comments state."""
REQUIRED_HERE = {"slotmesh.v1.Backend.handler"}
"""Required if the controller launches replicas, as this one does."""
MISSING = {Reason.BAD_REQUEST, Reason.DUPLICATE_CALL_ID, Reason.SLOT_UNKNOWN}


class Echo:
    async def __call__(self, payload: bytes = b"") -> bytes:
        return payload


class Doors:
    def __init__(self, router: grpc.aio.Channel, replica: grpc.aio.Channel, controller: grpc.aio.Channel) -> None:
        self.stubs: dict[str, Any] = {
            "RouterService": router_service_pb2_grpc.RouterServiceStub(router),
            "SlotService": slot_service_pb2_grpc.SlotServiceStub(router),
            "TapService": tap_service_pb2_grpc.TapServiceStub(router),
            "InfoService": info_service_pb2_grpc.InfoServiceStub(router),
            "DirectService": direct_service_pb2_grpc.DirectServiceStub(replica),
            "ControllerService": controller_service_pb2_grpc.ControllerServiceStub(controller),
            "HttpRouteService": http_route_service_pb2_grpc.HttpRouteServiceStub(controller),
        }

    async def failure(self, rpc: str, without: tuple[str, ...] = ()) -> Failure | None:
        """Of the valid request of this rpc, without the field at this path."""
        request = copied(VALID[rpc])
        token = await self.token()
        if "token" in request.DESCRIPTOR.fields_by_name:
            request.token = token
        if without:
            message_at(request, without[:-1]).ClearField(without[-1])
        return await self.outcome(rpc, request, token)

    async def outcome(self, rpc: str, request: Any, token: str = "") -> Failure | None:
        service, _, method = rpc.partition("/")
        call: Any = getattr(self.stubs[service], method.partition(":")[0])
        try:
            match rpc:
                case "RouterService/StreamCalls":
                    await half_closed(call(), [router_service_pb2.StreamCallsRequest(open=request)])
                case "DirectService/Attach: attach":
                    return await self.attached(call(), request)
                case "DirectService/Attach: call":
                    slot = direct_service_pb2.AttachSlot(slot_id=1, token=token)
                    return await self.attached(call(), slot, request)
                case "TapService/TapCalls" | "HttpRouteService/WatchHttpRoutes" | "ControllerService/WatchEvents":
                    await begun(call(request))
                case _ if "Streaming" in rpc or "ReadLogs" in rpc or "Broadcast" in rpc:
                    async for _ in call(request):
                        pass
                case _:
                    await call(request)
        except grpc.aio.AioRpcError as error:
            return replace(from_rpc_error(error), message=f"{error.details()} {[*violations(error)]}")
        return None

    async def attached(self, call: Any, slot: Any, slot_call: Any = None) -> Failure | None:
        frames = [
            direct_service_pb2.AttachRequest(open=direct_service_pb2.OpenAttach()),
            direct_service_pb2.AttachRequest(attach=slot),
            *([] if slot_call is None else [direct_service_pb2.AttachRequest(call=slot_call)]),
        ]
        for response in await half_closed(call, frames):
            match response.WhichOneof("frame"):
                case "attached" if response.attached.HasField("failure"):
                    return from_wire(response.attached.failure)
                case "failed":
                    return from_wire(response.failed.failure)
                case _:
                    pass
        return None

    async def token(self) -> str:
        reserved = await self.stubs["SlotService"].ReserveSlot(VALID["SlotService/ReserveSlot"])
        return str(reserved.slot.token)


async def half_closed(call: Any, frames: list[Any]) -> list[Any]:
    """All responses."""
    for frame in frames:
        await call.write(frame)
    await call.done_writing()
    return [response async for response in call]


async def begun(call: Any) -> None:
    """A stream of the server has begun once its initial metadata is there."""
    await call.initial_metadata()
    if not call.done():
        call.cancel()
        return
    await call.read()


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def doors() -> AsyncIterator[Doors]:
    async with (
        slotmesh.testing.mesh({"echo": Echo, "spare": Echo}, traffic={"echo": {"echo": 1.0}}) as mesh,
        open_channel(mesh.router_addresses[0]) as router,
        open_channel(mesh.controller_address) as controller,
    ):
        operator: Any = controller_service_pb2_grpc.ControllerServiceStub(controller)
        there = mesh_pb2.HttpRoute(name="/there", endpoint="echo", method="__call__")
        await operator.ApplyHttpRoute(pb.ApplyHttpRouteRequest(route=there))
        slots: Any = slot_service_pb2_grpc.SlotServiceStub(router)
        slot = (await slots.ReserveSlot(VALID["SlotService/ReserveSlot"])).slot
        async with open_channel(slot.replica_address) as replica:
            yield Doors(router, replica, controller)


def copied(request: Any) -> Any:
    copy = type(request)()
    copy.CopyFrom(request)
    return copy


def message_at(request: Any, path: tuple[str, ...]) -> Any:
    """The message in it; of several, the first one."""
    for name in path:
        inner = getattr(request, name)
        request = inner if isinstance(inner, Message) else inner[0]
    return request


def fields_of(request: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], FieldDescriptor]]:
    """Each field of a request, and of the messages of slotmesh in it."""
    message = message_at(request, path)
    for field in message.DESCRIPTOR.fields:
        yield (*path, field.name), field
        held = getattr(message, field.name)
        is_set = bool(held) if field.is_repeated else field.message_type is not None and message.HasField(field.name)
        if is_set and is_ours(field.message_type):
            yield from fields_of(request, (*path, field.name))


def is_ours(kind: Descriptor | None) -> bool:
    """Whether it is a message of slotmesh, and no entry of a map."""
    return kind is not None and kind.full_name.startswith("slotmesh.") and not kind.GetOptions().map_entry


def text_of(failure: Failure | None) -> str | None:
    return None if failure is None else failure.message


def has(field: FieldDescriptor, behavior: int) -> bool:
    extensions: Any = field.GetOptions().Extensions
    return behavior in extensions[field_behavior_pb2.field_behavior]


def is_required(field: FieldDescriptor) -> bool:
    oneof = field.containing_oneof
    is_only_one = oneof is not None and oneof.full_name in REQUIRED_ONEOFS
    return has(field, field_behavior_pb2.REQUIRED) or is_only_one or field.full_name in REQUIRED_HERE


async def test_each_request_with_required_fields_is_looked_at() -> None:
    stated = {
        message.full_name
        for module in MODULES
        for message in module.DESCRIPTOR.message_types_by_name.values()
        if any(has(field, field_behavior_pb2.REQUIRED) for field in message.fields)
    }
    seen = {
        message_at(request, path[:-1]).DESCRIPTOR.full_name
        for request in VALID.values()
        for path, _ in fields_of(request)
    }
    assert stated <= seen
    rpcs = {
        f"{service.name}/{method.name}"
        for module in MODULES
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert rpcs == {rpc.partition(":")[0] for rpc in VALID}


@pytest.mark.parametrize("rpc", VALID)
async def test_a_request_needs_its_required_fields_and_no_others(doors: Doors, rpc: str) -> None:
    whole = await doors.failure(rpc)
    assert (None if whole is None else whole.reason) == REFUSED.get(rpc)
    for path, field in fields_of(VALID[rpc]):
        if path == ("validate_only",):
            continue  # without it, what is changed would not be there any more
        failure = await doors.failure(rpc, path)
        is_set = field in dict(message_at(VALID[rpc], path[:-1]).ListFields())
        assert is_set or not has(field, field_behavior_pb2.REQUIRED), path
        if not is_set or not is_required(field):
            assert text_of(failure) == text_of(whole), path
            continue
        assert failure is not None, path
        assert failure.reason in MISSING, path
        assert text_of(failure) != text_of(whole), path
        assert field.name in failure.message or field.name in failure.metadata.get("field", ""), path


@pytest.mark.parametrize("rpc", VALID)
async def test_a_request_with_nothing_set_is_refused_where_a_field_is_required(doors: Doors, rpc: str) -> None:
    failure = await doors.outcome(rpc, type(VALID[rpc])(), await doors.token())
    is_refused = failure is not None and failure.reason in MISSING
    assert is_refused is any(map(is_required, VALID[rpc].DESCRIPTOR.fields))


@pytest.mark.parametrize("kind", ["Backend", "Endpoint"])
async def test_what_only_responses_have_is_ignored_in_requests(doors: Doors, kind: str) -> None:
    """A resource can be sent back as it was received, whatever has become of its status."""
    stub, field = doors.stubs["ControllerService"], kind.lower()
    received = getattr(await getattr(stub, f"Get{kind}")(getattr(pb, f"Get{kind}Request")(name="echo")), field)
    only_sent = [it for it in received.DESCRIPTOR.fields if has(it, field_behavior_pb2.OUTPUT_ONLY)]
    assert only_sent
    altered = copied(received)
    for each in only_sent:
        altered.ClearField(each.name)
        if each.type == FieldDescriptor.TYPE_STRING:
            setattr(altered, each.name, "another")
    for resource in (received, altered):
        request = getattr(pb, f"Apply{kind}Request")(**{field: resource}, validate_only=True)
        assert (await getattr(stub, f"Apply{kind}")(request)).change == pb.CHANGE_UNCHANGED
