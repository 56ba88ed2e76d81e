"""Sessions: the opening of a connection, acknowledged rosters, and queries to replicas about unanswered calls.

Purpose: a client returns a roster as it arrived when it acknowledges it, and lists the acknowledged ones when it opens
the session's next connection. Rosters carry a mark of the session's owner, so the next router finds out, without any
help of the client, under which identity the unanswered calls were sent. Under another identity the session has another
key, of which no replica has a record, and "no replica has received the call" would be a false conclusion.
Invariants: errors name the field. A mark that is not the caller's is kept in the generation, which no routing table
covers. Rosters without a mark are those of callers without an identity.
Owner: pure functions of the router's edge; the session owns its `Spans`.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, overload

from router_service.core.rosters import FoundCalls, RosterVersion, SessionConnection
from slotmesh.calls.id_ranges import Range
from slotmesh.convert.batches import ranges_from_wire, ranges_to_wire
from slotmesh.errors import Executed, Failure, Reason, bad_field
from slotmesh.internal.v1 import replica_service_pb2
from slotmesh.names import endpoint_failure
from slotmesh.streams.limits import MAX_CALL_ID, MAX_ROSTERS
from slotmesh.v1 import call_pb2, router_service_pb2

MAX_FEATURES: Final = 256
"""Maximum number of feature names in an opening."""

StreamRequest = router_service_pb2.StreamCallsRequest


def opening_problem(request: StreamRequest) -> Failure | None:
    """The failure for an invalid first frame of a stream; None if it is valid."""
    if request.WhichOneof("frame") != "open":
        return bad_field(
            "open", f"the first frame must be open, got {request.WhichOneof('frame') or 'an unknown frame'}"
        )
    opening = request.open
    if failure := endpoint_failure(opening.endpoint, "open.endpoint"):
        return failure
    if len(opening.features) > MAX_FEATURES:
        return bad_field("open.features", f"at most {MAX_FEATURES}, got {len(opening.features)}")
    return None


_MARK: Final = re.compile("@[0-9a-f]{16}")
_MARK_LENGTH: Final = 17

OF_ANOTHER_IDENTITY: Final = Failure(
    reason=Reason.UNAUTHENTICATED,
    message="open.rosters: the unanswered calls of this session were sent under another identity, and may have been "
    "executed; fail them, and open a session with an id of its own",
    executed=Executed.UNKNOWN,
)


def mark_of(chosen_id: str, key: str) -> str:
    """The mark of a session's owner. `key` is the session's id, derived from the caller's identity and the `chosen_id`.

    Empty if callers have no identity: then both ids are the same.
    """
    return "" if key == chosen_id else f"@{key[: _MARK_LENGTH - 1]}"


def roster_to_wire(version: RosterVersion, mark: str = "") -> router_service_pb2.RosterVersion:
    """A roster, as it is announced to a client."""
    return router_service_pb2.RosterVersion(
        generation=version.generation + mark, revision=version.revision, term_id=version.term_id
    )


def roster_from_wire(wire: router_service_pb2.RosterVersion, mark: str = "") -> RosterVersion:
    """A roster that a client acknowledges."""
    return RosterVersion(wire.generation.removesuffix(mark), wire.revision, wire.term_id)


def first_roster_of(batch: router_service_pb2.CallBatch, mark: str = "") -> RosterVersion | None:
    """The newest roster that the client had acknowledged when it first sent these calls; None if it names none."""
    return roster_from_wire(batch.first_roster, mark) if batch.HasField("first_roster") else None


def are_of_another(rosters: Iterable[RosterVersion]) -> bool:
    """Whether one of these rosters, from which the caller's own mark was removed, has a mark."""
    return any(_MARK.fullmatch(each.generation[-_MARK_LENGTH:]) for each in rosters)


class Spans(Sequence[Range]):
    """Ranges of call ids, both ends included: the calls of a session that its client reported as unanswered.

    Purpose: a session that moves can have thousands of ranges, each replica is queried about all of them, and they are
    kept while the connection lasts. So they are stored as two numbers each, and the query is serialized once, in parts.
    """

    __slots__ = ("_asked", "_ends")

    def __init__(self, ranges: Sequence[call_pb2.IdRange] = ()) -> None:
        self._asked = bytearray()
        self._ends = array("q")
        """First and last id of each range, alternating."""
        self.add(ranges)

    def add(self, ranges: Sequence[call_pb2.IdRange]) -> list[Range]:
        """Appends these ranges, and returns them as pairs."""
        spans = ranges_from_wire(ranges)
        self._ends.extend(chain.from_iterable(spans))
        # The concatenation of two serialized messages parses as their merge.
        self._asked += replica_service_pb2.SessionCalls(calls=ranges).SerializeToString()
        return spans

    @property
    def asked(self) -> bytes:
        """`SessionCalls` with these calls."""
        return bytes(self._asked)

    def __len__(self) -> int:
        return len(self._ends) // 2

    def __iter__(self) -> Iterator[Range]:
        return zip(self._ends[::2], self._ends[1::2], strict=True)

    @overload
    def __getitem__(self, at: int) -> Range: ...

    @overload
    def __getitem__(self, at: slice) -> list[Range]: ...

    def __getitem__(self, at: int | slice) -> Range | list[Range]:
        if isinstance(at, slice):
            return list(self)[at]
        at = range(len(self))[at]
        return self._ends[2 * at], self._ends[2 * at + 1]


