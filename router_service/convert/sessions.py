"""Sessions: what a client says when it opens a connection, and what replicas are asked about it.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from router_service.convert.runs import ranges_of, ranges_to_wire
from router_service.core.callers import MAX_CALL_ID
from router_service.core.sessions import Found, Session
from slotmesh.errors import Failure, Reason
from slotmesh.v1 import replica_service_pb2, router_service_pb2

MAX_UNANSWERED_RANGES = 65_536
"""More of them than calls may be unanswered make no sense."""
_SESSION_ID = re.compile("[0-9a-f]{32}")


def session_of(opening: router_service_pb2.OpenStream) -> Session | Failure | None:
    """The connection that a client opens; None where it wants no session."""
    if not opening.session_id:
        if opening.epoch or opening.unanswered:
            return _bad("epoch" if opening.epoch else "unanswered", "is for sessions only: set session_id, or leave it")
        return None
    if not _SESSION_ID.fullmatch(opening.session_id):
        return _bad("session_id", f"must be 32 lower-case hexadecimal digits, got {opening.session_id[:64]!r}")
    if opening.epoch < 1:
        return _bad("epoch", f"is 1 at the first connection, and one more at each further one; got {opening.epoch}")
    unanswered = ranges_of(opening.unanswered)
    if unanswered and opening.epoch == 1:
        return _bad("unanswered", "nothing can be unanswered at the first connection (epoch 1)")
    if len(unanswered) > MAX_UNANSWERED_RANGES:
        return _bad("unanswered", f"at most {MAX_UNANSWERED_RANGES} ranges, got {len(unanswered)}")
    last = 0
    for span in unanswered:
        if not last < span[0] <= span[1] <= MAX_CALL_ID:
            return _bad("unanswered", f"ranges ascend, within 1 … 2^53 - 1; got {span[0]} … {span[1]} after {last}")
        last = span[1]
    return Session(opening.session_id, opening.epoch, unanswered)


def reconcile_of(sessions: Iterable[Session]) -> replica_service_pb2.Reconcile:
    """The question to a replica."""
    return replica_service_pb2.Reconcile(
        sessions=[
            replica_service_pb2.SessionCalls(
                session_id=session.session_id,
                epoch=session.epoch,
                calls=ranges_to_wire(session.resumption.unanswered if session.resumption is not None else ()),
            )
            for session in sessions
        ]
    )


def found_of(answer: replica_service_pb2.Reconciled) -> Iterator[tuple[str, int, Found]]:
    """Session id, epoch and what the replica knows, of each session that it was asked about."""
    kept, evicted = _by_session(answer.kept), _by_session(answer.evicted)
    forgotten = frozenset(answer.forgotten)
    for key, running in _by_session(answer.joined).items():
        yield *key, Found(running, kept.get(key, ()), evicted.get(key, ()), forgotten=key[0] in forgotten)


def _by_session(
    sessions: Iterable[replica_service_pb2.SessionCalls],
) -> dict[tuple[str, int], Sequence[tuple[int, int]]]:
    return {(each.session_id, each.epoch): ranges_of(each.calls) for each in sessions}


def _bad(field: str, what: str) -> Failure:
    name = f"open.{field}"
    return Failure(reason=Reason.BAD_REQUEST, message=f"{name}: {what}", metadata={"field": name})
