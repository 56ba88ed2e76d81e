"""`async with endpoint.reserve() as slot`: a slot for as long as a block lasts.

Invariants: whichever way the block is left, or is not even reached, its slot is used or given back. The first error
reaches the caller, whatever goes wrong with giving back.
"""

from __future__ import annotations

from types import TracebackType

from slotmesh.client.slots.client import SlotClient
from slotmesh.client.slots.lease import SlotLease, leave
from slotmesh.client.slots.reserving import Reserving
from slotmesh.client.slots.slot import Slot, SlotSpecs
from slotmesh.client.slots.terms import Terms
from slotmesh.errors import Failure
from slotmesh.status import to_exception


class Reservation:
    """A slot that is reserved when the block is entered. Made by `Endpoint.reserve`; of use once."""

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
            SlotmeshError: there is none to be had, and why.
            RuntimeError: the mesh is closed, or this was entered before.
        """
        if self._reserving is not None:
            raise RuntimeError(f"a reservation is of use once: call reserve() again for another slot of {self}")
        self._reserving = Reserving(self._client, self._terms)
        outcome = await self._reserving.outcome()
        if isinstance(outcome, Failure):
            raise to_exception(outcome, endpoint=self._terms.endpoint)
        self._lease = outcome
        return Slot(outcome, self._specs)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lease is not None:
            await leave([self._lease], error)

    def abandon(self) -> None:
        """Nobody enters the block any more. Any time, and again."""
        if self._reserving is not None:
            self._reserving.abandon()

    def __repr__(self) -> str:
        return f"<slotmesh reservation of {self._terms.endpoint}>"
