"""Servers whose rpcs all say that they were reached, and how to call any of them."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import grpc
import pytest
from google.protobuf import empty_pb2
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from slotmesh.errors import Failure, Reason
from slotmesh.grpc_internals.call_writer import writer_of
from slotmesh.security.authentication import Authorizer
from slotmesh.security.identity import Identity, caller
from slotmesh.security.tls import TlsSource
from slotmesh.security.tokens.rules import BadToken, TokenProblem
from slotmesh.server.server import GrpcServer
from slotmesh.status import to_exception
from tests.support.declared_rpcs import declared_rpcs

OURS: Final = tuple(sorted((rpc.containing_service.full_name, rpc.name) for rpc in declared_rpcs()))
OTHERS: Final = (
    *(
        ("grpc.channelz.v1.Channelz", rpc)
        for rpc in [
            "GetTopChannels",
            "GetServers",
            "GetServer",
            "GetServerSockets",
            "GetChannel",
            "GetSubchannel",
            "GetSocket",
        ]
    ),
    ("grpc.health.v1.Health", "Check"),
    ("grpc.health.v1.Health", "List"),
    ("grpc.health.v1.Health", "Watch"),
    ("grpc.reflection.v1.ServerReflection", "ServerReflectionInfo"),
    ("grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo"),
)
RPCS: Final = OURS + OTHERS
"""Service and method of all that a server may have."""
DENIED: Final = ("UNAUTHENTICATED", "PERMISSION_DENIED")

_AT_ONCE: Final = 32
"""Rpcs under way on a channel."""


class KnownTokens:
    """Tokens, by whom they belong to."""

    def __init__(self, **identities: Identity) -> None:
        self.identities = identities

    def identify(self, token: str) -> Identity:
        try:
            return self.identities[token]
        except KeyError:
            raise BadToken(TokenProblem.UNKNOWN, "there is no such token") from None

    def verify(self, token: str) -> KnownHolder:
        return KnownHolder(self, token, self.identify(token))


@dataclass(frozen=True, slots=True)
class KnownHolder:
    """Who has shown one of them."""

    tokens: KnownTokens
    token: str
    identity: Identity

    def problem(self) -> str | None:
        still = self.tokens.identities.get(self.token) == self.identity
        return None if still else f"the token of {self.identity.name} holds no longer"


@asynccontextmanager
async def serving(authorizer: Authorizer | None, tls: TlsSource | None = None) -> AsyncIterator[str]:
    """A server with all services of all servers; yields its address."""
    server = GrpcServer("roles", tls=tls, authorizer=authorizer, channelz=True)
    for rpc in {rpc.containing_service.full_name: rpc.containing_service for rpc in declared_rpcs()}.values():
        module = rpc.file.name.removesuffix(".proto").replace("/", ".")
        generated = importlib.import_module(f"{module}_pb2_grpc")
        register = getattr(generated, f"add_{rpc.name}Servicer_to_server")
        server.add(register, _stub(method.name for method in rpc.methods))
    await server.start()
    try:
        yield server.address
    finally:
        await server.stop()


def _stub(methods: Iterable[str]) -> Any:
    async def reached(self: object, request: Any, context: Any) -> None:
        raise to_exception(Failure(reason=Reason.NOT_IMPLEMENTED, message=f"reached by {caller().name}"))

    return type("Stub", (), dict.fromkeys(methods, reached))()


async def status_of(channel: grpc.aio.Channel, rpc: tuple[str, str], token: str | None = None) -> tuple[str, str]:
    """How an rpc with an empty request ends, or how it begins: its status' name, and its message."""
    metadata = None if token is None else (("authorization", f"Bearer {token}"),)
    method: Any = channel.stream_stream(f"/{rpc[0]}/{rpc[1]}", empty_pb2.Empty.SerializeToString)
    call = method(metadata=metadata, timeout=10)
    try:
        with suppress(asyncio.InvalidStateError):  # it was refused before the request was sent
            await writer_of(call)(empty_pb2.Empty())
            await call.done_writing()
        await call.read()  # nothing of the stubs; health's Watch would never end
        call.cancel()
        return "OK", ""
    except grpc.aio.AioRpcError as error:
        return error.code().name, error.details() or ""


async def statuses(
    channel: grpc.aio.Channel, token: str | None = None, rpcs: Sequence[tuple[str, str]] = RPCS
) -> dict[tuple[str, str], str]:
    """The status of each rpc."""
    at_once = asyncio.Semaphore(_AT_ONCE)

    async def one(rpc: tuple[str, str]) -> tuple[tuple[str, str], str]:
        async with at_once:
            return rpc, (await status_of(channel, rpc, token))[0]

    return dict(await asyncio.gather(*map(one, rpcs)))


def error_info(error: grpc.aio.AioRpcError) -> error_details_pb2.ErrorInfo:
    """The ErrorInfo of an rpc that failed."""
    status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]  # an aio error quacks as a call
    info = error_details_pb2.ErrorInfo()
    for detail in status.details:
        if detail.Unpack(info):
            return info
    raise AssertionError("no ErrorInfo")


async def refused(call: Any) -> tuple[str, str, str]:
    """How an rpc ends that is refused: its status, its reason, its message."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await (call.read() if hasattr(call, "read") else call)
    return caught.value.code().name, error_info(caught.value).reason, caught.value.details() or ""
