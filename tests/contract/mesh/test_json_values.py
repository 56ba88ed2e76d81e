"""Calls with JSON values by each rpc for single calls, at the router and at the replica: no payload bytes anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import json_format, struct_pb2

import slotmesh.testing
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.channels import open_channel
from slotmesh.status import from_rpc_error
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc, slot_service_pb2, slot_service_pb2_grpc

pytestmark = pytest.mark.asyncio

Options = call_pb2.CallOptions
RPCS = ("Call", "CallStreaming", "Dispatch", "DispatchStreaming", "Dispatch at the replica", "DispatchStreaming there")
VALUES = {"one": 1, "half": 0.5, "none": None, "list": [True, "x", {}]}


class Json:
    def __init__(self) -> None:
        self.cancelled = 0

    async def same(self, value: Any = None, times: int = 1) -> Any:
        return [value] * times

    async def each(self, value: Any = None, times: int = 1) -> AsyncIterator[Any]:
        for _ in range(times):
            yield value

    async def growing(self) -> AsyncIterator[Any]:
        """The second value is nested too deep; without cancellation there is no end."""
        value: Any = []
        try:
            yield value
            for _ in range(60):
                value = [value]
            while True:
                yield value
        finally:
            self.cancelled += 1

    async def cancellations(self) -> int:
        return self.cancelled


class Rpcs:
    """Each rpc as one function of its input."""

    def __init__(self, router: grpc.aio.Channel) -> None:
        self._calls: Any = router_service_pb2_grpc.RouterServiceStub(router)
        self._slots: Any = slot_service_pb2_grpc.SlotServiceStub(router)

    async def make(self, rpc: str, method: str, **request: Any) -> list[Any]:
        """All responses of the call."""
        request["options"] = Options(method=method, **request.pop("options", {}))
        if rpc.startswith("Call"):
            if rpc == "Call":
                return [await self._calls.Call(router_service_pb2.CallRequest(endpoint="json", **request))]
            streaming = router_service_pb2.CallStreamingRequest(endpoint="json", **request)
            return [response async for response in self._calls.CallStreaming(streaming)]
        slot = (await self._slots.ReserveSlot(slot_service_pb2.ReserveSlotRequest(endpoint="json"))).slot
        async with open_channel(slot.replica_address) as replica:
            there: Any = slot_service_pb2_grpc.SlotServiceStub(replica) if "the" in rpc else self._slots
            if rpc.startswith("DispatchStreaming"):
                dispatch = slot_service_pb2.DispatchStreamingRequest(token=slot.token, **request)
                return [response async for response in there.DispatchStreaming(dispatch)]
            return [await there.Dispatch(slot_service_pb2.DispatchRequest(token=slot.token, **request))]

    async def refused(self, rpc: str, method: str, **request: Any) -> Failure:
        """The failure of a call."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self.make(rpc, method, **request)
        return from_rpc_error(caught.value)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def rpcs() -> AsyncIterator[Rpcs]:
    async with (
        slotmesh.testing.mesh({"json": Json}) as mesh,
        open_channel(mesh.router_addresses[0]) as channel,
    ):
        yield Rpcs(channel)


def wire(value: Any) -> struct_pb2.Value:
    return json_format.ParseDict(value, struct_pb2.Value())


def not_finite() -> struct_pb2.Value:
    value = wire({"value": [1, 2]})
    value.struct_value.fields["value"].list_value.values[1].number_value = float("inf")
    return value


def said(responses: list[Any]) -> list[Any]:
    assert {response.WhichOneof("output") for response in responses} == {"result"}
    assert {response.content_type for response in responses} == {""}
    return [json_format.MessageToDict(response.result) for response in responses]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("rpc", RPCS)
async def test_arguments_and_results_are_json(rpcs: Rpcs, rpc: str) -> None:
    yields = "Streaming" in rpc
    method, wanted = ("each", [VALUES] * 2) if yields else ("same", [[VALUES] * 2])
    for arguments in ([VALUES, 2], {"value": VALUES, "times": 2}):
        responses = await rpcs.make(rpc, method, arguments=wire(arguments))
        assert said(responses) == wanted
        assert responses[0].backend == "json"
        assert responses[0].replica_id
    assert said(await rpcs.make(rpc, method)) == ([None] if yields else [[None]]), "no input: no arguments"
    by_name = await rpcs.make(rpc, method, arguments=wire([1]), options={"content_type": "application/json"})
    assert said(by_name) == ([1] if yields else [[1]])


