"""The search for a router that answers, and the choice of one for each rpc that is made outside of streams."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from math import inf
from typing import Final, TypeVar

import grpc

from slotmesh.client.routers import Routers, refusal_of
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.backoff import Backoff

FIRST_ATTEMPT_S: Final = 1.0
"""How long a router may take to answer if another one is known. Doubles from round to round."""


class Search:
    """Which router to try next, after which pause, and for how long. Pure: the caller reports the time spent.

    Invariants: the router that was used last is tried after the others. Another known one is tried immediately, unless
    streams end repeatedly before they have answered anything; between rounds through all of them there are growing
    pauses, with jitter. The search ends when no router could be reached for `patience_s`.
    Owner: the endpoint's `Connection`.
    """

    def __init__(self, routers: Routers, patience_s: float, last: str) -> None:
        """`last`: the router that was used last; empty if none was."""
        self._routers = routers
        self._patience_s = patience_s
        self._backoff = Backoff()
        self._left_s = patience_s
        self._attempt_s = FIRST_ATTEMPT_S
        self._strikes = 0
        """Consecutive streams that have answered nothing."""
        self._pause_s = 0.0
        self._candidates = deque(routers.in_turn(last))
        self._alone = len(self._candidates) == 1
        self._has_begun = bool(self._candidates)

    @property
    def is_over(self) -> bool:
        """Whether the patience is used up."""
        return self._left_s <= 0

    @property
    def is_alone(self) -> bool:
        """Whether the next router is the only one."""
        return self._alone

    @property
    def timeout_s(self) -> float:
        """The time limit of the next attempt."""
        return max(self._left_s if self._alone else min(self._left_s, self._attempt_s), 0.0)

    def spent(self, time_s: float) -> None:
        """Records time that passed without a router."""
        self._left_s -= time_s

    def take_pause_s(self, last: str) -> float:
        """The pause before the next attempt; 0 for none. A new round begins when one is over."""
        if not self._has_begun:
            self._start_round(last)
        elif not self._candidates:
            self._attempt_s *= 2
            self._routers.look_again()
            self._pause_s = self._start_round(last)
        pause_s, self._pause_s = self._pause_s, 0.0
        return pause_s

    def take(self) -> str:
        """The router to try now."""
        return self._candidates.popleft()

    def lost(self, last: str, *, was_sound: bool) -> None:
        """The stream to `last` has ended. `was_sound`: it has answered something; others do not renew the patience."""
        self._routers.look_again()
        if was_sound:
            self._left_s, self._attempt_s, self._strikes = self._patience_s, FIRST_ATTEMPT_S, 0
            self._backoff.reset()
        else:
            self._strikes += 1
        pause_s = self._start_round(last)
        self._pause_s = pause_s if self._alone or self._strikes > 1 else 0.0

    def _start_round(self, last: str) -> float:
        self._has_begun = True
        self._candidates = deque(self._routers.in_turn(last))
        self._alone = len(self._candidates) == 1
        return self._backoff.next_delay_s()


ResponseT = TypeVar("ResponseT")

_ELSEWHERE: Final = frozenset({Reason.ROUTER_LOST, Reason.DRAINING})
"""Failures of a router that ends: an rpc that it has not executed, or that may be repeated, is sent to another one."""
NEVER: Final = -inf
"""The time until which an rpc may be repeated that may not."""
MAX_ATTEMPTS: Final = 5
"""At an rpc that may be repeated, as gRPC's own retries have at most: it could be what the routers end by."""

CLOSED: Final = Failure(reason=Reason.CANCELLED, message="the mesh was closed")


