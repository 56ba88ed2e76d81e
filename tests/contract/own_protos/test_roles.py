"""Who may call rpcs of users' own protos, in a mesh by TLS: invokers, as far as the endpoint is theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import grpc
import pytest
import pytest_asyncio

from controller_service.app import open_controller
from controller_service.config import MEMORY, ControllerSettings
from controller_service.shell.launchers.protocol import Launcher
from examples.own_proto import greeter_pb2
from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Identity, Role
from slotmesh.spec.descriptor_sets import services_of_files
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from tests.contract.own_protos.greeters import SERVICE, error_of, request
from tests.contract.security.role_servers import KnownTokens, error_info
from tests.contract.security.secured_mesh import by_token
from tests.support.certificates import Authority
from tests.support.replicas import running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio(loop_scope="module")
GREET: Final = f"/{SERVICE}/Greet"
TOKENS: Final = {
    "all": Identity(name="client/all", roles=frozenset({Role.INVOKER})),
    "one": Identity(name="client/one", roles=frozenset({Role.INVOKER}), endpoints=frozenset({"one"})),
    "none": Identity(name="client/none", roles=frozenset({Role.INVOKER}), endpoints=frozenset({"other"})),
    "viewer": Identity(name="viewer/vera", roles=frozenset({Role.VIEWER})),
}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def channel(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """To a router whose endpoints `one` and `two` have the service."""
    authority = Authority(Path(tmp_path_factory.mktemp("tls")))
    tls_dir = authority.whole_mesh()
    services = services_of_files([greeter_pb2.DESCRIPTOR])
    policy = TrafficPolicy(weights={"greeter": 1.0})
    spec = Mesh(
        backends=(Backend(name="greeter"),),
        endpoints=tuple(Endpoint(name=name, traffic=policy, grpc_services=services) for name in ("one", "two")),
    )
    settings = ControllerSettings(port=0, launcher="external", state=MEMORY, tls_dir=tls_dir)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        controller = await enter(open_controller(settings, lambda *_: Launcher()))
        await controller.configurator.apply_mesh(spec)
        member: dict[str, Any] = {"controller": controller.address, "tls_dir": tls_dir}
        router = await enter(serve(RouterSettings(port=0, metrics_port=-1, **member)))
        replica = await enter(running_replica("examples.own_proto.app:Greeter", backend="greeter", **member))
        router.edge.authorizer._tokens = KnownTokens(**TOKENS)  # type: ignore[union-attr]  # it has one, by TLS
        await wait_until(lambda: router.serving and replica.app.replica.engine, timeout=20.0, what="ready")
        dialer = Dialer(authority.source("client", "nobody"))
        yield await enter(dialer.open(router.address, Role.ROUTER))


async def how(channel: Any, who: str, path: str = GREET, *said: tuple[str, str]) -> tuple[str, str]:
    """Status and reason of an rpc of the one who has this token."""
    error = await error_of(channel.unary_unary(path)(b"", metadata=(*by_token(who), *said)))
    return error.code().name, error_info(error).reason


async def test_an_invoker_calls_them_as_far_as_the_endpoint_is_its_own(channel: Any) -> None:
    greet = channel.unary_unary(GREET, greeter_pb2.GreetRequest.SerializeToString, greeter_pb2.GreetResponse.FromString)
    at_two = ("slotmesh-endpoint", "two")

    assert (await greet(request("Ada"), metadata=by_token("one"))).text == "Hello, Ada!"
    assert (await greet(request("Ada"), metadata=(*by_token("all"), at_two))).text == "Hello, Ada!"
    assert await how(channel, "one", GREET, at_two) == ("PERMISSION_DENIED", "PERMISSION_DENIED")
    assert await how(channel, "all") == ("INVALID_ARGUMENT", "BAD_REQUEST")


async def test_who_may_call_other_endpoints_is_not_told_what_there_is(channel: Any) -> None:
    denied = ("PERMISSION_DENIED", "PERMISSION_DENIED")

    assert await how(channel, "none") == await how(channel, "none", "/no.such.Service/Method") == denied
    assert await how(channel, "one", f"/{SERVICE}/NoSuchMethod") == ("UNIMPLEMENTED", "NOT_IMPLEMENTED")
    assert await how(channel, "all", "/no.such.Service/Method") == ("UNIMPLEMENTED", "NOT_IMPLEMENTED")


@pytest.mark.parametrize("path", [GREET, f"/{SERVICE}/Chat", "/no.such.Service/Method"])
async def test_others_are_refused_before_anything_is_looked_for(channel: Any, path: str) -> None:
    assert await how(channel, "viewer", path) == ("PERMISSION_DENIED", "PERMISSION_DENIED")
    assert await how(channel, "unknown", path) == ("UNAUTHENTICATED", "UNAUTHENTICATED")


async def test_streams_ask_for_the_same(channel: Any) -> None:
    chat: Any = channel.stream_stream(f"/{SERVICE}/Chat")(metadata=by_token("one"))
    await chat.write(request("Ada").SerializeToString())
    response = greeter_pb2.GreetResponse.FromString(await chat.read())
    refused = await error_of(channel.stream_stream(f"/{SERVICE}/Chat")(iter([b""]), metadata=by_token("none")))
    chat.cancel()

    assert response.text == "Hello, Ada!"
    assert refused.code() is grpc.StatusCode.PERMISSION_DENIED
