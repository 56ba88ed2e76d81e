"""The counters that are 0 because nothing was counted yet, of what the routing table names.

Prometheus sees an increase only between two values: a counter that appears with its first failure hides that failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from router_service.core.counters import ReservationAnswer, ShadowOutcome
from router_service.core.routing.topology import Topology
from slotmesh.errors import Reason

ALERTED_ON: Final = (
    Reason.QUEUE_FULL,
    Reason.QUEUE_TIMEOUT,
    Reason.DEADLINE_IN_QUEUE,
    Reason.DEADLINE_RUNNING,
    Reason.HANDLER_ERROR,
    Reason.REPLICA_LOST,
    Reason.BACKEND_UNAVAILABLE,
)
"""Reasons of failures that somebody should be able to wait for. All others appear with their first failure."""


class Zeros:
    """Of the table in force."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology

    def of_endpoints(self) -> Mapping[tuple[str, ...], int]:
        return dict.fromkeys(((name,) for name in self._topology.table.endpoints), 0)

    def of_backends(self) -> Mapping[tuple[str, ...], int]:
        return dict.fromkeys(((name,) for name in self._topology.backends), 0)

    def of_failures(self) -> Mapping[tuple[str, ...], int]:
        """By endpoint, backend and reason."""
        return {
            (endpoint.name, backend, reason.value): 0
            for endpoint in self._topology.table.endpoints.values()
            for backend in ("", *(endpoint.weights or ()))
            for reason in ALERTED_ON
        }

    def of_shadows(self) -> Mapping[tuple[str, ...], int]:
        """By backend and outcome."""
        return {
            (backend, outcome.value): 0
            for endpoint in self._topology.table.endpoints.values()
            for backend in endpoint.shadows
            for outcome in ShadowOutcome
        }

    def of_reservations(self) -> Mapping[tuple[str, ...], int]:
        """By endpoint and outcome."""
        return {(name, answer.value): 0 for name in self._topology.table.endpoints for answer in ReservationAnswer}
