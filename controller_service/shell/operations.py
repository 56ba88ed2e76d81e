"""Rpcs that wait for operations.

Invariants: `core.reconciling.operations` decides what is done; a waiting rpc looks again when the stored or the
observed state has changed, and each second for what follows from time alone. Rpcs that look at the same time share what
they find. The number of waiting rpcs is bounded, in all and for each caller, and so is the number of their operations;
all end when this controller no longer leads.
Owner: the event loop; the servicer calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from controller_service.convert.statuses import KnownLoads
from controller_service.core.desired.shifts import ShiftRecord
from controller_service.core.reconciling.operations import MeshFacts, Operation, find_operation
from controller_service.shell.leadership import NewerMembers
from controller_service.shell.mesh_state import MeshState
from controller_service.store.protocol import Store
from slotmesh.calls.fair_shares import FairBound, Over
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.loop_slices import LoopSlices
from slotmesh.security.identity import caller_name
from slotmesh.spec.model import InvalidSpec, SpecViolation
from slotmesh.status import to_exception

MAX_NAMES: Final = 1_000
MAX_TIMEOUT_S: Final = 600.0
LOOK_AGAIN_S: Final = 1.0
"""The longest time between two looks: replicas may have been ready, or have failed, for long enough meanwhile."""
_REST_S: Final = 0.02
"""The shortest time between two looks, however often the state changes."""
_SHARED_S: Final = 0.1
"""For this long the findings of one look serve other rpcs, unless the state changes."""


class OperationWaits:
    """The rpcs that wait now."""

    def __init__(
        self,
        store: Store,
        state: MeshState,
        newer: NewerMembers,
        loads: KnownLoads,
        *,
        launches: bool,
        max_waits: int,
        waits_for: Callable[[ShiftRecord], str],
    ) -> None:
        """`waits_for`: as in `MeshFacts`."""
        self._store = store
        self._state = state
        self._newer = newer
        self._loads = loads
        self._launches = launches
        self._waits = FairBound[str].within(max_waits, floor=1)
        self._waits_for = waits_for
        self._facts: MeshFacts | None = None
        """Of the newest look."""
        self._found: dict[str, Operation] = {}
        """What follows from `_facts`, by name."""
        self._is_closed = False
        self._changed = asyncio.Event()
        store.listen(lambda *_: self._wake())
        for listen in (state.listen, newer.listen):
            listen(self._wake)

    @property
    def waiting(self) -> int:
        """The number of rpcs that wait now."""
        return self._waits.total

    async def wait(self, names: Sequence[str], timeout_s: float) -> list[Operation]:
        """The operations, once all are done, or one has failed, or at the timeout.

        Raises InvalidSpec; QuotaExceeded if too many rpcs wait; NotLeader when this controller no longer leads.
        """
        if violations := _violations(names, timeout_s):
            raise InvalidSpec(violations)
        caller = caller_name()
        if over := self._waits.over(caller, 1, has_share=bool(caller)):
            whose = "rpcs of this caller" if over is Over.SHARE else "rpcs"
            text = f"too many {whose} wait for operations (max_operation_waits of the controller): try again later"
            raise to_exception(Failure(reason=Reason.QUOTA_EXCEEDED, message=text, retry_delay_s=LOOK_AGAIN_S))
        self._waits.take(caller, 1)
        try:
            return await self._wait(names, asyncio.get_running_loop().time() + timeout_s)
        finally:
            self._waits.give(caller, 1)

    def close(self) -> None:
        """This controller no longer leads: all rpcs end."""
        self._is_closed = True
        self._wake()

    async def _wait(self, names: Sequence[str], until: float) -> list[Operation]:
        now: Callable[[], float] = asyncio.get_running_loop().time
        while True:
            if self._is_closed:
                text = "this controller no longer leads: wait for the operations again at the next one"
                raise to_exception(Failure(reason=Reason.NOT_LEADER, message=text, retry_delay_s=LOOK_AGAIN_S))
            changed, slices = self._changed, LoopSlices()
            operations = await self._look(names, slices)
            if now() >= until or all(it.done for it in operations) or any(it.failure for it in operations):
                return operations
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, now() + LOOK_AGAIN_S)):
                    await changed.wait()
                    await asyncio.sleep(max(_REST_S, slices.used_s))

    async def _look(self, names: Sequence[str], slices: LoopSlices) -> list[Operation]:
        operations = list[Operation]()
        facts, found = self._shared_facts()
        for name in names:
            if (operation := found.get(name)) is None:
                operation = found[name] = find_operation(name, facts)
            operations.append(operation)
            if slices.are_used:
                await slices.rest()
        return operations

    def _shared_facts(self) -> tuple[MeshFacts, dict[str, Operation]]:
        """The facts now, and what was found to follow from them."""
        clock, desired, observed, facts = self._state.clock, self._store.read(), self._state.observed, self._facts
        now, is_settled, is_on_hold = clock.now(), self._newer.settled.is_set(), bool(self._newer)
        if (
            facts is None
            or now >= facts.now + _SHARED_S
            or facts.desired is not desired
            or facts.observed is not observed
            or (facts.is_settled, facts.is_on_hold) != (is_settled, is_on_hold)
        ):
            self._found = {}
            self._facts = facts = MeshFacts(
                desired=desired,
                observed=observed,
                generation=self._store.generation,
                launches=self._launches,
                is_settled=is_settled,
                is_on_hold=is_on_hold,
                now=now,
                time_of_day_s=clock.time_of_day(),
                ended_calls=self._loads.ended_calls,
                deferred_starts=self._state.deferred_starts,
                ongoing_calls=self._ongoing_calls,
                waits_for=self._waits_for,
            )
        return facts, self._found

    def _ongoing_calls(self, replica_id: str) -> int:
        newest = self._loads.of_replica(replica_id).newest
        return 0 if newest is None else newest.ongoing + newest.waiting

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _violations(names: Sequence[str], timeout_s: float) -> list[SpecViolation]:
    violations = []
    if not 0 < len(names) <= MAX_NAMES:
        violations.append(SpecViolation("names", f"must be 1 to {MAX_NAMES} names of operations, are {len(names)}"))
    if not 0.0 <= timeout_s <= MAX_TIMEOUT_S:
        violations.append(SpecViolation("timeout", f"must be 0 to {MAX_TIMEOUT_S:g} s, is {timeout_s:g} s"))
    return violations
