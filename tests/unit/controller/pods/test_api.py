"""Requests to the API server over a transport that answers as a test says."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path

import httpx2
import msgspec
import pytest
from lightkube.core.exceptions import ConfigError

from controller_service.shell.launchers.kubernetes import api as kubernetes
from controller_service.shell.launchers.kubernetes.api import ApiAway, LogSilent, PodApi
from tests.kube.rig.api import Api
from tests.support.certificates import Authority
from tests.support.wait import within

pytestmark = pytest.mark.asyncio


class BrokenCredentials(httpx2.Auth):
    """The token's file is away, or the program that prints a token fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        raise self.error
        yield request


@asynccontextmanager
async def answering(
    answer: Callable[[httpx2.Request], httpx2.Response | Awaitable[httpx2.Response]], auth: httpx2.Auth | None = None
) -> AsyncIterator[PodApi]:
    transport = httpx2.MockTransport(answer)  # type: ignore[arg-type]
    async with httpx2.AsyncClient(base_url="https://api", transport=transport, auth=auth) as client:
        yield PodApi(client, "mesh", "")


async def test_events_end_at_line_feeds_alone() -> None:
    """A replica's last lines are in the status of its pod, with any character that it has written."""
    message = "a\u0085b\u2028c\u000bd\u001ee\rf\ng"
    event = {"type": "MODIFIED", "object": {"status": {"message": message}}}
    lines = msgspec.json.encode(event) + b"\n"

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(len(2 * lines)):
            yield (2 * lines)[at : at + 1]

    async with (
        answering(lambda _: httpx2.Response(200, content=chunks())) as api,
        aclosing(api.watch("1")) as events,
    ):
        assert [it async for it in events] == [{}, event, event]


async def test_a_log_that_is_followed_may_be_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kubelet sends the header with the first line."""
    monkeypatch.setattr(kubernetes, "LOG_READ_S", 0.0)

    async def written_later(_: httpx2.Request) -> httpx2.Response:
        for _turn in range(10):
            await asyncio.sleep(0)  # a turn, in which a limit of no time is over
        return httpx2.Response(200, content=b"a")

    async with answering(written_later) as api:
        async with aclosing(api.log("p", "", lines=0, follow=True)) as pieces:
            assert b"".join([it async for it in pieces]) == b"a"
        async with aclosing(api.log("p", "", lines=0)) as pieces:
            with pytest.raises(ApiAway):
                await anext(pieces)


@pytest.mark.parametrize("follow", [True, False])
async def test_only_a_log_that_is_followed_is_silent(*, follow: bool) -> None:
    def silent(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadTimeout("", request=request)

    async with answering(silent) as api, aclosing(api.log("p", "", lines=1, follow=follow)) as pieces:
        with pytest.raises(ApiAway) as away:
            await anext(pieces)
    assert isinstance(away.value, LogSilent) is follow


@pytest.mark.parametrize(
    "error",
    [ConfigError("Exec aws returned 255"), FileNotFoundError("aws"), ValueError("no JSON"), KeyError("status")],
)
async def test_credentials_that_cannot_be_read_are_no_answer(error: Exception) -> None:
    async with answering(lambda _: httpx2.Response(200, json={}), BrokenCredentials(error)) as api:
        with pytest.raises(ApiAway, match=type(error).__name__):
            await api.list()
        with pytest.raises(ApiAway, match=type(error).__name__):
            async with aclosing(api.watch("1")) as events:
                await anext(events)


@pytest.mark.parametrize("of_the_rig", [False, True])
async def test_a_request_that_is_cancelled_during_a_handshake_closes_its_connection(
    tmp_path: Path, *, of_the_rig: bool
) -> None:
    """Else it stays open until it is collected as garbage."""
    hello, ended = asyncio.Event(), asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        hello.set()
        await reader.read()
        ended.set()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server, AsyncExitStack() as stack:
        url = "https://{}:{}".format(*server.sockets[0].getsockname())
        request: Coroutine[None, None, object]
        if of_the_rig:
            request = (await stack.enter_async_context(Api(url, "", str(Authority(tmp_path).ca)))).get("/api")
        else:
            client = await stack.enter_async_context(httpx2.AsyncClient(base_url=url, trust_env=False))
            request = PodApi(client, "mesh", "").get("pod")
        task = asyncio.ensure_future(request)
        await within(hello.wait(), what="the client's hello")
        gc.disable()
        try:
            task.cancel()
            await asyncio.wait([task])
            await within(ended.wait(), what="the end of the connection")
        finally:
            gc.enable()
