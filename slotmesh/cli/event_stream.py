"""Past and new events of the mesh, from the controller."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from slotmesh.cli.connection import Peer
from slotmesh.v1 import controller_service_pb2 as pb

EVENT_KINDS: Final = {
    name.removeprefix("EVENT_KIND_").lower().replace("_", "-"): number
    for name, number in pb.EventKind.items()
    if number != pb.EVENT_KIND_UNSPECIFIED
}
"""The number of each kind, by its name as `replica-ready`."""
_NAMES: Final = {number: name for name, number in EVENT_KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshEvent:
    """Something that has happened."""

    time: datetime
    kind: str
    """As `replica-ready`."""
    subject: str
    """As `replica/digits-v1-7n9nzx`."""
    message: str
    missed: int
    """Events before it that are not known any more; -1: some."""
    cursor: str
    """Events after this one can be asked for with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFilter:
    """Which events are wanted."""

    kinds: Collection[str] = ()
    """Names; none means all."""
    subject: str = ""
    """As `replica/a`, or as `replica/digits-*` for all that begin so; empty means all."""

    def wants(self, subject: str) -> bool:
        """Whether it is exactly the subject; the controller has looked at its beginning, and at kinds."""
        return not self.subject or self.subject.endswith("*") or subject == self.subject


async def read_events(
    peer: Peer, stub: Any, wanted: EventFilter, *, after: str = "", follow: bool = False
) -> AsyncGenerator[MeshEvent, None]:
    """Those after a cursor, else all that are kept; with `follow` those to come, too, without end."""
    request = pb.WatchEventsRequest(
        kinds=[pb.EventKind.ValueType(EVENT_KINDS[kind]) for kind in wanted.kinds],
        subject_prefix=wanted.subject.removesuffix("*"),
        after=after,
        from_oldest=not after,
        until_newest=not follow,
    )
    call = stub.WatchEvents(request)
    try:
        with peer.telling():
            async for it in call:
                if wanted.wants(it.subject):
                    yield _event(it)
    finally:
        call.cancel()


def _event(wire: pb.WatchEventsResponse) -> MeshEvent:
    return MeshEvent(
        time=wire.time.ToDatetime(tzinfo=UTC),
        kind=_NAMES.get(wire.kind, str(wire.kind)),
        subject=wire.subject,
        message=wire.message,
        missed=wire.missed,
        cursor=wire.cursor,
    )
