"""A handler's method, called in a slot.

Invariants: the slot is used when the method is called, not when its result is awaited; arguments that cannot be sent
use nothing. A call is sent once: where its router is lost, nobody knows what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, Unpack, cast

from slotmesh.client.calls.call_spec import CallSpec
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.unary_rpcs import payload_of, rpc_timeout_s
from slotmesh.client.slots.lease import SlotLease
from slotmesh.client.slots.slot_values import SlotValues
from slotmesh.client.slots.terms import DispatchOptions, check_dispatch_options
from slotmesh.client.values.value_stream import ValueStream
from slotmesh.codec import DecodeError
from slotmesh.errors import Failure
from slotmesh.v1 import slot_service_pb2

ResultT = TypeVar("ResultT")
OtherT = TypeVar("OtherT")


class SlotMethod(Generic[ResultT]):
    """Calls one method in a slot. Get it as an attribute: `slot.generate`."""

    __slots__ = ("_lease", "_spec")

    def __init__(self, lease: SlotLease, spec: CallSpec) -> None:
        self._lease = lease
        self._spec = spec

    def __call__(self, *args: Any, **kwargs: Any) -> asyncio.Future[ResultT]:
        """Makes the call that the slot was reserved for; await the result at will. It is never refused for load.

        Cancelling the future cancels the call at its replica.

        Raises:
            TypeError: the content type cannot carry the arguments. The slot is not used.
            PayloadTooLarge: the arguments do not fit into an rpc. The slot is not used.
            SlotUsed: a call was made in the slot already.
            SlotError: the slot was given back or lost. From the future, too: its replica does not have it any more.
            SlotmeshError: from the future: the call failed, and how.
        """
        return self.begin(self.encode(args, kwargs))

    def stream(self, *args: Any, **kwargs: Any) -> ValueStream[ResultT]:
        """Calls a handler that yields: `async for value in slot.generate.stream(prompt)`.

        Leaving the loop early takes the call back. Raises as a call does; the iterator in place of the future.
        """
        return self.begin_stream(self.encode(args, kwargs))

    def options(self, **changes: Unpack[DispatchOptions]) -> SlotMethod[ResultT]:
        """The same method, with other options: `content_type`, `timeout`, `metadata`, as those of `Endpoint.options`.

        Raises:
            BadRequest: a value that no call may have. It is a ValueError, too.
            TypeError: there is no such option, or results of the new content type never become the type wanted.
        """
        check_dispatch_options(changes)
        spec = self._spec
        options = spec.options.changed(**changes)
        return SlotMethod(self._lease, CallSpec(spec.endpoint, spec.method, options, CallQueue(), spec.wanted))

    def returning(self, result_type: type[OtherT]) -> SlotMethod[OtherT]:
        """The same method, with results of this type, as `Method.returning`.

        Raises:
            TypeError: the content type never becomes this type.
        """
        spec = self._spec
        return SlotMethod(self._lease, CallSpec(spec.endpoint, spec.method, spec.options, CallQueue(), result_type))

    # -- calls in two steps: what other threads may do, and what only the loop does -----------------------------------

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The payload of a call. Raises as a call does."""
        return payload_of(self._spec, args, kwargs)

    def begin(self, payload: bytes) -> asyncio.Task[ResultT]:
        """Makes a call."""
        lease, spec = self._lease, self._spec
        lease.use()
        task = lease.client.start_call(self._dispatch(payload), name=f"slotmesh-client-dispatch-{spec.endpoint}")
        lease.call_runs(task.cancel)
        task.add_done_callback(self._on_done)
        return task

    def begin_stream(self, payload: bytes) -> ValueStream[ResultT]:
        """Makes a call whose values come one by one."""
        lease, spec = self._lease, self._spec.streamed()
        lease.use()
        request = slot_service_pb2.DispatchStreamingRequest(
            token=lease.wire.token, options=spec.wire, payload=payload, endpoint=spec.endpoint
        )
        return SlotValues(spec, lease, request)

    async def _dispatch(self, payload: bytes) -> ResultT:
        lease, spec = self._lease, self._spec
        request = slot_service_pb2.DispatchRequest(
            token=lease.wire.token, options=spec.wire, payload=payload, endpoint=spec.endpoint
        )
        timeout_s = rpc_timeout_s(spec.options.timeout_s)
        response = await lease.client.rpcs.once(lambda stub: stub.Dispatch(request, timeout=timeout_s))
        if isinstance(response, Failure):
            lease.call_ended(response)
            raise lease.error(response, spec.method)
        lease.call_ended()
        try:
            return cast("ResultT", response.payload if spec.decode is None else spec.decode(response.payload))
        except DecodeError as error:
            raise spec.undecodable(error) from None

    def _on_done(self, task: asyncio.Task[ResultT]) -> None:
        if task.cancelled():  # perhaps before it began
            self._lease.call_ended(cut_off=True)

    def __repr__(self) -> str:
        return f"<slotmesh method {self._spec.endpoint}.{self._spec.method} in a {self._lease}>"