@pytest.mark.asyncio(loop_scope="module")
async def test_the_deepest_arguments_arrive_and_deeper_ones_are_refused_with_the_bound(rpcs: Rpcs) -> None:
    objects = inner = struct_pb2.Value()
    for _ in range(32):
        inner = inner.struct_value.fields["value"]
    inner.number_value = 1
    assert said(await rpcs.make("CallStreaming", "each", arguments=objects))
    lists = inner = struct_pb2.Value()
    for _ in range(49):
        inner = inner.list_value.values.add()
    inner.number_value = 1
    assert said(await rpcs.make("CallStreaming", "each", arguments=lists))
    inner.list_value.values.add().number_value = 1
    too_deep = await rpcs.refused("CallStreaming", "each", arguments=lists)
    assert (too_deep.reason, too_deep.executed) == (Reason.BAD_REQUEST, Executed.NO)
    assert "100 messages in one another, of which a JSON array is two and an object three" in too_deep.message


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("rpc", RPCS)
async def test_a_payload_is_answered_by_payloads(rpcs: Rpcs, rpc: str) -> None:
    options = {"content_type": "application/json"}
    responses = await rpcs.make(rpc, "each" if "Streaming" in rpc else "same", payload=b"[7]", options=options)
    assert [response.payload for response in responses] == [b"7" if "Streaming" in rpc else b"[7]"]
    assert {(response.WhichOneof("output"), response.content_type) for response in responses} == {
        ("payload", "application/json")
    }


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("rpc", RPCS)
async def test_what_json_values_cannot_hold_is_refused(rpcs: Rpcs, rpc: str) -> None:
    method = "each" if "Streaming" in rpc else "same"
    other = await rpcs.refused(rpc, method, arguments=wire([1]), options={"content_type": "application/msgpack"})
    assert (other.reason, other.metadata["field"]) == (Reason.BAD_REQUEST, "options.content_type")
    scalar = await rpcs.refused(rpc, method, arguments=wire(1))
    assert (scalar.reason, scalar.executed, scalar.metadata["field"]) == (
        Reason.BAD_ARGUMENTS,
        Executed.NO,
        "arguments",
    )
    unfit = await rpcs.refused(rpc, method, arguments=wire({"no": 1}))
    assert (unfit.reason, unfit.metadata["field"]) == (Reason.BAD_ARGUMENTS, "arguments")
    lacking = await rpcs.refused(rpc, method, arguments=not_finite())
    assert (lacking.reason, lacking.executed) == (Reason.BAD_ARGUMENTS, Executed.NO)
    assert lacking.message.startswith("arguments.value[1]: must be finite, is inf: ")
    for payload in ({"payload": bytes(MAX_INLINE_BYTES + 1)}, {"arguments": wire(["x" * MAX_INLINE_BYTES])}):
        large = await rpcs.refused(rpc, method, **payload)
        assert (large.reason, large.executed) == (Reason.PAYLOAD_TOO_LARGE, Executed.NO)
        assert int(large.metadata["actual"]) > MAX_INLINE_BYTES
    many = await rpcs.refused(rpc, method, arguments=wire([1] * 50_001))
    assert (many.reason, many.executed) == (Reason.BAD_REQUEST, Executed.NO)
    assert "`payload` takes JSON text" in many.message
    # A result with more values than its arguments.
    deep = wire([json_format.MessageToDict(wire([1] * 100)), 600])
    if "Streaming" not in rpc:
        returned = await rpcs.refused(rpc, method, arguments=deep)
        assert (returned.reason, returned.executed) == (Reason.PAYLOAD_TOO_LARGE, Executed.YES)
        assert "send the arguments as `payload`" in returned.message


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("rpc", [rpc for rpc in RPCS if "Streaming" in rpc])
async def test_a_value_that_does_not_fit_ends_the_call_and_its_handler(rpcs: Rpcs, rpc: str) -> None:
    before = said(await rpcs.make("Call", "cancellations"))[0]
    failure = await rpcs.refused(rpc, "growing")
    assert (failure.reason, failure.executed) == (Reason.PAYLOAD_TOO_LARGE, Executed.YES)
    while said(await rpcs.make("Call", "cancellations"))[0] == before:  # the test's timeout is the bound
        pass
