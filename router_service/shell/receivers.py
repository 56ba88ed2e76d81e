"""The receivers of commands: sinks receive deliveries to callers, links receive what is sent to replicas.

Owner: the dispatcher calls them; streams, unary calls and links implement them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from router_service.core.commands import CancelRun, DeliverSlot, DeliverTaken, Delivery
from router_service.core.limits.capacity import KnownReplica
from router_service.core.rosters import RosterVersion, SessionConnection


class CallerSink(Protocol):
    """Receives the outcomes of one caller."""

    def deliver(self, delivery: Delivery) -> None:
        """Takes outcomes or values of some of the caller's calls; must not block."""


class SessionSink(CallerSink, Protocol):
    """Receives the outcomes of a session, and rosters for its client."""

    def name_roster(self, version: RosterVersion) -> None:
        """Sends the current roster to the client; must not block."""


class SlotSink(CallerSink, Protocol):
    """Receives the outcome of one operation on a slot."""

    def deliver_slot(self, delivery: DeliverSlot) -> None:
        """Takes the outcome of an operation that did not fail; must not block."""


class BroadcastSink(CallerSink, Protocol):
    """Receives the replicas of one broadcast, then the outcome of each."""

    def deliver_targets(self, targets: Sequence[KnownReplica]) -> None:
        """Takes the replicas, in the order of the calls' ids, which begin with 1; must not block."""


class RequestSource(CallerSink, Protocol):
    """The source of the requests of one call that takes several."""

    def taken(self, delivery: DeliverTaken) -> None:
        """The handler has begun, or has taken some of them; must not block."""


class ReplicaReceiver(Protocol):
    """The link to one replica."""

    def flush(self) -> None:
        """Something waits to be sent: cut frames until nothing is left."""

    def cancel(self, command: CancelRun) -> None:
        """Cancels these calls of a slice at the replica."""

    def reconcile(self, session: SessionConnection) -> None:
        """Asks the replica what became of the session's unanswered calls."""

    def retry_in(self, delay_s: float) -> None:
        """The link failed: it connects again after `delay_s` seconds."""

    def forget(self, first: int, count: int) -> None:
        """Acknowledges the outcomes of these runs: the replica need not keep them."""

    def take(self, run_id: int, count: int) -> None:
        """Reports to the replica that `count` values of the run were taken."""

    def request(self, run_id: int, requests: Sequence[bytes | None]) -> None:
        """Sends requests of a call that takes several; None: there are no more."""

    async def finish(self) -> None:
        """Writes what is queued, and returns when the replica has ended the stream."""

    def close(self) -> None:
        """Disconnects, and does not connect again."""


class OpenLinks:
    """The links to all replicas that the router connects to, or has not disconnected from yet, by replica.

    The dispatcher opens and closes them, as the scheduler commands. `links` is the number of links to the replica that
    had been lost when a run was sent; run ids of an earlier link are ignored.
    """

    def __init__(self) -> None:
        self.by_replica: dict[KnownReplica, ReplicaReceiver] = {}

    def retry(self, replica: KnownReplica, delay_s: float) -> None:
        """The link should connect again, after `delay_s` seconds."""
        if (link := self.by_replica.get(replica)) is not None:
            link.retry_in(delay_s)

    def close(self, replica: KnownReplica) -> None:
        """The replica is no longer of use."""
        if link := self.by_replica.pop(replica, None):
            link.close()

    def forget(self, replica: KnownReplica, links: int, first: int, count: int) -> None:
        """The client has the outcomes of these runs of the replica."""
        if replica.links == links and (link := self.by_replica.get(replica)) is not None:
            link.forget(first, count)

    def take(self, replica: KnownReplica, links: int, run_id: int, count: int) -> None:
        """`count` values of this run were taken."""
        if replica.links == links and (link := self.by_replica.get(replica)) is not None:
            link.take(run_id, count)

    def of(self, replica: KnownReplica, links: int) -> ReplicaReceiver | None:
        """The link to the replica, if it is still the one after `links` lost ones."""
        return self.by_replica.get(replica) if replica.links == links else None

    async def finish(self) -> None:
        """Sends replicas the last acknowledgements of clients and ends their streams. Returns when they have ended."""
        await asyncio.gather(*(link.finish() for link in self.by_replica.values()))

    def close_all(self) -> None:
        """Disconnects from all replicas."""
        for link in self.by_replica.values():
            link.close()
