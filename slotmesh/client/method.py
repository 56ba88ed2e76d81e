"""A handler's method, as callers use it.

Invariant: a call is made when the method is called, not when it is awaited: a lane's calls are in the order of the
statements.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Generic, Literal, Unpack, cast, overload

import grpc

from slotmesh.calls.call_options import CallRpc, OptionChanges
from slotmesh.client.calls.buffer import BufferShare
from slotmesh.client.calls.call_spans import in_span, spanned
from slotmesh.client.calls.call_spec import CallSpec, payload_of, rpc_timeout_s, time_left_s, trace_metadata
from slotmesh.client.calls.maps import Gather, Piece, pieces_of
from slotmesh.client.calls.method_types import (
    A,
    Awaited1,
    Awaited2,
    Awaited3,
    B,
    C,
    ListFuture,
    OtherT,
    P,
    ResultT,
    T,
    ValueT,
)
from slotmesh.client.calls.queues import CallQueue
from slotmesh.client.calls.values import CallValues, RpcValues, ValuesCall, ValueStream
from slotmesh.client.stream.call_stream import CallSink, CallStream
from slotmesh.client.unary import MethodRpc, call_alone
from slotmesh.codec import EncodeError
from slotmesh.errors import Failure
from slotmesh.status import to_exception
from slotmesh.v1 import router_service_pb2

_MAX_TIMEOUTS: Final = 256
"""Cached methods of a view, by timeout: more than there are rounded times from a millisecond to some seconds."""


class Method(Generic[ResultT, P, ValueT]):
    """Calls one method of an endpoint's handler. Get it as an attribute: `digits.classify`.

    For type checkers it has the type of results, the parameters, and the type of one value of a handler that yields.
    """

    __slots__ = ("__weakref__", "_spec", "_stream", "_submit")

    def __init__(self, stream: CallStream, spec: CallSpec) -> None:
        self._stream = stream
        self._spec = spec
        self._submit = stream.submit
        if spec.stop_generation and spec.queue.stop is not None:
            spec.queue.stop.methods.add(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[ResultT]:
        """Makes a call; await the result at any time. The call leaves with its neighbours in one frame.

        Arguments are positional, or named. Cancelling the future cancels the call: if it waits at the router, it never
        starts; if it runs, its replica is notified.

        Raises:
            TypeError: the content type cannot carry the arguments.
            SlotmeshError: from the future: the call failed, and how.
        """
        spec = self._spec
        try:
            return self._submit(spec, spec.encode(args, kwargs))
        except EncodeError as error:
            raise self._named(error) from None

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[ResultT]:
        """Makes a call once the client has room for it, and does not wait for its result.

        `future = await method.send(…)` is for calls that are made faster than the mesh takes them: a plain call fails
        with CLIENT_BUFFER_FULL if as many calls wait in the client as `slotmesh.connect` allows.

        Raises:
            TypeError: the content type cannot carry the arguments.
            SlotmeshError: from the future: the call failed, and how.
        """
        return await self._stream.send(self._spec, self.encode(args, kwargs))

    @overload
    def map(self: Awaited1[A, T], a: Iterable[A], /, *, return_exceptions: Literal[False] = False) -> ListFuture[T]: ...
    @overload
    def map(self: Awaited1[A, T], a: Iterable[A], /, *, return_exceptions: bool) -> ListFuture[T | Exception]: ...
    @overload
    def map(
        self: Awaited2[A, B, T], a: Iterable[A], b: Iterable[B], /, *, return_exceptions: Literal[False] = False
    ) -> ListFuture[T]: ...
    @overload
    def map(
        self: Awaited2[A, B, T], a: Iterable[A], b: Iterable[B], /, *, return_exceptions: bool
    ) -> ListFuture[T | Exception]: ...
    @overload
    def map(
        self: Awaited3[A, B, C, T],
        a: Iterable[A],
        b: Iterable[B],
        c: Iterable[C],
        /,
        *,
        return_exceptions: Literal[False] = False,
    ) -> ListFuture[T]: ...
    @overload
    def map(
        self, a: Iterable[Any], b: Iterable[Any], c: Iterable[Any], /, *more: Iterable[Any], return_exceptions: bool
    ) -> ListFuture[Any]: ...
    @overload
    def map(
        self, a: Iterable[Any], b: Iterable[Any], c: Iterable[Any], d: Iterable[Any], /, *more: Iterable[Any]
    ) -> ListFuture[Any]: ...
    def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> ListFuture[Any]:
        """Makes a call for each item; the results come as one list, in the order of the items.

        Takes an iterable for each positional argument, all of the same length, as the builtin `map` does. All calls end
        before the failure of the first one (by input order) is raised; with `return_exceptions` failures stand in the
        list instead. The exception lists the items that failed (`failed_items`).

        If the client has no room for all calls, these are made as others leave, and items are read as calls are
        made: errors of later items are raised from the future then, after all calls that were made have ended.

        Raises:
            TypeError: the content type cannot carry an item, or an iterable is a str or bytes. No call was made.
            ValueError: the iterables differ in length. No call was made.
            SlotmeshError: from the future: a call failed.
        """
        return self._stream.submit_map(self._spec, self.pieces(columns), keeps_failures=return_exceptions)

    async def unary(self, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        """Makes a call by a unary rpc of its own: many times the cost, and no order among calls.

        With the option `request_id` it is sent again, over another router, if its router is lost.

        Raises:
            TypeError: the content type cannot carry the arguments.
            SlotmeshError: the call failed, and how.
        """
        spec = self._spec.by(CallRpc.CALL) if self._spec.options.request_id else self._spec
        payload = payload_of(spec, args, kwargs)
        response = await call_alone(self._stream, spec, payload)
        if isinstance(response, Failure):
            raise to_exception(response, endpoint=spec.endpoint, method=spec.method)
        result: Any = spec.result_of(response.payload) if spec.options.reply else None
        return cast("ResultT", result)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> ValueStream[ValueT]:
        """Makes a call of a handler that yields: `async for value in method.stream(…)`.

        The call is made here, in line with the others, not when the loop begins. Each value is a result of the type set
        by `returning`; a method that returns has one. Leaving the loop early cancels the call. Such a call does not
        outlive the router that it went to: it fails with ROUTER_LOST then.

        Raises:
            TypeError: the content type cannot carry the arguments, or the view's calls have no reply.
            SlotmeshError: from the iterator, after the values before it: the call failed, and how.
        """
        spec = self._spec.streamed()
        values = CallValues()
        try:
            self._submit(spec, spec.encode(args, kwargs), values)
        except EncodeError as error:
            raise self._named(error) from None
        return ValueStream(spec, values)

    def unary_stream(self, *args: P.args, **kwargs: P.kwargs) -> ValueStream[ValueT]:
        """As `stream`, by an rpc of its own: no order among calls, and the transport holds the handler back.

        Raises:
            TypeError: the content type cannot carry the arguments, or the view's calls have no reply.
            PayloadTooLarge: the arguments do not fit into an rpc.
            SlotmeshError: from the iterator: the call failed, and how.
        """
        spec = self._spec.by(CallRpc.CALL_STREAMING).streamed()
        payload = payload_of(spec, args, kwargs)
        request = router_service_pb2.CallStreamingRequest(
            endpoint=spec.endpoint, options=spec.wire, payload=payload, request_id=spec.options.request_id or ""
        )
        timeout_s = rpc_timeout_s(spec.options.timeout_s)
        rpc = MethodRpc(spec, self._stream)

        async def begin() -> ValuesCall | Failure:
            stub = await rpc.reach()
            if isinstance(stub, Failure):
                return stub
            try:
                call: ValuesCall = stub.CallStreaming(request, timeout=timeout_s, metadata=trace_metadata(payload))
            except grpc.RpcError as error:  # the token source has no token
                return rpc.failure_of(error)
            return call

        call = asyncio.get_running_loop().create_task(begin(), name=f"slotmesh-client-call-{spec.endpoint}")
        values = RpcValues(call, rpc)
        self._stream.own_values.add(values)
        return ValueStream(spec, values)

    def options(self, **changes: Unpack[OptionChanges]) -> Method[ResultT, P, ValueT]:
        """The same method, with some options changed; `slotmesh.OptionChanges` documents them.

        Raises:
            BadRequest: an invalid value. It is a ValueError, too.
            TypeError: an unknown option, or the new content type cannot carry results of the requested type.
        """
        spec = self._spec
        options = spec.options.changed(**changes)
        # Calls of a lane stay in line. Others do not: what is urgent must not wait behind what is not.
        queue = spec.queue if options.ordering_key else CallQueue()
        return method_of(self._stream, spec.but(options=options, queue=queue))

    def returning(self, result_type: type[OtherT]) -> Method[OtherT, P, OtherT]:
        """The same method, with results of this type: a Struct, a dataclass, any annotation; a protobuf message class.

        A result that is not of the type raises DecodeError (a ValueError) from the future.

        Raises:
            TypeError: the view's content type cannot carry this type.
        """
        return method_of(self._stream, self._spec.but(wanted=result_type))

    def in_call(self) -> Method[ResultT, P, ValueT]:
        """The method for calls that are made now: with the options that they inherit from the executed call."""
        return self

    # -- calls in two steps: `encode` in any thread, the rest on the event loop ----------------------------------------

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """The payload of a call. Raises TypeError where the content type cannot carry the arguments."""
        try:
            return self._spec.encode(args, kwargs)
        except EncodeError as error:
            raise self._named(error) from None

    def pieces(self, columns: tuple[Iterable[Any], ...]) -> Iterator[Piece]:
        """The payloads of a map, a piece at a time. Raises, from the iterator, as `map` does."""
        try:
            yield from pieces_of(self._spec.encode_each, columns)
        except EncodeError as error:
            raise self._named(error) from None

    def submit(self, sink: CallSink, payload: bytes) -> None:
        """Makes a call that has its place in the client, and whose outcome `sink` takes."""
        self._submit(self._spec, payload, sink, has_place=True)

    def submit_part(self, gather: Gather, payloads: list[bytes]) -> None:
        """Makes calls of a map that have their places in the client."""
        self._stream.submit_part(self._spec, payloads, gather)

    @property
    def share(self) -> BufferShare:
        """The share of the client's buffer in which its calls are counted."""
        return self._stream.share_of(self._spec)

    @property
    def timeout_s(self) -> float | None:
        """The total time that a call may take, seconds; None: no limit of its own."""
        return self._spec.options.timeout_s

    def refuse(self, sink: CallSink, _payload: bytes) -> None:
        """Fails a call for which the client has no room. In a lane that stops, those behind it fail, too."""
        self._stream.refuse_full(self._spec, sink)

    def renew(self) -> None:
        """The lane's next generation begins."""
        self._spec = self._spec.but()

    def _named(self, error: EncodeError) -> EncodeError:
        return EncodeError(f"{self._spec.endpoint}.{self._spec.method}: {error}")

    def __repr__(self) -> str:
        return f"<slotmesh method {self._spec.endpoint}.{self._spec.method}>"


