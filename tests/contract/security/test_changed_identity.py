"""A client begins to show another identity while calls are in flight: none of them is executed twice."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from ingress_service.app import serve
from ingress_service.config import IngressSettings
from slotmesh import SlotmeshError, Tls, connect, connect_sync
from slotmesh.errors import Executed, Reason
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.status import from_rpc_error
from slotmesh.v1 import call_pb2, router_service_pb2, router_service_pb2_grpc
from tests.support.certificates import Authority
from tests.support.http_client import http_connection, request_bytes
from tests.support.issuers import AUDIENCE, ISSUER, Issuer
from tests.support.tcp_proxy import tcp_proxy
from tests.support.tiers import long
from tests.support.tls_mesh import ENDPOINT, TlsMesh, tls_mesh
from tests.support.token_files import created, revoked
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio
CALLS: Final = 52
PAYLOADS: Final = [b"%d" % number for number in range(CALLS)]
ENDED: Final = {(Reason.UNAUTHENTICATED, Executed.UNKNOWN)}
WITHIN_S: Final = 15.0


class Shown:
    """The token that a client shows; another one from `change` on, which ends the streams of the first."""

    def __init__(self, token: str, change: Callable[[Shown], None]) -> None:
        self.token = token
        self._change = change

    def __call__(self) -> str:
        return self.token

    def change(self) -> None:
        self._change(self)


class TokenMesh:
    """A mesh whose routers accept static tokens and JWT."""

    def __init__(self, mesh: TlsMesh, path: Path, tokens: dict[str, str], issuer: Issuer) -> None:
        """`tokens`: those in the file, by the names of their holders."""
        self.mesh = mesh
        self.tokens = tokens
        self._path = path
        self._issuer = issuer

    def static(self, before: str, after: str) -> Shown:
        """A token of `before`, which is revoked when the one of `after` is shown."""

        def change(shown: Shown) -> None:
            shown.token = self.tokens[after]
            self.revoke(before)

        return Shown(self.tokens[before], change)

    def revoke(self, name: str) -> None:
        revoked(self._path, self.tokens[name])

    def jwt(self, before: str, after: str) -> Shown:
        """One with the role `before`; its key is withdrawn when the one with the role `after` is shown."""

        def change(shown: Shown) -> None:
            shown.token = self._issuer.token("two", "EdDSA", slotmesh_roles=[after])
            self._issuer.publish("two")

        return Shown(self._issuer.token(slotmesh_roles=[before]), change)

    async def until_in_flight(self, calls: int = CALLS) -> None:
        await wait_until(lambda: len(self.mesh.handler.started) == calls, what="all calls run")

    def executions(self) -> Counter[bytes]:
        return Counter(self.mesh.handler.started)

    def open_gate(self) -> None:
        self.mesh.handler.gate.set()


@asynccontextmanager
async def token_mesh(
    tmp_path: Path, routers: int = 1, *, resume_ttl: float = 0.5, **of_routers: Any
) -> AsyncIterator[TokenMesh]:
    """`resume_ttl`: how long replicas keep sessions without a router."""
    issuer, path = Issuer(tmp_path), tmp_path / "tokens.json"
    of_routers |= {"tokens": path, "jwt_issuer": ISSUER, "jwt_audience": AUDIENCE, "jwt_jwks": issuer.jwks}
    tokens = {name: created(path, name) for name in ("operator/x", "client/x", "client/y")}
    authority = Authority(tmp_path / "certs")
    handler = "tests.contract.security.recording_handler:Recording"
    async with tls_mesh(
        authority, routers=routers, of_routers=of_routers, handler=handler, resume_ttl=resume_ttl
    ) as mesh:
        running = TokenMesh(mesh, path, tokens, issuer)
        try:
            yield running
        finally:
            running.open_gate()


def endings_of(outcomes: list[Any]) -> set[tuple[Reason, Executed]]:
    assert all(isinstance(each, SlotmeshError) for each in outcomes), outcomes
    return {(each.reason, each.executed) for each in outcomes}


async def outcomes_of(calls: list[Any]) -> list[Any]:
    async with asyncio.timeout(WITHIN_S):
        return await asyncio.gather(*calls, return_exceptions=True)


CHANGES: Final[dict[str, Callable[[TokenMesh], Shown]]] = {
    "static token": lambda mesh: mesh.static("operator/x", "client/x"),
    "other name": lambda mesh: mesh.static("client/x", "client/y"),
    "role in a JWT": lambda mesh: mesh.jwt("operator", "invoker"),
}


@pytest.mark.parametrize("kind", CHANGES)
async def test_calls_in_flight_are_not_executed_again(tmp_path: Path, kind: str) -> None:
    async with token_mesh(tmp_path) as running:
        shown = CHANGES[kind](running)
        async with running.mesh.client(token=shown) as client:
            words = client.endpoint(ENDPOINT)
            calls = [words.ordered(payload.decode()).wait(payload) for payload in PAYLOADS[:10]]
            calls += [words.wait(payload) for payload in PAYLOADS[10:]]
            await running.until_in_flight()
            shown.change()
            assert endings_of(await outcomes_of(calls)) == ENDED
            assert await words.echo(b"later") == b"later", "the client goes on as the other identity"
        assert running.executions() == Counter(PAYLOADS)


async def test_calls_that_were_not_sent_go_over_a_session_of_the_new_identity(tmp_path: Path) -> None:
    async with token_mesh(tmp_path, window_calls=CALLS) as running:
        shown = running.static("client/x", "client/y")
        async with running.mesh.client(token=shown) as client:
            words = client.endpoint(ENDPOINT)
            sent = [words.wait(payload) for payload in PAYLOADS]
            await running.until_in_flight()
            shown.change()
            unsent = words.echo(b"unsent")
            assert endings_of(await outcomes_of(sent)) == ENDED
            assert (await outcomes_of([unsent])) == [b"unsent"]
        assert running.executions() == Counter(PAYLOADS)


@pytest.mark.parametrize("shows", ["token", long("certificate")])
async def test_a_router_is_lost_and_the_identity_changes_meanwhile(tmp_path: Path, shows: str) -> None:
    """No stream ends UNAUTHENTICATED here: both identities are valid all the time."""
    async with token_mesh(tmp_path, routers=2) as running:
        shown = [running.tokens["client/x"]]
        authority = running.mesh.authority
        own = authority.issue("client", "x")
        tls = Tls(own.ca, own.cert, own.key)
        async with tcp_proxy(running.mesh.routers[0]) as proxy:
            token = (lambda: shown[0]) if shows == "token" else None
            async with connect(proxy.address, tls=tls, token=token, connect_timeout=5.0) as client:
                words = client.endpoint(ENDPOINT)
                calls = [words.wait(payload) for payload in PAYLOADS]
                await running.until_in_flight()
                shown[0] = running.tokens["client/y"]
                authority.issue("client", "y", stem="client-x")
                await wait_until(lambda: client._routers.dialer.version > 1, what="the client has read the files")
                proxy.cut()
                assert endings_of(await outcomes_of(calls)) == ENDED
                assert await words.echo(b"later") == b"later"
        assert running.executions() == Counter(PAYLOADS)


async def test_calls_of_threads_are_not_executed_again(tmp_path: Path) -> None:
    async with token_mesh(tmp_path) as running:
        shown = running.static("operator/x", "client/x")

        def call() -> list[Any]:
            with connect_sync(running.mesh.routers, tls=running.mesh.tls(), token=shown) as client:
                words = client.endpoint(ENDPOINT)
                calls = [words.wait.future(payload) for payload in PAYLOADS]
                return [each.exception(WITHIN_S) for each in calls]

        calling = asyncio.ensure_future(asyncio.to_thread(call))
        await running.until_in_flight()
        shown.change()
        assert endings_of(await calling) == ENDED
        assert running.executions() == Counter(PAYLOADS)


@pytest.mark.parametrize("kind", ["refreshed token", long("renewed certificate")])
async def test_another_credential_of_the_same_identity_keeps_the_session(tmp_path: Path, kind: str) -> None:
    async with token_mesh(tmp_path, routers=2, resume_ttl=30.0) as running:
        refreshed = running.jwt("invoker", "invoker")
        authority = running.mesh.authority
        own = authority.issue("client", "alice")
        tls = Tls(own.ca, own.cert, own.key)
        token = refreshed if kind == "refreshed token" else None
        async with tcp_proxy(running.mesh.routers[0]) as proxy:
            async with connect(proxy.address, tls=tls, token=token, connect_timeout=5.0) as client:
                words = client.endpoint(ENDPOINT)
                calls = [words.wait(payload) for payload in PAYLOADS]
                await running.until_in_flight()
                if kind == "refreshed token":
                    refreshed.change()
                    cut = running.mesh.servers[0].edge.streams.cut
                    await wait_until(cut.total, what="the stream has ended")
                else:
                    authority.issue("client", "alice")
                    proxy.cut()
                running.open_gate()
                assert await outcomes_of(calls) == PAYLOADS
        assert running.executions() == Counter(PAYLOADS)


# -- clients of other languages ----------------------------------------------------------------------------------------


async def opened(stub: Any, token: str, opening: router_service_pb2.OpenStream) -> tuple[Any, Any]:
    stream = stub.StreamCalls(metadata=(("authorization", f"Bearer {token}"),))
    await stream.write(router_service_pb2.StreamCallsRequest(open=opening))
    return stream, await stream.read()


@pytest.mark.parametrize("names", ["all rosters", "the first roster only"])
async def test_a_client_that_knows_nothing_of_identities_is_not_answered_never_seen(tmp_path: Path, names: str) -> None:
    """It does what docs/protocol.md asks for: it returns each roster as it arrived."""
    async with token_mesh(tmp_path) as running:
        source = running.mesh.authority.source("client", "elsewhere")
        async with Dialer(source).open(running.mesh.routers[0], Role.ROUTER) as channel:
            stub: Any = router_service_pb2_grpc.RouterServiceStub(channel)
            opening = router_service_pb2.OpenStream(endpoint=ENDPOINT, session_id="ab" * 16, epoch=1)
            stream, first = await opened(stub, running.tokens["operator/x"], opening)
            roster = first.opened.roster
            await stream.write(router_service_pb2.StreamCallsRequest(roster=roster))
            batch = router_service_pb2.CallBatch(
                first_call_id=1, payloads=[b"x"], options=call_pb2.CallOptions(method="wait")
            )
            frame = router_service_pb2.CallFrame(batches=[batch])
            await stream.write(router_service_pb2.StreamCallsRequest(calls=frame))
            await running.until_in_flight(1)
            stream.cancel()
            opening.epoch = 2
            opening.unanswered.add(first=1, last=1)
            mine = (
                first.opened.roster
                if names == "all rosters"
                else router_service_pb2.RosterVersion(
                    generation=roster.generation.partition("@")[0], revision=roster.revision
                )
            )
            opening.rosters.append(mine)
            try:
                stream, again = await opened(stub, running.tokens["client/x"], opening)
                await stream.write(router_service_pb2.StreamCallsRequest(roster=again.opened.roster))
                batch.resend = True
                batch.first_roster.CopyFrom(roster)
                frame = router_service_pb2.CallFrame(batches=[batch], resent_all=True)
                await stream.write(router_service_pb2.StreamCallsRequest(calls=frame))
                response = await stream.read()
                (error,) = response.results.errors
                ending = error.failure.reason, error.failure.executed
                stream.cancel()
            except grpc.RpcError as error:
                failure = from_rpc_error(error)
                ending = failure.reason, failure.executed
            expected = {
                "all rosters": (Reason.UNAUTHENTICATED, Executed.UNKNOWN),
                "the first roster only": ("ROUTER_LOST", call_pb2.EXECUTED_UNKNOWN),
            }
            assert ending == expected[names]
        assert running.executions() == Counter([b"x"])


# -- streams that do not resume ----------------------------------------------------------------------------------------


async def test_an_iteration_that_a_revocation_cuts_raises_unauthenticated(tmp_path: Path) -> None:
    async with token_mesh(tmp_path) as running:
        async with running.mesh.client(token=running.tokens["client/x"]) as client:
            words = client.endpoint(ENDPOINT)
            kinds = [words.values.stream(b"1"), words.values.unary_stream(b"2")]
            assert [await anext(each) for each in kinds] == [b"1", b"2"]
            running.revoke("client/x")
            ending = Reason.UNAUTHENTICATED, Executed.YES
            assert endings_of(await outcomes_of([anext(each) for each in kinds])) == {ending}
        assert running.executions() == Counter([b"1", b"2"])


async def test_a_direct_call_that_a_revocation_cuts_raises_unauthenticated(tmp_path: Path) -> None:
    async with token_mesh(tmp_path) as running:
        authority = running.mesh.authority
        own = authority.issue("client", "x")
        async with connect(running.mesh.routers, tls=Tls(own.ca, own.cert, own.key)) as client:
            async with client.endpoint(ENDPOINT).direct(slots=2) as lanes:
                calls = [lanes.wait(b"1"), lanes.wait(b"2")]
                await running.until_in_flight(2)
                authority.revoke(own.cert)
                assert endings_of(await outcomes_of(calls)) == ENDED
        assert running.executions() == Counter([b"1", b"2"])


async def test_an_event_stream_that_a_revocation_cuts_ends_in_unauthenticated(tmp_path: Path) -> None:
    async with token_mesh(tmp_path) as running:
        running.mesh.authority.issue("client", "ingress")
        settings = IngressSettings(
            port=0,
            metrics_port=-1,
            routers=",".join(running.mesh.routers),
            controller=running.mesh.controller.address,
            tls_dir=running.mesh.authority.directory,
        )
        headers = {
            "content-type": "application/json",
            "accept": "text/event-stream",
            "authorization": f"Bearer {running.tokens['client/x']}",
        }
        async with serve(settings) as ingress:
            await wait_until(ingress.routes.has_routes.is_set, timeout=20.0, what="the first routes")
            async with http_connection(ingress.address) as connection, asyncio.timeout(WITHIN_S):
                await connection.send(request_bytes("POST", f"/{ENDPOINT}/values", b'["eA=="]', headers))
                assert (await connection.head())[0] == 200
                chunks = connection.chunks()
                assert await anext(chunks)
                running.revoke("client/x")
                rest = b"".join([chunk async for chunk in chunks if chunk])
        assert rest.startswith(b"event: error\n"), rest
        problem = json.loads(rest.split(b"data: ")[1])
        assert (problem["reason"], problem["executed"]) == ("UNAUTHENTICATED", "yes")
