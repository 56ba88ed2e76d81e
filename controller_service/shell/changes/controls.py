"""Orders of operators: to drain or forget a replica, and `AdoptState` if members know a newer state than the store.

Invariants: a replica that is connected is never declared ended; an order about a replica is stored, with the reply to
its request, before it is carried out.
Owner: the event loop; the servicer calls it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from controller_service.core.desired.planning import ChangeTerms, Plan
from controller_service.core.desired.revisions import ChangeOrigin
from controller_service.core.desired.state import ChangeSet, Desired, ReplicaOrder, new_orders, with_answer
from controller_service.core.observed.adoption import NotAdoptable, next_generation, with_members_mesh
from controller_service.core.observed.leases import find_forgettable
from controller_service.core.observed.transitions import ordered
from controller_service.core.partition_owners import Incarnation
from controller_service.shell.changes.configurator import Configurator, PlannedChange
from controller_service.shell.changes.requests import answer_now, changed_too_often, not_stored, require_new
from controller_service.shell.leadership import NewerMembers
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.mesh_state import MeshState
from controller_service.store.protocol import Conflict, Store, StoreWriteFailed
from slotmesh.errors import Failure, Reason
from slotmesh.ids import new_id
from slotmesh.runtime.clock import Clock
from slotmesh.security.audit import AUDIT
from slotmesh.spec.rules import show
from slotmesh.status import to_exception
from slotmesh.v1 import controller_service_pb2 as pb

_ATTEMPTS: Final = 100
"""Each failed attempt means that another change went through."""


class StateKeeper:
    """Begins generations, if members know a newer state than the store.

    Nothing is decided while no member is newer. The decision is stored in a new generation, and this controller leads
    no more from then on: the next one learns from members. It follows from the newest revision: an acknowledged change
    is part of it. Its audit line is written once it is stored.
    """

    def __init__(self, store: Store, newer: NewerMembers, clock: Clock) -> None:
        self._store = store
        self._newer = newer
        self._clock = clock

    async def adopt(self, origin: ChangeOrigin, *, from_members: bool) -> tuple[str, int, tuple[str, ...]]:
        """The new generation, the configuration's revision, and the subjects that have changed.

        Raises BadRequest, StoreUnavailable.
        `from_members`: the configuration is that of the newest routing table, else that of the store.
        """
        for _ in range(_ATTEMPTS):
            try:
                return await self._adopt(self._store.read(), origin, from_members=from_members)
            except Conflict:
                continue
            except StoreWriteFailed as failed:
                raise to_exception(not_stored(failed)) from failed
        raise to_exception(changed_too_often(_ATTEMPTS))

    async def _adopt(
        self, before: Desired, origin: ChangeOrigin, *, from_members: bool
    ) -> tuple[str, int, tuple[str, ...]]:
        """Raises Conflict where the store has changed since `before`, StoreWriteFailed, and as `adopt` does."""
        now_s = self._clock.time_of_day()
        require_new(before.answers, now_s)
        if not self._newer:
            raise to_exception(_refusal("no member knows a newer state than this controller: nothing is to be decided"))
        desired, changed = before, tuple[str, ...]()
        if from_members:
            if (mesh := self._newer.mesh) is None:
                text = "no router has sent a newer table: wait until one is attached, or put the newest file back"
                raise to_exception(_refusal(text))
            try:
                desired, changed = with_members_mesh(desired, mesh, origin)
            except NotAdoptable as error:
                raise to_exception(_refusal(str(error))) from error
        generation = new_id()
        state = next_generation(desired, epoch_floor=int(now_s * 1e3))
        reply = pb.AdoptStateResponse(generation=generation, revision=state.configured_at, changed=changed)
        if (answer := answer_now(lambda _: reply, now_s)) is not None:
            state = replace(state, answers=with_answer(state.answers, answer))
        written = asyncio.ensure_future(
            self._store.begin_generation(generation, state, expected_revision=before.revision)
        )

        def begun(writing: asyncio.Future[None]) -> None:
            if not writing.cancelled() and writing.exception() is None:
                AUDIT.changed(origin.who, f"state/{generation}", before.configured_at, state.configured_at)
                self._newer.disown()

        # Also where the caller is cancelled meanwhile.
        written.add_done_callback(begun)
        await asyncio.shield(written)
        return generation, state.configured_at, changed


def _refusal(text: str) -> Failure:
    return Failure(reason=Reason.BAD_REQUEST, message=f"source: {text}", metadata={"field": "source"})


class ReplicaControl:
    """Orders that concern one replica: stored, then carried out; again by each later controller of the store."""

    def __init__(self, configurator: Configurator, store: Store, state: MeshState, links: ReplicaLinks) -> None:
        self._configurator = configurator
        self._state = state
        self._links = links
        store.listen(lambda before, after, _: self._carry_out(new_orders(before, after)))
        self._carry_out(store.read().orders.values())

    async def drain(self, replica_id: str, terms: ChangeTerms) -> PlannedChange:
        """Has a replica drain. Raises ReplicaNotFound, and BadRequest while nothing is reconciled."""

        def plan(_: Desired) -> Plan:
            self._require_no_hold()
            replica = self._state.observed.replica(replica_id)
            if replica is None or replica.gone:
                raise to_exception(_not_found(replica_id))
            return self._plan([replica.owner], terms, is_end=False)

        return await self._configurator.change(plan, terms)

    async def forget(self, replica_id: str, incarnation: str, terms: ChangeTerms) -> PlannedChange:
        """Declares that silent incarnations of a replica have ended.

        Raises ReplicaNotFound, ReplicaConnected, and BadRequest while nothing is reconciled.
        """

        def plan(desired: Desired) -> Plan:
            self._require_no_hold()
            observed, now, lease_s = self._state.observed, self._state.clock.now(), self._links.lease_s
            ended = [it.owner for it in desired.orders.values() if it.is_end]
            ended += [it.owner for it in desired.roster.departed]
            found = find_forgettable(observed, ended, replica_id, incarnation, now=now, lease_s=lease_s)
            if not found.is_known:
                raise to_exception(_not_found(replica_id))
            if found.refusal:
                text = f"replica_id: {replica_id} is not forgotten: {found.refusal}"
                raise to_exception(Failure(reason=Reason.REPLICA_CONNECTED, message=text))
            return self._plan(found.owners, terms, is_end=True)

        return await self._configurator.change(plan, terms)

    def _plan(self, owners: Iterable[Incarnation], terms: ChangeTerms, *, is_end: bool) -> Plan:
        who, time_s = terms.origin.who, self._state.clock.time_of_day()
        orders = (ReplicaOrder(owner=it, is_end=is_end, who=who, time_s=time_s) for it in owners)
        return Plan(change=ChangeSet(put_orders=tuple(orders)))

    def _carry_out(self, orders: Iterable[ReplicaOrder]) -> None:
        for order in orders:
            if order.is_end:
                self._links.dismiss(order.owner)
            replica_id = order.owner.replica_id
            self._state.apply_to_replica(replica_id, lambda it, now: ordered(it, order, now=now))  # noqa: B023 - now

    def _require_no_hold(self) -> None:
        if self._links.newer:
            text = (
                "the controller is on hold, since members know a newer state than its state file: no replica is drained"
                " or forgotten; end the hold first (`slotmesh status` shows how)"
            )
            raise to_exception(Failure(reason=Reason.BAD_REQUEST, message=text))


def _not_found(replica_id: str) -> Failure:
    return Failure(
        reason=Reason.REPLICA_NOT_FOUND,
        message=f"no replica is named {show(replica_id)!r}: ListReplicas has their ids",
        metadata={"field": "replica_id"},
    )
