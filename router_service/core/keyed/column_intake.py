"""Calls of many ordering keys that can go to their owners at once: one run an owner, instead of one a key.

Purpose: most keyed calls find nothing before them. Then what has to be known of each is its partition and the owner of
that; all else is done once for all of them.
Invariants: a call goes this way only if nothing of its partition waits, and the owner takes calls and has room. Where
one call of a partition does not, none behind it in the batch does: so none of a key overtakes another.
Owner: the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import TypeVar

from router_service.core.callers import Caller
from router_service.core.calls import KeyedBatch
from router_service.core.keyed.partition_column import PartitionColumn
from router_service.core.keyed.partitions import Partition
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.replicas.sender import Sender
from router_service.core.routing.endpoints import RoutedEndpoint
from router_service.core.routing.intake import RoutingIntake
from router_service.core.routing.topology import Topology
from router_service.core.runs import RouterRun
from router_service.core.tenants.book import TenantBook
from slotmesh.wire.trace_context import Traces, traces_of_calls


class ColumnIntake:
    """Sends what of a batch can leave at once."""

    def __init__(
        self, numbers: Iterator[int], topology: Topology, sender: Sender, intake: RoutingIntake, tenants: TenantBook
    ) -> None:
        """`numbers` are the ages of runs."""
        self._tenants = tenants
        self._numbers = numbers
        self._topology = topology
        self._sender = sender
        self._intake = intake

    def send(
        self, batch: KeyedBatch, caller: Caller, endpoint: RoutedEndpoint, traces: Traces | None, now: float
    ) -> Sequence[int]:
        """Sends calls whose turn it is. Returns the indices of the others, ascending."""
        partitions, going, staying = self._divide(batch, endpoint)
        all_payloads = batch.payloads if len(going) == 1 and not staying else list(batch.payloads)
        for owner, indices in going.items():
            is_all = len(indices) == len(batch.keys)
            keys = batch.keys if is_all else _pick(batch.keys, indices)
            own = partitions if is_all else _pick(partitions, indices)
            ids = batch.ids if is_all else _pick(batch.ids, indices)
            payloads = all_payloads if is_all else _pick(all_payloads, indices)
            run = RouterRun(next(self._numbers), caller, endpoint.name, batch.options, ids, payloads, now)
            run.traces = traces_of_calls(traces, ids) if traces is not None else None
            run.partition = run.column = PartitionColumn(keys, own, [each.epoch for each in own], batch.options_of)
            caller.runs[run] = None
            if batch.options.tenant:
                self._tenants.count(run, now)
            self._sender.send(run, len(keys), owner, 0, now)
            self._intake.watch(run)
        return staying

    def _divide(
        self, batch: KeyedBatch, endpoint: RoutedEndpoint
    ) -> tuple[list[Partition], dict[RoutedReplica, list[int]], list[int]]:
        """The partition of each call; the indices of those that can go, by owner; and of those that stay."""
        known, replicas = endpoint.partitions, self._topology.replicas
        partitions: list[Partition] = []
        going: dict[RoutedReplica, list[int]] = {}
        rooms: dict[RoutedReplica, int] = {}
        staying: list[int] = []
        for at, number in enumerate(batch.partitions):
            partition = known.get(number) or endpoint.partition(number, replicas)
            partitions.append(partition)
            owner = partition.owner
            if owner is None or partition.queue.runs or not partition.sendable:
                staying.append(at)
                continue
            indices = going.get(owner)
            if indices is None:
                rooms[owner] = owner.keyed_room
                indices = going[owner] = []
            if len(indices) < rooms[owner]:
                indices.append(at)
            else:
                staying.append(at)
        return partitions, {owner: indices for owner, indices in going.items() if indices}, staying


T = TypeVar("T")


def _pick(column: Sequence[T], indices: list[int]) -> list[T]:
    return [column[indices[0]]] if len(indices) == 1 else list(itemgetter(*indices)(column))
