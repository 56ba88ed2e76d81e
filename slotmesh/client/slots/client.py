"""What a client has to do with slots: its reservations, the slots it holds, and the tasks that see to them.

Invariants: a task here outlives whoever waits for it, never the mesh. After `aclose` no slot is held, as far as a
router could be told.
Owner: the `Mesh`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from slotmesh.client.slots.slot_rpcs import SlotRpcs
from slotmesh.client.stream.routers import Routers

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
