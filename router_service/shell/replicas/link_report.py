"""The report to the controller on links to replicas: which links work, and which replicas have ended in order.

Owner: the app. Links write it, the table watch reads it.
"""

from __future__ import annotations

from collections.abc import Callable

from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing.rosters import ReplicaKey
from router_service.core.scheduler import RouterScheduler


class LinkReport:
    """Of the replicas in the table."""

    def __init__(self, scheduler: RouterScheduler) -> None:
        self._scheduler = scheduler
        self._ended: set[ReplicaKey] = set()
        self.on_change: Callable[[], None] = lambda: None
        """Called when a replica was linked or lost, or has ended."""

    def ended(self, replica: RoutedReplica) -> None:
        """The replica has sent go_away, and has ended its stream in order."""
        self._ended.add(replica.key)
        self.on_change()

    def ended_replicas(self) -> list[ReplicaKey]:
        """Those that have."""
        self._ended &= self._scheduler.topology.replicas.keys()
        return sorted(self._ended)

    def linked_replicas(self) -> list[ReplicaKey]:
        """Those that there is a working link to."""
        return sorted(each.key for each in self._scheduler.topology.replicas.values() if each.linked)
