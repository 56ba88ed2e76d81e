"""The mesh by TLS, as deploy/compose/tls.yaml says: for its operator alone, and with new certificates while it runs."""

from __future__ import annotations

import json
import sys
from typing import Final

import grpc

from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import info_service_pb2, info_service_pb2_grpc
from tests.compose.project import ComposeProject
from tests.support.controllers import eventually

SERVICES: Final = ("certs", "controller", "router", "replica", "edge")
PUBLISHED: Final = ("127.0.0.1:7070", "127.0.0.1:7071")
REPLICAS: Final = 2
SETTLED_S: Final = 120.0
CALL: Final = ("call", "digits", "info", "[]", "--address=edge:7071")


async def run(project: ComposeProject) -> None:
    """Raises AssertionError where something does not hold."""
    await project.up(replica=REPLICAS)

    seen: object = None

    async def is_settled() -> bool:
        nonlocal seen
        try:
            seen = [it["state"] for it in json.loads(await _operator(project, "status", "--output=json"))["replicas"]]
        except AssertionError as error:
            seen = error
        return seen == ["READY"] * REPLICAS

    try:
        await eventually(is_settled, what="the operator sees all replicas ready", timeout=SETTLED_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; it saw {seen}") from None
    answer = json.loads(await _operator(project, *CALL))
    for address in PUBLISHED:
        assert not await _lets_in_plain_text(address), f"{address} serves who has no certificate"
    before = await _certificates(project)
    await project.compose("run", "--rm", "-T", "certs", "rotate")
    assert await _certificates(project) != before, "rotate issues other certificates"
    assert json.loads(await _operator(project, *CALL)) == answer, "after the rotation"
    sys.stdout.write(f"compose-test: by TLS the operator is answered {answer}, before and after new certificates\n")


async def _operator(project: ComposeProject, *arguments: str) -> str:
    return await project.compose("run", "--rm", "-T", "operator", *arguments)


async def _certificates(project: ComposeProject) -> object:
    return json.loads(await _operator(project, "certs", "show", "--output=json"))


async def _lets_in_plain_text(address: str) -> bool:
    async with open_channel(address) as channel:
        try:
            await info_service_pb2_grpc.InfoServiceStub(channel).GetServerInfo(
                info_service_pb2.GetServerInfoRequest(), timeout=10
            )
        except grpc.aio.AioRpcError:
            return False
        return True
