"""`async with mesh.reserve_all("prefill", "decode") as (p, d)`: slots of several endpoints, all or none.

Invariants: nobody waits while holding, but for `TRY_S`, which is what a try may take; so two that want the same slots
cannot wait for each other. What could not be had is waited for first the next time, with nothing held. Whichever way it
ends, each slot is used or given back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Final

from slotmesh.client.slots.client import SlotClient
from slotmesh.client.slots.lease import SlotLease, leave
from slotmesh.client.slots.reserving import Reserving
from slotmesh.client.slots.slot import Slot, SlotSpecs
from slotmesh.client.slots.terms import Terms
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.backoff import Backoff
from slotmesh.status import to_exception

TRY_S: Final = 0.05
"""What a reservation may wait while another one is held."""

_NO_ROOM: Final = frozenset({Reason.NO_SLOT, Reason.QUEUE_FULL, Reason.QUEUE_TIMEOUT, Reason.DEADLINE_IN_QUEUE})
"""Worth another try."""


class ReservationOfAll:
    """Slots that are reserved when the block is entered. Made by `Mesh.reserve_all`; of use once."""

    def __init__(self, client: SlotClient, wanted: Sequence[tuple[Terms, SlotSpecs]], timeout_s: float) -> None:
        self._client = client
        self._wanted = tuple(wanted)
        self._timeout_s = timeout_s
        self._backoff = Backoff(initial_s=0.02, max_s=0.5)
        self._is_entered = False
        self._is_abandoned = False
        self._under_way: dict[int, Reserving] = {}
        """Reservations of the round, by place; granted ones, too."""
        self._leases: list[SlotLease] = []

    async def __aenter__(self) -> tuple[Slot, ...]:
        """Waits until all are had.

        Raises:
            NoSlot: they were not to be had in time; the message is that of the one that was missing.
            SlotmeshError: one is not to be had at all, and why. None is held.
            RuntimeError: the mesh is closed, or this was entered before.
        """
        if self._is_entered:
            raise RuntimeError(f"a reservation is of use once: call reserve_all() again for other slots of {self}")
        self._is_entered = True
        try:
            self._leases = await self._take_all()
        except BaseException:
            self.abandon()
            raise
        return tuple(Slot(lease, specs) for lease, (_, specs) in zip(self._leases, self._wanted, strict=True))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await leave(self._leases, error)

    def abandon(self) -> None:
        """Nobody enters the block any more. Any time, and again."""
        for reserving in self._under_way.values():
            reserving.abandon()

    async def _take_all(self) -> list[SlotLease]:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._timeout_s
        scarce: int | None = None
        while True:
            had: dict[int, SlotLease] = {}
            missing = await self._take_scarce(scarce, until, had) or await self._try_others(until, had)
            if missing is None:
                return [had[place] for place in range(len(self._wanted))]
            scarce, failure = missing
            await leave(list(had.values()), None)  # before anybody waits again
            endpoint, pause_s = self._wanted[scarce][0].endpoint, self._backoff.next_delay_s()
            if failure.reason not in _NO_ROOM:
                raise to_exception(failure, endpoint=endpoint)
            if failure.reason is Reason.QUEUE_FULL:
                pause_s = max(pause_s, failure.retry_delay_s or 0.0)
            if loop.time() + pause_s >= until:
                raise to_exception(self._not_in_time(failure), endpoint=endpoint)
            await asyncio.sleep(pause_s)

    async def _take_scarce(
        self, scarce: int | None, until: float, had: dict[int, SlotLease]
    ) -> tuple[int, Failure] | None:
        """Waits for the one that could not be had, holding nothing. What is missing after that."""
        self._under_way = {}
        if scarce is None:
            return None
        return await self._reserve({scarce: until - asyncio.get_running_loop().time()}, had)

    async def _try_others(self, until: float, had: dict[int, SlotLease]) -> tuple[int, Failure] | None:
        """Tries all that are not had, side by side."""
        left_s = until - asyncio.get_running_loop().time()
        return await self._reserve(
            {place: min(TRY_S, left_s) for place in range(len(self._wanted)) if place not in had}, had
        )

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
