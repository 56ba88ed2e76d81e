"""The rosters that a session's client has acknowledged: by them the next router knows whom to ask.

Purpose: what to acknowledge, what to say at the next opening, and what each call was first sent under. Pure.
Invariants: what was acknowledged is said to every later router, as long as a call is unanswered that was sent by then;
of each generation the highest revision.
Owner: the endpoint's `Connection`.
"""

from __future__ import annotations

from collections.abc import Sequence

from slotmesh.v1 import router_service_pb2
from slotmesh.wire.limits import MAX_ROSTERS


class Rosters:
    """What the client knows."""

    __slots__ = ("_known", "newest")

    def __init__(self) -> None:
        self._known: dict[str, router_service_pb2.RosterVersion] = {}
        """By generation, the one that was acknowledged last at the end."""
        self.newest: router_service_pb2.RosterVersion | None = None
        """Of the generation that was acknowledged last."""

    def acknowledge(self, version: router_service_pb2.RosterVersion) -> None:
        """The router hears now that this roster is known."""
        known = self._known.pop(version.generation, version)
        self.newest = self._known[version.generation] = known if known.revision > version.revision else version
        if len(self._known) > MAX_ROSTERS:
            del self._known[next(iter(self._known))]  # the router takes as unknown what was sent under it

    def at_opening(self, *, is_resuming: bool) -> Sequence[router_service_pb2.RosterVersion]:
        """What the next router must cover; nothing where no call is unanswered (not `is_resuming`)."""
        if not is_resuming:
            self._known.clear()
        return list(self._known.values())
