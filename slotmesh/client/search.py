"""The search for a router that answers, and the choice of one for each rpc that is made outside of streams."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Final, TypeVar

import grpc

from slotmesh.client.routers import CLOSED, Routers, end_of_call
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.backoff import Backoff
from slotmesh.security.handshakes import ConnectionProblem

FIRST_ATTEMPT_S: Final = 1.0
"""How long a router may take to answer if another one is known. Doubles from round to round."""

HOPELESS_S: Final = 2.0
"""How long a client that has never been connected tries if no router can be reached as it is configured."""

LOOK_INTERVAL_S: Final = 0.25
"""Between two looks at why the only router is not reached, by a client that has never been connected. The first one is
later than a connection usually takes. There are fewer queries: `Diagnoses`."""


class Search:
    """Which router to try next, after which pause, and for how long. Pure: the caller reports the time spent.

    Invariants: the router that was used last is tried after the others. Another known one is tried immediately, unless
    streams end repeatedly before they have answered anything; between rounds through all of them there are growing
    pauses, with jitter. The search ends when no router could be reached for `patience_s`; or for `HOPELESS_S`, if there
    never was a connection, and each router has a problem that retries do not solve.
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
        self._problems: dict[str, ConnectionProblem | None] = {}
        """Of the routers of this round; None: not known."""
        self._begin_round(last)
        self._has_begun = bool(self._candidates)

    @property
    def is_over(self) -> bool:
        """Whether the patience is used up, or more of it is useless."""
        return self._left_s <= 0 or (self.is_hopeless and self.hopeless_in_s <= 0)

    @property
    def is_hopeless(self) -> bool:
        """Whether the client was never connected, and no router can be reached as it is configured."""
        if self._routers.was_reached or not self._problems:
            return False
        return all(problem is not None and problem.is_certain for problem in self._problems.values())

    @property
    def hopeless_in_s(self) -> float:
        """How long it still tries if it is hopeless, without the attempt under way."""
        return HOPELESS_S - (self._patience_s - self._left_s)

    @property
    def is_diagnosed(self) -> bool:
        """Whether to find out why an attempt failed: that may end the search early, or is reported now."""
        return self._left_s <= 0 or not self._routers.was_reached

    @property
    def problem(self) -> ConnectionProblem | None:
        """Why no router was reached: a problem of one of them; None if that is not known."""
        for address, problem in self._problems.items():
            if problem is not None:
                return problem if self._alone else replace(problem, text=f"{address}: {problem.text}")
        return None

    @property
    def tried_s(self) -> float:
        """How long a search that is over has tried, for messages: without the diagnosis at the end of its patience."""
        return min(round(self._patience_s - self._left_s, 1), self._patience_s)

    def diagnosed(self, address: str, problem: ConnectionProblem | None) -> None:
        """Records why this router was not reached. None: not found out this time, which leaves a known problem.

        It does not after a connection, which shows that the problem is gone.
        """
        if address in self._problems and (problem is not None or self._routers.was_reached):
            self._problems[address] = problem

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
        self._problems.clear()
        if was_sound:
            self._left_s, self._attempt_s, self._strikes = self._patience_s, FIRST_ATTEMPT_S, 0
            self._backoff.reset()
        else:
            self._strikes += 1
        pause_s = self._start_round(last)
        self._pause_s = pause_s if self._alone or self._strikes > 1 else 0.0

    def _start_round(self, last: str) -> float:
        self._has_begun = True
        self._begin_round(last)
        return self._backoff.next_delay_s()

    def _begin_round(self, last: str) -> None:
        self._candidates = deque(self._routers.in_turn(last))
        self._alone = len(self._candidates) == 1
        self._problems = {address: self._problems.get(address) for address in self._candidates}


@asynccontextmanager
async def attempt(
    search: Search, routers: Routers, address: str, pause_s: float = 0.0
) -> AsyncIterator[asyncio.Timeout]:
    """Limits an attempt to reach this router, after a pause, to the time of the search. The limit may be moved.

    Raises TimeoutError when the time is over, also once the search is hopeless.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    watching: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(pause_s + search.timeout_s) as limit:
            if search.is_alone and not routers.was_reached:
                watching = loop.create_task(_end_if_hopeless(search, routers, address, limit))
            yield limit
    finally:
        search.spent(loop.time() - began)
        if watching is not None:
            watching.cancel()


async def diagnose(search: Search, routers: Routers, address: str) -> None:
    """Finds out why an attempt failed, if that matters. Waits for the next one's result only if the search is over."""
    if search.is_over and search.is_hopeless and not routers.confirm_connection(address):
        return
    if search.is_diagnosed and (search.is_over or routers.has_failed(address)):
        began = asyncio.get_running_loop().time()
        search.diagnosed(address, await routers.problem(address))
        search.spent(asyncio.get_running_loop().time() - began)


async def _end_if_hopeless(search: Search, routers: Routers, address: str, limit: asyncio.Timeout) -> None:
    """Ends the attempt once the search is hopeless; while the transport waits, nothing else finds out."""
    loop = asyncio.get_running_loop()
    until = loop.time() + search.hopeless_in_s
    while True:
        if not search.is_hopeless:
            await asyncio.sleep(LOOK_INTERVAL_S)
            search.diagnosed(address, await routers.problem(address))
        elif (left_s := until - loop.time()) > 0:
            await asyncio.sleep(left_s)
        elif not routers.confirm_connection(address):  # otherwise it is hopeless no longer
            break
    _end(limit)


def _end(limit: asyncio.Timeout) -> None:
    """Ends the block of a time limit now, unless it has ended."""
    with suppress(RuntimeError):
        limit.reschedule(asyncio.get_running_loop().time())


ResponseT = TypeVar("ResponseT")

_ELSEWHERE: Final = frozenset({Reason.ROUTER_LOST, Reason.DRAINING})
"""Failures of a router that ends: an rpc that it has not executed, or that may be repeated, is sent to another one."""
NEVER: Final = -inf
"""The time until which an rpc may be repeated that may not."""
MAX_ATTEMPTS: Final = 5
"""At an rpc that may be repeated, as gRPC's own retries have at most: it could be what the routers end by."""


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
            _end(waiting)

    def new_search(self) -> Search:
        """Tries the chosen router after the others."""
        return Search(self._routers, self._patience_s, self.address)

    async def reach(self, search: Search | None = None) -> Failure | None:
        """Chooses a router, which is in `address` until the next await. Returns the failure if none is connected.

        `search`: goes on with it, instead of using a router that is connected.
        """
        if search is None:
            self.address = self._routers.pick(self._preferred() or self.address)
            if self._routers.confirm_connection(self.address):
                return None
        if not (self._routers.given or await self._is_found()):
            return CLOSED if self.closed else self._routers.unreachable(self._patience_s)
        search = search or self.new_search()
        while not self.closed:
            pause_s, address = search.take_pause_s(self.address), search.take()
            waiting: asyncio.Timeout | None = None
            try:
                async with attempt(search, self._routers, address, pause_s) as waiting:
                    self._waits.add(waiting)
                    await asyncio.sleep(pause_s)
                    await self._routers.wait_for_connection(address, patiently=search.is_alone)
            except (TimeoutError, ConnectionError):
                if not self.closed:
                    await diagnose(search, self._routers, address)
                if search.is_over and not self.closed:
                    return self._routers.unreachable(search.tried_s, problem=search.problem)
            else:
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
                failure = end_of_call(error, address, self._routers.dialer)
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
