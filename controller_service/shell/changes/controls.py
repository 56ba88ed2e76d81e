"""Orders of operators: to drain or forget a replica, and `AdoptState` if members know a newer state than the store.

Invariants: a replica that is connected is never declared ended; an order has its audit line from the moment at which it
is in force, also if its caller was cancelled; a replica is reported as forgotten once the store does not list it any
more.
Owner: the event loop; the servicer calls it.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from google.protobuf.message import Message

from controller_service.core.desired.revisions import ChangeOrigin
from controller_service.core.desired.state import NO_ANSWERS, Desired, with_answer
from controller_service.core.observed import transitions
from controller_service.core.observed.adoption import NotAdoptable, next_generation, with_members_mesh
from controller_service.core.observed.leases import ended_of, find_forgettable
from controller_service.core.partition_owners import Incarnation
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
        """The new generation, its revision, and the subjects that have changed. Raises BadRequest, StoreUnavailable.

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
        reply = pb.AdoptStateResponse(generation=generation, revision=state.revision, changed=changed)
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
        return generation, state.revision, changed


def _refusal(text: str) -> Failure:
    return Failure(reason=Reason.BAD_REQUEST, message=f"source: {text}", metadata={"field": "source"})


STORED_WITHIN_S: Final = 10.0
"""The longest wait for the store to have it that a replica is forgotten."""
OPERATORS_WORD: Final = "an operator declared that it has ended"


class ReplicaControl:
    """Orders that concern one replica."""

    def __init__(self, store: Store, state: MeshState, links: ReplicaLinks) -> None:
        self._store = store
        self._state = state
        self._links = links
        self._answers = NO_ANSWERS
        """Orders that were carried out and may be repeated: they are in no store, as what they change is not."""

    def drain(self, replica_id: str, origin: ChangeOrigin) -> None:
        """Has a replica drain. Raises ReplicaNotFound, and BadRequest while nothing is reconciled."""
        require_new(self._answers, self._state.clock.time_of_day())
        self._require_no_hold()
        replica = self._state.observed.replica(replica_id)
        if replica is None or replica.gone:
            raise to_exception(_not_found(replica_id))
        self._state.apply_to_replica(
            replica_id,
            lambda observed, _: transitions.drain_requested(
                observed, replica_id, f"an operator asked for it: {origin.who}"
            ),
        )
        self._audit(replica_id, origin)

    async def forget(self, replica_id: str, incarnation: str, origin: ChangeOrigin) -> list[Incarnation]:
        """Takes it that silent incarnations of a replica have ended. Returns them once that is stored.

        Raises ReplicaNotFound, ReplicaConnected, StoreUnavailable, and BadRequest while nothing is reconciled.
        """
        require_new(self._answers, self._state.clock.time_of_day())
        self._require_no_hold()
        roster = self._store.read().roster
        observed, now, lease_s = self._state.observed, self._state.clock.now(), self._links.lease_s
        found = find_forgettable(observed, roster.departed, replica_id, incarnation, now=now, lease_s=lease_s)
        # What an earlier request has declared ended, and is not stored yet.
        ended = ended_of(observed, roster.owners(), replica_id, incarnation)
        if not found.is_known and not ended:
            raise to_exception(_not_found(replica_id))
        if found.refusal:
            text = f"replica_id: {replica_id} is not forgotten: {found.refusal}"
            raise to_exception(Failure(reason=Reason.REPLICA_CONNECTED, message=text))
        for owner in found.owners:
            self._links.dismiss(owner)
            self._state.replica_ended(owner, f"{OPERATORS_WORD}: {origin.who}")
        if found.owners:
            self._audit(replica_id, origin)
        await self._stored({*found.owners, *ended})
        require_new(self._answers, self._state.clock.time_of_day())  # the same request may have come twice meanwhile
        return [*found.owners]

    def carried_out(self, reply: Message) -> None:
        """The order that is being served was carried out: when it is repeated, that is the reply."""
        if (answer := answer_now(lambda _: reply, self._state.clock.time_of_day())) is not None:
            self._answers = with_answer(self._answers, answer)

    def _require_no_hold(self) -> None:
        if self._links.newer:
            text = (
                "the controller is on hold, since members know a newer state than its state file: no replica is drained"
                " or forgotten; end the hold first (`slotmesh status` shows how)"
            )
            raise to_exception(Failure(reason=Reason.BAD_REQUEST, message=text))

    async def _stored(self, owners: set[Incarnation]) -> None:
        """Waits until the roster of the store lists none of these. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(STORED_WITHIN_S):
                async with aclosing(self._store.watch(after_revision=-1)) as revisions:
                    async for desired in revisions:
                        if not owners.intersection(desired.roster.owners()):
                            return
        except TimeoutError:
            text = "the replica counts as ended, but that is not stored yet: repeat the request"
            raise to_exception(Failure(reason=Reason.STORE_UNAVAILABLE, message=text, retry_delay_s=1.0)) from None

    def _audit(self, replica_id: str, origin: ChangeOrigin) -> None:
        revision = self._store.read().configured_at
        AUDIT.changed(origin.who, f"replica/{replica_id}", revision, revision)


def _not_found(replica_id: str) -> Failure:
    return Failure(reason=Reason.REPLICA_NOT_FOUND, message=f"there is no replica {show(replica_id)!r}")
