"""Sessions: what a client says when it opens a connection, and what replicas are asked about it.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from router_service.convert.rosters import OF_ANOTHER_IDENTITY, are_of_another, mark_of, roster_from_wire
from router_service.convert.spans import Spans, asked_of
from router_service.core.sessions.found_calls import FoundCalls
from router_service.core.sessions.session import SessionConnection
from slotmesh.errors import Failure, bad_field
from slotmesh.id_ranges import ranges_from_wire
from slotmesh.v1 import replica_service_pb2, router_service_pb2
from slotmesh.wire.features import RESENT_ALL
from slotmesh.wire.limits import MAX_CALL_ID, MAX_ROSTERS

MAX_UNANSWERED_RANGES = 16_384
"""Twice the calls of the usual window; where windows are larger, as many as a window has calls."""
STEP_RANGES = 1024
"""That are dealt with at a time: some milliseconds."""
_SESSION_ID = re.compile("[0-9a-f]{32}")


def session_of(
    opening: router_service_pb2.OpenStream, window_calls: int = 0, of_caller: Callable[[str], str] = str
) -> Generator[None, None, SessionConnection | Failure | None]:
    """The connection that a client opens; None where it wants no session. `window_calls`: how large its window is.

    `of_caller` makes the session's key, which is another one for the same id of another caller. In steps.
    """
    if not opening.session_id:
        for field in ("epoch", "unanswered", "rosters"):
            if getattr(opening, field):
                return _mistake(field, "is for sessions only: set session_id, or leave it")
        return None
    if not _SESSION_ID.fullmatch(opening.session_id):
        return _mistake("session_id", f"must be 32 lower-case hexadecimal digits, got {opening.session_id[:64]!r}")
    if opening.epoch < 1:
        return _mistake("epoch", f"is 1 at the first connection, and one more at each further one; got {opening.epoch}")
    if opening.epoch == 1:
        for field in ("unanswered", "rosters"):
            if getattr(opening, field):
                return _mistake(field, "there is nothing before the first connection (epoch 1)")
    if failure := _too_many(opening, max(MAX_UNANSWERED_RANGES, window_calls)):
        return failure
    unanswered = Spans()
    before = 0
    for at in range(0, len(opening.unanswered), STEP_RANGES):
        if at:
            yield
        for first, last in unanswered.add(opening.unanswered[at : at + STEP_RANGES]):
            if not before < first <= last <= MAX_CALL_ID:
                return _mistake(
                    "unanswered", f"ranges ascend, within 1 … 2^53 - 1; got {first} … {last} after {before}"
                )
            before = last
    key = of_caller(opening.session_id)
    mark = mark_of(opening.session_id, key)
    rosters = [roster_from_wire(each, mark) for each in opening.rosters]
    says_all = RESENT_ALL in opening.features
    connection = SessionConnection(
        key, opening.epoch, unanswered, rosters, owner_mark=mark, says_when_all_are_resent=says_all
    )
    return OF_ANOTHER_IDENTITY if are_of_another(rosters) else connection


def _too_many(opening: router_service_pb2.OpenStream, most_ranges: int) -> Failure | None:
    if (count := len(opening.unanswered)) > most_ranges:
        return _mistake("unanswered", f"at most {most_ranges} ranges, got {count}")
    if (count := len(opening.rosters)) > MAX_ROSTERS:
        return _mistake("rosters", f"at most {MAX_ROSTERS}, one of each generation; got {count}")
    return None


def reconcile_of(sessions: Iterable[SessionConnection]) -> replica_service_pb2.Reconcile:
    """The question to a replica."""
    frame = replica_service_pb2.Reconcile()
    for session in sessions:
        asked = frame.sessions.add(session_id=session.session_id, epoch=session.epoch)
        asked.MergeFromString(asked_of(session.unanswered))
    return frame


def found_of(answer: replica_service_pb2.Reconciled) -> Iterator[tuple[str, int, FoundCalls]]:
    """Session id, epoch and what the replica knows, of each session that it was asked about."""
    kept, evicted = _by_session(answer.kept), _by_session(answer.evicted)
    forgotten = frozenset(answer.forgotten)
    for key, running in _by_session(answer.joined).items():
        yield *key, FoundCalls(running, kept.get(key, ()), evicted.get(key, ()), forgotten=key[0] in forgotten)


def _by_session(
    sessions: Iterable[replica_service_pb2.SessionCalls],
) -> dict[tuple[str, int], Sequence[tuple[int, int]]]:
    return {(each.session_id, each.epoch): ranges_from_wire(each.calls) for each in sessions}


def _mistake(field: str, what: str) -> Failure:
    """What is wrong with a field of the opening."""
    return bad_field(f"open.{field}", what)
