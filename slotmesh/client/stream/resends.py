"""The session of an endpoint's calls: its identity, what each connection states when it opens, and what it sends again.

Purpose: a resumed session sends the calls again that an earlier connection has sent and that have no outcome. Pure.
Owner: the endpoint's `Connection`; the `RouterLink` of a new connection has its `Resends`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slotmesh.client.calls.call_spec import CallSpec, request_bytes, too_large
from slotmesh.client.calls.outbox import FRAME_CALLS, CallOutbox, LargeCalls
from slotmesh.client.calls.sent_parts import SentPart, fail, refuse
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.convert.batches import ranges_to_wire
from slotmesh.ids import new_id
from slotmesh.streams.limits import CHUNK_BYTES, MAX_FRAME_BYTES, MAX_ROSTERS
from slotmesh.v1 import router_service_pb2


class Rosters:
    """The versions of the roster that the client has acknowledged: the next router needs them to find unanswered calls.

    Invariant: an acknowledged version is stated to every later router while a call is unanswered that was sent under
    it; of each generation and term the highest revision.
    """

    __slots__ = ("_known", "newest")

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], router_service_pb2.RosterVersion] = {}
        """By generation and term, the last acknowledged one at the end."""
        self.newest: router_service_pb2.RosterVersion | None = None
        """Of the generation and term that were acknowledged last."""

    def acknowledge(self, version: router_service_pb2.RosterVersion) -> None:
        """Records a version that this client acknowledges to its router."""
        key = version.generation, version.term_id
        known = self._known.pop(key, version)
        self.newest = self._known[key] = known if known.revision > version.revision else version
        if len(self._known) > MAX_ROSTERS:
            del self._known[next(iter(self._known))]  # the router treats calls that were sent under it as unknown

    def at_opening(self, *, is_resuming: bool) -> Sequence[router_service_pb2.RosterVersion]:
        """What the next router must cover; empty if no call is unanswered (not `is_resuming`)."""
        if not is_resuming:
            self._known.clear()
        return list(self._known.values())


@dataclass(slots=True)
class ResentCalls:
    """Calls of one part that are sent again together."""

    part: SentPart
    ids: Sequence[int]
    payloads: list[bytes]
    specs: list[CallSpec] | None
    """One for each call where several lanes share the part."""

    @property
    def consecutive(self) -> bool:
        """Whether the ids are consecutive."""
        return self.ids[-1] - self.ids[0] == len(self.ids) - 1


class Resends:
    """The calls to send again, cut into frames. True while some are left.

    Invariants: calls leave in the order of their ids, each once, and none that was answered meanwhile. Those that are
    left count as unanswered, but not against the window of the new stream, as its router has not seen them.
    """

    __slots__ = ("_at", "_counted", "calls", "nbytes", "parts", "stopped")

    def __init__(self, parts: Iterable[SentPart] = ()) -> None:
        """`parts`: all that have unanswered calls, in the order of their ids."""
        self.parts: deque[tuple[SentPart, int, int]] = deque((part, part.left, part.nbytes) for part in parts)
        """Read directly, for each frame: empty if nothing is left."""
        self._at = 0
        """The place in the first part from which on nothing has left."""
        self._counted = (0, 0)
        """Calls and bytes of the first part that have left."""
        self.calls = sum(calls for _, calls, _ in self.parts)
        """That have not left."""
        self.nbytes = sum(nbytes for _, _, nbytes in self.parts)
        """Their payload bytes."""
        self.stopped: list[int] = []
        """Ids of calls that are not sent again: their lane stops at failures, and an earlier call has failed."""

    def __bool__(self) -> bool:
        return bool(self.parts)

    def take(self, calls: int, nbytes: int, large: LargeCalls) -> list[ResentCalls]:
        """Takes the calls of the next frame: at most `calls` of `nbytes` bytes, the rest of the window.

        `large`: one with more bytes than the window may leave at any time; the next of that size waits for it, and so
        do the calls behind that, as the order is kept.
        """
        taken: list[ResentCalls] = []
        calls, room, options_room = min(calls, FRAME_CALLS), MAX_FRAME_BYTES, MAX_FRAME_BYTES
        while self.parts and options_room > 0:
            part = self.parts[0][0]
            options_room -= part.spec.wire_bytes
            places: list[int] = []
            total, inline, is_full, is_beside, is_cut = 0, 0, False, False, False
            for place in (each for at, count in part.open_spans(self._at) for each in range(at, at + count)):
                size = len(part.payloads[place])
                if part.spec.stop_generation and part.is_after_failure(place):
                    self.stopped.append(part.first + place)
                    self._left(1, size)
                    continue
                weight = (0 if size > CHUNK_BYTES else size) + request_bytes(part.payloads[place])
                is_first = not taken and not places
                if size > large.over:
                    if large.is_free and places:
                        is_cut = True  # it leaves alone, next
                        break
                    is_beside = fits = large.is_free and (is_first or weight <= room)
                else:
                    fits = total + size <= nbytes and (is_first or inline + weight <= room)
                if len(places) >= calls or not fits:
                    is_full = True
                    break
                places.append(place)
                total += size
                inline += weight
                if is_beside:
                    break
            if places:
                taken.append(_resent(part, places))
                self._at = places[-1] + 1
                calls, nbytes, room = calls - len(places), nbytes - (0 if is_beside else total), room - inline
                self._left(len(places), total)
            if is_full:
                break
            if is_cut:
                continue
            if is_beside:
                large = large._replace(is_free=False)
                continue
            self._next_part()
        return taken

    def _left(self, calls: int, nbytes: int) -> None:
        self.calls -= calls
        self.nbytes -= nbytes
        self._counted = (self._counted[0] + calls, self._counted[1] + nbytes)

    def _next_part(self) -> None:
        """Calls that were answered before they could leave again are not left, either."""
        _, calls, nbytes = self.parts.popleft()
        self._left(calls - self._counted[0], nbytes - self._counted[1])
        self._at, self._counted = 0, (0, 0)


def _resent(part: SentPart, places: list[int]) -> ResentCalls:
    return ResentCalls(
        part,
        [part.first + at for at in places],
        [part.payloads[at] for at in places],
        None if part.specs is None else [part.specs[at] for at in places],
    )


def refuse_oversize(outbox: CallOutbox, pending: PendingCalls, limit: int) -> None:
    """Fails calls, waiting or to be sent again, that are too large for the next router."""
    for part in outbox.take_oversize(limit):
        refuse(part, limit)
    ids, sizes = pending.oversize(limit)
    for part, at, start, count in pending.settle(ids):
        for index in range(count):
            fail(part, at + index, 1, too_large(sizes[start + index], limit, was_sent=True))
        part.settled(at, count)


class EndpointSession:
    """The current session; if routers refuse to resume it, it is followed by a new one.

    Invariants: an epoch is used once. A router is asked to resume all calls that were sent and have no outcome.
    """

    def __init__(self) -> None:
        self._id = new_id()
        self._epoch = 0
        self.rosters = Rosters()
        """The acknowledged rosters of this session."""

    def identify(self, opening: router_service_pb2.OpenStream, pending: PendingCalls) -> None:
        """Another connection is opened. `pending`: the unanswered calls of earlier ones."""
        self._epoch += 1
        opening.session_id = self._id
        opening.epoch = self._epoch
        if self._epoch > 1:
            opening.unanswered.extend(ranges_to_wire(pending.unanswered()))
            opening.rosters.extend(self.rosters.at_opening(is_resuming=pending.calls > 0))
