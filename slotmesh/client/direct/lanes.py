"""Direct lanes, as applications see them: slots that are held for call after call, and the methods called in them.

Invariant: all of it is the holder's; there is nothing to keep here but the methods by name.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from math import inf
from types import TracebackType
from typing import Any

from slotmesh.client.calls.argument_checks import BadOption, check_method_name, checked_seconds
from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.options import ViewOptions
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.direct.direct_method import DirectMethod
from slotmesh.client.direct.holder import SlotHolder
from slotmesh.client.slots.client import SlotClient
from slotmesh.client.slots.terms import Terms, in_slot, terms_of
from slotmesh.slots.limits import DEFAULT_LEASE_S

MAX_SLOTS = 256
"""Slots that direct lanes hold at most."""


class DirectLanes:
    """Slots of an endpoint's replicas, and calls straight to these: `await lanes.classify(pixels)`.

    Every attribute that is not listed here is a method of the handler; `method` finds those whose names are. Slots are
    reserved when calls need them, and given back when they are idle, or the block ends.
    """

    def __init__(self, client: SlotClient, view: ViewOptions, terms: Terms, slots: int, idle_s: float) -> None:
        self._endpoint = terms.endpoint
        self._view = in_slot(view, is_idempotent=view.idempotent)
        self._holder = SlotHolder(client, terms, slots, idle_s)
        self._methods: dict[str, DirectMethod[Any]] = {}

    @property
    def held(self) -> int:
        """Slots that are held, or being reserved, now."""
        return len(self._holder.plan.places)

    def method(self, name: str) -> DirectMethod[Any]:
        """The handler's method of that name: for names that are attributes of ours, and for computed ones."""
        method = self._methods.get(name)
        if method is None:
            check_method_name(name)
            spec = CallSpec(self._endpoint, name, self._view, CallQueue())
            method = self._methods[name] = DirectMethod(self._holder, spec)
        return method

    async def aclose(self) -> None:
        """Gives all slots back. Calls that wait are not sent, calls that run are cancelled."""
        await self._holder.finish(0.0)

    def __call__(self, *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
        """Calls the handler itself: a function, or an object with `__call__`."""
        return self.method("__call__")(*args, **kwargs)

    def __getattr__(self, name: str) -> DirectMethod[Any]:
        if name.startswith("_"):  # never a handler's method; Python asks for many of these
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        method = self.method(name)
        self.__dict__[name] = method  # from now on found without coming here
        return method

    async def __aenter__(self) -> DirectLanes:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Waits until all calls have their outcomes, unless an exception passes; then gives all slots back."""
        await self._holder.finish(inf if error is None else 0.0)

    def __repr__(self) -> str:
        return f"<slotmesh direct lanes of {self._endpoint}>"


def direct_lanes(
    client: SlotClient,
    endpoint: str,
    view: ViewOptions,
    slots: int,
    ttl: float | timedelta = DEFAULT_LEASE_S,
    idle: float | timedelta | None = None,
) -> DirectLanes:
    """Direct lanes of a view of an endpoint. Arguments and errors are those of `Endpoint.direct`."""
    count: Any = slots
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_SLOTS:
        raise BadOption("slots", f"must be an integer from 1 to {MAX_SLOTS}, got {slots!r}")
    terms = terms_of(endpoint, view, {"ttl": ttl})
    idle_s = terms.ttl_s if idle is None else checked_seconds("idle", idle)
    if not idle_s >= 0:
        raise BadOption("idle", f"must be a number of seconds that is not negative, or a timedelta, got {idle!r}")
    return DirectLanes(client, view, terms, slots, idle_s)
