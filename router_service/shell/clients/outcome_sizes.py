"""What outcomes take: in a frame, and in the memory of the router.

Owner: pure functions.
"""

from __future__ import annotations

from typing import Final

from router_service.core.commands import DeliverFailure, DeliverResults, DeliverValues, Delivery
from router_service.core.unread_results import CALL_BYTES
from slotmesh.wire.chunks import Announced
from slotmesh.wire.payload_block import nbytes_of

ID_BYTES: Final = 40
"""What an id takes in a list."""


def bytes_of(outcome: Delivery) -> int:
    """What the outcome adds to a frame, near enough. Values are counted by credits."""
    if isinstance(outcome, DeliverResults):
        return nbytes_of(outcome.payloads)
    return len(outcome.failure.message) if isinstance(outcome, DeliverFailure) else 0


def held_by(outcome: Delivery, nbytes: int) -> int:
    """What the outcome takes here, which adds so many bytes to a frame. Payloads in chunks are counted apart."""
    if isinstance(outcome, DeliverResults):
        return CALL_BYTES * len(outcome.ids) + nbytes
    if isinstance(outcome, DeliverValues):
        size = CALL_BYTES * len(outcome.ids)
        return size if isinstance(outcome.payloads[0], Announced) else size + sum(map(len, outcome.payloads))
    # However many calls have failed alike: they are one object, and most often a range.
    return CALL_BYTES + (0 if isinstance(outcome.ids, range) else ID_BYTES * len(outcome.ids)) + nbytes
