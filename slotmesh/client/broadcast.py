"""Broadcasts: a method on every replica of an endpoint, and the outcome of each.

Invariant: a failure of a replica is part of the result; what is raised is that the broadcast as a whole was refused, or
that no router was reached. Once a router has named the replicas, each has an outcome, whatever happens to the router.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, Unpack

import grpc

from slotmesh.calls.call_options import CallRpc, OptionChanges
from slotmesh.client.calls.call_spec import (
    CallSpec,
    MethodSignature,
    payload_of,
    rpc_timeout_s,
    time_left_s,
    trace_metadata,
)
from slotmesh.client.calls.method_types import P, ResultT
from slotmesh.client.calls.named_methods import NamedMethods
from slotmesh.client.calls.options import ViewOptions, check_method_name, check_text
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.routers import is_cancelled_here
from slotmesh.client.stream.call_stream import CLOSED, CallStream
from slotmesh.client.unary import MethodRpc
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.status import from_wire, to_exception
from slotmesh.v1 import router_service_pb2


class BroadcastResult(Mapping[str, "ResultT | Exception"], Generic[ResultT]):
    """The outcome of each replica, by replica id: the result, or the exception that a call of its own would raise."""

    def __init__(self, outcomes: Mapping[str, ResultT | Exception], backends: Mapping[str, str]) -> None:
        self._outcomes = MappingProxyType(dict(outcomes))
        self.backends: Mapping[str, str] = MappingProxyType(dict(backends))
        """The backend of each replica."""
        self.ok: Mapping[str, ResultT] = MappingProxyType(
            {name: it for name, it in outcomes.items() if not isinstance(it, Exception)}
        )
        """The results, by replica id."""
        self.failed: Mapping[str, Exception] = MappingProxyType(
            {name: it for name, it in outcomes.items() if isinstance(it, Exception)}
        )
        """The failures, by replica id: SlotmeshError, whose `executed` states whether the call was executed; or
        DecodeError, for a result of another type."""

    def raise_for_failures(self) -> None:
        """Raises an ExceptionGroup of the failures, if there are any."""
        if self.failed:
            message = f"{len(self.failed)} of {len(self)} replicas failed: {', '.join(sorted(self.failed)[:8])}"
            raise ExceptionGroup(message, [*self.failed.values()])

    def __getitem__(self, replica_id: str) -> ResultT | Exception:
        return self._outcomes[replica_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outcomes)

    def __len__(self) -> int:
        return len(self._outcomes)

    def __repr__(self) -> str:
        return f"<slotmesh broadcast result: {len(self.ok)} ok, {len(self.failed)} failed>"


class BroadcastMethod(Generic[ResultT, P]):
    """Calls one method on every replica. Get it as an attribute: `endpoint.broadcast.drop_cache`."""

    def __init__(self, stream: CallStream, spec: CallSpec, backend: str) -> None:
        self._stream = stream
        self._spec = spec
        self._backend = backend

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> BroadcastResult[ResultT]:
        """Calls it on every replica that the router lists as not draining, and returns when each has its outcome.

        No call is made twice, or at another replica. The view's `timeout` is the deadline of all; None: 60 s.
        Cancelling cancels the calls: those that have not started never start.

        Raises:
            TypeError: the content type cannot carry the arguments.
            PayloadTooLarge: they do not fit into an rpc.
            SlotmeshError: no replica was called, and why; failures of replicas are in the result.
        """
        spec = self._spec
        options, timeout_s = spec.options, spec.options.timeout_s
        if options.inherits and (left_s := time_left_s()) is not None:
            timeout_s = left_s if timeout_s is None else min(left_s, timeout_s)
            options = replace(options, timeout_s=timeout_s)
        payload = payload_of(spec, args, kwargs)
        request = router_service_pb2.BroadcastRequest(
            endpoint=spec.endpoint,
            options=options.to_wire(spec.method, rpc=CallRpc.BROADCAST),
            payload=payload,
            backend=self._backend,
        )
        rpc, outcomes = MethodRpc(spec, self._stream), _Outcomes(spec)
        stub = await rpc.reach()
        if isinstance(stub, Failure):
            raise rpc.error(stub)
        call: Any = None
        try:
            call = stub.Broadcast(request, timeout=rpc_timeout_s(timeout_s), metadata=trace_metadata(payload))
            async for response in call:
                outcomes.add(response)
        except grpc.RpcError as error:
            failure = _named(rpc.failure_of(error), rpc)
            if outcomes.backends is None:
                raise rpc.error(failure) from None
            outcomes.broke_off(failure)
        except asyncio.CancelledError:
            if is_cancelled_here():
                raise
            raise rpc.error(replace(CLOSED, executed=Executed.UNKNOWN)) from None
        finally:
            if call is not None:
                call.cancel()
        return BroadcastResult(outcomes.by_replica, outcomes.backends or {})

    def __repr__(self) -> str:
        return f"<slotmesh broadcast {self._spec.endpoint}.{self._spec.method}>"


def _named(failure: Failure, rpc: MethodRpc) -> Failure:
    """If the router does not know broadcasts, the message states that."""
    if failure.reason is not Reason.NOT_IMPLEMENTED:
        return failure
    message = f"the router at {rpc.address} does not know broadcasts, as one of slotmesh 0.2: update it"
    return replace(failure, message=message, executed=Executed.NO)


class _Outcomes:
    """What a router has sent of one broadcast."""

    def __init__(self, spec: CallSpec) -> None:
        self._spec = spec
        self.backends: dict[str, str] | None = None
        """By replica; None before the router has named the replicas."""
        self.by_replica: dict[str, Any] = {}

    def add(self, response: router_service_pb2.BroadcastResponse) -> None:
        if self.backends is None:
            self.backends = {each.replica_id: each.backend for each in response.targets}
            return
        outcome: Any
        if response.WhichOneof("outcome") == "failure":
            outcome = self._error(from_wire(response.failure), response.replica_id)
        else:
            try:
                outcome = self._spec.result_of(response.payload)
            except ValueError as error:
                outcome = error
        self.by_replica[response.replica_id] = outcome

    def broke_off(self, failure: Failure) -> None:
        """The rpc has ended before each replica had its outcome: what became of the others is not known."""
        lost = replace(failure, executed=Executed.UNKNOWN)
        for replica_id in self.backends or ():
            if replica_id not in self.by_replica:
                self.by_replica[replica_id] = self._error(lost, replica_id)

    def _error(self, failure: Failure, replica_id: str) -> Exception:
        failure = replace(failure, metadata={"replica_id": replica_id, **failure.metadata})
        return to_exception(failure, endpoint=self._spec.endpoint, method=self._spec.method)


class Broadcast(NamedMethods[BroadcastMethod[Any, ...]]):
    """The methods of an endpoint, on every replica: `results = await digits.broadcast.drop_cache()`."""

    def __init__(self, stream: CallStream, options: ViewOptions, backend: str = "") -> None:
        super().__init__()
        self._stream = stream
        self._options = options
        self._backend = backend

    def only(self, backend: str) -> Broadcast:
        """Only replicas of this backend, which the endpoint's policy has to name.

        Raises:
            ValueError: the name is empty, or no str.
        """
        check_text("the name of a backend", backend)
        if not backend:
            raise ValueError("a backend's name must not be empty")
        return Broadcast(self._stream, self._options, backend)

    def options(self, **changes: Unpack[OptionChanges]) -> Broadcast:
        """A view whose calls differ in what is given here.

        `content_type`, `timeout`, `tenant`, `metadata`, `traced` and `inherits` have an effect.
        """
        return Broadcast(self._stream, self._options.changed(**changes), self._backend)

    def _new_method(self, name: str, signature: MethodSignature) -> BroadcastMethod[Any, ...]:
        check_method_name(name)
        options = self._options.changed(reply=True)  # each outcome is a response, which is decoded
        spec = CallSpec(self._stream.endpoint, name, options, CallQueue(), signature)
        return BroadcastMethod(self._stream, spec, self._backend)

    def __repr__(self) -> str:
        return f"<slotmesh broadcast to {self._stream.endpoint}>"
