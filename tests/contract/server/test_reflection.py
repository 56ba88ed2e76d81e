"""Reflection of every server of the mesh, in both versions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.rpc import error_details_pb2
from grpc_reflection.v1alpha import reflection_pb2

from slotmesh.server.reflection import Descriptors
from slotmesh.v1 import controller_service_pb2
from tests.contract.server.served_router import SERVICE, Setting, StatusCode

Ask = Callable[..., Awaitable[Any]]
VERSIONS = ("v1", "v1alpha")


def questions(channel: grpc.aio.Channel, version: str) -> Any:
    rpc = channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        reflection_pb2.ServerReflectionRequest.SerializeToString,
        reflection_pb2.ServerReflectionResponse.FromString,
    )
    return rpc(timeout=30)


@pytest_asyncio.fixture(params=VERSIONS)
async def ask(request: pytest.FixtureRequest, setting: Setting) -> AsyncIterator[Ask]:
    """Asks on one stream, which has to be alive at the end."""
    stream = questions(setting[2], request.param)

    async def ask(**question: Any) -> Any:
        await stream.write(reflection_pb2.ServerReflectionRequest(**question))
        return await stream.read()

    yield ask
    assert (await ask(list_services="")).list_services_response.service
    await stream.done_writing()
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() is StatusCode.OK


def files(answer: Any) -> list[descriptor_pb2.FileDescriptorProto]:
    raw = answer.file_descriptor_response.file_descriptor_proto
    return [descriptor_pb2.FileDescriptorProto.FromString(each) for each in raw]


def methods(answer: Any, service: str) -> set[str]:
    return {
        method.name for file in files(answer) for each in file.service if each.name == service for method in each.method
    }


@pytest.mark.asyncio
async def test_it_lists_each_service_and_finds_each_that_it_lists(ask: Ask) -> None:
    listed = {each.name for each in (await ask(list_services="")).list_services_response.service}
    assert listed == {
        SERVICE,
        "grpc.health.v1.Health",
        *(f"grpc.reflection.{each}.ServerReflection" for each in VERSIONS),
    }
    for service in listed:
        assert methods(await ask(file_containing_symbol=service), service.rpartition(".")[2]), service
    health = await ask(file_containing_symbol="grpc.health.v1.Health")
    assert methods(health, "Health") == {"Check", "Watch", "List"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "symbol",
    [
        f"{SERVICE}.Call",
        "slotmesh.v1.CallRequest",
        "slotmesh.v1.CallRequest.endpoint",
        "slotmesh.v1.StreamCallsRequest.frame",
        "grpc.health.v1.HealthCheckResponse.ServingStatus",
        "grpc.health.v1.HealthCheckResponse.NOT_SERVING",
        "grpc.reflection.v1.ServerReflection.ServerReflectionInfo",
        error_details_pb2.ErrorInfo.DESCRIPTOR.full_name,
    ],
)
async def test_a_symbol_of_any_kind_is_found_with_all_that_its_file_needs(ask: Ask, symbol: str) -> None:
    found = files(await ask(file_containing_symbol=symbol))
    assert found[0].package == symbol[: len(found[0].package)]
    names = {file.name for file in found}
    assert all(set(file.dependency) <= names for file in found)
    again = files(await ask(file_by_filename=found[0].name))
    assert again == found


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "question",
    [
        {"file_containing_symbol": "no.such.Symbol"},
        {"file_containing_symbol": ""},
        {"file_containing_symbol": f"{SERVICE}.NoSuchMethod"},
        {"file_containing_symbol": f".{SERVICE}"},
        {"file_containing_symbol": "x" * 1_000_000},
        {"file_by_filename": "no/such.proto"},
        {"file_by_filename": ""},
        {"file_containing_extension": {"containing_type": "no.such.Message", "extension_number": 1}},
        {"file_containing_extension": {"containing_type": "slotmesh.v1.CallRequest", "extension_number": -1}},
        {"file_containing_extension": {"containing_type": "slotmesh.v1.CallRequest", "extension_number": 2**31 - 1}},
        {"file_containing_extension": {}},
        {"all_extension_numbers_of_type": "no.such.Message"},
        {"all_extension_numbers_of_type": SERVICE},
    ],
)
async def test_what_is_not_there_is_answered_and_the_stream_lives_on(ask: Ask, question: dict[str, Any]) -> None:
    error = (await ask(**question)).error_response
    assert error.error_code == StatusCode.NOT_FOUND.value[0]
    assert error.error_message.startswith("no ")
    assert len(error.error_message) < 300


@pytest.mark.asyncio
async def test_a_question_of_no_kind_is_answered_and_the_stream_lives_on(ask: Ask) -> None:
    answer = await ask(host="somewhere")
    assert answer.error_response.error_code == StatusCode.INVALID_ARGUMENT.value[0]
    assert answer.valid_host == answer.original_request.host == "somewhere"


@pytest.mark.asyncio
async def test_a_message_that_nothing_extends_has_no_extension_numbers(ask: Ask) -> None:
    answer = (await ask(all_extension_numbers_of_type="slotmesh.v1.CallRequest")).all_extension_numbers_response
    assert (answer.base_type_name, list(answer.extension_number)) == ("slotmesh.v1.CallRequest", [])


def test_each_field_has_the_name_that_it_has_in_json() -> None:
    told = Descriptors([controller_service_pb2.DESCRIPTOR])
    compared = 0

    def compare(described: descriptor_pb2.DescriptorProto, real: Descriptor) -> None:
        nonlocal compared
        for field in described.field:
            assert field.json_name == real.fields_by_name[field.name].json_name
            compared += field.json_name != field.name
        for nested in described.nested_type:
            compare(nested, real.nested_types_by_name[nested.name])

    for raw in told.of_symbol("slotmesh.v1.ControllerService") or []:
        file = descriptor_pb2.FileDescriptorProto.FromString(raw)
        for message in file.message_type:
            compare(message, descriptor_pool.Default().FindFileByName(file.name).message_types_by_name[message.name])
    assert compared > 50


def test_extensions_are_found_by_message_and_number() -> None:
    pool = descriptor_pool.DescriptorPool()
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="extended.proto", package="p", syntax="proto2")
    extended = file.message_type.add(name="Extended")
    extended.extension_range.add(start=100, end=200)
    declared: Any = {"type": field.TYPE_INT32, "label": field.LABEL_OPTIONAL, "extendee": ".p.Extended"}
    file.extension.add(name="top_level", number=120, **declared)
    file.message_type.add(name="Scope").extension.add(name="nested", number=110, **declared)
    pool.Add(file)
    told = Descriptors([pool.FindFileByName("extended.proto")])
    assert told.extension_numbers("p.Extended") == [110, 120]
    assert told.extension_numbers("p.Scope") == []
    assert told.of_extension("p.Extended", 110) == told.of_symbol("p.Scope.nested") == told.of_file("extended.proto")
    assert told.of_symbol("p.top_level") is not None
    assert told.of_extension("p.Extended", 111) is None


def commented(file: descriptor_pb2.FileDescriptorProto, *path: int) -> str:
    """The comment of the element at this path, as `SourceCodeInfo.Location.path` has it."""
    found = [each.leading_comments for each in file.source_code_info.location if tuple(each.path) == path]
    return found[0] if found else ""


def read_proto(name: str) -> str:
    return Path("protos", name).read_text()


@pytest.mark.asyncio
async def test_rpcs_messages_and_fields_have_the_comments_of_their_protos(ask: Ask) -> None:
    by_name = {file.name: file for file in files(await ask(file_containing_symbol=SERVICE))}
    ours = {name: file for name, file in by_name.items() if name.startswith("slotmesh/")}
    assert {"slotmesh/v1/router_service.proto", "slotmesh/v1/call.proto"} <= ours.keys()
    for name, file in ours.items():
        proto = read_proto(name)
        for at, service in enumerate(file.service):
            for number, method in enumerate(service.method):
                assert commented(file, 6, at, 2, number), f"{name}: {method.name}"
        for at, message in enumerate(file.message_type):
            assert commented(file, 4, at), f"{name}: {message.name}"
            for number, field in enumerate(message.field):
                comment = commented(file, 4, at, 2, number)
                assert comment, f"{name}: {message.name}.{field.name}"
                assert all(f"//{line}" in proto for line in comment.splitlines())
    assert not by_name["google/protobuf/duration.proto"].HasField("source_code_info")


def test_comments_are_added_to_protos_of_the_server_only() -> None:
    file = controller_service_pb2.DESCRIPTOR
    for ours in (False, True):
        raw = (Descriptors([file], ours=ours).of_file(file.name) or [])[0]
        assert descriptor_pb2.FileDescriptorProto.FromString(raw).HasField("source_code_info") == ours
