"""Bearer tokens over real connections: static ones and JWT, until they are revoked; what processes accept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from router_service.app import serve
from router_service.config import RouterSettings
from slotmesh.errors import Reason
from slotmesh.runtime.channels import Dialer
from slotmesh.security.audit import AuditLog
from slotmesh.security.identity import Role
from slotmesh.security.tls import TlsFiles, TlsSource
from slotmesh.security.tokens import Tokens
from slotmesh.server.server import GrpcServer
from slotmesh.status import from_rpc_error
from slotmesh.v1 import (
    controller_service_pb2,
    controller_service_pb2_grpc,
    info_service_pb2,
    info_service_pb2_grpc,
    router_service_pb2,
    router_service_pb2_grpc,
)
from tests.contract.server.served_router import Router, StatusCode
from tests.support.certificates import Authority
from tests.support.issuers import RULES, Issuer
from tests.support.lone_controller import LoneController
from tests.support.token_files import created, revoked

pytestmark = pytest.mark.asyncio
REVOKED_WITHIN_S: Final = 5.0


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def code_of(channel: grpc.aio.Channel, token: str) -> StatusCode:
    """How a call ends that the holder of the token makes."""
    stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
    try:
        await stub.Call(router_service_pb2.CallRequest(payload=b"x"), metadata=bearer(token), timeout=30)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return StatusCode.OK


@asynccontextmanager
async def at_token_port(authority: Authority, tokens: Tokens) -> AsyncIterator[grpc.aio.Channel]:
    """A channel without a certificate to a router that answers."""
    server = GrpcServer("router", tls=authority.source("router"), token_port=0, tokens=tokens)
    server.add(router_service_pb2_grpc.add_RouterServiceServicer_to_server, Router())
    await server.start()
    try:
        assert server.token_address is not None
        async with Dialer(TlsSource(TlsFiles(authority.ca))).open(server.token_address, Role.ROUTER) as channel:
            yield channel
    finally:
        await server.stop()


async def test_a_token_stands_behind_the_word_bearer_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotmesh.security.authentication.AUDIT", AuditLog())
    path = tmp_path / "tokens.json"
    token = created(path)
    async with at_token_port(Authority(tmp_path), Tokens(path)) as channel:
        stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        request = router_service_pb2.CallRequest(payload=b"x")
        assert await code_of(channel, token) is StatusCode.OK
        await stub.Call(request, metadata=(("authorization", f"bEARER   {token} "),), timeout=30)
        for odd in (
            (("authorization", token),),
            (("authorization", f"Tokens {token}"),),
            (("authorization", f"1234567{token}"),),
            (*bearer(token), *bearer(token)),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Call(request, metadata=odd, timeout=30)
            assert caught.value.code() is StatusCode.UNAUTHENTICATED
            assert token not in str(caught.value)
    assert "is not `Bearer TOKEN`, once" in caplog.text
    assert token not in caplog.text


async def test_who_is_revoked_is_refused_in_seconds_on_open_streams_too(tmp_path: Path) -> None:
    issuer, path = Issuer(tmp_path), tmp_path / "tokens.json"
    static, stays, jwt = created(path), created(path), issuer.token()
    async with at_token_port(Authority(tmp_path), Tokens(path, issuer.jwks, RULES)) as channel:
        stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)

        async def stream(token: str) -> Any:
            opened = stub.StreamCalls(metadata=bearer(token))
            await opened.write(router_service_pb2.StreamCallsRequest())
            assert await opened.read() is not grpc.aio.EOF
            return opened

        streams = {token: await stream(token) for token in (static, jwt, stays)}
        revoked(path, static)
        issuer.publish("two")
        since = time.monotonic()
        for token in (static, jwt):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async with asyncio.timeout(REVOKED_WITHIN_S):
                    await streams[token].read()
            assert caught.value.code() is StatusCode.UNAUTHENTICATED
            assert await code_of(channel, token) is StatusCode.UNAUTHENTICATED
        assert time.monotonic() - since < REVOKED_WITHIN_S
        await streams[stays].write(router_service_pb2.StreamCallsRequest())
        assert await streams[stays].read() is not grpc.aio.EOF
        assert await code_of(channel, stays) is StatusCode.OK
        streams[stays].cancel()


async def test_a_refusal_names_the_role_and_nothing_of_the_token(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotmesh.security.authentication.AUDIT", AuditLog())
    path = tmp_path / "tokens.json"
    gone, viewer = created(path), created(path, "viewer/wall")
    revoked(path, gone)
    async with at_token_port(Authority(tmp_path), Tokens(path)) as channel:
        stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
        for token, code, reason in (
            (gone, StatusCode.UNAUTHENTICATED, Reason.UNAUTHENTICATED),
            ("smt_guessed", StatusCode.UNAUTHENTICATED, Reason.UNAUTHENTICATED),
            (viewer, StatusCode.PERMISSION_DENIED, Reason.PERMISSION_DENIED),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Call(router_service_pb2.CallRequest(payload=b"x"), metadata=bearer(token), timeout=30)
            failure = from_rpc_error(caught.value)
            assert (caught.value.code(), failure.reason) == (code, reason)
            assert "invoker" in failure.metadata["role"]
            assert token not in str(caught.value.details())
            assert "revoked" not in str(caught.value.details())
    logged = caplog.text + "".join(str(vars(record)) for record in caplog.records)
    assert "is revoked" in logged
    assert not any(part in logged for token in (gone, viewer) for part in token.split("_")[2:])


async def test_a_router_takes_tokens_by_its_settings(tmp_path: Path) -> None:
    authority, path = Authority(tmp_path / "certs"), tmp_path / "tokens.json"
    token = created(path)
    flags = ["--port=0", "--metrics-port=0", "--token-port=0", "--controller=127.0.0.1:1", f"--tokens={path}"]
    settings = RouterSettings.parse([*flags, f"--tls-dir={authority.whole_mesh()}"], {}, prog="router")
    async with serve(settings) as server:
        assert server.token_address is not None
        async with Dialer(TlsSource(TlsFiles(authority.ca))).open(server.token_address, Role.ROUTER) as channel:
            info: Any = info_service_pb2_grpc.InfoServiceStub(channel)
            request = info_service_pb2.GetServerInfoRequest()
            assert (await info.GetServerInfo(request, metadata=bearer(token), timeout=30)).version
            assert await code_of(channel, token[:-1]) is StatusCode.UNAUTHENTICATED


async def test_on_a_connection_with_a_certificate_the_token_wins(tmp_path: Path) -> None:
    authority, path = Authority(tmp_path / "certs"), tmp_path / "tokens.json"
    viewer = created(path, "viewer/wall")
    controller = LoneController(tmp_path, [f"--tls-dir={authority.whole_mesh()}", f"--tokens={path}"])
    await controller.start()
    try:
        client = authority.source("client", "alice")
        async with Dialer(client).open(controller.address, Role.CONTROLLER) as channel:
            stub: Any = controller_service_pb2_grpc.ControllerServiceStub(channel)
            request = controller_service_pb2.ListBackendsRequest()
            await stub.ListBackends(request, metadata=bearer(viewer), timeout=10)
            for metadata, code in ((None, StatusCode.PERMISSION_DENIED), (bearer("x"), StatusCode.UNAUTHENTICATED)):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await stub.ListBackends(request, metadata=metadata, timeout=10)
                assert caught.value.code() is code
    finally:
        await controller.kill()
