"""Rosters as clients of sessions see them: marked with the owner of the session.

Purpose: a client that acknowledges a roster returns it as it arrived, and lists what it has acknowledged when it opens
the session's next connection. So the next router finds out, without any help of the client, under which identity the
unanswered calls were sent. Under another identity the session has another key, of which no replica has a record: "no
replica has seen the call" would then follow from nothing.
Invariants: a mark that is not the caller's is kept in the generation, which no routing table covers. Rosters without
a mark are those of callers that have no identity, and of routers of earlier versions.
Owner: pure functions of the router's edge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from router_service.core.routing.rosters import RosterVersion
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.v1 import router_service_pb2

_MARK: Final = re.compile("@[0-9a-f]{16}")
_MARK_LENGTH: Final = 17

OF_ANOTHER_IDENTITY: Final = Failure(
    reason=Reason.UNAUTHENTICATED,
    message="open.rosters: the unanswered calls of this session were sent under another identity, and may have been "
    "executed; fail them, and open a session with an id of its own",
    executed=Executed.UNKNOWN,
)


def mark_of(chosen_id: str, key: str) -> str:
    """The mark of a session's owner: `key` is the session's id as made of the caller's name and the `chosen_id`.

    Empty where callers have no identity: then the two are the same.
    """
    return "" if key == chosen_id else f"@{key[: _MARK_LENGTH - 1]}"


def roster_to_wire(version: RosterVersion, mark: str = "") -> router_service_pb2.RosterVersion:
    """A roster, as it is announced to a client."""
    return router_service_pb2.RosterVersion(generation=version.generation + mark, revision=version.revision)


def roster_from_wire(wire: router_service_pb2.RosterVersion, mark: str = "") -> RosterVersion:
    """A roster that a client acknowledges."""
    return RosterVersion(wire.generation.removesuffix(mark), wire.revision)


def first_roster_of(batch: router_service_pb2.CallBatch, mark: str = "") -> RosterVersion | None:
    """The newest roster that the client had acknowledged when it first sent these calls; None if it names none."""
    return roster_from_wire(batch.first_roster, mark) if batch.HasField("first_roster") else None


def are_of_another(rosters: Iterable[RosterVersion]) -> bool:
    """Whether one of these, from which the caller's own mark was taken off, has a mark."""
    return any(_MARK.fullmatch(each.generation[-_MARK_LENGTH:]) for each in rosters)
