"""A handler's method, called over direct lanes.

Invariants: a call is made when the method is called, not when its result is awaited. Cancelling its future takes it
back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, Unpack

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.unary_rpcs import payload_of
from slotmesh.client.direct.holder import SlotHolder
from slotmesh.client.direct.places import PlacedCall
from slotmesh.client.slots.terms import DispatchOptions

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")


class DirectOptions(DispatchOptions, total=False):
    """What a call over direct lanes may say differently from the view that they were made by."""

    idempotent: bool


class DirectFuture(asyncio.Future[Any]):
    """The result of a call."""

    holder: SlotHolder
    call: PlacedCall

    def cancel(self, msg: Any | None = None) -> bool:
        """Takes the call back: it is not sent any more, or is cancelled at its replica."""
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
        """Makes a call; await the result at will. It runs in the first slot that is free.

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
            BadRequest: a value that no call may have. It is a ValueError, too.
            TypeError: there is no such option, or results of the new content type never become the type wanted.
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
            TypeError: the content type never becomes this type.
        """
        spec = self._spec
        return DirectMethod(self._holder, CallSpec(spec.endpoint, spec.method, spec.options, CallQueue(), result_type))

    # -- calls in two steps: what other threads may do, and what only the loop does -----------------------------------

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