def asked_of(spans: Sequence[Range]) -> bytes:
    """`SessionCalls` with these calls."""
    if isinstance(spans, Spans):
        return spans.asked
    return replica_service_pb2.SessionCalls(calls=ranges_to_wire(spans)).SerializeToString()


MAX_UNANSWERED_RANGES = 16_384
"""Twice the calls of the default window; with larger windows, the number of calls of the window."""
STEP_RANGES = 1024
"""Ranges processed per step: some milliseconds."""
_SESSION_ID = re.compile("[0-9a-f]{32}")


def session_of(
    opening: router_service_pb2.OpenStream, window_calls: int = 0, of_caller: Callable[[str], str] = str
) -> Generator[None, None, SessionConnection | Failure | None]:
    """The connection that a client opens; None if it requests no session. `window_calls`: the size of its window.

    `of_caller` derives the session's key from its id; keys of different callers differ. In steps.
    """
    if not opening.session_id:
        for field in ("epoch", "unanswered", "rosters"):
            if getattr(opening, field):
                return _bad_opening(field, "is for sessions only: set session_id, or leave it")
        return None
    if not _SESSION_ID.fullmatch(opening.session_id):
        return _bad_opening("session_id", f"must be 32 lower-case hexadecimal digits, got {opening.session_id[:64]!r}")
    if opening.epoch < 1:
        return _bad_opening(
            "epoch", f"is 1 at the first connection, and one more at each further one; got {opening.epoch}"
        )
    if opening.epoch == 1:
        for field in ("unanswered", "rosters"):
            if getattr(opening, field):
                return _bad_opening(field, "there is nothing before the first connection (epoch 1)")
    if failure := _too_many(opening, max(MAX_UNANSWERED_RANGES, window_calls)):
        return failure
    unanswered = Spans()
    before = 0
    for at in range(0, len(opening.unanswered), STEP_RANGES):
        if at:
            yield
        for first, last in unanswered.add(opening.unanswered[at : at + STEP_RANGES]):
            if not before < first <= last <= MAX_CALL_ID:
                return _bad_opening(
                    "unanswered", f"ranges ascend, within 1 … 2^53 - 1; got {first} … {last} after {before}"
                )
            before = last
    key = of_caller(opening.session_id)
    mark = mark_of(opening.session_id, key)
    rosters = [roster_from_wire(each, mark) for each in opening.rosters]
    connection = SessionConnection(key, opening.epoch, unanswered, rosters, owner_mark=mark)
    return OF_ANOTHER_IDENTITY if are_of_another(rosters) else connection


def _too_many(opening: router_service_pb2.OpenStream, most_ranges: int) -> Failure | None:
    if (count := len(opening.unanswered)) > most_ranges:
        return _bad_opening("unanswered", f"at most {most_ranges} ranges, got {count}")
    if (count := len(opening.rosters)) > MAX_ROSTERS:
        return _bad_opening("rosters", f"at most {MAX_ROSTERS}, one of each generation; got {count}")
    return None


def reconcile_of(sessions: Iterable[SessionConnection]) -> replica_service_pb2.Reconcile:
    """The query to a replica."""
    frame = replica_service_pb2.Reconcile()
    for session in sessions:
        asked = frame.sessions.add(session_id=session.session_id, epoch=session.epoch)
        asked.MergeFromString(asked_of(session.unanswered))
    return frame


def found_of(answer: replica_service_pb2.Reconciled) -> Iterator[tuple[str, int, FoundCalls]]:
    """Session id, epoch and the calls that the replica knows, for each queried session."""
    kept, evicted = _by_session(answer.kept), _by_session(answer.evicted)
    forgotten = frozenset(answer.forgotten)
    for key, running in _by_session(answer.joined).items():
        yield *key, FoundCalls(running, kept.get(key, ()), evicted.get(key, ()), forgotten=key[0] in forgotten)


def _by_session(
    sessions: Iterable[replica_service_pb2.SessionCalls],
) -> dict[tuple[str, int], Sequence[tuple[int, int]]]:
    return {(each.session_id, each.epoch): ranges_from_wire(each.calls) for each in sessions}


def _bad_opening(field: str, what: str) -> Failure:
    """The failure for an invalid field of the opening."""
    return bad_field(f"open.{field}", what)
