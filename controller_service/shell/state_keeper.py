"""What operators decide where members know a newer state than the store: `AdoptState`.

Invariants: nothing is decided while no member is newer. The decision is stored in a new generation, and this controller
leads no more from then on: the next one learns from members. It follows from the newest revision: a change that was
acknowledged is part of it. Its audit line comes once it is stored.
Owner: the event loop; the servicer calls it.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from controller_service.core.answered_requests import with_answer
from controller_service.core.desired import Desired
from controller_service.core.revisions import ChangeOrigin
from controller_service.core.state_adoption import NotAdoptable, next_generation, with_members_mesh
from controller_service.shell.change_refusals import changed_too_often, not_stored
from controller_service.shell.newer_members import NewerMembers
from controller_service.shell.repeated_requests import answer_now, require_new
from controller_service.store.protocol import Conflict, Store, StoreWriteFailed
from slotmesh.errors import Failure, Reason
from slotmesh.ids import new_id
from slotmesh.runtime.clock import Clock
from slotmesh.security.audit import AUDIT
from slotmesh.status import to_exception
from slotmesh.v1 import controller_service_pb2 as pb

_ATTEMPTS: Final = 100
"""Each failed attempt means that another change went through."""


class StateKeeper:
    """Begins generations."""

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
                text = "no router has brought a newer table: wait until one is attached, or put the newest file back"
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