class RouterChoice:
    """A connected router for each rpc of its own.

    Of a list, it is the one that was used last, while it is connected; of routers found by name, the next one. If it
    has no connection, another one is sought.
    Owner: what sends the rpcs.
    """

    def __init__(self, routers: Routers, patience_s: float, preferred: Callable[[], str] = str) -> None:
        """`patience_s`: how long an rpc waits while no router can be reached.

        `preferred`: returns the router of a list to use while it is connected; empty: the one that was used last.
        """
        self._routers = routers
        self._patience_s = patience_s
        self._preferred = preferred
        self._waits: set[asyncio.Timeout] = set()
        self.address = ""
        """The router that was chosen last; empty before the first one."""
        self.closed = False

    def close(self) -> None:
        """Ends all waits for a router."""
        self.closed = True
        for waiting in self._waits:
            waiting.reschedule(asyncio.get_running_loop().time())

    def new_search(self) -> Search:
        """Tries the chosen router after the others."""
        return Search(self._routers, self._patience_s, self.address)

    async def reach(self, search: Search | None = None) -> Failure | None:
        """Chooses a router, which is in `address` until the next await. Returns the failure if none is connected.

        `search`: goes on with it, instead of using a router that is connected.
        """
        if search is None:
            self.address = self._routers.pick(self._preferred() or self.address)
            if self._routers.is_connected(self.address):
                return None
        if not (self._routers.given or await self._is_found()):
            return CLOSED if self.closed else self._routers.unreachable(self._patience_s)
        search = search or self.new_search()
        loop = asyncio.get_running_loop()
        while not self.closed:
            pause_s, address, began = search.take_pause_s(self.address), search.take(), loop.time()
            waiting = asyncio.timeout(pause_s + search.timeout_s)
            self._waits.add(waiting)
            try:
                async with waiting:
                    await asyncio.sleep(pause_s)
                    await self._routers.wait_for_connection(address, patiently=search.is_alone)
            except (TimeoutError, ConnectionError):
                search.spent(loop.time() - began)
                if search.is_over and not self.closed:
                    problem = await self._routers.handshake_problem(address)
                    return self._routers.unreachable(self._patience_s, problem)
            else:
                search.spent(loop.time() - began)
                self.address = address
                return None
            finally:
                self._waits.discard(waiting)
        return CLOSED

    async def send(
        self, ask: Callable[[str], Awaitable[ResponseT]], *, repeat_until: float = NEVER
    ) -> ResponseT | Failure:
        """The response of a router to an rpc. Routers that end, and have not executed it, are left for another one.

        `ask` begins the rpc at an address. `repeat_until`: the time, of the event loop, until which it is sent to
        another router also if one that is lost may have executed it. No later refusal makes that a no.
        """
        search: Search | None = None
        lost: Failure | None = None
        attempt = 0
        while True:
            attempt += 1
            unreached = await self._reach_until(repeat_until if lost else inf, search)
            if unreached is not None:
                return lost or unreached
            address = self.address
            try:
                return await ask(address)
            except grpc.RpcError as error:
                failure = refusal_of(error, address, self._routers.dialer)
            if failure.executed is Executed.NO and lost is not None:
                failure = replace(failure, executed=Executed.UNKNOWN)
            if failure.executed is not Executed.NO:
                lost = failure
                if attempt >= MAX_ATTEMPTS or asyncio.get_running_loop().time() >= repeat_until:
                    return failure
            if failure.reason not in _ELSEWHERE or self.closed:
                return failure
            if failure.reason is Reason.DRAINING:
                self._routers.leaves(address, ())
            if search is None:
                search = self.new_search()
            else:
                search.lost(address, was_sound=False)

    async def _reach_until(self, until: float, search: Search | None) -> Failure | None:
        try:
            async with asyncio.timeout_at(None if until == inf else until):
                return await self.reach(search)
        except TimeoutError:
            return CLOSED

    async def _is_found(self) -> bool:
        waiting = asyncio.timeout(self._patience_s)
        self._waits.add(waiting)
        try:
            async with waiting:
                return await self._routers.found(None)
        except TimeoutError:
            return False
        finally:
            self._waits.discard(waiting)
