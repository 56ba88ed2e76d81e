"""The slots of one client: its rpcs about slots, its reservations, the slots it holds, and the tasks of these.

Invariants: a task here survives its waiters, never the mesh. After `aclose` every slot is given back, if a router could
be reached. Any router serves any token, so an rpc goes to the router used last, or to another known one.
Owner: the `Mesh`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, TypeVar

import grpc

from slotmesh.client.routers import CLOSED, Routers, is_cancelled_here, lost_call, refusal_of
from slotmesh.client.search import RouterChoice, Search
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.runtime.channels import Dialer
from slotmesh.status import from_rpc_error
from slotmesh.v1 import slot_service_pb2_grpc

ResponseT = TypeVar("ResponseT")

Stub = slot_service_pb2_grpc.SlotServiceStub
Ask = Callable[[Stub], grpc.aio.UnaryUnaryCall[Any, ResponseT]]
"""Starts the rpc; called again for each router."""

_LOST: Final = frozenset({Reason.ROUTER_LOST, Reason.CANCELLED, Reason.DRAINING})
"""Failures of the transport when a router is lost, and of a router that ends."""


class SlotRpcs:
    """Finds a router and sends rpcs about slots.

    Invariants: an rpc is sent only over an existing connection; if that has failed meanwhile, the rpc was not sent and
    may go to any router. `once` sends an rpc at most once; `again` is for rpcs that may be repeated.
    """

    def __init__(self, routers: Routers, patience_s: float) -> None:
        """`patience_s`: how long an rpc waits while no router can be reached."""
        self._routers = routers
        self._choice = RouterChoice(routers, patience_s)
        self.close = self._choice.close

    @property
    def dialer(self) -> Dialer:
        """Connects to servers of the mesh."""
        return self._routers.dialer

    @property
    def closed(self) -> bool:
        """`close` was called, which ends all waits for a router."""
        return self._choice.closed

    async def once(self, ask: Ask[ResponseT]) -> ResponseT | Failure:
        """Sends the rpc once. The failure has executed=no if it was not sent."""
        stub = await self.stub()
        if isinstance(stub, Failure):
            return stub
        return await self._send(ask)

    async def again(
        self, ask: Ask[ResponseT], is_wanted: Callable[[Failure], bool] = lambda _: True
    ) -> ResponseT | Failure:
        """Sends the rpc until a router has answered, none can be reached, or it is no longer wanted after a failure."""
        search: Search | None = None
        while True:
            failure = await self._choice.reach(search)
            if failure is not None:
                return failure
            address = self._choice.address
            outcome = await self._send(ask)
            if not isinstance(outcome, Failure) or outcome.reason not in _LOST or self.closed or not is_wanted(outcome):
                return outcome
            if outcome.reason is Reason.DRAINING:
                self._routers.leaves(address, ())
            if search is None:
                search = self._choice.new_search()
            else:
                search.lost(address, was_sound=False)

    async def stub(self) -> Stub | Failure:
        """The stub of a connected router, to start a stream with."""
        failure = await self._choice.reach()
        return failure or self._routers.slot_stub(self._choice.address)

    def cut_off(self) -> Failure:
        """The failure of an rpc that was cancelled, but not by its caller."""
        return replace(CLOSED, executed=Executed.UNKNOWN) if self.closed else self.lost("it was given up")

    def lost(self, problem: str) -> Failure:
        """The failure of an rpc whose connection broke after it was sent."""
        return lost_call(problem, self._choice.address)

    async def _send(self, ask: Ask[ResponseT]) -> ResponseT | Failure:
        address = self._choice.address
        try:
            call = ask(self._routers.slot_stub(address))
        except grpc.RpcError as error:  # the token source has no token
            return from_rpc_error(error)
        try:
            return await call
        except grpc.RpcError as error:
            failure = refusal_of(error, address, self.dialer, "SlotService")
            return self.lost(failure.message) if failure.reason is Reason.ROUTER_LOST else failure
        except asyncio.CancelledError:
            if is_cancelled_here():
                raise
            return self.cut_off()


ResultT = TypeVar("ResultT")


class SlotClient:
    """Shared by all endpoints of a mesh."""

    def __init__(self, routers: Routers, patience_s: float) -> None:
        self.rpcs = SlotRpcs(routers, patience_s)
        self.finishing: set[Callable[[float], Awaitable[None]]] = set()
        """Called first when the client is closed, with the seconds of its grace: direct lanes wait for their calls."""
        self.giving_back: set[Callable[[], None]] = set()
        """Called after that: reservations are withdrawn, and slots that are not used are given back."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calls: set[asyncio.Task[Any]] = set()

    def check_open(self, endpoint: str) -> None:
        """Raises RuntimeError if the mesh is closed."""
        if self.rpcs.closed:
            raise RuntimeError(f"the mesh is closed: no more slots of {endpoint}")

    def start(self, work: Coroutine[Any, Any, ResultT], *, name: str) -> asyncio.Task[ResultT]:
        """Starts a task that survives its waiters. `work` must not raise."""
        return _start(work, name, self._tasks)

    def start_call(self, work: Coroutine[Any, Any, ResultT], *, name: str) -> asyncio.Task[ResultT]:
        """Starts the task of a call in a slot; its outcome is the caller's."""
        return _start(work, name, self._calls)

    async def aclose(self, grace_s: float) -> None:
        """Gives all slots back, and waits for calls that run in slots, at most `grace_s` seconds."""
        await asyncio.gather(*(finish(grace_s) for finish in self.finishing))
        self.rpcs.close()
        for give_back in list(self.giving_back):
            give_back()
        if self._calls and grace_s > 0:
            await asyncio.wait(self._calls, timeout=grace_s)
        if self._tasks:
            await asyncio.wait(self._tasks)


def _start(work: Coroutine[Any, Any, ResultT], name: str, tasks: set[asyncio.Task[Any]]) -> asyncio.Task[ResultT]:
    task = asyncio.get_running_loop().create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
