"""Lanes whose calls may travel in one batch: those that differ in nothing but their ordering key.

Invariant: of one endpoint's client, specs that agree in all else have the same group.
Owner: the endpoint's `CallStream`.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

from slotmesh.client.runs import CallQueue
from slotmesh.v1 import call_pb2


class LaneGroup(CallQueue):
    """The queue in which lanes have their columns."""

    __slots__ = ("wire",)

    def __init__(self, wire: call_pb2.CallOptions) -> None:
        super().__init__()
        self.wire = wire
        """What the lanes share: options without an ordering key. Never changed."""


class LaneGroups:
    """Finds the group of a spec."""

    __slots__ = ("_groups",)

    def __init__(self) -> None:
        self._groups: WeakValueDictionary[tuple[bytes, Any], LaneGroup] = WeakValueDictionary()

    def of(self, wire: call_pb2.CallOptions, wanted: Any) -> LaneGroup:
        """The group of calls with these options and results of this type."""
        shared = call_pb2.CallOptions()
        shared.CopyFrom(wire)
        shared.ordering_key = ""
        key = (shared.SerializeToString(deterministic=True), wanted)
        try:
            group = self._groups.get(key)
        except TypeError:  # an annotation that has no hash: nobody shares it
            return LaneGroup(shared)
        if group is None:
            group = self._groups[key] = LaneGroup(shared)
        return group
