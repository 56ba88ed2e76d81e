"""One object for equal owners of partitions: endpoints in front of the same backends mostly have the same ones.

Purpose: a mesh of 10,000 endpoints has few different assignments of 4,096 partitions. What is shared is kept, stored
and sent once.
Invariants: what comes back equals what was given; an assignment that nothing else refers to is not kept.
Owner: `shell.reconcile_loop`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import WeakValueDictionary

from controller_service.core.partitions import PartitionOwnership


class OwnershipPool:
    """The assignments that are in use."""

    def __init__(self, known: Iterable[PartitionOwnership]) -> None:
        """`known` are those that there are already."""
        self._known: WeakValueDictionary[tuple[object, ...], PartitionOwnership] = WeakValueDictionary()
        """By their content: a key must not refer to the object."""
        for each in {id(it): it for it in known}.values():
            self.shared(each)

    def shared(self, ownership: PartitionOwnership) -> PartitionOwnership:
        """The object for owners that are equal to these."""
        content = (
            *(ownership.owners, ownership.partition_owners, ownership.epochs),
            *(ownership.leaving, ownership.inherited),
        )
        return self._known.setdefault(content, ownership)

    def all_shared(self, ownership: Mapping[str, PartitionOwnership]) -> dict[str, PartitionOwnership]:
        """The same of each endpoint."""
        objects = {id(it): it for it in ownership.values()}
        shared = {key: self.shared(it) for key, it in objects.items()}
        return {name: shared[id(it)] for name, it in ownership.items()}
