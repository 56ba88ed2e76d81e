"""Requests to the API server over a transport that answers as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator
from contextlib import aclosing, asynccontextmanager

import httpx2
import msgspec
import pytest
from lightkube.core.exceptions import ConfigError

from controller_service.shell.launchers.kubernetes.api import ApiAway, PodApi

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
    answer: Callable[[httpx2.Request], httpx2.Response], auth: httpx2.Auth | None = None
) -> AsyncIterator[PodApi]:
    transport = httpx2.MockTransport(answer)
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
