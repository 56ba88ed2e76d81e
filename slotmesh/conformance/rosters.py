"""Rosters: which a client of a session acknowledges, and states when it resumes.

Owner: the rules of one stream; `AcknowledgedRosters` is shared by all streams of a client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from slotmesh.v1 import router_service_pb2

Lineage = tuple[str, str]
"""Generation and term."""
Version = tuple[Lineage, int]
"""Lineage and revision."""


def version_of(wire: router_service_pb2.RosterVersion) -> Version:
    return (wire.generation, wire.term_id), wire.revision


@dataclass(slots=True)
class AcknowledgedRosters:
    """The rosters that a client has acknowledged on all of its streams."""

    revisions: dict[Lineage, int] = field(default_factory=dict)
    """The highest of each lineage, since nothing was unanswered at an opening; the newest lineage at the end."""
    newest: Version | None = None
    first: dict[str, Version | None] = field(default_factory=dict)
    """By call: the newest one when it was sent for the first time."""


class RosterRules:
    """One stream of a session."""

    def __init__(self, known: AcknowledgedRosters, breach: Callable[[str, str], None]) -> None:
        self._known = known
        self._breach = breach
        self._named: set[Version] = set()
        self._is_due = False
        self.acknowledged: Version | None = None

    def opened(self, frame: router_service_pb2.OpenStream) -> None:
        """The client opens the stream."""
        if not frame.unanswered:
            self._known.revisions.clear()
        listed = dict(map(version_of, frame.rosters))
        if len(listed) != len(frame.rosters):
            self._breach("R8", f"open.rosters has a generation and term twice: {list(map(version_of, frame.rosters))}")
        if listed != self._known.revisions:
            self._breach("R8", f"open.rosters is {listed}, and {self._known.revisions} were acknowledged")

    def named(self, wire: router_service_pb2.RosterVersion) -> None:
        """The router names a roster."""
        self._named.add(version_of(wire))
        self._is_due = self.acknowledged is None

    def roster(self, wire: router_service_pb2.RosterVersion, *, is_newest_stream: bool) -> None:
        """The client acknowledges a roster."""
        lineage, revision = version = version_of(wire)
        if version not in self._named:
            self._breach("R2", f"roster {version} is acknowledged, and was not named on this stream")
        if not is_newest_stream:
            self._breach("R2", f"roster {version} is acknowledged on a stream that the session has left")
        known = self._known.revisions.pop(lineage, revision)
        self._known.revisions[lineage] = max(known, revision)
        self._known.newest = lineage, max(known, revision)
        self.acknowledged = version
        self._is_due = False

    def calls(self, names: Iterable[str], batch: router_service_pb2.CallBatch) -> None:
        """Calls arrive."""
        if self._is_due:
            self._breach("R2", "calls arrived before the roster of `opened` was acknowledged")
        stated = version_of(batch.first_roster) if batch.HasField("first_roster") else None
        for name in names:
            if not batch.resend:
                self._known.first[name] = self._known.newest
            elif stated != self._known.first.get(name):
                self._breach("R9", f"first_roster of {name!r} is {stated}, and was {self._known.first.get(name)}")
