"""Files of authorities as people and their tools write them: with comments, byte order marks, other ends of lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slotmesh.cli.checking.gathering import _context as context_of_check
from slotmesh.client.tls import Tls
from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.security.tls import TlsFiles, TlsSource
from slotmesh.server.server import GrpcServer
from slotmesh.telemetry.http_server import ServerContext
from tests.support.certificates import Authority

WRITTEN: Final[dict[str, Callable[[bytes], bytes]]] = {
    "as it is": lambda pem: pem,
    "comment": lambda pem: b"# the authority of the mesh\n" + pem,
    "comment in UTF-8": lambda pem: "# Behörde\n".encode() + pem,
    "comment in Latin-1": lambda pem: "# Behörde\n".encode("latin-1") + pem,
    "text behind": lambda pem: pem + "Ende\u2026\n".encode(),
    "text between": lambda pem: pem + b"\n-- the same again --\n" + pem,
    "byte order mark": lambda pem: b"\xef\xbb\xbf" + pem,
    "UTF-16": lambda pem: pem.decode().encode("utf-16"),
    "ends of lines of Windows": lambda pem: pem.replace(b"\n", b"\r\n"),
    "blanks before": lambda pem: b" \n\t" + pem,
    "no end of line": lambda pem: pem.rstrip(),
    "bag attributes": lambda pem: b"Bag Attributes\n    localKeyID: 01\nsubject=CN = x\n" + pem,
}


@pytest.mark.asyncio
@pytest.mark.parametrize("written", WRITTEN)
async def test_both_ends_take_it_and_so_do_pages_and_checks(written: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, other = authority.issue("router"), authority.issue("operator", "ops")
    assert own.cert is not None
    for path in (authority.ca, own.cert):
        path.write_bytes(WRITTEN[written](path.read_bytes()))
    tls = TlsSource(own)
    server = GrpcServer("router", tls=tls)
    await server.start()
    server.set_serving()
    try:
        dialer = Dialer(TlsSource(TlsFiles(authority.ca, other.cert, other.key)))
        async with dialer.open(server.address, Role.ROUTER) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            assert (await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)).status == 1
    finally:
        await server.stop()
    assert ServerContext(tls).newest().get_ca_certs()
    assert context_of_check(Tls(authority.ca)).get_ca_certs()
