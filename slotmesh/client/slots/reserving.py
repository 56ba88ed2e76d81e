"""One reservation on its way.

Purpose: waits for a slot in a task of its own, so that whoever is cancelled meanwhile loses nothing.
Invariants: a slot that was granted is taken, or given back. Abandoning it withdraws it at the router; where the reply
is here already, the slot goes back; so does one whose reply was under way just then, which the same request id brings
once more. A router that does not answer in time has granted none, or one that goes back. It goes on at another router
where one was lost: nothing was executed, and at the same router the same request id brings the same slot.
Owner: whoever reserves.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import grpc

from slotmesh.client.calls.unary_rpcs import rpc_timeout_s
from slotmesh.client.slots.client import SlotClient
from slotmesh.client.slots.lease import RELEASE_S, SlotLease
from slotmesh.client.slots.slot_rpcs import CLOSED, Stub
from slotmesh.client.slots.terms import Terms
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.ids import new_id
from slotmesh.v1 import slot_service_pb2

ReserveCall = grpc.aio.UnaryUnaryCall[Any, slot_service_pb2.ReserveSlotResponse]

_NO_ANSWER: Final = (
    "the router has not answered in the time that the reservation may wait; a slot that it grants goes back"
)


class Reserving:
    """Begins when it is made."""

    def __init__(self, client: SlotClient, terms: Terms) -> None:
        """Raises RuntimeError where the mesh is closed."""
        client.check_open(terms.endpoint)
        self._client = client
        self._terms = terms
        self._request_id = new_id()
        self._began = asyncio.get_running_loop().time()
        self._call: ReserveCall | None = None
        self._is_abandoned = False
        client.reserving.add(self)
        self._task = client.start(self._run(), name=f"slotmesh-client-reserve-{terms.endpoint}")
        self._task.add_done_callback(lambda _: client.reserving.discard(self))

    async def outcome(self) -> SlotLease | Failure:
        """The slot, or why there is none. Whoever is cancelled here abandons it."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._client.rpcs.closed and not _is_cancelled():
                return CLOSED
            self.abandon()
            raise

    def abandon(self) -> None:
        """Nobody wants the slot any more. Again, and after the reply: no harm."""
        was_abandoned, self._is_abandoned = self._is_abandoned, True
        if self._task.done():
            self._give_back()
        elif was_abandoned:
            pass
        elif self._call is None:
            self._task.cancel()
        else:
            # Where the reply is here, and the task has not seen it yet, this does nothing, and the task gives it back.
            self._call.cancel()

    async def _run(self) -> SlotLease | Failure:
        outcome = await self._client.rpcs.again(self._ask, lambda: not self._is_abandoned)
        if isinstance(outcome, Failure):
            if self._is_abandoned and outcome.executed is Executed.UNKNOWN:
                await self._recall()
            elif outcome.reason is Reason.DEADLINE_RUNNING:
                self._client.start(self._recall(), name=f"slotmesh-client-recall-{self._terms.endpoint}")
                return replace(outcome, reason=Reason.NO_SLOT, executed=Executed.NO, message=_NO_ANSWER)
            return outcome
        lease = SlotLease(self._client, self._terms, outcome.slot)
        if self._is_abandoned:
            lease.give_back()
        return lease

    def _ask(self, stub: Stub) -> ReserveCall:
        if self._is_abandoned:
            raise asyncio.CancelledError
        timeout_s = self._terms.options.timeout_s
        if timeout_s is not None:
            timeout_s = max(timeout_s - (asyncio.get_running_loop().time() - self._began), 0.0)
        request = self._terms.to_wire(self._request_id, timeout_s)
        self._call = stub.ReserveSlot(request, timeout=rpc_timeout_s(timeout_s))
        return self._call

    async def _recall(self) -> None:
        """The rpc has ended here, and was perhaps granted: without time to wait, its id brings that slot or none."""
        request = self._terms.to_wire(self._request_id, 0.0)
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                found = await self._client.rpcs.once(lambda stub: stub.ReserveSlot(request, timeout=RELEASE_S))
                if not isinstance(found, Failure):
                    SlotLease(self._client, self._terms, found.slot).give_back()

    def _give_back(self) -> None:
        if not self._task.cancelled() and isinstance(lease := self._task.result(), SlotLease):
            lease.give_back()


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
