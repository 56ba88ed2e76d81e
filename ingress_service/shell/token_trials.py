"""Asks a router about a bearer token that is new here, before anything is held for it.

Purpose: a client with made-up tokens takes neither a connection nor a body from clients whose tokens are valid.
Invariants: one question for all requests that show the same token; a bounded number of questions at a time, the others
wait in line; of the line no address has more than its share. A question ends when no request waits for it any more, as
those are counted that wait. A token is good if a router has answered its holder
anything but UNAUTHENTICATED; where no router answers, nothing is known of it.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ingress_service.core.peers import BUSY_RETRY_S
from ingress_service.core.problems import refusal
from ingress_service.core.requests import unauthenticated
from ingress_service.shell.callers import ASK_S, HttpCaller, ask_routers
from slotmesh.calls.fair_shares import FairBound
from slotmesh.errors import Reason, SlotmeshError
from slotmesh.runtime.channels import NoToken, TokenSource
from slotmesh.v1 import router_service_pb2 as pb

AT_ONCE: Final = 16
MAX_IN_LINE: Final = 1_024
"""Requests whose tokens are asked about, or wait for that."""
FLOOR: Final = 16
"""An address with no more than these finds the reserve."""
AGAIN_S: Final = 0.1
_UNANSWERED: Final = frozenset(
    {Reason.ROUTER_LOST, Reason.DEADLINE_RUNNING, Reason.DRAINING, Reason.CANCELLED, Reason.INTERNAL}
)
_QUESTION: Final = pb.DescribeEndpointsRequest(endpoint="-")
"""Whatever the answer is."""


class TokenTrials:
    """Asks."""

    def __init__(self, own: HttpCaller, patience_s: float) -> None:
        """`own`: the ingress itself, over whose connections it asks; `patience_s`: for a router to be there."""
        self._own = own
        self._patience_s = patience_s
        self._line: FairBound[str] = FairBound.within(MAX_IN_LINE, FLOOR)
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._asked: dict[str, _Question] = {}
        """By token."""

    async def ask(self, token: str, address: str) -> None:
        """Returns where a router has taken the token. Raises RequestRefusal, or SlotmeshError where none answers."""
        try:
            authorization = TokenSource(token).authorization()
        except NoToken:
            raise unauthenticated("this is no bearer token") from None
        if self._line.over(address, 1) is not None:
            text = "too many tokens that are new here are being looked at"
            raise refusal(503, text, Reason.QUOTA_EXCEEDED, retry_delay_s=BUSY_RETRY_S)
        self._line.take(address, 1)
        question = self._asked.get(token)
        if question is None:
            question = self._asked[token] = _Question(asyncio.create_task(self._learn(authorization), name="try-token"))
        question.waiting += 1
        try:
            await asyncio.wait([question.task])
        finally:
            self._line.give(address, 1)
            question.waiting -= 1
            if not question.waiting and self._asked.get(token) is question:
                del self._asked[token]
                question.task.cancel()
        question.task.result()

    async def aclose(self) -> None:
        """Asks no more."""
        tasks = [each.task for each in self._asked.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _learn(self, authorization: str) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience_s
        while True:
            try:
                async with self._turns:
                    await self._answer(authorization)
            except SlotmeshError as error:
                if error.reason not in _UNANSWERED:
                    if error.reason is Reason.UNAUTHENTICATED:  # of an rpc that the client has not called
                        raise unauthenticated("the bearer token is not accepted") from None
                    return
                if loop.time() > end:
                    raise
            else:
                return
            await asyncio.sleep(AGAIN_S)

    async def _answer(self, authorization: str) -> None:
        async def describe(address: str) -> pb.DescribeEndpointsResponse:
            stub = self._own.routers.stub(address)
            return await stub.DescribeEndpoints(_QUESTION, timeout=ASK_S, metadata=(("authorization", authorization),))

        await ask_routers(self._own, describe)


class _Question:
    """About one token."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self.task = task
        self.waiting = 0
        """Requests that wait for the answer."""
