"""Each rpc of each service lets in whom its proto names, and nobody else.

Each rpc of all protos: certificates of each kind, tokens of each role alone, no credential, one that has expired, and
one of another trust domain. Who is let in is written down by hand (`tests/support/expected_roles.py`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import pytest

from slotmesh.runtime.channels import Dialer
from slotmesh.security.authentication import Authorizer
from slotmesh.security.identity import Identity, Role, server_name
from slotmesh.security.tls import TlsSource
from tests.contract.security.role_servers import DENIED, RPCS, KnownTokens, error_info, serving, status_of, statuses
from tests.support.certificates import TRUST_DOMAIN, Authority
from tests.support.expected_roles import EXPECTED, OPEN

KINDS = (
    ("viewer", "eve"),
    ("client", "alice"),
    ("ingress", ""),
    ("operator", "ops"),
    ("router", ""),
    ("replica", ""),
    ("replica", "digits"),
    ("controller", ""),
)
ROLES_OF_KIND = {
    "viewer": {Role.VIEWER},
    "client": {Role.INVOKER},
    "ingress": {Role.INVOKER},
    "operator": {Role.OPERATOR},
    "router": {Role.ROUTER},
    "replica": {Role.REPLICA},
    "controller": {Role.CONTROLLER},
}


def expected(roles: Iterable[Role]) -> dict[tuple[str, str], bool]:
    """Whether somebody with these roles is let in, for each rpc."""
    return {rpc: rpc in OPEN or bool(EXPECTED[rpc].intersection(roles)) for rpc in RPCS}


def let_in(found: dict[tuple[str, str], str]) -> dict[tuple[str, str], bool]:
    return {rpc: status not in DENIED for rpc, status in found.items()}


def test_the_table_has_every_rpc_and_no_other() -> None:
    assert set(EXPECTED) == set(RPCS)
    assert set(RPCS) >= OPEN


def only_open(found: dict[tuple[str, str], str], refused: str = "UNAUTHENTICATED") -> bool:
    return {rpc for rpc, status in found.items() if status != refused} == OPEN


@pytest.mark.asyncio
async def test_certificates(tmp_path: Path) -> None:
    """Of each kind."""
    authority = Authority(tmp_path)
    async with serving(Authorizer(TRUST_DOMAIN), authority.source("router")) as address:
        for kind, name in KINDS:
            async with Dialer(authority.source(kind, name)).open(address, Role.ROUTER) as channel:
                found = await statuses(channel)
            assert let_in(found) == expected(ROLES_OF_KIND[kind]), f"{kind} {name}"
            assert "UNAUTHENTICATED" not in found.values()


@pytest.mark.asyncio
async def test_a_certificate_of_another_trust_domain_is_nobodys(tmp_path: Path) -> None:
    """The same authority has signed it."""
    authority = Authority(tmp_path)
    foreign = TlsSource(authority.issue("operator", "ops", trust_domain="other.test"))
    async with serving(Authorizer(TRUST_DOMAIN), authority.source("router")) as address:
        options = [("grpc.ssl_target_name_override", server_name(TRUST_DOMAIN, Role.ROUTER))]
        async with grpc.aio.secure_channel(address, foreign.channel_credentials(), options=options) as channel:
            assert only_open(await statuses(channel))


@pytest.mark.asyncio
async def test_a_certificate_that_has_expired_since_it_connected(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    later = Authorizer(TRUST_DOMAIN, now=lambda: time.time() + 7200)
    async with serving(later, authority.source("router")) as address:
        async with Dialer(authority.source("operator", "ops")).open(address, Role.ROUTER) as channel:
            assert only_open(await statuses(channel))


@pytest.mark.asyncio
async def test_tokens() -> None:
    """Of each role alone; then one that is not known, one that has expired, and no credential at all."""
    identities = {role.value: Identity(name=f"token/{role}", roles=frozenset({role})) for role in Role}
    old = Identity(name="token/old", roles=frozenset(Role), expires_at=time.time() - 1)
    tokens = KnownTokens(**identities, old=old)
    async with serving(Authorizer(TRUST_DOMAIN, tokens)) as address, grpc.aio.insecure_channel(address) as channel:
        for token, identity in identities.items():
            found = await statuses(channel, token)
            assert let_in(found) == expected(identity.roles), (token, found)
        assert only_open(await statuses(channel, "old"))
        assert only_open(await statuses(channel, "unknown"))
        assert only_open(await statuses(channel))


@pytest.mark.asyncio
async def test_a_token_goes_before_a_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tokens = KnownTokens(eve=Identity(name="token/eve", roles=frozenset({Role.VIEWER})))
    call = ("slotmesh.v1.ControllerService", "ListBackends")
    change = ("slotmesh.v1.ControllerService", "DeleteBackend")
    async with serving(Authorizer(TRUST_DOMAIN, tokens), authority.source("router")) as address:
        async with Dialer(authority.source("operator", "ops")).open(address, Role.ROUTER) as channel:
            assert await status_of(channel, call, "eve") == ("UNIMPLEMENTED", "reached by token/eve")
            assert (await status_of(channel, change, "eve"))[0] == "PERMISSION_DENIED"
            assert (await status_of(channel, change, "unknown"))[0] == "UNAUTHENTICATED"
            assert await status_of(channel, change) == ("UNIMPLEMENTED", "reached by operator/ops")


@pytest.mark.asyncio
async def test_what_is_no_bearer_token_is_refused_though_the_certificate_would_do(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    tokens = KnownTokens(eve=Identity(name="token/eve", roles=frozenset({Role.VIEWER})))
    refused = [
        [("authorization", "Basic ZXZl")],
        [("authorization", "eve")],
        [("authorization", "")],
        [("authorization", "Bearer eve"), ("authorization", "Bearer eve")],
    ]
    async with serving(Authorizer(TRUST_DOMAIN, tokens), authority.source("router")) as address:
        async with Dialer(authority.source("operator", "ops")).open(address, Role.ROUTER) as channel:
            method: Any = channel.unary_unary("/slotmesh.v1.ControllerService/ListBackends")
            for metadata in refused:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await method(b"", metadata=metadata)
                info = error_info(caught.value)
                assert (caught.value.code().name, info.metadata["role"]) == ("UNAUTHENTICATED", "viewer"), metadata
            with pytest.raises(grpc.aio.AioRpcError, match="reached by token/eve"):
                await method(b"", metadata=[("authorization", "bearer eve")])


@pytest.mark.asyncio
async def test_without_an_authorizer_nobody_is_asked() -> None:
    async with serving(None) as address, grpc.aio.insecure_channel(address) as channel:
        assert not set((await statuses(channel)).values()) & set(DENIED)
        call = ("slotmesh.v1.ControllerService", "DeleteBackend")
        assert await status_of(channel, call) == ("UNIMPLEMENTED", "reached by anybody")
