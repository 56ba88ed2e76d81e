"""What outcomes take: in a frame, and in the memory of the router.

Owner: pure functions.
"""

from __future__ import annotations

from router_service.core.commands import DeliverFailure, DeliverResults, DeliverValues, Delivery
from router_service.core.unread import CALL_BYTES
from slotmesh.wire.chunks import Announced


def bytes_of(outcome: Delivery) -> int:
    """What the outcome adds to a frame, near enough. Values are counted by credits."""
    if isinstance(outcome, DeliverResults):
        return sum(map(len, outcome.payloads))
    return len(outcome.failure.message) if isinstance(outcome, DeliverFailure) else 0


def held_by(outcome: Delivery) -> int:
    """What the outcome takes here. Payloads in chunks are counted apart."""
    size = CALL_BYTES * len(outcome.ids)
    if isinstance(outcome, DeliverValues):
        return size if isinstance(outcome.payloads[0], Announced) else size + sum(map(len, outcome.payloads))
    return size + bytes_of(outcome)
