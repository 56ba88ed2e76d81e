"""The session of an endpoint's calls: what each connection of it states when it opens.

Invariants: an epoch is used once. What a router is asked to resume is all that was sent and has no outcome.
Owner: the endpoint's `Connection`.
"""

from __future__ import annotations

from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.client.stream.rosters import Rosters
from slotmesh.id_ranges import ranges_to_wire
from slotmesh.ids import new_id
from slotmesh.v1 import router_service_pb2
from slotmesh.wire import features


class EndpointSession:
    """One after another: a session that routers refuse to resume is followed by a new one."""

    def __init__(self) -> None:
        self._id = new_id()
        self._epoch = 0
        self.rosters = Rosters()
        """What the client has acknowledged of this session."""

    def identify(self, opening: router_service_pb2.OpenStream, pending: PendingCalls) -> None:
        """Another connection is opened. `pending`: the unanswered calls of those before it."""
        self._epoch += 1
        opening.session_id = self._id
        opening.epoch = self._epoch
        opening.features.extend(features.OF_CLIENTS_IN_SESSIONS)
        if self._epoch > 1:
            opening.unanswered.extend(ranges_to_wire(pending.unanswered()))
            opening.rosters.extend(self.rosters.at_opening(is_resuming=pending.calls > 0))
