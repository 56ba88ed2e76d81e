"""The routing table of another generation that a router has brought: what an earlier controller knew."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from controller_service.core.partitions import PartitionOwnership
from controller_service.core.roster import CoveredTables, IncarnationRoster


@dataclass(frozen=True, slots=True, kw_only=True)
class BroughtTable:
    """A table that was in force at a router when it attached."""

    generation: str
    roster: IncarnationRoster
    ownership: Mapping[str, PartitionOwnership] = field(default_factory=lambda: MappingProxyType({}))
    """By endpoint."""
    router_addresses: frozenset[str] = frozenset()
    """Where the routers of its generation serve: any of them may bring a newer table."""

    @property
    def newest_epoch(self) -> int:
        """0 where no partition has an owner."""
        owned = {id(it): it for it in self.ownership.values()}.values()
        return max((max(it.epochs) for it in owned if it.epochs), default=0)

    def chain(self) -> tuple[CoveredTables, ...]:
        """The generations that it covers, its own last."""
        own = CoveredTables(
            generation=self.generation,
            revision=self.roster.revision,
            departed_since=self.roster.departed_since,
        )
        return (*self.roster.covers, own)

    def covers(self, generation: str, revision: int) -> bool:
        """Whether all members of that roster are in it, or have ended."""
        return any(it.generation == generation and it.revision >= revision for it in self.chain())
