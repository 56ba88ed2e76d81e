"""What operators decide where members know a newer state than the store: `AdoptState`.

Invariants: nothing is decided while no member is newer. The decision is stored in a new generation, and this controller
leads no more from then on: the next one learns from members.
Owner: the event loop; the servicer calls it.
"""

from __future__ import annotations

from dataclasses import replace

from controller_service.core.answered_requests import with_answer
from controller_service.core.revisions import ChangeOrigin
from controller_service.core.state_adoption import NotAdoptable, next_generation, with_members_mesh
from controller_service.shell.change_refusals import not_stored
from controller_service.shell.newer_members import NewerMembers
from controller_service.shell.repeated_requests import answer_now, require_new
from controller_service.store.protocol import Store, StoreWriteFailed
from slotmesh.errors import Failure, Reason
from slotmesh.ids import new_id
from slotmesh.runtime.clock import Clock
from slotmesh.security.audit import AUDIT
from slotmesh.status import to_exception
from slotmesh.v1 import controller_service_pb2 as pb


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
        now_s = self._clock.time_of_day()
        require_new(self._store.read().answers, now_s)
        if not self._newer:
            raise to_exception(_refusal("no member knows a newer state than this controller: nothing is to be decided"))
        desired, changed = self._store.read(), tuple[str, ...]()
        if from_members:
            if (mesh := self._newer.mesh) is None:
                text = "no router has brought a newer table: wait until one is attached, or put the newest file back"
                raise to_exception(_refusal(text))
            try:
                desired, changed = with_members_mesh(desired, mesh, origin)
            except NotAdoptable as error:
                raise to_exception(_refusal(str(error))) from error
        generation, before = new_id(), self._store.read().configured_at
        state = next_generation(desired, epoch_floor=int(now_s * 1e3))
        reply = pb.AdoptStateResponse(generation=generation, revision=state.revision, changed=changed)
        if (answer := answer_now(lambda _: reply, now_s)) is not None:
            state = replace(state, answers=with_answer(state.answers, answer))
        AUDIT.changed(origin.who, f"state/{generation}", before, state.configured_at)
        try:
            await self._store.begin_generation(generation, state)
        except StoreWriteFailed as failed:
            raise to_exception(not_stored(failed)) from failed
        self._newer.disown()
        return generation, state.revision, changed


def _refusal(text: str) -> Failure:
    return Failure(reason=Reason.BAD_REQUEST, message=f"source: {text}", metadata={"field": "source"})
