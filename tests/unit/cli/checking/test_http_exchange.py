"""By TLS, too, one deadline holds for all that a server sends."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from slotmesh.cli.checking.asking_ingresses import HttpConnection
from tests.support.certificates import Authority

WITHIN_S = 0.5
DRIPS_S = 6.0


async def ask(port: int, context: ssl.SSLContext) -> None:
    async with asyncio.timeout(WITHIN_S), HttpConnection("localhost", port, context).opened() as connection:
        assert connection.shown_certificate()["notAfter"]
        await connection.get("/", {}, 1_000_000)


def test_a_byte_now_and_then_by_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    web = authority.issue("client", "web", dns=["localhost"])
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(str(web.cert), web.key)
    gone = threading.Event()

    def serve() -> None:
        with suppress(OSError):  # the client is gone
            connected = of_server.wrap_socket(listener.accept()[0], server_side=True)
            with connected:
                connected.recv(10_000)
                connected.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
                ends_at = time.monotonic() + DRIPS_S
                while time.monotonic() < ends_at and not gone.wait(0.05):
                    connected.sendall(b"x")

    context = ssl.create_default_context(cafile=str(web.ca))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve, daemon=True)
        server.start()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            asyncio.run(ask(listener.getsockname()[1], context))
        took_s = time.monotonic() - began
        gone.set()
        server.join(10)
    assert WITHIN_S * 0.9 <= took_s < DRIPS_S / 2
