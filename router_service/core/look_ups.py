"""A call with a request id at an earlier owner of its partition.

Invariants: the earlier owner delivers a known outcome or refuses the call, and never executes it. Only calls of the
same ordering key wait for it. A call has one at a time, so there are at most as many as open rpcs.
"""

from __future__ import annotations

from typing import Final

from router_service.core.runs import RouterRun, Sent

NOT_OWNED: Final = -1
"""The owner epoch of calls that are recovered from, or looked up at, a replica which may not be their owner."""
LINK_WAIT_S: Final = 2.0
"""What only one replica can do waits this time for a link to it."""


class LookUp(Sent):
    """The call, at one earlier owner."""

    __slots__ = ()


def not_looked_up(sent: LookUp) -> RouterRun:
    """The run of a look-up without an answer: its call has to be looked up there again."""
    run, key = sent.run, sent.replica.key
    run.looked_up = {each: epoch for each, epoch in run.looked_up.items() if each != key}
    return run
