"""What launchers that follow Kubernetes report, as transitions of the observed state.

Invariants: the end of a pod ends each incarnation that has reported its uid, also one that attaches, or is learnt of,
later. A replica that was lost is asked to drain, should it still report.
Owner: the task that follows the pods, and `ProcessWatch`, which looks for late incarnations.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Final

from controller_service.core.observed import launches
from controller_service.core.observed.state import Observed, ObservedReplica
from controller_service.shell.launchers.protocol import LaunchEvents
from controller_service.shell.loops.launching import Launching
from controller_service.shell.members.replica_links import ReplicaLinks
from controller_service.shell.mesh_state import MeshState

ENDED_KEPT: Final = 4_096
"""Pods that have ended, and are remembered; the newest ones."""


class PodEvents(LaunchEvents):
    """Applies each event to the state."""

    def __init__(
        self, state: MeshState, links: ReplicaLinks, launching: Launching, on_resumed: Callable[[], None]
    ) -> None:
        self._state = state
        self._links = links
        self._launching = launching
        self._on_resumed = on_resumed
        self._ended: dict[str, str] = {}
        """How pods have ended, by uid."""

    def found(self) -> None:
        self._launching.take_stock()

    def waits(self, replica_id: str, why: str) -> None:
        self._launching.waits(replica_id, why)

    def lost(self, replica_id: str, why: str) -> None:
        self._state.apply_to_replica(
            replica_id, lambda observed, now: launches.lost(observed, replica_id, why, now=now)
        )
        self._links.drain(replica_id, why)

    def ended(self, replica_id: str, how: str) -> None:
        for replica in [it for it in self._state.observed.incarnations() if it.replica_id == replica_id]:
            self._state.replica_ended(replica.owner, how)

    def pod_ended(self, uid: str, how: str) -> None:
        self._ended[uid] = how
        while len(self._ended) > ENDED_KEPT:
            del self._ended[next(iter(self._ended))]
        self.look()

    def resumed(self) -> None:
        self._on_resumed()

    def look(self) -> None:
        """Ends the incarnations that ran in pods that have ended."""
        for replica in ended_with_pods(self._state.observed, self._ended):
            self._state.replica_ended(replica.owner, f"its pod has ended: {self._ended[replica.pod_uid]}")


def ended_with_pods(observed: Observed, ended: Collection[str]) -> list[ObservedReplica]:
    """The incarnations that are not known to have ended, of these pods."""
    return [it for it in observed.incarnations() if not it.gone and it.pod_uid in ended] if ended else []