class TracedMethod(Method[ResultT, P, ValueT]):
    """The method of a view with the option `traced`."""

    __slots__ = ()

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[ResultT]:
        make = super().__call__
        return spanned(self._spec, lambda: make(*args, **kwargs))

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[ResultT]:
        with in_span(self._spec):
            return await super().send(*args, **kwargs)

    def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> ListFuture[Any]:
        make: Any = super().map
        return spanned(self._spec, lambda: make(*columns, return_exceptions=return_exceptions))

    async def unary(self, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        with in_span(self._spec):
            return await super().unary(*args, **kwargs)


class InheritingMethod(Method[ResultT, P, ValueT]):
    """The method of a view with the option `inherits`."""

    __slots__ = ("_by_timeout",)

    def __init__(self, stream: CallStream, spec: CallSpec) -> None:
        super().__init__(stream, spec)
        self._by_timeout: dict[float | None, Method[ResultT, P, ValueT]] = {}
        """The same method, by the timeout of its calls. Remaining times are rounded, so they are few."""

    def in_call(self) -> Method[ResultT, P, ValueT]:
        spec, timeout_s = self._spec, time_left_s()
        stated_s = spec.options.timeout_s
        if timeout_s is None or (stated_s is not None and stated_s < timeout_s):
            timeout_s = stated_s
        method = self._by_timeout.get(timeout_s)
        if method is None:
            if len(self._by_timeout) >= _MAX_TIMEOUTS:
                self._by_timeout.clear()
            derived = spec.but(options=replace(spec.options, timeout_s=timeout_s))
            method = self._by_timeout[timeout_s] = TracedMethod(self._stream, derived)
        return method

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[ResultT]:
        return self.in_call()(*args, **kwargs)

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[ResultT]:
        return await self.in_call().send(*args, **kwargs)

    def map(self, *columns: Iterable[Any], return_exceptions: bool = False) -> ListFuture[Any]:
        return self.in_call().map(*columns, return_exceptions=return_exceptions)

    async def unary(self, *args: P.args, **kwargs: P.kwargs) -> ResultT:
        return await self.in_call().unary(*args, **kwargs)

    def stream(self, *args: P.args, **kwargs: P.kwargs) -> ValueStream[ValueT]:
        return self.in_call().stream(*args, **kwargs)

    def unary_stream(self, *args: P.args, **kwargs: P.kwargs) -> ValueStream[ValueT]:
        return self.in_call().unary_stream(*args, **kwargs)

    def renew(self) -> None:
        super().renew()
        self._by_timeout.clear()


def method_of(stream: CallStream, spec: CallSpec) -> Method[ResultT, P, ValueT]:
    """The method whose calls are made by this spec."""
    if spec.options.inherits:
        return InheritingMethod(stream, spec)
    return TracedMethod(stream, spec) if spec.options.traced else Method(stream, spec)
