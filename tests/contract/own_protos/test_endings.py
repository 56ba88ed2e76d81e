"""How rpcs of a user's own proto end that do not end well: taken back, overdue, failed, lost, refused."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

import slotmesh
import slotmesh.testing
from examples.own_proto import greeter_pb2
from examples.own_proto.greeter_pb2 import GreetRequest, GreetResponse
from examples.own_proto.greeter_pb2_grpc import GreeterServicer
from slotmesh.spec.descriptor_sets import Files, read_services, services_of_files
from slotmesh.spec.model import Endpoint, Mesh
from slotmesh.status import DOMAIN
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.testing import Backend
from tests.contract.own_protos.greeters import (
    SERVICE,
    AsyncGreeter,
    PlainGreeter,
    error_of,
    greeting,
    opened,
    request,
    requests,
)
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


def info_of(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """What the mesh says of the failure."""
    status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]  # an aio error quacks as a call
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info


async def test_who_leaves_cancels_the_handler() -> None:
    async with greeting() as (mesh, stub):
        handler = mesh.instances("greeter")[0]
        call = stub.Greet(request("wait"))
        await asyncio.wait_for(handler.began.wait(), 10)
        call.cancel()
        await asyncio.wait_for(handler.ended.wait(), 10)

        handler.began.clear()
        handler.ended.clear()
        chat = stub.Chat()
        await chat.write(request("Ada"))
        await chat.read()
        chat.cancel()
        await asyncio.wait_for(handler.ended.wait(), 10)


async def test_a_thread_that_waits_for_requests_is_woken_when_nobody_waits_any_more() -> None:
    async with greeting(PlainGreeter) as (mesh, stub):
        handler = mesh.instances("greeter")[0]
        call = stub.GreetAll()
        await call.write(request("Ada"))
        await asyncio.to_thread(handler.began.wait, 10)
        call.cancel()
        await asyncio.to_thread(handler.ended.wait, 10)

        assert [type(why).__name__ for why in handler.why] == ["RequestsLost"]
        assert (await stub.GreetAll(requests("Grace"))).text == "Grace"


async def test_a_deadline_ends_the_call_wherever_it_waits() -> None:
    async with greeting() as (mesh, stub):
        handler = mesh.instances("greeter")[0]
        running = await error_of(stub.Greet(request("wait"), timeout=2.0))
        await asyncio.wait_for(handler.ended.wait(), 10)
        never = asyncio.Event()
        waiting = await error_of(stub.GreetAll(requests("Ada", then=never.wait), timeout=0.3))

        assert running.code() is waiting.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert handler.contexts[0].deadline is not None


async def test_a_status_of_the_handler_comes_behind_its_responses_with_its_metadata() -> None:
    async with greeting() as (_, stub):
        call = stub.GreetInLanguages(request("fail"))
        texts = [(await call.read()).text for _ in range(3)]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()

        error = caught.value
        assert texts[-1] == "Bonjour, fail!"
        assert (error.code(), error.details()) == (grpc.StatusCode.DATA_LOSS, "no more languages")
        assert ("left", "all") in tuple(error.trailing_metadata())
        info = info_of(error)
        assert (info.reason, info.domain, info.metadata["executed"]) == ("HANDLER_ERROR", DOMAIN, "yes")


async def test_a_status_ends_a_stream_of_requests_before_its_end() -> None:
    async with greeting() as (_, stub):
        never = asyncio.Event()
        aborted = await error_of(stub.Chat(requests("Ada", "fail", then=never.wait)))
        raised = await error_of(stub.Chat(requests("raise", then=never.wait)))
        stopped = await error_of(stub.GreetAll(requests("stop", then=never.wait)))

        assert (aborted.code(), aborted.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "no more names")
        assert info_of(aborted).metadata["limit"] == "1"
        assert (raised.code(), raised.details()) == (grpc.StatusCode.UNKNOWN, "ValueError: of the handler's own")
        assert (stopped.code(), stopped.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "stopped")


async def test_details_of_the_handler_go_before_ours() -> None:
    class Detailed:
        async def Greet(self, request: GreetRequest, context: Any) -> GreetResponse:
            from google.rpc import status_pb2

            status = status_pb2.Status(code=5, message="gone")
            status.details.add().Pack(error_details_pb2.ErrorInfo(reason="OWN", domain="shop"))
            await context.abort_with_status(rpc_status.to_status(status))
            raise AssertionError(request)

    async with greeting(Detailed) as (_, stub):
        error = await error_of(stub.Greet(request("Ada")))

        assert (error.code(), error.details()) == (grpc.StatusCode.NOT_FOUND, "gone")
        assert (info_of(error).reason, info_of(error).domain) == ("OWN", "shop")


async def test_a_slow_reader_holds_up_its_handler_and_nobody_else() -> None:
    async with greeting() as (mesh, stub):
        handler = mesh.instances("greeter")[0]
        slow: Any = stub.GreetInLanguages(request("endless"))
        await slow.read()
        count = -1
        while count != len(handler.took):  # until it has stood still for as long as another call takes, twice
            count = len(handler.took)
            for _ in range(20):
                await stub.Greet(request("Ada"))

        assert 0 < count < 20_000
        slow.cancel()


async def test_a_slow_handler_holds_up_its_client() -> None:
    async with greeting() as (mesh, stub):
        handler = mesh.instances("greeter")[0]
        handler.may_take.clear()
        sent = 0

        async def names() -> Any:
            nonlocal sent
            for _ in range(4000):
                sent += 1
                yield request("x" * 10_000)

        call = stub.GreetAll(names())
        await asyncio.wait_for(handler.began.wait(), 10)
        count = -1
        while count != sent:
            count = sent
            for _ in range(20):
                await stub.Greet(request("Ada"))

        assert sent < 2000
        handler.may_take.set()
        async with asyncio.timeout(60):
            await call
        assert len(handler.took) == sent == 4000


async def test_a_replica_that_dies_loses_its_calls() -> None:
    async with greeting() as (mesh, stub):
        handler = mesh.instances("greeter")[0]
        chat = stub.Chat()
        unary = stub.Greet(request("wait"))
        await chat.write(request("Ada"))
        await wait_until(lambda: handler.contexts and handler.took, what="both calls run")
        assert (await chat.read()).text == "Ada"
        await mesh.kill_replica(mesh.replica_ids("greeter")[0])
        errors = [await error_of(unary), await error_of(chat.read())]
        await mesh.wait_ready()

        assert [(info_of(each).reason, info_of(each).metadata["executed"]) for each in errors] == [
            ("REPLICA_LOST", "unknown"),
            ("REPLICA_LOST", "yes"),
        ]
        assert {each.code() for each in errors} == {grpc.StatusCode.UNAVAILABLE}
        assert [each.text async for each in stub.Chat(requests("Grace"))] == ["Grace"]


async def test_a_call_whose_handler_takes_requests_was_executed_without_a_response() -> None:
    async with greeting() as (mesh, stub):
        handler = mesh.instances("greeter")[0]
        large = stub.GreetAll(requests("Ada", "x" * (MAX_INLINE_BYTES + 1)))
        refused = info_of(await error_of(large))
        assert (refused.reason, refused.metadata["executed"]) == ("PAYLOAD_TOO_LARGE", "yes")
        assert "send more in several requests" in ((await large.details()) or "")

        handler.began.clear()
        never = asyncio.Event()
        lost = asyncio.ensure_future(error_of(stub.GreetAll(requests("Ada", then=never.wait))))
        await asyncio.wait_for(handler.began.wait(), 10)
        await mesh.kill_replica(mesh.replica_ids("greeter")[0])
        error = await lost
        assert (info_of(error).reason, info_of(error).metadata["executed"]) == ("REPLICA_LOST", "yes")
        assert "broke after the handler had begun" in (error.details() or "")


async def test_what_no_endpoint_has_is_unimplemented() -> None:
    async with greeting() as (mesh, _), opened(mesh.router_addresses[0]) as channel:
        for path in ("/no.such.Service/Method", f"/{SERVICE}/NoSuchMethod", "/nothing"):
            for call in (channel.unary_unary(path)(b""), channel.unary_stream(path)(b"")):
                error = await error_of(call)
                assert error.code() is grpc.StatusCode.UNIMPLEMENTED
                assert (info_of(error).reason, info_of(error).metadata["executed"]) == ("NOT_IMPLEMENTED", "no")
        ours = await error_of(channel.unary_unary("/slotmesh.v1.RouterService/NoSuchMethod")(b""))
        assert ours.code() is grpc.StatusCode.UNIMPLEMENTED
        assert rpc_status.from_call(ours) is None  # type: ignore[arg-type]  # as above


async def test_an_rpc_that_the_handler_does_not_have_is_unimplemented() -> None:
    class Half(GreeterServicer):
        pass

    class Less:
        async def Greet(self, request: GreetRequest) -> GreetResponse:
            return GreetResponse(text=request.name)

    for handler in (Half, Less):
        async with greeting(handler) as (_, stub):
            error = await error_of(stub.GreetAll(requests("Ada")))
            assert error.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_metadata_that_is_wrong_is_refused_by_its_key() -> None:
    wrong = {
        "slotmesh-ordering-kee": "k",
        "slotmesh-slo": "soon",
        "slotmesh-ordering-key": "k" * 1025,
    }
    async with greeting() as (_, stub):
        for key, value in wrong.items():
            error = await error_of(stub.Greet(request("Ada"), metadata=((key, value),)))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert key in (error.details() or "")


async def test_what_is_not_a_message_is_refused() -> None:
    async with greeting() as (mesh, _), opened(mesh.router_addresses[0]) as channel:
        error = await error_of(channel.unary_unary(f"/{SERVICE}/Greet")(b"\xff\xff"))
        streamed = await error_of(channel.stream_unary(f"/{SERVICE}/GreetAll")(iter([b"\xff\xff"])))

        for each in (error, streamed):
            assert each.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "examples.greeter.v1.GreetRequest" in (each.details() or "")


async def test_a_service_of_several_endpoints_is_called_at_the_one_that_is_named() -> None:
    services = {name: [greeter_pb2] for name in ("one", "two")}
    async with (
        slotmesh.testing.mesh({"one": AsyncGreeter, "two": PlainGreeter}, grpc_services=services) as mesh,
        opened(mesh.router_addresses[0]) as channel,
    ):
        from examples.own_proto.greeter_pb2_grpc import GreeterStub

        stub: Any = GreeterStub(channel)
        two = await stub.Greet(request("Ada"), metadata=(("slotmesh-endpoint", "two"),))
        unsaid = await error_of(stub.Greet(request("Ada")))
        absent = await error_of(stub.Greet(request("Ada"), metadata=(("slotmesh-endpoint", "three"),)))

        assert two.text == "ADA"
        assert unsaid.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "one, two" in (unsaid.details() or "")
        assert absent.code() is grpc.StatusCode.UNIMPLEMENTED

        await mesh.apply(grpc_services={"one": []})
        assert (await stub.Greet(request("Ada"))).text == "ADA"


async def test_a_method_that_cannot_be_called_as_its_rpc_is_does_not_start() -> None:
    class Wrong(AsyncGreeter):
        async def Greet(self) -> GreetResponse:  # type: ignore[override]
            return GreetResponse()

    with pytest.raises(TypeError, match=r"Greeter/Greet is called with a request"):
        async with greeting(Backend(Wrong)):
            pass


async def test_endpoints_may_have_one_rpc_in_several_kinds() -> None:
    """Two versions of a proto at once: which kind it is is known only when the endpoint is."""
    file = descriptor_pb2.FileDescriptorProto()
    greeter_pb2.DESCRIPTOR.CopyToProto(file)
    file.service[0].method[0].server_streaming = True
    newer = read_services(Files(file=[file]).SerializeToString())
    older = services_of_files([greeter_pb2.DESCRIPTOR])
    async with (
        slotmesh.testing.mesh({"old": AsyncGreeter, "new": AsyncGreeter}) as mesh,
        opened(mesh.router_addresses[0]) as channel,
    ):
        for name, services in (("old", older), ("new", newer)):
            endpoint = Endpoint(name=name, grpc_services=services)
            await mesh._controller.configurator.apply_mesh(Mesh(endpoints=(endpoint,)))
        await mesh.wait_ready()
        sent = request("Ada").SerializeToString()
        old = await channel.unary_unary(f"/{SERVICE}/Greet")(sent, metadata=(("slotmesh-endpoint", "old"),))
        new = channel.unary_stream(f"/{SERVICE}/Greet")(sent, metadata=(("slotmesh-endpoint", "new"),))

        assert old == sent
        assert [each async for each in new] == [sent]
