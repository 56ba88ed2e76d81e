"""A slot as applications use it: its replica, its token, and the methods that can be called in it.

Invariants: the lease has all state of the slot. A slot is used when the method is called, not when its result is
awaited; arguments that cannot be sent do not use it. A call is sent once: if its router is lost, its outcome is
unknown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Generic, TypedDict, Unpack

import grpc

from slotmesh.calls.call_options import CallRpc
from slotmesh.client.calls.call_spec import UNTYPED, CallSpec, MethodSignature, payload_of, rpc_timeout_s
from slotmesh.client.calls.method_types import OtherT, P, ResultT, ValueT
from slotmesh.client.calls.named_methods import NamedMethods
from slotmesh.client.calls.options import ViewOptions, check_known, check_method_name
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.values import RpcValues, ValuesCall, ValueStream
from slotmesh.client.slots.client import SlotRpcs
from slotmesh.client.slots.lease import SlotLease
from slotmesh.errors import Failure, Reason, SlotmeshError
from slotmesh.status import from_rpc_error
from slotmesh.v1 import slot_service_pb2


class DispatchOptions(TypedDict, total=False):
    """Options in which a call in a slot may differ from the view that the slot was reserved by."""

    content_type: str
    timeout: float | timedelta | None
    metadata: Mapping[str, str]


def in_slot(view: ViewOptions, *, is_idempotent: bool = False) -> ViewOptions:
    """The options of a view without those that choose a replica, an order or a form of the result: a slot has its own.

    `is_idempotent`: they may be sent again. In a slot that is used once, they cannot be.
    """
    return replace(
        view,
        method="",
        ordering_key="",
        shard_key="",
        affinity_key="",
        prefix_blocks=(),
        slo_s=None,
        slo_at=None,
        stop_generation=0,
        no_reply=False,
        streaming=False,
        after_failure="continue",
        traced=False,
        inherits=False,
        request_id=None,
        idempotent=is_idempotent,
    )


class SlotMethod(Generic[ResultT, P, ValueT]):
    """Calls one method of the handler in a slot. Get it as an attribute: `slot.generate`."""

    __slots__ = ("_lease", "_spec")

    def __init__(self, lease: SlotLease, spec: CallSpec) -> None:
        self._lease = lease
        self._spec = spec

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[ResultT]:
        """Makes the call that the slot was reserved for; await the result at any time. It is never refused for load.

        Cancelling the future cancels the call at its replica.

        Raises:
            TypeError: the content type cannot carry the arguments. The slot is not used.
            PayloadTooLarge: the arguments do not fit into an rpc. The slot is not used.
            SlotUsed: a call was made in the slot already.
            SlotError: the slot was given back or lost; raised by the future if its replica does not have it any more.
            SlotmeshError: raised by the future: the call failed.
        """
        return self.begin(self.encode(args, kwargs))

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> ValueStream[ValueT]:
        """Calls a handler that yields: `async for value in slot.generate.stream(prompt)`.

        Leaving the loop early cancels the call. Raises as a call does, the iterator in place of the future.
        """
        return self.begin_stream(self.encode(args, kwargs))

    def options(self, **changes: Unpack[DispatchOptions]) -> SlotMethod[ResultT, P, ValueT]:
        """The same method, with other options: `content_type`, `timeout`, `metadata`, of `slotmesh.OptionChanges`.

        Raises:
            BadRequest: an invalid value. It is a ValueError, too.
            TypeError: an unknown option, or the new content type cannot carry results of the requested type.
        """
        check_known(changes, DispatchOptions, "a call in a slot has no option")
        return SlotMethod(self._lease, self._spec.but(options=self._spec.options.changed(**changes)))

    def returning(self, result_type: type[OtherT]) -> SlotMethod[OtherT, P, OtherT]:
        """The same method, with results of this type, as `Method.returning`.

        Raises:
            TypeError: the content type cannot carry this type.
        """
        return SlotMethod(self._lease, self._spec.but(wanted=result_type))

    # -- calls in two steps: `encode` in any thread, the rest on the event loop ----------------------------------------

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

    def begin_stream(self, payload: bytes) -> ValueStream[ValueT]:
        """Makes a call whose values arrive one by one."""
        lease, spec = self._lease, self._spec.streamed()
        lease.use()
        request = slot_service_pb2.DispatchStreamingRequest(
            token=lease.wire.token, options=spec.wire, payload=payload, endpoint=spec.endpoint
        )
        call = lease.client.start(
            _open(lease.client.rpcs, spec, request), name=f"slotmesh-client-dispatch-{spec.endpoint}"
        )
        values = RpcValues(call, _SlotRpc(lease, spec.method))
        lease.call_runs(values.close)
        return ValueStream(spec, values)

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
        result: ResultT = spec.result_of(response.payload)
        return result

    def _on_done(self, task: asyncio.Task[ResultT]) -> None:
        if task.cancelled():  # perhaps before it started
            self._lease.call_ended(cut_off=True)

    def __repr__(self) -> str:
        return f"<slotmesh method {self._spec.endpoint}.{self._spec.method} in a {self._lease}>"


class _SlotRpc:
    """The rpc of a call whose values arrive one by one.

    Invariant: if it is given up before the first value, the slot is given back, too: the call may not have reached its
    replica.
    """

    def __init__(self, lease: SlotLease, method: str) -> None:
        self._lease = lease
        self._method = method

    def failure_of(self, error: grpc.RpcError) -> Failure:
        failure = from_rpc_error(error)
        return self._lease.client.rpcs.lost(failure.message) if failure.reason is Reason.ROUTER_LOST else failure

    def cut_off(self) -> Failure:
        return self._lease.client.rpcs.cut_off()

    def ended(self, failure: Failure | None, *, cut_off: bool) -> None:
        self._lease.call_ended(failure, cut_off=cut_off)

    def error(self, failure: Failure) -> SlotmeshError:
        return self._lease.error(failure, self._method)


async def _open(
    rpcs: SlotRpcs, spec: CallSpec, request: slot_service_pb2.DispatchStreamingRequest
) -> ValuesCall | Failure:
    stub = await rpcs.stub()
    if isinstance(stub, Failure):
        return stub
    try:
        call: ValuesCall = stub.DispatchStreaming(request, timeout=rpc_timeout_s(spec.options.timeout_s))
    except grpc.RpcError as error:  # the token source has no token
        return from_rpc_error(error)
    return call


@dataclass(frozen=True, slots=True)
class ReplicaLoad:
    """The load of a replica."""

    ongoing: int
    """Running calls and reservations."""
    max_ongoing: int
    """All permits."""


class SlotSpecs:
    """The specifications of calls in slots, by method of a view of an endpoint: computed once."""

    def __init__(self, endpoint: str, view: ViewOptions) -> None:
        self.endpoint = endpoint
        self._view = view
        self._specs: dict[tuple[str, MethodSignature], CallSpec] = {}

    def of(self, method: str, signature: MethodSignature = UNTYPED) -> CallSpec:
        """The specification of calls of this method."""
        spec = self._specs.get((method, signature))
        if spec is None:
            check_method_name(method)
            options = in_slot(self._view)
            spec = CallSpec(self.endpoint, method, options, CallQueue(), signature, CallRpc.DISPATCH)
            self._specs[method, signature] = spec
        return spec


class Slot(NamedMethods[SlotMethod[Any]]):
    """A permit of one replica, for one call: `await slot.generate(prompt)`.

    Every attribute that is not listed here is a method of the handler; `method` finds those whose names are. It is
    renewed while its block runs, for five minutes in all, and given back when the block ends without a call.
    """

    def __init__(self, lease: SlotLease, specs: SlotSpecs) -> None:
        super().__init__()
        self._lease = lease
        self._specs = specs

    @property
    def token(self) -> str:
        """For another process to make the call: any router accepts it, and the replica. Its holder can use the slot."""
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

    def _new_method(self, name: str, signature: MethodSignature) -> SlotMethod[Any]:
        return SlotMethod(self._lease, self._specs.of(name, signature))

    async def release(self) -> ReplicaLoad:
        """Gives the slot back before its block ends, and returns the load of its replica.

        A slot that was used or given back is not changed.

        Raises:
            SlotmeshError: no router could be reached. The lease expires by itself.
        """
        released = await self._lease.release()
        return ReplicaLoad(released.ongoing, released.max_ongoing)

    def __repr__(self) -> str:
        return f"<slotmesh {self._lease}>"
