"""The health checks of docker-compose.yml and deploy/compose/tls.yaml, run by their shell, without containers.

Each reports that the service is ready, not that a port is open.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
import yaml

from slotmesh.security.tls import TlsSource
from slotmesh.telemetry.setup import setup_metrics
from tests.support.certificates import Authority
from tests.support.mesh import ROOT
from tests.support.shell import program

pytestmark = [
    pytest.mark.asyncio,
    pytest.mark.skipif(shutil.which("bash") is None or shutil.which("openssl") is None, reason="no bash or openssl"),
]

PLAIN: Final = ROOT / "docker-compose.yml"
BY_TLS: Final = ROOT / "deploy/compose/tls.yaml"
PORT: Final = "9464"
"""Of every service, in its container."""


def script_of(file: Path) -> str:
    """What the check's shell gets, as compose gives it on."""
    kind, program, flag, script = yaml.safe_load(file.read_text("utf-8"))["x-health"]["test"]
    assert (kind, program, flag) == ("CMD", "bash", "-c")
    return str(script).replace("$$", "$")


async def is_healthy(file: Path, address: str, certs: Path | None = None) -> bool:
    """Runs the check against another address and, by TLS, with the authority of another directory."""
    script = script_of(file)
    port = address.rpartition(":")[2]
    text = script.replace(f"127.0.0.1/{PORT}", f"127.0.0.1/{port}")
    text = text.replace(f"127.0.0.1:{PORT}", f"127.0.0.1:{port}")
    assert text.count(port), "the check has no port"
    if certs is not None:
        text = text.replace("/certs/", f"{certs}/")
    return (await program("bash", "-c", text)).status == 0


class Service:
    """The pages of a service whose readiness the test decides."""

    def __init__(self, tls: TlsSource | None = None) -> None:
        self.is_serving = True
        self._server = setup_metrics("slotmesh-router", port=0, tls=tls)
        self._server.look_at(lambda: self.is_serving)
        self.address = str(self._server.address)

    def stop(self) -> None:
        self._server.shutdown()


@asynccontextmanager
async def deaf_listener() -> AsyncIterator[str]:
    """Accepts connections and answers nothing: what a process does that hangs."""
    accepted: list[asyncio.StreamWriter] = []

    def ignore(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer)

    async with await asyncio.start_server(ignore, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"{host}:{port}"
    for writer in accepted:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_the_check_follows_readiness_in_plain_text() -> None:
    service = Service()
    try:
        assert await is_healthy(PLAIN, service.address)
        service.is_serving = False
        assert not await is_healthy(PLAIN, service.address)
        service.is_serving = True
        assert await is_healthy(PLAIN, service.address)
    finally:
        service.stop()
    assert not await is_healthy(PLAIN, service.address), "nothing listens there"


async def test_the_check_follows_readiness_by_tls(tmp_path: Path) -> None:
    mesh, another = Authority(tmp_path / "mesh"), Authority(tmp_path / "another")
    service = Service(TlsSource(mesh.issue("router")))
    try:
        assert await is_healthy(BY_TLS, service.address, mesh.ca.parent)
        assert not await is_healthy(BY_TLS, service.address, another.ca.parent), "a service of another mesh"
        service.is_serving = False
        assert not await is_healthy(BY_TLS, service.address, mesh.ca.parent)
    finally:
        service.stop()
    assert not await is_healthy(BY_TLS, service.address, mesh.ca.parent), "nothing listens there"


@pytest.mark.parametrize("file", [PLAIN, BY_TLS], ids=["plain", "tls"])
async def test_an_open_port_that_says_nothing_is_not_ready(file: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with deaf_listener() as address:
        assert not await is_healthy(file, address, authority.ca.parent)
