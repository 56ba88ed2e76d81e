"""Reservations: of one slot, of a slot for a block, and of slots of several endpoints for a block.

Purpose: a task of its own waits for the slot, so that no granted slot is lost when a waiter is cancelled.
Owner: the caller that reserves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import grpc

from slotmesh.client.calls.call_spec import rpc_timeout_s
from slotmesh.client.routers import CLOSED, is_cancelled_here
from slotmesh.client.slots.client import SlotClient, Stub
from slotmesh.client.slots.lease import RELEASE_S, SlotLease, leave
from slotmesh.client.slots.slot import Slot, SlotSpecs
from slotmesh.client.slots.terms import Terms
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.ids import new_id
from slotmesh.runtime.backoff import Backoff
from slotmesh.status import to_exception
from slotmesh.v1 import slot_service_pb2

ReserveCall = grpc.aio.UnaryUnaryCall[Any, slot_service_pb2.ReserveSlotResponse]

_NO_ANSWER: Final = (
    "the router has not answered in the time that the reservation may wait; a slot that it grants goes back"
)


class Reserving:
    """One reservation; sent when the object is created.

    Invariants: a granted slot is used or given back. Abandoning the reservation withdraws it at the router; if the
    reply has arrived already, the slot is given back; if the reply was on its way, a request with the same id gets the
    slot once more. A router that does not answer in time has granted no slot, or one that is given back. If the router
    is lost, the reservation continues at another one, by a further attempt with its id: the slot is the same.
    """

    def __init__(self, client: SlotClient, terms: Terms) -> None:
        """Raises RuntimeError if the mesh is closed."""
        client.check_open(terms.endpoint)
        self._client = client
        self._terms = terms
        self._request_id = new_id()
        self._unanswered = 0
        """Requests with this id whose answer has not arrived."""
        self._began = asyncio.get_running_loop().time()
        self._call: ReserveCall | None = None
        self._is_abandoned = False
        client.giving_back.add(self.abandon)
        self._task = client.start(self._run(), name=f"slotmesh-client-reserve-{terms.endpoint}")
        self._task.add_done_callback(lambda _: client.giving_back.discard(self.abandon))

    async def outcome(self) -> SlotLease | Failure:
        """The slot, or the failure. If the waiter is cancelled, the reservation is abandoned."""
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError:
            if self._client.rpcs.closed and not is_cancelled_here():
                return CLOSED
            self.abandon()
            raise

    def abandon(self) -> None:
        """Withdraws the reservation. May be repeated, also after the reply."""
        was_abandoned, self._is_abandoned = self._is_abandoned, True
        if self._task.done():
            self._give_back()
        elif was_abandoned:
            pass
        elif self._call is None:
            self._task.cancel()
        else:
            # If the reply has arrived, unseen by the task, this does nothing, and the task gives the slot back.
            self._call.cancel()

    async def _run(self) -> SlotLease | Failure:
        outcome = await self._client.rpcs.again(self._ask, self._is_wanted)
        if isinstance(outcome, Failure):
            if self._is_abandoned and outcome.executed is Executed.UNKNOWN:
                await self._recall()
            elif outcome.reason is Reason.DEADLINE_RUNNING:
                self._client.start(self._recall(), name=f"slotmesh-client-recall-{self._terms.endpoint}")
                return replace(outcome, reason=Reason.NO_SLOT, executed=Executed.NO, message=_NO_ANSWER)
            return outcome
        lease = self._lease_of(outcome.slot)
        if self._is_abandoned:
            lease.give_back()
        return lease

    def _ask(self, stub: Stub) -> ReserveCall:
        if self._is_abandoned:
            raise asyncio.CancelledError
        timeout_s = self._terms.options.timeout_s
        if timeout_s is not None:
            timeout_s = max(timeout_s - (asyncio.get_running_loop().time() - self._began), 0.0)
        request = self._terms.to_wire(self._request_id, timeout_s, self._unanswered)
        self._unanswered += 1
        self._call = stub.ReserveSlot(request, timeout=rpc_timeout_s(timeout_s))
        return self._call

    def _is_wanted(self, failure: Failure) -> bool:
        """Whether to try another router. One that ends has refused the request: it holds no slot."""
        if failure.executed is Executed.NO:
            self._unanswered -= 1
        return not self._is_abandoned

    async def _recall(self) -> None:
        """The rpc ended here, but may have been granted: a request with its id that does not wait gets that slot."""
        request = self._terms.to_wire(self._request_id, 0.0, self._unanswered)
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                found = await self._client.rpcs.once(lambda stub: stub.ReserveSlot(request, timeout=RELEASE_S))
                if not isinstance(found, Failure):
                    self._lease_of(found.slot).give_back()

    def _lease_of(self, slot: slot_service_pb2.Slot) -> SlotLease:
        return SlotLease(self._client, self._terms.endpoint, self._terms.ttl_s, slot)

    def _give_back(self) -> None:
        if not self._task.cancelled() and isinstance(lease := self._task.result(), SlotLease):
            lease.give_back()


class Reservation:
    """`async with endpoint.reserve() as slot`: a slot for a block. Made by `Endpoint.reserve`; used once.

    Invariants: however the block ends, even before it starts, its slot is used or given back. The first error reaches
    the caller, whatever fails while giving back.
    """

    def __init__(self, client: SlotClient, terms: Terms, specs: SlotSpecs) -> None:
        self._client = client
        self._terms = terms
        self._specs = specs
        self._reserving: Reserving | None = None
        self._lease: SlotLease | None = None

    async def __aenter__(self) -> Slot:
        """Waits for a slot.

        Raises:
            NoSlot: none was free in time.
            SlotmeshError: the reservation failed.
            RuntimeError: the mesh is closed, or this object was used before.
        """
        if self._reserving is not None:
            raise RuntimeError(f"a reservation is used once: call reserve() again for another slot of {self}")
        self._reserving = Reserving(self._client, self._terms)
        outcome = await self._reserving.outcome()
        if isinstance(outcome, Failure):
            raise to_exception(outcome, endpoint=self._terms.endpoint)
        self._lease = outcome
        return Slot(outcome, self._specs)

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._lease is not None:
            await leave([self._lease], error)

    def abandon(self) -> None:
        """Withdraws the reservation before the block starts. May be called any time, and repeated."""
        if self._reserving is not None:
            self._reserving.abandon()

    def __repr__(self) -> str:
        return f"<slotmesh reservation of {self._terms.endpoint}>"


TRY_S: Final = 0.05
"""How long a reservation may wait while another slot is held."""

_NO_ROOM: Final = frozenset({Reason.NO_SLOT, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT, Reason.DEADLINE_IN_QUEUE})
"""Failures after which another attempt may succeed."""


class ReservationOfAll:
    """`async with mesh.reserve_all("prefill", "decode") as (p, d)`: slots of several endpoints, all or none.

    Made by `Mesh.reserve_all`; used once.
    Invariants: no reservation waits while others are held, except for `TRY_S`; so two clients that want the same slots
    cannot block each other. The next round waits first for the slot that was not available, with none held. However
    the block ends, each slot is used or given back.
    """

    def __init__(self, client: SlotClient, wanted: Sequence[tuple[Terms, SlotSpecs]], timeout_s: float) -> None:
        self._client = client
        self._wanted = tuple(wanted)
        self._timeout_s = timeout_s
        self._backoff = Backoff(initial_s=0.02, max_s=0.5)
        self._is_entered = False
        self._is_abandoned = False
        self._under_way: dict[int, Reserving] = {}
        """Reservations of this round, by index; granted ones, too."""
        self._leases: list[SlotLease] = []

    async def __aenter__(self) -> tuple[Slot, ...]:
        """Waits until all slots are reserved.

        Raises:
            NoSlot: they were not available together in time; the message is that of the one that was missing.
            SlotmeshError: one of the reservations failed. No slot is held.
            RuntimeError: the mesh is closed, or this object was used before.
        """
        if self._is_entered:
            raise RuntimeError(f"a reservation is used once: call reserve_all() again for other slots of {self}")
        self._is_entered = True
        try:
            self._leases = await self._take_all()
        except BaseException:
            self.abandon()
            raise
        return tuple(Slot(lease, specs) for lease, (_, specs) in zip(self._leases, self._wanted, strict=True))

    async def __aexit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        await leave(self._leases, error)

    def abandon(self) -> None:
        """Withdraws the reservations before the block starts. May be called any time, and repeated."""
        for reserving in self._under_way.values():
            reserving.abandon()

    async def _take_all(self) -> list[SlotLease]:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout_s
        scarce: int | None = None
        while True:
            had: dict[int, SlotLease] = {}
            missing: tuple[int, Failure] | None = None
            self._under_way = {}
            if scarce is not None:  # waits for the slot that was not available, with none held
                missing = await self._reserve({scarce: until - loop.time()}, had)
            if missing is None:
                try_s = min(TRY_S, until - loop.time())
                missing = await self._reserve({at: try_s for at in range(len(self._wanted)) if at not in had}, had)
            if missing is None:
                return [had[place] for place in range(len(self._wanted))]
            scarce, failure = missing
            await leave(list(had.values()), None)  # before the next wait
            endpoint, pause_s = self._wanted[scarce][0].endpoint, self._backoff.next_delay_s()
            if failure.reason not in _NO_ROOM:
                raise to_exception(failure, endpoint=endpoint)
            if failure.reason is Reason.QUEUE_FULL:
                pause_s = max(pause_s, failure.retry_delay_s or 0.0)
            if loop.time() + pause_s >= until:
                raise to_exception(self._not_in_time(failure), endpoint=endpoint)
            await asyncio.sleep(pause_s)

    async def _reserve(self, timeouts: dict[int, float], had: dict[int, SlotLease]) -> tuple[int, Failure] | None:
        for place, timeout_s in timeouts.items():
            terms = self._wanted[place][0].waiting(max(timeout_s, 0.0))
            self._under_way[place] = Reserving(self._client, terms)
        missing: tuple[int, Failure] | None = None
        for place in timeouts:
            outcome = await self._under_way[place].outcome()
            if isinstance(outcome, SlotLease):
                had[place] = outcome
            elif missing is None or missing[1].reason in _NO_ROOM:
                missing = place, outcome
        return missing

    def _not_in_time(self, failure: Failure) -> Failure:
        names = ", ".join(terms.endpoint for terms, _ in self._wanted)
        return replace(
            failure,
            reason=Reason.NO_SLOT,
            message=f"slots of {names} were not free at the same time within {self._timeout_s:g} s; the last that was "
            f"missing: {failure.message}",
        )

    def __repr__(self) -> str:
        return f"<slotmesh reservation of {', '.join(terms.endpoint for terms, _ in self._wanted)}>"
