"""Proxies that the environment names are for other programs: members and clients of a mesh connect as they are told."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from slotmesh.runtime.channels import Dialer
from slotmesh.security.identity import Role
from slotmesh.server.server import GrpcServer
from tests.arch.sources import ROOT
from tests.support.certificates import Authority

NOWHERE = "http://127.0.0.1:9"


@pytest.mark.asyncio
@pytest.mark.parametrize("by_tls", [False, True])
@pytest.mark.parametrize("variable", ["grpc_proxy", "https_proxy", "http_proxy"])
async def test_no_proxy_is_asked(variable: str, by_tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, NOWHERE)
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    tls = Authority(tmp_path).source("router") if by_tls else None
    server = GrpcServer("router", tls=tls)
    await server.start()
    server.set_serving()
    try:
        async with Dialer(tls).open(server.address, Role.ROUTER) as channel:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            assert (await stub.Check(health_pb2.HealthCheckRequest(), timeout=10)).status == 1
    finally:
        await server.stop()


def test_channels_are_made_in_one_place() -> None:
    """Elsewhere their options would be forgotten; servers of etcd have no role, so their client makes its own."""
    made = {"insecure_channel", "secure_channel"}
    places = {
        path.relative_to(ROOT).as_posix()
        for package in ("slotmesh", "router_service", "replica_service", "controller_service", "ingress_service")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in made
    }
    etcd = "controller_service/store/etcd/client.py"
    assert places == {"slotmesh/runtime/channels.py", etcd}
    assert (ROOT / etcd).read_text("utf-8").count("CHANNEL_OPTIONS)") == 2
