"""Handshakes of HTTPS: those that fail are counted by cause and logged with the peer; all others serve as before.

On both event loops. Clients run in threads, with the blocking TLS of the standard library.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import uvloop

from slotmesh.telemetry.security_metrics import HandshakeProblem
from tests.contract.ingress.handlers import Kinds
from tests.contract.ingress.https_bench import LONG_S, REQUEST, HttpsBench, Loops, TlsPieces, run_https, send_in_steps
from tests.support.certificates import Authority
from tests.support.http_client import http_connection
from tests.support.ingresses import served_mesh
from tests.support.wait import wait_until

LOOPS = pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])


# -- handshakes that fail ---------------------------------------------------------------------------------------------


def in_plain_text(bench: HttpsBench) -> None:
    with bench.connect() as client, contextlib.suppress(ConnectionError):
        client.sendall(REQUEST)
        while client.recv(1_000):
            pass


def not_trusting_the_server(bench: HttpsBench) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        bench.secured(trusted=bench.other)


def with_a_certificate_of_another_authority(bench: HttpsBench) -> None:
    bench.context.verify_mode = ssl.CERT_REQUIRED
    try:
        with contextlib.suppress(OSError), bench.secured(shown=bench.other) as client:
            # By TLS 1.3 the server refuses it after the handshake has ended for the client.
            assert client.recv(1) == b""
    finally:
        bench.context.verify_mode = ssl.CERT_NONE


def leaving_in_the_middle(bench: HttpsBench) -> None:
    with bench.connect() as client:
        client.sendall(b"\x16\x03\x01\x02\x00")


def leaving_behind_its_hello(bench: HttpsBench) -> None:
    with bench.connect() as client:
        client.sendall(TlsPieces().hello())
        client.recv(1)


def of_an_old_version(bench: HttpsBench) -> None:
    context = ssl.create_default_context(cafile=str(bench.web.ca))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    bench.context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        with bench.connect() as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="localhost")
    finally:
        bench.context.minimum_version = ssl.TLSVersion.TLSv1_2


@LOOPS
@pytest.mark.parametrize(
    ("fail", "problem"),
    [
        (in_plain_text, HandshakeProblem.PLAIN),
        (not_trusting_the_server, HandshakeProblem.REFUSED),
        (with_a_certificate_of_another_authority, HandshakeProblem.CERTIFICATE),
        (of_an_old_version, HandshakeProblem.VERSION),
        (leaving_in_the_middle, HandshakeProblem.LEFT),
        (leaving_behind_its_hello, HandshakeProblem.LEFT),
    ],
)
def test_a_handshake_that_fails_is_counted_by_its_cause_and_logged_with_its_peer(
    make_loop: Loops,
    fail: Callable[[HttpsBench], None],
    problem: HandshakeProblem,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(bench: HttpsBench) -> None:
        await bench.serves()
        assert not bench.failed, "the handshake succeeded"
        await asyncio.to_thread(fail, bench)
        await wait_until(lambda: bench.failed, timeout=LONG_S, what="a failed handshake")
        await bench.serves()
        assert not bench.under_way

    with caplog.at_level(logging.WARNING):
        bench = run_https(make_loop, tmp_path, test)
    assert bench.failed == {problem: 1}
    assert bench.requests == 2
    (line,) = [str(record.__dict__) for record in caplog.records if "handshake failed" in record.getMessage()]
    assert "127.0.0.1:" in line
    assert problem.value in line


@LOOPS
def test_a_peer_that_does_not_finish_is_closed_after_the_time_for_headers(make_loop: Loops, tmp_path: Path) -> None:
    def wait_for_the_end(bench: HttpsBench, sent: bytes) -> None:
        with bench.connect() as client, contextlib.suppress(ConnectionError):
            client.sendall(sent)
            while client.recv(10_000):
                pass

    async def test(bench: HttpsBench) -> None:
        for sent in (b"", b"\x16", TlsPieces().hello()):
            await asyncio.to_thread(wait_for_the_end, bench, sent)
        await wait_until(lambda: not bench.under_way, timeout=LONG_S, what="the end of their handshakes")

    bench = run_https(make_loop, tmp_path, test, header_s=0.3)
    assert bench.failed == {HandshakeProblem.TIME: 3}


@LOOPS
def test_a_connection_that_is_closed_without_a_byte_has_begun_no_handshake(make_loop: Loops, tmp_path: Path) -> None:
    def probe(bench: HttpsBench, *, by_reset: bool) -> None:
        with bench.connect() as client:
            if by_reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")

    async def test(bench: HttpsBench) -> None:
        for by_reset in (False, True):
            await asyncio.to_thread(probe, bench, by_reset=by_reset)
        await bench.serves()
        await wait_until(lambda: not bench.under_way, timeout=LONG_S, what="the end of these connections")

    assert not run_https(make_loop, tmp_path, test).failed


@LOOPS
def test_handshakes_under_way_are_bounded(make_loop: Loops, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def test(bench: HttpsBench) -> None:
        first = await asyncio.to_thread(bench.connect)
        await wait_until(lambda: bench.under_way == 1, timeout=LONG_S, what="the first handshake")
        with await asyncio.to_thread(bench.connect) as second, contextlib.suppress(ConnectionError):
            assert await asyncio.to_thread(second.recv, 1) == b""
        first.close()
        await wait_until(lambda: not bench.under_way, timeout=LONG_S, what="the end of the first handshake")
        await bench.serves()

    with caplog.at_level(logging.WARNING):
        assert run_https(make_loop, tmp_path, test, most=1).failed == {HandshakeProblem.OTHER: 1}
    assert any("too many handshakes" in str(record.__dict__) for record in caplog.records)


# -- handshakes that succeed ------------------------------------------------------------------------------------------


@LOOPS
@pytest.mark.parametrize("step", [1, 7, 100_000])
def test_a_request_that_comes_with_the_last_bytes_of_the_handshake_is_answered(
    make_loop: Loops, step: int, tmp_path: Path
) -> None:
    """And the first bytes of the handshake may come one by one: none is lost or read twice."""

    def ask(bench: HttpsBench) -> None:
        with bench.connect() as client:
            pieces = TlsPieces(bench.web)
            send_in_steps(client, pieces.hello(), step)
            pieces.finish(client)
            pieces.tls.write(REQUEST + REQUEST)
            send_in_steps(client, pieces.take(), step)
            answers = b""
            while answers.count(b"HTTP/1.1 204 ") < 2:
                answers += pieces.receive(client)

    async def test(bench: HttpsBench) -> None:
        for _ in range(5):
            await asyncio.to_thread(ask, bench)

    bench = run_https(make_loop, tmp_path, test)
    assert bench.requests == 10
    assert not bench.failed


@LOOPS
@pytest.mark.parametrize("by_reset", [False, True], ids=["end", "reset"])
def test_a_client_that_leaves_with_its_request_ends_its_connection(
    make_loop: Loops, by_reset: bool, tmp_path: Path
) -> None:
    def ask_and_leave(bench: HttpsBench) -> None:
        with bench.connect() as client:
            pieces = TlsPieces(bench.web)
            client.sendall(pieces.hello())
            pieces.finish(client)
            pieces.tls.write(REQUEST)
            with contextlib.suppress(ssl.SSLError):
                pieces.tls.unwrap()
            if by_reset:
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
            client.sendall(pieces.take())

    async def test(bench: HttpsBench) -> None:
        for _ in range(5):
            await asyncio.to_thread(ask_and_leave, bench)
        await bench.serves()
        await wait_until(
            lambda: not bench.under_way and not bench.server.connections, timeout=LONG_S, what="the end of all"
        )

    run_https(make_loop, tmp_path, test)


@LOOPS
def test_a_stop_closes_handshakes_and_lets_requests_end(make_loop: Loops, tmp_path: Path) -> None:
    async def test(bench: HttpsBench) -> None:
        bench.may_answer.clear()
        serving = asyncio.create_task(bench.serves())
        await wait_until(lambda: bench.requests == 1, timeout=LONG_S, what="the request")
        with bench.connect() as silent, bench.connect() as slow:
            slow.sendall(TlsPieces().hello()[:10])
            await wait_until(lambda: bench.under_way == 2, timeout=LONG_S, what="both handshakes")
            stopping = asyncio.create_task(bench.server.stop(LONG_S))
            for each in (silent, slow):
                with contextlib.suppress(ConnectionError):
                    assert await asyncio.to_thread(each.recv, 1) == b""
        assert not stopping.done()
        bench.may_answer.set()
        await serving
        await stopping
        assert not bench.under_way

    assert not run_https(make_loop, tmp_path, test).failed


@pytest.mark.asyncio
async def test_the_metrics_of_an_ingress_have_them(tmp_path: Path) -> None:
    web = Authority(tmp_path / "web")
    files = web.issue("client", "web", dns=["localhost"])
    async with served_mesh({"kinds": Kinds}, https_cert=files.cert, https_key=files.key) as served:
        async with http_connection(served.address) as plain:
            await plain.send(REQUEST)
            await plain.reader.read()
        context = ssl.create_default_context(cafile=str(web.ca))
        async with http_connection(served.address, ssl=context, server_hostname="localhost") as secured:
            page = (await secured.request("GET", "/-/metrics")).body.decode()
    lines = [each for each in page.splitlines() if each.startswith("slotmesh_tls_handshake_failures_total{")]
    assert len(lines) == len(HandshakeProblem)
    assert all('slotmesh_tls_server="https"' in each for each in lines)
    (plain_text,) = [each for each in lines if 'slotmesh_tls_problem="plain text"' in each]
    assert plain_text.endswith(" 1.0")
