"""The mesh by TLS, as deploy/compose/tls.yaml says: for its operator and for a token, and with new certificates."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import sys
from contextlib import suppress
from typing import Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc

from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import info_service_pb2, info_service_pb2_grpc
from tests.compose.project import ComposeProject
from tests.support.controllers import eventually

SERVICES: Final = ("certs", "controller", "router", "replica", "edge", "ingress")
PUBLISHED: Final = ("127.0.0.1:7070", "127.0.0.1:7071")
REPLICAS: Final = 2
SETTLED_S: Final = 120.0
HTTPS: Final = "https://localhost:8080"
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
    web = await _web_client(project)

    async def is_answered() -> bool:
        with suppress(OSError):
            return bool(await asyncio.to_thread(web.call) == answer)
        return False

    await eventually(is_answered, what="who has a token is answered by HTTPS", timeout=SETTLED_S)
    assert await asyncio.to_thread(web.status_without_token) == 401, "who has no token calls by HTTP"
    before, shown = await _certificates(project), await asyncio.to_thread(web.certificate)
    await project.compose("run", "--rm", "-T", "certs", "rotate")
    assert await _certificates(project) != before, "rotate issues other certificates"
    assert json.loads(await _operator(project, *CALL)) == answer, "after the rotation"

    async def is_shown() -> bool:
        return await asyncio.to_thread(web.certificate) != shown

    await eventually(is_shown, what="the ingress shows its new certificate", timeout=SETTLED_S)
    assert await asyncio.to_thread(web.call) == answer, "by HTTPS, after the rotation"
    sys.stdout.write(
        f"compose-test: by TLS the operator, and by HTTPS who has a token, is answered {answer}, before and after new "
        "certificates\n"
    )


class _WebClient:
    """Calls by HTTPS. Blocks; each time on a connection of its own."""

    def __init__(self, authority: str, token: str) -> None:
        self._context = ssl.create_default_context(cadata=authority)
        self._token = token

    def call(self) -> object:
        """Raises HTTPError, which is an OSError, where it is refused."""
        return self._asked({"Authorization": f"Bearer {self._token}"})

    def status_without_token(self) -> int:
        try:
            self._asked({})
        except HTTPError as error:
            return error.code
        return 200

    def certificate(self) -> bytes | None:
        """That the ingress shows."""
        host, port = HTTPS.removeprefix("https://").split(":")
        with (
            socket.create_connection((host, int(port)), timeout=10) as plain,
            self._context.wrap_socket(plain, server_hostname=host) as secured,
        ):
            return secured.getpeercert(binary_form=True)

    def _asked(self, headers: dict[str, str]) -> object:
        said = {"Content-Type": "application/json", **headers}
        request = Request(f"{HTTPS}/digits/info", b"[]", said, method="POST")  # noqa: S310 - https alone
        with urlopen(request, timeout=30, context=self._context) as response:  # noqa: S310 - see above
            return json.load(response)


async def _web_client(project: ComposeProject) -> _WebClient:
    """With a token that was made for it, and the certificate of the authority."""
    authority = await project.compose("run", "--rm", "-T", "--entrypoint=cat", "operator", "/certs/ca.crt")
    token = await project.compose("run", "--rm", "-T", "certs", "token", "web")
    return _WebClient(authority, token.strip())


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
