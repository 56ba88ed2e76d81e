"""One partition of an endpoint's ordering keys: who owns it, and what waits for that owner.

Purpose: order per key through every change of owner.
Invariants: runs leave in order of arrival. Nothing is sent to an owner while calls sent to an earlier one are
unanswered, nor at an epoch at which a replica has said that it is not the owner; so nothing overtakes.
Owner: the scheduler; made when the first key of the partition is called.
"""

from __future__ import annotations

from collections.abc import Sequence

from router_service.core.queueing.run_queues import RunQueue
from router_service.core.replicas.replica import RoutedReplica


class Partition:
    """State of one partition of one endpoint."""

    __slots__ = ("endpoint", "epoch", "inflight", "listed", "number", "owner", "queue", "refused_epoch", "stale")

    def __init__(self, endpoint: str, number: int) -> None:
        self.endpoint = endpoint
        self.number = number
        self.owner: RoutedReplica | None = None
        self.epoch = 0
        """Epoch of the owner; strictly increases with each change."""
        self.inflight = 0
        """Slices sent and not answered, to whichever owner. Of slices with calls of several keys: calls."""
        self.stale = 0
        """Those of them that went to an earlier owner."""
        self.refused_epoch = -1
        """The newest epoch at which a replica has refused to be the owner: runs wait for a newer one."""
        self.queue = RunQueue()
        self.listed = False
        """Whether the partition is in the owner's list of partitions with something to send."""

    def assign(self, owner: RoutedReplica | None, epoch: int) -> None:
        """Names the owner."""
        if epoch == self.epoch and owner is self.owner:
            return
        if epoch != self.epoch:
            self.stale = self.inflight
        self.owner, self.epoch = owner, epoch
        self.listed = False

    @property
    def sendable(self) -> bool:
        """Whether the head of the queue may be sent to the owner, room aside."""
        owner = self.owner
        return (
            owner is not None
            and owner.linked
            and not owner.draining
            and not owner.is_joining
            and not self.stale
            and self.epoch > self.refused_epoch
        )

    def sent(self, owner_epoch: int) -> None:
        """A slice left for the owner at this epoch."""
        self.inflight += 1
        self.stale += owner_epoch != self.epoch

    def answered(self, owner_epoch: int, _lo: int, _count: int, *, is_last: bool) -> Sequence[int]:
        """Calls of a slice are at the owner no more; `is_last`: none is. Returns its own number if it may go on."""
        return (self.number,) if is_last and self.settled(owner_epoch) else ()

    def settled(self, owner_epoch: int) -> bool:
        """A slice has its outcome, or came back. Returns whether what waits may go on, and is not listed."""
        self.inflight -= 1
        if owner_epoch != self.epoch:
            self.stale -= 1
        return not self.stale and bool(self.queue) and not self.listed

    def refused(self, owner_epoch: int, _lo: int = 0, _count: int = 0) -> None:
        """A replica is not the owner at this epoch: hold everything until the table names one at a newer epoch."""
        self.refused_epoch = max(self.refused_epoch, owner_epoch)
