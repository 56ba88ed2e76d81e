"""A slot, as applications see it: which replica it is at, and the methods that can be called in it.

Invariant: all of it is the lease's; there is nothing to keep here.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.slots.lease import SlotLease
from slotmesh.client.slots.slot_method import SlotMethod
from slotmesh.client.slots.terms import in_slot


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """How loaded a replica is."""

    ongoing: int
    """Calls that run, plus reservations."""
    max_ongoing: int
    """Permits in all."""


class SlotSpecs:
    """How calls in slots are made, for each method of a view of an endpoint: worked out once."""

    def __init__(self, endpoint: str, view: ViewOptions) -> None:
        self.endpoint = endpoint
        self._view = view
        self._specs: dict[str, CallSpec] = {}

    def of(self, method: str) -> CallSpec:
        """Of the handler's method of that name."""
        spec = self._specs.get(method)
        if spec is None:
            if not method or (method.startswith("_") and method != "__call__"):
                raise ValueError(f"a method needs a name that does not start with an underscore, got {method!r}")
            spec = self._specs[method] = CallSpec(self.endpoint, method, in_slot(self._view), CallQueue())
        return spec


class Slot:
    """A permit of one replica, for one call: `await slot.generate(prompt)`.

    Every attribute that is not listed here is a method of the handler; `method` finds those whose names are. It is
    renewed while its block runs, for five minutes in all, and given back when the block ends without a call.
    """

    def __init__(self, lease: SlotLease, specs: SlotSpecs) -> None:
        self._lease = lease
        self._specs = specs

    @property
    def token(self) -> str:
        """For whoever else shall make the call: any router takes it, and the replica. Whoever has it can use it."""
        return self._lease.wire.token

    @property
    def backend(self) -> str:
        """The backend of the replica."""
        return self._lease.wire.backend

    @property
    def replica_id(self) -> str:
        """The replica that holds the slot."""
        return self._lease.wire.replica_id

    @property
    def replica_address(self) -> str:
        """Where the replica serves SlotService: `HOST:PORT`."""
        return self._lease.wire.replica_address

    @property
    def ongoing(self) -> int:
        """The replica's running calls and reservations when the slot was granted, this one included."""
        return self._lease.wire.ongoing

    def method(self, name: str) -> SlotMethod[Any]:
        """The handler's method of that name: for names that are attributes of ours, and for computed ones."""
        return SlotMethod(self._lease, self._specs.of(name))

    async def release(self) -> ReplicaLoad:
        """Gives the slot back before its block ends, and says how loaded the replica is then.

        A slot that was used or given back is left as it is.

        Raises:
            SlotmeshError: no router could be told. The lease ends by itself.
        """
        released = await self._lease.release()
        return ReplicaLoad(released.ongoing, released.max_ongoing)

    def __call__(self, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Calls the handler itself: a function, or an object with `__call__`."""
        return self.method("__call__")(*args, **kwargs)

    def __getattr__(self, name: str) -> SlotMethod[Any]:
        if name.startswith("_"):  # never a handler's method; Python asks for many of these
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return self.method(name)

    def __repr__(self) -> str:
        return f"<slotmesh {self._lease}>"
