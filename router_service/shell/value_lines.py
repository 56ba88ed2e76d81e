"""What waits behind a large value of its own call.

Purpose: a value that leaves in chunks takes its time. All others pass it; but what its own call has to say after it,
more values and the end, comes after it.
Invariants: deliveries of one call leave in the order in which they came. Of one call, one payload at a time is in
chunks.
Owner: the client's outbox.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace

from router_service.core.commands import DeliverResults, DeliverValues, Delivery


class ValueLines:
    """Calls with a large value under way, and what waits behind each."""

    def __init__(self) -> None:
        self.calls: dict[int, deque[Delivery]] = {}
        """Empty where there are none: all other calls cost nothing here."""

    def begin(self, call_id: int) -> None:
        """A large value of this call starts to leave."""
        self.calls[call_id] = deque()

    def wait(self, delivery: Delivery) -> bool:
        """Takes the delivery, which is of one call, if it has to wait."""
        line = self.calls.get(delivery.ids[0])
        if line is None:
            return False
        line.append(delivery)
        return True

    def concerns(self, delivery: Delivery) -> bool:
        """Whether a part of it has to wait."""
        return not self.calls.keys().isdisjoint(delivery.ids)

    def end(self, call_id: int) -> deque[Delivery]:
        """The large value has left: what waited behind it, in order."""
        return self.calls.pop(call_id)


def values_singly(values: DeliverValues) -> Iterator[DeliverValues]:
    """The same, a value each."""
    for call_id, run_id, payload in zip(values.ids, values.run_ids, values.payloads, strict=True):
        yield replace(values, ids=[call_id], run_ids=[run_id], payloads=[payload])


def singly(delivery: Delivery) -> Iterator[Delivery]:
    """The same, a call or a value each. The first carries what the window gets back."""
    if isinstance(delivery, DeliverValues):
        yield from values_singly(delivery)
        return
    for at in range(len(delivery.ids)):
        first = delivery.first + at if delivery.first else 0
        size = 0 if at else delivery.size
        part = replace(delivery, ids=delivery.ids[at : at + 1], size=size, first=first)
        if isinstance(part, DeliverResults):
            part.payloads = part.payloads[at : at + 1]
        yield part
