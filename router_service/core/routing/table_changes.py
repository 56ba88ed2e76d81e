"""What a new routing table changes, beyond what exists: what waits finds its place anew.

Owner: the scheduler.
"""

from __future__ import annotations

from router_service.core import cancellation
from router_service.core.replicas.sender import Sender
from router_service.core.routing.events import TableReceived
from router_service.core.routing.intake import RoutingIntake
from router_service.core.routing.topology import Topology
from router_service.core.sessions.acknowledgements import Acknowledgements
from router_service.core.sessions.resumption import Resumptions
from router_service.core.slots.operations import RoutedSlotOperations


class TableChanges:
    """Brings everything in line with each new table."""

    def __init__(
        self,
        topology: Topology,
        sender: Sender,
        intake: RoutingIntake,
        resumptions: Resumptions,
        acknowledgements: Acknowledgements,
        operations: RoutedSlotOperations,
    ) -> None:
        self._topology = topology
        self._sender = sender
        self._intake = intake
        self._resumptions = resumptions
        self._acknowledgements = acknowledgements
        self._operations = operations

    def received(self, event: TableReceived, now: float) -> None:
        """Takes the table, unless it is older than the one in force."""
        topology, sender = self._topology, self._sender
        if not event.table.supersedes(topology.table):
            return
        homeless, recharged = topology.apply(event.table)
        self._acknowledgements.table_changed(now)
        for run in homeless:
            cancellation.uncharge(run)
            self._intake.route(run, now, admitted=True)
        for run in recharged:
            if run.account is not None:
                run.account.waits(now)
            self._intake.watch(run)
        for endpoint in topology.reassigned:
            for partition in endpoint.partitions.values():
                sender.list(partition)
        for replica in list(topology.replicas.values()):
            if replica.ready:
                sender.pump(replica, now)
        for backend in topology.backends.values():
            sender.pump_queue(backend, now)
        self._resumptions.table_changed(now)
        self._operations.table_changed(now)
