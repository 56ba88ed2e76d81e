"""What a client has to do with slots: its reservations, the slots it holds, and the tasks that see to them.

Invariants: a task here outlives whoever waits for it, never the mesh. After `aclose` no slot is held, as far as a
router could be told.
Owner: the `Mesh`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar, cast

import grpc

from slotmesh.client.calls.outcomes import refusal_of
from slotmesh.client.routers import Routers, Search
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.channels import Dialer
from slotmesh.status import from_rpc_error
from slotmesh.v1 import slot_service_pb2_grpc

# Rpcs of slots: at which router, and when at another one.
#
# Purpose: any router serves any token, so an rpc goes to the router used last, or to another one that is known.
# Invariants: nothing is sent where there was no connection the moment before: what found none was never sent, and may
# go
# anywhere. `once` sends once, whatever becomes of it; `again` is for what does no harm twice.
# Owner: the `SlotClient`.

ResponseT = TypeVar("ResponseT")

Stub = slot_service_pb2_grpc.SlotServiceStub
Ask = Callable[[Stub], grpc.aio.UnaryUnaryCall[Any, ResponseT]]
"""Begins the rpc. Asked again for each router."""

CLOSED: Final = Failure(reason=Reason.CANCELLED, message="the mesh was closed")

_LOST: Final = frozenset({Reason.ROUTER_LOST, Reason.CANCELLED})
"""What the transport says where a router is gone."""


class SlotRpcs:
    """Finds routers, and asks them."""

    def __init__(self, routers: Routers, patience_s: float) -> None:
        """`patience_s`: how long an rpc waits where no router can be reached."""
        self._routers = routers
        self._patience_s = patience_s
        self._address = ""
        """The router that was used last; empty before the first one."""
        self._waits: set[asyncio.Timeout] = set()
        self.closed = False

    @property
    def dialer(self) -> Dialer:
        """What connects to servers of the mesh."""
        return self._routers.dialer

    def close(self) -> None:
        """Nobody waits for a router any more."""
        self.closed = True
        for waiting in self._waits:
            waiting.reschedule(asyncio.get_running_loop().time())

    async def once(self, ask: Ask[ResponseT]) -> ResponseT | Failure:
        """Sends it once. A failure says executed=no where it was not sent."""
        if not self._routers.is_connected(self._address):
            failure = await self._connect(self._new_search())
            if failure is not None:
                return failure
        return await self._send(ask)

    async def again(self, ask: Ask[ResponseT], is_wanted: Callable[[], bool] = lambda: True) -> ResponseT | Failure:
        """Sends it until a router has answered, or none can be reached, or it is not wanted any more."""
        search: Search | None = None
        while True:
            if search is not None or not self._routers.is_connected(self._address):
                search = search or self._new_search()
                failure = await self._connect(search)
                if failure is not None:
                    return failure
            outcome = await self._send(ask)
            if not isinstance(outcome, Failure) or outcome.reason not in _LOST or self.closed or not is_wanted():
                return outcome
            if search is None:
                search = self._new_search()
            else:
                search.lost(self._address, was_sound=False)

    async def stub(self) -> Stub | Failure:
        """To begin a stream with, at once: of a router to which there is a connection."""
        if not self._routers.is_connected(self._address):
            failure = await self._connect(self._new_search())
            if failure is not None:
                return failure
        return self._routers.slot_stub(self._address)

    def cut_off(self) -> Failure:
        """Why an rpc was cancelled that nobody here has cancelled."""
        return replace(CLOSED, executed=Executed.UNKNOWN) if self.closed else self.lost("it was given up")

    def lost(self, problem: str) -> Failure:
        """The connection broke after something was sent."""
        return Failure(
            reason=Reason.ROUTER_LOST,
            message=f"the connection to the router at {self._address} was lost before it had answered ({problem}); "
            "the call may have been executed",
            executed=Executed.UNKNOWN,
        )

    # -- routers ---------------------------------------------------------------------------------------------------

    def _new_search(self) -> Search:
        return Search(self._routers, self._patience_s, self._address)

    async def _connect(self, search: Search) -> Failure | None:
        """Goes from router to router until there is a connection. Why there is none, otherwise."""
        loop = asyncio.get_running_loop()
        while not self.closed:
            pause_s, address, began = search.take_pause_s(self._address), search.take(), loop.time()
            waiting = asyncio.timeout(pause_s + search.timeout_s)
            self._waits.add(waiting)
            try:
                async with waiting:
                    await asyncio.sleep(pause_s)
                    await self._routers.wait_for_connection(address, patiently=search.is_alone)
            except (TimeoutError, ConnectionError):
                search.spent(loop.time() - began)
                if search.is_over and not self.closed:
                    return self._unreachable(await self._routers.handshake_problem(address))
            else:
                search.spent(loop.time() - began)
                self._address = address
                return None
            finally:
                self._waits.discard(waiting)
        return CLOSED

    def _unreachable(self, problem: str) -> Failure:
        why = f" ({problem})" if problem else ""
        return Failure(
            reason=Reason.ROUTER_LOST,
            message=f"no router answered at {', '.join(self._routers.given)} within {self._patience_s:g} s{why}; "
            "start one there, or give connect() the address of one",
        )

    async def _send(self, ask: Ask[ResponseT]) -> ResponseT | Failure:
        address = self._address
        try:
            call = ask(self._routers.slot_stub(address))
        except grpc.RpcError as error:  # there is no token to be had
            return from_rpc_error(error)
        try:
            return await call
        except grpc.RpcError as error:
            failure = refusal_of(error, address, self.dialer, "SlotService")
            return self.lost(failure.message) if failure.reason is Reason.ROUTER_LOST else failure
        except asyncio.CancelledError:
            if cast("asyncio.Task[Any]", asyncio.current_task()).cancelling():
                raise
            return self.cut_off()  # not this task was cancelled, but the rpc


ResultT = TypeVar("ResultT")


class HeldSlot(Protocol):
    """A slot that is reserved, and not used or given back."""

    def give_back(self) -> None:
        """Gives it back, if that is to be done. Nobody need wait for that."""


class OpenReservation(Protocol):
    """A reservation that is under way."""

    def abandon(self) -> None:
        """Nobody wants the slot any more."""


class SlotKeeper(Protocol):
    """Slots that are held for call after call."""

    async def finish(self, grace_s: float) -> None:
        """Waits for calls, at most so long; then gives all slots back."""


class SlotClient:
    """Shared by all endpoints of a mesh."""

    def __init__(self, routers: Routers, patience_s: float) -> None:
        self.rpcs = SlotRpcs(routers, patience_s)
        self.held: set[HeldSlot] = set()
        self.reserving: set[OpenReservation] = set()
        self.direct: set[SlotKeeper] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calls: set[asyncio.Task[Any]] = set()

    def check_open(self, endpoint: str) -> None:
        """Raises RuntimeError where the mesh is closed."""
        if self.rpcs.closed:
            raise RuntimeError(f"the mesh is closed: no more slots of {endpoint}")

    def start(self, work: Coroutine[Any, Any, ResultT], *, name: str) -> asyncio.Task[ResultT]:
        """What is done here, whoever waits for it. It never raises."""
        return _start(work, name, self._tasks)

    def start_call(self, work: Coroutine[Any, Any, ResultT], *, name: str) -> asyncio.Task[ResultT]:
        """A call in a slot: its outcome is the caller's."""
        return _start(work, name, self._calls)

    async def aclose(self, grace_s: float) -> None:
        """Gives all slots back, and waits for calls that run in slots, at most `grace_s` seconds."""
        await asyncio.gather(*(each.finish(grace_s) for each in self.direct))
        self.rpcs.close()
        for reserving in list(self.reserving):
            reserving.abandon()
        for lease in list(self.held):
            lease.give_back()
        if self._calls and grace_s > 0:
            await asyncio.wait(self._calls, timeout=grace_s)
        if self._tasks:
            await asyncio.wait(self._tasks)


def _start(work: Coroutine[Any, Any, ResultT], name: str, tasks: set[asyncio.Task[Any]]) -> asyncio.Task[ResultT]:
    task = asyncio.get_running_loop().create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
