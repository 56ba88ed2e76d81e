"""How large requests of unary rpcs may be, and that large ones are counted in steps before they are parsed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from google.protobuf import descriptor_pool, struct_pb2

from slotmesh.convert.slot_requests import MAX_EXCLUDED
from slotmesh.errors import BadRequest
from slotmesh.inference import grpc_inference_service_pb2
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.server import unary_requests
from slotmesh.server.unary_requests import PAYLOAD_BYTES, PLAIN_BYTES, RequestReader, bounds_of, request_shape
from slotmesh.streams.frame_bounds import SMALL_BYTES, STEP_FIELDS, TooMuch, too_much
from slotmesh.streams.limits import MAX_ELEMENTS, MAX_INLINE_BYTES, MAX_OPTIONS_BYTES
from slotmesh.v1 import call_pb2, controller_service_pb2, router_service_pb2, slot_service_pb2

CallRequest = router_service_pb2.CallRequest


def counted(raw: bytes, message: Any) -> tuple[int, TooMuch | None]:
    """The steps that it takes, and what is found."""
    steps, taken = too_much(raw, request_shape(message.DESCRIPTOR)), 0
    while True:
        try:
            next(steps)
            taken += 1
        except StopIteration as end:
            return taken, end.value


class CountedSteps(StepQueue):
    """Counts the turns that are waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0

    async def next(self) -> None:
        self.turns += 1
        await super().next()


def parsing(parsed: list[bytes]) -> Any:
    def parse(raw: bytes) -> Any:
        parsed.append(raw)
        return CallRequest.FromString(raw)

    return parse


def with_values(number: int) -> CallRequest:
    values = [struct_pb2.Value(bool_value=True)] * number
    return CallRequest(endpoint="e", arguments=struct_pb2.Value(list_value=struct_pb2.ListValue(values=values)))


@pytest.mark.asyncio
async def test_a_large_request_is_counted_in_turns_and_then_parsed() -> None:
    parsed: list[bytes] = []
    turns = CountedSteps()
    bounds = bounds_of("slotmesh.v1.RouterService/Call")
    reader = RequestReader(CallRequest.DESCRIPTOR, parsing(parsed), bounds, turns)
    most = with_values(MAX_ELEMENTS)
    assert await reader.read(most.SerializeToString()) == most
    assert turns.turns == 2 * MAX_ELEMENTS // STEP_FIELDS
    assert len(parsed) == 1
    with pytest.raises(BadRequest, match="at most 50000 elements in all; `payload` takes JSON"):
        await reader.read(with_values(MAX_ELEMENTS + 1).SerializeToString())
    assert len(parsed) == 1


@pytest.mark.asyncio
async def test_a_small_one_is_parsed_at_once() -> None:
    parsed: list[bytes] = []
    turns = CountedSteps()
    reader = RequestReader(CallRequest.DESCRIPTOR, parsing(parsed), bounds_of("any"), turns)
    small = with_values(1_000)
    assert small.ByteSize() <= SMALL_BYTES
    assert await reader.read(small.SerializeToString()) == small
    assert turns.turns == 0


def test_fields_of_an_object_count_as_its_values_do() -> None:
    request = CallRequest()
    for number in range(MAX_ELEMENTS):
        request.arguments.struct_value.fields[str(number)].number_value = 1
    assert counted(request.SerializeToString(), request)[1] is None
    request.arguments.struct_value.fields["one more"].number_value = 1
    found = counted(request.SerializeToString(), request)[1]
    assert found is not None
    assert found.field == "arguments.struct_value.fields"


def test_options_that_come_in_parts_are_added_up() -> None:
    part = CallRequest(options=call_pb2.CallOptions(method="m" * (MAX_OPTIONS_BYTES - 100))).SerializeToString()
    assert counted(part, CallRequest)[1] is None
    found = counted(part + part, CallRequest)[1]
    assert found is not None
    assert found.field == "options"


def test_values_in_one_another_end_at_the_depth_that_parsers_take() -> None:
    raw = b""
    while len(raw) <= SMALL_BYTES:
        for tag in (b"\x0a", b"\x32"):  # ListValue.values, Value.list_value
            size, length = bytearray(), len(raw)
            while length > 127:
                size.append(length & 127 | 128)
                length >>= 7
            raw = tag + bytes([*size, length]) + raw
    wrapped = struct_pb2.Value.FromString(b"")
    assert wrapped == struct_pb2.Value()
    steps: Generator[None, None, TooMuch | None] = too_much(raw, request_shape(struct_pb2.Value.DESCRIPTOR))
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert ended.value.value is None


def test_every_rpc_that_has_bounds_is_there() -> None:
    for module in (controller_service_pb2, grpc_inference_service_pb2):
        assert module.DESCRIPTOR is not None, "its services are in the pool once it is imported"
    for name in unary_requests._BOUNDS:
        service, _, method = name.partition("/")
        descriptor: Any = descriptor_pool.Default().FindServiceByName(service)
        assert method in descriptor.methods_by_name, name


def test_the_largest_requests_that_may_be_are_within_their_bounds() -> None:
    options = call_pb2.CallOptions(method="m" * (MAX_OPTIONS_BYTES - 4))
    call = CallRequest(endpoint="e" * 1024, options=options, payload=bytes(MAX_INLINE_BYTES + 1))
    assert call.ByteSize() < PAYLOAD_BYTES
    excluded = [f"{number:0128}" for number in range(MAX_EXCLUDED)]
    reservation = slot_service_pb2.ReserveSlotRequest(
        endpoint="e" * 1024, options=options, excluded_replica_ids=excluded, request_id="i" * 128
    )
    assert reservation.ByteSize() < PLAIN_BYTES
    assert bounds_of("slotmesh.v1.SlotService/ReserveSlot").most_bytes == PLAIN_BYTES
    assert bounds_of("slotmesh.v1.ControllerService/ApplyMesh").most_bytes is None
