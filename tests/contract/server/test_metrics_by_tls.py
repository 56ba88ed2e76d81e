"""The pages of a service by HTTPS: who sees metrics, what stays open, certificates that change."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from slotmesh.security.identity import Identity, Role
from slotmesh.security.tls import TlsFiles, TlsSource
from slotmesh.security.tls.source import LOOK_S
from slotmesh.security.tokens.failures import BadToken, TokenProblem
from slotmesh.telemetry.setup import MetricsServer, setup_metrics
from slotmesh.units import parse_host_port
from tests.support.certificates import Authority


class Holders:
    """Tokens: who holds one is its text."""

    def identify(self, token: str) -> Identity:
        if token not in list(Role):
            raise BadToken(TokenProblem.UNKNOWN, "not known")
        return Identity(name="client/holder", roles=frozenset({Role(token)}))

    def still_holds(self, token: str, identity: Identity | None = None) -> bool:
        raise AssertionError("pages are asked for once")


class Pages:
    """The endpoint, and the time by which its process looks at its files."""

    def __init__(self, authority: Authority) -> None:
        self.authority = authority
        self.now = 0.0
        tls = TlsSource(authority.issue("router"), now=lambda: self.now)
        self.server: MetricsServer = setup_metrics("slotmesh-router", port=0, tls=tls, tokens=Holders())

    def connection(self, files: TlsFiles | None = None) -> HTTPSConnection:
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        context.check_hostname = False
        if files is not None:
            assert files.cert is not None
            context.load_cert_chain(files.cert, files.key)
        host, port = parse_host_port(str(self.server.address))
        return HTTPSConnection(host, port, context=context, timeout=5)

    def get(self, page: str, files: TlsFiles | None = None, token: str = "") -> tuple[int, str]:
        connection = self.connection(files)
        try:
            connection.request("GET", page, headers={"Authorization": token} if token else {})
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()


@pytest.fixture
def pages(tmp_path: Path) -> Iterator[Pages]:
    made = Pages(Authority(tmp_path))
    yield made
    made.server.shutdown()


@pytest.mark.parametrize(
    ("kind", "name", "status"),
    [
        ("viewer", "prometheus", 200),
        ("operator", "ann", 200),
        ("client", "alice", 403),
        ("router", "", 403),
        ("controller", "", 403),
    ],
)
def test_metrics_are_for_viewers(pages: Pages, kind: str, name: str, status: int) -> None:
    found, text = pages.get("/metrics", pages.authority.issue(kind, name, stem="shown"))
    assert found == status
    assert ("slotmesh_tls_certificate_end_seconds" in text) is (status == 200)


@pytest.mark.parametrize(
    ("token", "status"),
    [("Bearer viewer", 200), ("bearer viewer", 200), ("Bearer invoker", 403), ("Bearer x", 401), ("Basic viewer", 401)],
)
def test_a_token_goes_before_a_certificate(pages: Pages, token: str, status: int) -> None:
    assert pages.get("/metrics", token=token)[0] == status
    assert pages.get("/metrics", pages.authority.issue("viewer", "prometheus"), token=token)[0] == status


def test_without_a_credential_only_health_is_told(pages: Pages) -> None:
    assert pages.get("/metrics")[0] == 401
    assert pages.get("/healthz") == (200, "ok\n")
    assert pages.get("/readyz")[0] == 503


def test_of_another_trust_domain_or_authority_or_expired_is_nobody(pages: Pages, tmp_path: Path) -> None:
    foreign = pages.authority.issue("viewer", "eve", uri="spiffe://other.test/viewer/eve")
    assert pages.get("/metrics", foreign)[0] == 401
    stranger = Authority(tmp_path / "stranger").issue("viewer", "eve")
    expired = pages.authority.issue("viewer", "late", not_after=datetime.now(UTC) - timedelta(minutes=1))
    for files in (stranger, expired):
        with pytest.raises(OSError, match=r"(?i)alert|reset|EOF"):
            pages.get("/metrics", files)


def test_the_newest_certificate_is_shown(pages: Pages) -> None:
    def shown() -> bytes | None:
        connection = pages.connection()
        connection.connect()
        try:
            return connection.sock.getpeercert(binary_form=True)
        finally:
            connection.close()

    first = shown()
    pages.authority.issue("router")
    assert shown() == first
    pages.now += LOOK_S
    second = shown()
    assert second != first
    (pages.authority.directory / "router.crt").write_text("nothing")
    pages.now += LOOK_S
    assert shown() == second


def test_who_says_nothing_keeps_nobody_waiting(pages: Pages) -> None:
    silent = [socket.create_connection(parse_host_port(str(pages.server.address))) for _ in range(20)]
    assert pages.get("/healthz")[0] == 200
    for each in silent:
        each.close()
