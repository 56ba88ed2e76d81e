"""Rpcs that have come and that their server has not taken yet: some are asked for before they are wanted.

Invariants: there are never more than `AT_ONCE` of them, those that are asked for included. Each is taken once, or
refused once; after `close` all are refused.
Owner: the accepting server, on its event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final

AT_ONCE: Final = 8
"""More are taken in no quicker, and begin all at once, which makes for long turns of the event loop."""


class AcceptAhead:
    """Of one server."""

    def __init__(self, request: Callable[[], Awaitable[Any]], refuse: Callable[[Any], None]) -> None:
        """`request` gives the next rpc, or raises once there is none any more. `refuse` ends one that nobody takes."""
        self._request = request
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._come: deque[Any] = deque()
        self._taker: asyncio.Future[Any] | None = None
        self._asked = 0
        self._requests: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def next(self) -> asyncio.Future[Any]:
        """The next rpc; not before the one before it was taken."""
        taker: asyncio.Future[Any] = self._loop.create_future()
        if self._come:
            taker.set_result(self._come.popleft())
        else:
            self._taker = taker
        while self._asked + len(self._come) < (1 if self._is_closed else AT_ONCE):
            self._asked += 1
            request = self._loop.create_task(self._ask())
            self._requests.add(request)
            request.add_done_callback(self._requests.discard)
        return taker

    def close(self) -> None:
        """Refuses what has come, and what comes from now on."""
        self._is_closed = True
        while self._come:
            self._refuse(self._come.popleft())

    async def _ask(self) -> None:
        try:
            rpc = await self._request()
        except Exception as error:  # noqa: BLE001 - it is for who takes rpcs
            if (taker := self._taken_by()) is not None:
                taker.set_exception(error)
            return
        finally:
            self._asked -= 1
        if self._is_closed:
            self._refuse(rpc)
        elif (taker := self._taken_by()) is not None:
            taker.set_result(rpc)
        else:
            self._come.append(rpc)

    def _taken_by(self) -> asyncio.Future[Any] | None:
        """Who waits for the next one; None where nobody does."""
        taker, self._taker = self._taker, None
        return None if taker is None or taker.done() else taker
