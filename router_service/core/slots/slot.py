"""Operations on slots, and their results, as values: reserve, dispatch, renew, release.

Purpose: each operation on a slot is a run of one call, whose options say what it is. A reservation goes wherever there
is room; the others are *bound*: only the replica that gave the slot can do them.
Owner: made at the edge, read by the core.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slotmesh.errors import Failure
from slotmesh.slots.limits import DEFAULT_LEASE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """A slot, at any replica that will do."""

    ttl_s: float = DEFAULT_LEASE_S
    """Length of the lease, from the grant."""
    replica_id: str = ""
    """The wanted replica; empty where any will do."""
    excluded: frozenset[str] = frozenset()
    """Replicas that are not wanted."""
    identity: str = ""
    """The name of who will have the slot; empty where nobody is asked who they are."""

    @property
    def is_constrained(self) -> bool:
        """Whether not every replica will do."""
        return bool(self.replica_id or self.excluded)

    def admits(self, replica_id: str) -> bool:
        """Whether this replica will do."""
        return replica_id == (self.replica_id or replica_id) and replica_id not in self.excluded


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """A call, in a slot."""

    token: str = field(repr=False)
    endpoint: str = ""
    """The endpoint that the caller means; empty where it does not say."""
    identity: str = ""
    """The name of who asks; here and below empty where nobody is asked who they are."""
    endpoints: frozenset[str] | None = None
    """Here and below, those that who asks may call: slots of others are unknown to it. None: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """A longer lease."""

    token: str = field(repr=False)
    ttl_s: float = DEFAULT_LEASE_S
    """From now."""
    identity: str = ""
    endpoints: frozenset[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The slot goes back."""

    token: str = field(repr=False)
    identity: str = ""
    endpoints: frozenset[str] | None = None


SlotWork = Reserve | Dispatch | Renew | Release


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedSlot:
    """A leased slot, as its replica describes it."""

    token: str = field(repr=False)
    backend: str
    replica_id: str
    replica_address: str
    ongoing: int
    """The replica's running calls and reservations, this one included."""
    ttl_s: float
    """What is left of the lease, from now."""
    expire_time_s: float
    """When it ends, Unix seconds by the replica's clock: for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleasedSlot:
    """A slot that is not leased any more, and how loaded its replica is; zeros where nothing was held."""

    ongoing: int = 0
    max_ongoing: int = 0


OperationAnswer = tuple[int, "LeasedSlot | ReleasedSlot | Failure"]
"""The id of an operation, and what came of it."""
