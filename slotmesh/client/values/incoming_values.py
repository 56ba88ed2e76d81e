"""Values of handlers that yield, as one stream brings them.

Purpose: brings each to its call; acknowledges values to the router, gathered, so that handlers go on.
Invariants: a value settles nothing, its call is unanswered until it ends. Values for a call that has ended, was
cancelled, or asked for one result, are ignored. Such calls do not outlive the stream, and no state here does.
Owner: the `RouterLink` of one connection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slotmesh.client.calls.outcomes import other_content_type
from slotmesh.client.calls.sent_parts import SentPart
from slotmesh.client.stream.pending_calls import PendingCalls
from slotmesh.client.values.call_values import CallValues
from slotmesh.codec import OCTET_STREAM
from slotmesh.errors import Failure
from slotmesh.status import to_exception
from slotmesh.v1 import call_pb2


class ArrivingValues:
    """Between one stream and the values of its calls."""

    __slots__ = ("_pending", "_wake", "unacknowledged")

    def __init__(self, pending: PendingCalls, wake: Callable[[], None]) -> None:
        """`wake` is called when there is something for `take_frame`."""
        self._pending = pending
        self._wake = wake
        self.unacknowledged: dict[CallValues, None] = {}
        """To be read: `take_frame` may have something to give."""

    def accept(self, ids: Sequence[int], payloads: list[bytes], content_type: str) -> None:
        """The next values of these calls; an id appears once for each value."""
        before, values = 0, None
        for call_id, payload in zip(ids, payloads, strict=True):
            if call_id != before:
                before, values = call_id, self._values_of(call_id, content_type)
            if values is not None:
                values.put(payload, call_id, self)

    def lose(self, call_id: int, failure: Failure) -> None:
        """A value of this call is not to be had."""
        found = self._find(call_id)
        if found is not None:
            _fail(*found, call_id, failure)

    def taken(self, values: CallValues) -> None:
        """So many values of these calls were taken that they should be acknowledged."""
        self.unacknowledged[values] = None
        self._wake()

    def take_frame(self) -> call_pb2.TakeItems | None:
        """Values that were taken and not acknowledged, by call."""
        if not self.unacknowledged:
            return None
        taken, self.unacknowledged = self.unacknowledged, {}
        counts = {values.call_id: count for values in taken if (count := values.tell())}
        return call_pb2.TakeItems(call_ids=counts.keys(), counts=counts.values()) if counts else None

    def _values_of(self, call_id: int, content_type: str) -> CallValues | None:
        found = self._find(call_id)
        if found is None:
            return None
        part, values = found
        if (content_type or OCTET_STREAM) != part.spec.content_type:
            _fail(part, values, call_id, other_content_type(part, content_type))
            return None
        return values

    def _find(self, call_id: int) -> tuple[SentPart, CallValues] | None:
        """The values of a call, if they are wanted."""
        found = self._pending.find(call_id)
        if found is None or not found[0].spec.streaming:
            return None
        part, place = found
        values = part.sinks[place]
        return (part, values) if isinstance(values, CallValues) and not values.done() else None


def _fail(part: SentPart, values: CallValues, call_id: int, failure: Failure) -> None:
    """Of a call that goes on: it is `done` for its part now, and so it will be taken back."""
    spec = part.spec
    values.set_exception(to_exception(failure, endpoint=spec.endpoint, method=spec.method, call_id=call_id))
