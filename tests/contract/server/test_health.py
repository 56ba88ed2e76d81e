"""Health of every server of the mesh."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2

from slotmesh.server import health
from tests.contract.server.served_router import SERVICE, Setting, StatusCode, failure


def check(channel: grpc.aio.Channel, service: str = "") -> Any:
    rpc = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    return rpc(health_pb2.HealthCheckRequest(service=service), timeout=30)


def watch(channel: grpc.aio.Channel, service: str = "") -> Any:
    rpc = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    return rpc(health_pb2.HealthCheckRequest(service=service), timeout=30)


@pytest.mark.asyncio
async def test_health_says_not_serving_until_told_otherwise(setting: Setting) -> None:
    server, _, channel = setting
    assert (await check(channel)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    server.set_serving()
    assert (await check(channel)).status == health_pb2.HealthCheckResponse.SERVING
    assert (await check(channel, SERVICE)).status == health_pb2.HealthCheckResponse.SERVING
    server.set_serving(False)
    assert (await check(channel, SERVICE)).status == health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.mark.asyncio
async def test_health_of_an_unknown_service_is_not_found(setting: Setting) -> None:
    code, said = await failure(check(setting[2], "no.such.Service"))
    assert code is StatusCode.NOT_FOUND
    assert "no.such.Service" in said.message


@pytest.mark.asyncio
async def test_watch_tells_each_change_and_ends_with_the_server(setting: Setting) -> None:
    server, _, channel = setting
    mine, unknown = watch(channel, SERVICE), watch(channel, "no.such.Service")
    assert (await mine.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert (await unknown.read()).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    server.set_serving()
    assert (await mine.read()).status == health_pb2.HealthCheckResponse.SERVING
    # A watcher does not keep a server from stopping: far less than the grace passes.
    async with asyncio.timeout(20.0):
        await server.stop(grace_s=60)
    assert (await mine.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
    assert await mine.read() is grpc.aio.EOF
    assert await unknown.read() is grpc.aio.EOF
    assert await mine.code() is StatusCode.OK


@pytest.mark.asyncio
async def test_list_has_all_services(setting: Setting) -> None:
    server, _, channel = setting
    server.set_serving()
    response = health.ListResponse
    rpc: Any = channel.unary_unary("/grpc.health.v1.Health/List", None, response.FromString)
    statuses = {service: each.status for service, each in (await rpc(b"", timeout=30)).statuses.items()}
    serving_now = health_pb2.HealthCheckResponse.SERVING
    assert statuses == {"": serving_now, SERVICE: serving_now, health.SERVICE: serving_now}
