"""Slots as their callers see them: under tokens that name this incarnation of this replica.

Invariants: a token of another replica, or of an earlier incarnation, opens nothing here and its holder hears why; that
of a slot which another identity has reserved, or for an endpoint that the caller may not call, is as unknown as one
that was made up; what is told of a lease is true at the moment in which it is told.
Owner: the app.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass

from replica_service.core.failures import SLOT_UNKNOWN
from replica_service.core.slots.slot_table import ReservedSlot
from slotmesh.errors import Failure, Reason
from slotmesh.runtime.clock import Clock
from slotmesh.slots.requests import token_of
from slotmesh.slots.token import format_token
from slotmesh.v1 import slot_service_pb2
from slotmesh.wire_time import put_seconds

_NO_SECRET = b""
"""That of no slot."""


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who gives slots here. Without a name it still tells its own tokens from those of others."""

    clock: Clock
    replica_id: str = ""
    incarnation: str = ""
    backend: str = ""
    address: Callable[[], str] = str
    """Where callers reach this replica, once it is known."""
    is_of_another: Callable[[bytes, str, Container[str] | None], bool] = lambda _secret, _identity, _endpoints: False
    """Whether the slot with this secret was reserved by somebody else than who has this name, or for another endpoint
    than one of these."""

    def to_wire(self, slot: ReservedSlot, ongoing: int) -> slot_service_pb2.Slot:
        """A slot, and how loaded the replica is: running calls and reservations, this one included."""
        ttl_s = slot.ttl_s(self.clock.now())
        wire = slot_service_pb2.Slot(
            token=format_token(self.replica_id, self.incarnation, slot.secret),
            backend=self.backend,
            replica_id=self.replica_id,
            replica_address=self.address(),
            ongoing=ongoing,
        )
        put_seconds(wire.ttl, ttl_s)
        put_seconds(wire.expire_time, self.clock.time_of_day() + ttl_s)
        return wire

    def secret_of(self, token: str, identity: str, endpoints: Container[str] | None) -> bytes | Failure:
        """The secret of a slot that this incarnation may have given to who has this name; empty: to anybody.

        `endpoints`: those that who has the name may call; None: all.
        """
        parsed = token_of(token)
        if isinstance(parsed, Failure):
            return parsed
        if parsed.replica_key == (self.replica_id, self.incarnation):
            return SLOT_UNKNOWN if self.is_of_another(parsed.secret, identity, endpoints) else parsed.secret
        return self._gone(parsed.replica_id)

    def secret_to_release(self, token: str, identity: str, endpoints: Container[str] | None) -> bytes | Failure:
        """The same, for whoever wants nothing but that the slot is free: those of earlier incarnations are."""
        secret = self.secret_of(token, identity, endpoints)
        if not isinstance(secret, Failure):
            return secret
        is_past = secret.metadata.get("replica_id") == self.replica_id
        return _NO_SECRET if is_past or secret is SLOT_UNKNOWN else secret

    def _gone(self, replica_id: str) -> Failure:
        is_same = replica_id == self.replica_id
        what = "has been restarted since" if is_same else f"is not this one, which is {self.replica_id}"
        message = f"token: replica {replica_id}, which gave the slot, {what}"
        return Failure(reason=Reason.REPLICA_GONE, message=message, metadata={"replica_id": replica_id})
