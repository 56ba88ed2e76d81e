"""The ordering keys that a replica has gained or lost, as `on_keys_gained` and `on_keys_lost` get them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slotmesh.wire.partitions import partition_of


@dataclass(frozen=True, slots=True)
class OwnedKeys:
    """Ordering keys of one endpoint, by the partitions that they hash to. `"alice" in keys`: whether that one is."""

    endpoint: str
    """The endpoint whose calls they are of."""
    owner_epochs: Mapping[int, int]
    """Owner epoch by partition, 0 … 4,095: at which the replica owns it now, or has owned it until now."""

    def __contains__(self, ordering_key: str) -> bool:
        return partition_of(ordering_key) in self.owner_epochs
