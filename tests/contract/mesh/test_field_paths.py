"""Each rpc that strangers may call names fields of the request that was sent, whatever is wrong with that.

Requests are made from their descriptors, one field spoilt in each, so that a new rpc or field is tried by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, Final

import grpc
import pytest
import pytest_asyncio
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_status import rpc_status

import slotmesh.testing
from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import direct_service_pb2, router_service_pb2
from tests.support.declared_rpcs import declared_rpcs
from tests.support.field_paths import violated_fields, wrong_path

pytestmark = pytest.mark.asyncio(loop_scope="module")

PUBLIC: Final = [it for it in declared_rpcs() if it.full_name.startswith(("slotmesh.v1.", "inference."))]
AT_REPLICAS: Final = ("SlotService", "DirectService")
AT_CONTROLLERS: Final = ("ControllerService", "HttpRouteService", "InfoService")
NAMES: Final = {"endpoint": "e", "model_name": "e", "backend": "b", "version": "b", "path": "/x", "method": "echo"}
"""What fields of these names have where nothing is spoilt; other names of resources are those of backends."""
ENDLESS: Final = {"StreamCalls", "Attach", "ModelStreamInfer", "TapCalls", "WatchEvents", "WatchHttpRoutes"}
"""Valid requests of these are answered for ever: only what they must refuse is sent."""
NAMES_NONE: Final = {
    *("GetServerInfo", "ServerLive", "ServerReady", "ServerMetadata", "ModelStreamInfer", "WatchHttpRoutes"),
    *("GetSnapshot", "GetBackend", "GetEndpoint"),
}
"""No field of these can be invalid, or a name that there is not is NOT_FOUND, or each failure is a response."""
_NUMBERS: Final = {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64}
_FLOATS: Final = {FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT}
_MAX_DEPTH: Final = 4


def spoilt(message: Message, depth: int = 0) -> Iterator[None]:
    """Spoils one field after another, in place: each is restored before the next."""
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            yield from _spoilt_map(message, field)
        elif field.message_type is not None and depth < _MAX_DEPTH:
            yield from _spoilt_message(message, field, depth)
        elif field.message_type is None:
            for value in _bad_values(field):
                before = [*getattr(message, field.name)] if field.is_repeated else None
                if field.is_repeated:
                    getattr(message, field.name).extend([value, value])
                    yield
                    del getattr(message, field.name)[:]
                    getattr(message, field.name).extend(before or ())
                else:
                    yield from _set(message, field, value)


def _set(message: Message, field: Any, value: Any) -> Iterator[None]:
    had = not field.has_presence or message.HasField(field.name)
    before = getattr(message, field.name)
    setattr(message, field.name, value)
    yield
    if had:
        setattr(message, field.name, before)
    else:
        message.ClearField(field.name)


def _spoilt_message(message: Message, field: Any, depth: int) -> Iterator[None]:
    kept = type(message)()
    kept.CopyFrom(message)
    if field.is_repeated:
        elements = getattr(message, field.name)
        inner = elements[0] if elements else elements.add()
        yield  # one that is empty
        elements.add().CopyFrom(inner)
        yield  # the same twice
        inner = elements[-1]
    else:
        inner = getattr(message, field.name)
        inner.SetInParent()
        yield
    yield from spoilt(inner, depth + 1)
    message.CopyFrom(kept)


def _spoilt_map(message: Message, field: Any) -> Iterator[None]:
    entries, value_field = getattr(message, field.name), field.message_type.fields_by_name["value"]
    for key in ("no.such[0]", "", "x" * 300):
        if value_field.message_type is not None:
            for _ in spoilt(entries[key], _MAX_DEPTH):
                yield
            del entries[key]
        else:
            for value in _bad_values(value_field):
                entries[key] = value
                yield
                del entries[key]


def _bad_values(field: Any) -> list[Any]:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return [b"\xff\xc1"]
        case FieldDescriptor.CPPTYPE_STRING:
            return ["", "no such: ü", "x" * 3_000]
        case FieldDescriptor.CPPTYPE_ENUM:
            return [0, 99]
        case FieldDescriptor.CPPTYPE_BOOL:
            return [True] if field.name != "prune" else []
        case kind if kind in _FLOATS:
            return [float("nan"), -1.0, 7.5]
        case kind if kind in _NUMBERS:
            return [-1, 2**31 - 1]
        case _:
            return [0, 2**32 - 1]


def sound(method: MethodDescriptor) -> Message:
    """A request with names of what there is, which changes nothing."""
    request = GetMessageClass(method.input_type)()
    for field in request.DESCRIPTOR.fields:
        if field.name in {"dry_run", "validate_only"}:
            setattr(request, field.name, True)
        elif field.name == "ttl":
            getattr(request, field.name).seconds = 1
        elif field.type == FieldDescriptor.TYPE_STRING and not field.is_repeated:
            named = "b" if field.name == "name" and "Backend" in method.name else "e"
            value = NAMES.get(field.name, named if field.name == "name" else None)
            if value is not None:
                setattr(request, field.name, value)
    return request


def refused_openings(method: MethodDescriptor) -> Iterator[Message]:
    """What a call that would not end otherwise must refuse."""
    match method.name:
        case "TapCalls":
            for field, value in (("endpoint", ""), ("sample_rate", -1.0), ("max_calls_per_s", -1)):
                request: Any = sound(method)
                setattr(request, field, value)
                yield request
        case "WatchEvents":
            for fields in ({"kinds": [99]}, {"after": "no", "until_newest": True}):
                yield GetMessageClass(method.input_type)(**fields)
        case "StreamCalls":
            frame, opening = router_service_pb2.StreamCallsRequest, router_service_pb2.OpenStream
            yield frame(calls=router_service_pb2.CallFrame())
            yield frame(open=opening())
            yield frame(open=opening(endpoint="e", features=["f"] * 300))
            yield frame(open=opening(endpoint="e", session_id="x" * 3_000, epoch=1))
            yield frame(open=opening(endpoint="e", session_id="s", epoch=-1))
            yield frame(open=opening(endpoint="e", rosters=[router_service_pb2.RosterVersion()] * 3_000))
        case "Attach":
            yield direct_service_pb2.AttachRequest(attach=direct_service_pb2.AttachSlot())
        case "WatchHttpRoutes" | "ModelStreamInfer":
            return
        case _:
            raise AssertionError(f"{method.name} may be answered for ever: what must it refuse?")


class Servers:
    """Channels to one server of each kind."""

    def __init__(self, controller: grpc.aio.Channel, router: grpc.aio.Channel, replica: grpc.aio.Channel) -> None:
        self._controller, self._router, self._replica = controller, router, replica

    def having(self, method: MethodDescriptor) -> Iterator[grpc.aio.Channel]:
        service = method.containing_service.name
        if service in AT_CONTROLLERS:
            yield self._controller
        if service not in AT_CONTROLLERS[:2] and service != "DirectService":
            yield self._router
        if service in AT_REPLICAS:
            yield self._replica

    async def fields(self, channel: Any, method: MethodDescriptor, request: Message) -> list[str]:
        """The fields that the server names, if it refuses the request."""
        path = f"/{method.containing_service.full_name}/{method.name}"
        streams_in, streams_out = method.client_streaming, method.server_streaming
        kind = f"{'stream' if streams_in else 'unary'}_{'stream' if streams_out else 'unary'}"
        rpc = getattr(channel, kind)(
            path,
            request_serializer=lambda it: it.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        try:
            if streams_in:
                call = rpc(timeout=20)
                await call.write(request)
                await call.read()
            elif streams_out:
                async for _ in rpc(request, timeout=20):
                    pass
            else:
                await rpc(request, timeout=20)
            return []
        except grpc.aio.AioRpcError as error:
            refusal = error
        status = rpc_status.from_call(refusal)  # type: ignore[arg-type]  # an aio error quacks as a call
        assert status is not None, (path, request, refusal)
        return [*violated_fields(status)]


class Echo:
    async def echo(self, value: Any = None) -> Any:
        return value


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def servers() -> AsyncIterator[Servers]:
    async with AsyncExitStack() as stack:
        mesh = await stack.enter_async_context(slotmesh.testing.mesh({"b": Echo}, traffic={"e": {"b": 1.0}}))
        async with mesh.endpoint("e").reserve() as slot:
            replica = slot.replica_address
        addresses = (mesh.controller_address, mesh.router_addresses[0], replica)
        yield Servers(*[await stack.enter_async_context(open_channel(it)) for it in addresses])


@pytest.mark.parametrize("method", PUBLIC, ids=lambda it: f"{it.containing_service.name}-{it.name}")
async def test_each_named_field_is_one_of_the_request(servers: Servers, method: MethodDescriptor) -> None:
    wrong, named = [], defaultdict(set)
    for channel in servers.having(method):
        async for request, fields in _refusals(servers, channel, method):
            for field in fields:
                named[field].add(method.name)
                if why := wrong_path(request, field):
                    wrong.append(f"{field}: {why}")
    assert not wrong
    assert named or method.name in NAMES_NONE, "nothing was refused"


async def _refusals(
    servers: Servers, channel: Any, method: MethodDescriptor
) -> AsyncIterator[tuple[Message, list[str]]]:
    if method.name in ENDLESS:
        for opening in refused_openings(method):
            yield opening, await servers.fields(channel, method, opening)
        return
    request = sound(method)
    for _ in spoilt(request):
        yield request, await servers.fields(channel, method, request)
