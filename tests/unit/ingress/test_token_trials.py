"""Questions about tokens that are new: one for each token, for as long as a request waits for the answer."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from ingress_service.shell.callers import HttpCaller
from ingress_service.shell.token_trials import AT_ONCE, TokenTrials
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio


class Routers:
    """One router, which answers when `gate` is set."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = self.under_way = 0

    async def found(self, _timeout_s: float) -> bool:
        return True

    def in_turn(self, _endpoint: str) -> list[str]:
        return ["router"]

    def stub(self, _address: str) -> Routers:
        return self

    async def DescribeEndpoints(self, *_request: Any, **_call: Any) -> None:
        self.asked += 1
        self.under_way += 1
        try:
            await self.gate.wait()
        finally:
            self.under_way -= 1


class Own:
    """The ingress as a caller."""

    def __init__(self) -> None:
        self.routers = Routers()


def trials() -> tuple[TokenTrials, Routers]:
    own = Own()
    return TokenTrials(cast("HttpCaller", own), 5.0), own.routers


async def test_requests_that_leave_take_their_questions_along() -> None:
    """However many clients show made-up tokens and leave, the next token is asked about at once."""
    asking, routers = trials()
    for number in range(8 * AT_ONCE):
        request = asyncio.create_task(asking.ask(f"made-up-{number}", "192.0.2.1"))
        await asyncio.sleep(0)
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)
    await wait_until(lambda: not routers.under_way, what="the questions to end")
    before = routers.asked
    request = asyncio.create_task(asking.ask("good", "192.0.2.2"))
    await wait_until(lambda: routers.asked == before + 1, what="the good token to be asked about")
    routers.gate.set()
    await request


async def test_one_question_for_all_requests_with_the_same_token() -> None:
    """One of them leaves: the others get the answer. All leave: the next one asks anew."""
    asking, routers = trials()
    requests = [asyncio.create_task(asking.ask("token", "192.0.2.1")) for _ in range(3)]
    await wait_until(lambda: routers.under_way == 1, what="the question")
    requests[0].cancel()
    await asyncio.gather(requests[0], return_exceptions=True)
    assert (routers.asked, routers.under_way) == (1, 1)
    for request in requests[1:]:
        request.cancel()
    await asyncio.gather(*requests, return_exceptions=True)
    again = asyncio.create_task(asking.ask("token", "192.0.2.1"))
    await wait_until(lambda: routers.asked == 2, what="another question")
    routers.gate.set()
    await again
