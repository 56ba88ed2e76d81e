"""The methods of a handler that implement rpcs of the user's own protos, ready to be called.

Purpose: an rpc is one more method to all that runs methods, under the name `package.Service/Method`: its request is a
message, or an iterator over messages; what it returns or yields is a message, framed with the metadata that it has set.
Invariants: messages are of the classes of the user's generated module; the context that a method takes is that of its
call; what is set in it before a failure goes with the failure.
Owner: made when the handler has been constructed; executors read.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from replica_service.core.calls import ReplicaRun
from replica_service.shell.executors.call_context import SharedPlace, SinglePlace, ThreadPlace
from replica_service.shell.handler.methods import BadCall, HandlerMethod, StartFunction
from replica_service.shell.handler.own_services import FoundRpc
from replica_service.shell.handler.rpc_calls import async_call, async_values, plain_call, plain_values
from replica_service.shell.links.requests import RequestStream
from slotmesh.codec import DecodeError, RpcDecoder, parser_of, serializer_of
from slotmesh.codec.signature import read_signature
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.handlers import BatchSettings, MethodDescription, MethodKind
from slotmesh.handlers.context import Place, asking, current_place
from slotmesh.handlers.kinds import runnable
from slotmesh.wire.rpc_frames import RPC_REQUESTS


class RpcMethod(HandlerMethod):
    """One rpc of the constructed handler."""

    def __init__(self, rpc: FoundRpc, function: Callable[..., Any], described: MethodDescription) -> None:
        """`function` is the handler's method of that name.

        Raises:
            TypeError: it cannot be called as this rpc is.
        """
        kind, batch = described.kind, described.batch
        yields = kind in {MethodKind.ASYNC_GENERATOR, MethodKind.GENERATOR}
        if yields and not rpc.gives_several:
            raise TypeError(f"{rpc.path} has one response: return it, where this yields")
        self._rpc = rpc
        self._parse = parser_of(rpc.request)
        if batch is not None:
            _check_batch(rpc)
            super().__init__(rpc.path, function, kind, batch)
            return
        takes_context = _takes_context(rpc, function)
        if takes_context or rpc.takes_several:
            asking.is_known = True  # so that executors keep the place of each call
        made = self._wrapped(runnable(function, kind), kind, takes_context=takes_context)
        if rpc.gives_several and not yields:
            kind = MethodKind.ASYNC_GENERATOR if kind is MethodKind.ASYNC else MethodKind.GENERATOR
        super().__init__(rpc.path, made, kind, None)

    def _wrapped(self, function: Callable[..., Any], kind: MethodKind, *, takes_context: bool) -> Callable[..., Any]:
        rpc = self._rpc
        make: Callable[..., Callable[..., Any]]
        if rpc.gives_several:
            make = async_values if kind.is_async else plain_values
        else:
            make = async_call if kind.is_async else plain_call
        requests = self._requests if rpc.takes_several else None
        return make(function, serializer_of(rpc.response), requests, takes_context=takes_context)

    def _make_decoder(self, function: Callable[..., Any], batch: BatchSettings | None) -> RpcDecoder:
        return RpcDecoder(read_signature(function, batched=batch is not None), self._parse)

    def opened(self, content_type: str, payload: bytes) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if self._rpc.takes_several:
            _check_type(self._rpc, content_type, RPC_REQUESTS)
            return (None,), {}
        return super().opened(content_type, payload)

    def _make_start(self, content_type: str) -> StartFunction:
        if self._rpc.takes_several:
            _check_type(self._rpc, content_type, RPC_REQUESTS)
            function = self.function
            return lambda _payload: function(None)
        return super()._make_start(content_type)

    def _requests(self, *, is_async: bool) -> ThreadRequests | AsyncRequests:
        """The requests of the call that begins here."""
        run, index = _call_of(current_place.get())
        requests = run.link.requests
        stream = None if requests is None else requests.of(run.first + index)
        if stream is None:
            raise BadCall(_failure(self._rpc, "takes several requests: call it at the router, by its own proto"))
        stream.begin()
        return AsyncRequests(stream, self._parse) if is_async else ThreadRequests(stream, self._parse)


class AsyncRequests(AsyncIterator[Any]):
    """The requests of a call, for a method that is `async def`."""

    __slots__ = ("_parse", "_stream")

    def __init__(self, stream: RequestStream, parse: Callable[[bytes], Any]) -> None:
        self._stream = stream
        self._parse = parse

    async def __anext__(self) -> Any:
        if (request := await self._stream.take()) is None:
            raise StopAsyncIteration
        return _parsed(self._parse, request)


class ThreadRequests(Iterator[Any]):
    """The same for one that is `def`: its thread waits."""

    __slots__ = ("_parse", "_stream")

    def __init__(self, stream: RequestStream, parse: Callable[[bytes], Any]) -> None:
        self._stream = stream
        self._parse = parse

    def __next__(self) -> Any:
        if (request := self._stream.take_in_thread()) is None:
            raise StopIteration
        return _parsed(self._parse, request)


def _parsed(parse: Callable[[bytes], Any], request: bytes) -> Any:
    try:
        return parse(request)
    except DecodeError as error:
        raise BadCall(replace(error.failure, executed=Executed.YES)) from None  # the method asks for it: it has begun


def _call_of(place: Place | None) -> tuple[ReplicaRun, int]:
    """The call that begins here, as the executor has said before."""
    match place:
        case SinglePlace():
            return place.run, place.index
        case SharedPlace():
            done = len(place.values)
            return place.run_of(done), place.lo + done
        case ThreadPlace() if place.run is not None:
            return place.run, place.index
        case _:
            raise RuntimeError("an rpc with several requests begins in its call")


def _takes_context(rpc: FoundRpc, function: Callable[..., Any]) -> bool:
    """Whether the method takes a context behind the request."""
    parameters = inspect.signature(function).parameters.values()
    positional = [it for it in parameters if it.kind in {it.POSITIONAL_ONLY, it.POSITIONAL_OR_KEYWORD}]
    required = [
        it for it in parameters if it.default is it.empty and it.kind not in {it.VAR_POSITIONAL, it.VAR_KEYWORD}
    ]
    has_rest = any(it.kind is it.VAR_POSITIONAL for it in parameters)
    if not (positional or has_rest) or len(required) > 2 or any(it.kind is it.KEYWORD_ONLY for it in required):
        takes = "an iterator over requests" if rpc.takes_several else "a request"
        raise TypeError(
            f"{rpc.path} is called with {takes} and, if it wants one, a context: write (self, request, context)"
        )
    return has_rest or len(required) == 2 or (len(positional) > 1 and positional[1].name == "context")


def _check_batch(rpc: FoundRpc) -> None:
    if rpc.takes_several:
        raise TypeError(f"{rpc.path} takes several requests in one call: it cannot be a batch method")


def _check_type(rpc: FoundRpc, content_type: str, wanted: str) -> None:
    if content_type != wanted:
        raise BadCall(
            _failure(rpc, f"is called as {wanted}, not as {content_type}: are router and handler of one proto?")
        )


def _failure(rpc: FoundRpc, what: str) -> Failure:
    return Failure(reason=Reason.BAD_REQUEST, message=f"{rpc.path} {what}", metadata={"method": rpc.path})
