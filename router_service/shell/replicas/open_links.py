"""The links to all replicas that the router connects to, or has not left yet.

Owner: the dispatcher opens and closes them, as the scheduler commands.
"""

from __future__ import annotations

import asyncio

from router_service.core.runs import SliceHolder
from router_service.shell.receivers import ReplicaReceiver


class OpenLinks:
    """Links by replica."""

    def __init__(self) -> None:
        self.by_replica: dict[SliceHolder, ReplicaReceiver] = {}

    def retry(self, replica: SliceHolder, delay_s: float) -> None:
        """The link should connect again, after `delay_s` seconds."""
        if (link := self.by_replica.get(replica)) is not None:
            link.retry_in(delay_s)

    def close(self, replica: SliceHolder) -> None:
        """The replica is no longer of use."""
        if link := self.by_replica.pop(replica, None):
            link.close()

    def forget(self, replica: SliceHolder, links: int, first: int, count: int) -> None:
        """The client has the outcomes of these runs of the replica, sent when so many links to it had been lost."""
        if replica.links == links and (link := self.by_replica.get(replica)) is not None:
            link.forget(first, count)

    def take(self, replica: SliceHolder, links: int, run_id: int, count: int) -> None:
        """So many values of this run were taken; it was sent when so many links to the replica had been lost."""
        if replica.links == links and (link := self.by_replica.get(replica)) is not None:
            link.take(run_id, count)

    def of(self, replica: SliceHolder, links: int) -> ReplicaReceiver | None:
        """The link to the replica, if it is still the one that was up when so many had been lost."""
        return self.by_replica.get(replica) if replica.links == links else None

    async def finish(self) -> None:
        """Sends replicas the last acknowledgements of clients and ends their streams. Returns when they have ended."""
        await asyncio.gather(*(link.finish() for link in self.by_replica.values()))

    def close_all(self) -> None:
        """Disconnects from all replicas."""
        for link in self.by_replica.values():
            link.close()
