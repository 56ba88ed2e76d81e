"""The pages of a service by HTTPS: who sees metrics, what stays open, certificates that change."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from http.client import HTTPSConnection
from pathlib import Path

import pytest

from controller_service.config import ControllerSettings
from controller_service.controller_server import Front
from controller_service.store.protocol import Leader
from slotmesh.security.identity import Credential, Identity, Role
from slotmesh.security.secret_files import LOOK_S
from slotmesh.security.tls import TlsFiles, TlsSource
from slotmesh.security.tokens.rules import BadToken, TokenProblem
from slotmesh.telemetry.http_server import ServerContext
from slotmesh.telemetry.pages import PageAccess
from slotmesh.telemetry.security_metrics import HandshakeProblem
from slotmesh.telemetry.setup import MetricsServer, setup_metrics
from slotmesh.units import parse_host_port
from tests.support.certificates import Authority


class Holders:
    """Tokens: who holds one is its text."""

    def identify(self, token: str) -> Identity:
        if token not in list(Role):
            raise BadToken(TokenProblem.UNKNOWN, "not known")
        return Identity(name="client/holder", roles=frozenset({Role(token)}))

    def verify(self, token: str) -> Credential:
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
        return HTTPSConnection(host, port, context=context, timeout=30)

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


def test_metrics_are_for_nobody_who_was_revoked(pages: Pages) -> None:
    eve, ann = pages.authority.issue("viewer", "eve"), pages.authority.issue("viewer", "ann")
    assert pages.get("/metrics", eve)[0] == 200
    pages.authority.revoke(eve.cert)
    pages.now += LOOK_S
    assert pages.get("/metrics", eve) == (401, "the role viewer is needed, and this certificate was revoked\n")
    assert pages.get("/metrics", ann)[0] == 200


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


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=str)
def test_no_session_goes_on_in_another_connection(pages: Pages, version: ssl.TLSVersion) -> None:
    files = pages.authority.issue("viewer", "prometheus")
    context = ssl.create_default_context(cafile=str(pages.authority.ca))
    context.check_hostname = False
    context.minimum_version = context.maximum_version = version
    context.load_cert_chain(str(files.cert), files.key)
    session: ssl.SSLSession | None = None
    for _ in range(2):
        raw = socket.create_connection(parse_host_port(str(pages.server.address)), timeout=30)
        with context.wrap_socket(raw, session=session) as connection:
            assert not connection.session_reused
            connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            assert connection.recv(64).startswith(b"HTTP/1.0 200")
            session = connection.session


def test_a_certificate_that_has_ended_since_the_handshake_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_hours_on = partial(PageAccess, now=lambda: time.time() + 7200)
    monkeypatch.setattr("slotmesh.telemetry.setup.PageAccess", two_hours_on)
    pages = Pages(Authority(tmp_path))
    viewer = pages.authority.issue("viewer", "prometheus")
    assert pages.get("/metrics", viewer) == (401, "the role viewer is needed, and this certificate has expired\n")
    pages.server.shutdown()


def test_what_was_checked_is_used_whatever_the_files_hold_now(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    source = TlsSource(authority.issue("router"), now=lambda: 0.0)
    for path in (authority.ca, source.files.cert, source.files.key):
        assert path is not None
        path.unlink()
    ServerContext(source).newest()


@pytest.mark.asyncio
async def test_who_leads_is_told_to_viewers(pages: Pages) -> None:
    front = Front(ControllerSettings(), object, object, object)
    front.leader = lambda: Leader("127.0.0.1:7070", "the controller at 127.0.0.1:7070 (pid 7)")
    pages.server.look_at(lambda: False, front.why_not_serving)
    client = pages.authority.issue("client", "alice")
    for files in (None, client):
        assert await asyncio.to_thread(pages.get, "/readyz", files) == (503, "standing by\n")
    in_full = (503, "standing by: the controller at 127.0.0.1:7070 (pid 7) leads\n")
    viewer = pages.authority.issue("viewer", "prometheus")
    assert await asyncio.to_thread(pages.get, "/readyz", viewer) == in_full
    assert await asyncio.to_thread(pages.get, "/readyz", token="Bearer viewer") == in_full


def test_who_is_refused_metrics_is_in_the_audit_log(pages: Pages, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "slotmesh.audit")
    client = pages.authority.issue("client", "audited")
    for _ in range(3):
        pages.get("/metrics", client)
    pages.get("/readyz", client)
    said = [record.getMessage() for record in caplog.records if "client/audited" in record.getMessage()]
    assert said == ["denied who=client/audited method=/metrics reason=PERMISSION_DENIED peer=127.0.0.1"]


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


def test_handshakes_that_fail_are_counted_and_logged_with_their_peer(
    pages: Pages, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = parse_host_port(str(pages.server.address))
    with socket.create_connection(address, timeout=20) as plain:
        plain.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        with suppress(ConnectionError):
            while plain.recv(1_000):
                pass
    with socket.create_connection(address, timeout=20):
        pass  # it says nothing: no handshake
    stranger = Authority(tmp_path / "other").issue("client", "eve")
    with pytest.raises(OSError, match=r"alert|reset|EOF|closed"):  # by TLS 1.3 it is told with the first answer
        pages.get("/metrics", stranger)
    _, page = pages.get("/metrics", pages.authority.issue("viewer", "vera"))
    failed = {
        line.split('slotmesh_tls_problem="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1])
        for line in page.splitlines()
        if line.startswith("slotmesh_tls_handshake_failures_total{")
    }
    assert {name: count for name, count in failed.items() if count} == {
        "plain text": 1.0,
        "certificate of the peer": 1.0,
    }
    assert 'slotmesh_tls_server="metrics"' in page
    assert len(failed) == len(HandshakeProblem)
    lines = [str(record.__dict__) for record in caplog.records if "handshake failed" in record.getMessage()]
    assert lines
    assert all("127.0.0.1:" in line for line in lines)
