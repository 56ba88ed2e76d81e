"""Direct lanes as applications use them: slots that are held for many calls, and the methods called in them.

Invariants: the holder has all state, except the methods by name. A call is made when the method is called, not when its
result is awaited. Cancelling its future cancels the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from math import inf
from types import TracebackType
from typing import Any, Generic, TypeVar, Unpack

from slotmesh.calls.slot_tokens import DEFAULT_LEASE_S
from slotmesh.client.calls.call_spec import CallSpec, payload_of
from slotmesh.client.calls.options import BadOption, ViewOptions, check_method_name, checked_seconds
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.direct.holder import SlotHolder
from slotmesh.client.direct.places import PlacedCall
from slotmesh.client.slots.client import SlotClient
from slotmesh.client.slots.terms import DispatchOptions, Terms, in_slot, terms_of

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")


class DirectOptions(DispatchOptions, total=False):
    """Options in which a call over direct lanes may differ from the view that they were made by."""

    idempotent: bool


class DirectFuture(asyncio.Future[Any]):
    """The result of a call."""

    holder: SlotHolder
    call: PlacedCall

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancels the call: it is not sent any more, or is cancelled at its replica."""
        cancelled = super().cancel(msg)
        if cancelled:
            self.holder.cancel(self.call)
        return cancelled


class DirectMethod(Generic[ResultT]):
    """Calls one method over direct lanes. Get it as an attribute: `lanes.classify`."""

    __slots__ = ("_holder", "_spec")

    def __init__(self, holder: SlotHolder, spec: CallSpec) -> None:
        self._holder = holder
        self._spec = spec

    def __call__(self, *args: Any, **kwargs: Any) -> asyncio.Future[ResultT]:
        """Makes a call; await the result at any time. It runs in the first slot that is free.

        Cancelling the future cancels the call at its replica.

        Raises:
            TypeError: the content type cannot carry the arguments.
            PayloadTooLarge: the arguments do not fit into one message.
            SlotmeshError: from the future: the call failed, and how.
            RuntimeError: the mesh is closed.
        """
        return self.begin(payload_of(self._spec, args, kwargs))

    def options(self, **changes: Unpack[DirectOptions]) -> DirectMethod[ResultT]:
        """The same method, with other options: `content_type`, `timeout`, `metadata`, `idempotent`.

        Raises:
            BadRequest: an invalid value. It is a ValueError, too.
            TypeError: an unknown option, or the new content type cannot carry results of the requested type.
        """
        if unknown := changes.keys() - DirectOptions.__annotations__.keys():
            known = ", ".join(DirectOptions.__annotations__)
            raise TypeError(f"a call over direct lanes has no option {', '.join(sorted(unknown))}; there are {known}")
        spec = self._spec
        options = spec.options.changed(**changes)
        return DirectMethod(self._holder, CallSpec(spec.endpoint, spec.method, options, CallQueue(), spec.wanted))

    def returning(self, result_type: type[OtherT]) -> DirectMethod[OtherT]:
        """The same method, with results of this type, as `Method.returning`.

        Raises:
            TypeError: the content type cannot carry this type.
        """
        spec = self._spec
        return DirectMethod(self._holder, CallSpec(spec.endpoint, spec.method, spec.options, CallQueue(), result_type))

    # -- calls in two steps: `encode` in any thread, the rest on the event loop ----------------------------------------

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The payload of a call. Raises as a call does."""
        return payload_of(self._spec, args, kwargs)

    def begin(self, payload: bytes) -> DirectFuture:
        """Makes a call."""
        future = DirectFuture()
        future.holder = holder = self._holder
        future.call = holder.submit(self._spec, payload, future)
        return future

    def __repr__(self) -> str:
        return f"<slotmesh method {self._spec.endpoint}.{self._spec.method} over direct lanes>"


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
        """The handler's method of that name: for names that are attributes of this class, and for computed ones."""
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
