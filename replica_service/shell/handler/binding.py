"""Binds a constructed handler to its methods, by the names that calls use: its own methods, and users' rpcs.

An rpc of the user's own protos is a method named `package.Service/Method`: its request is a message, or an iterator
over messages; what it returns or yields is a message, framed with the metadata that the method has set. Messages are of
the classes of the user's generated module. The context that a method takes is that of its call; what is set in it
before a failure is sent with the failure.
Owner: made when the handler has been constructed; executors read.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from types import MethodType
from typing import Any

from replica_service.core.runs import ReplicaRun
from replica_service.shell.handler.call_context import SinglePlace, TaskPlace, ThreadPlace
from replica_service.shell.handler.loading import load_handler, users_traceback
from replica_service.shell.handler.methods import BadCall, HandlerMethod, StartFunction
from replica_service.shell.handler.rpc_calls import (
    FoundRpc,
    async_call,
    async_values,
    found_rpcs,
    plain_call,
    plain_values,
)
from replica_service.shell.handler.rpc_requests import RequestStream
from slotmesh.calls.result_envelopes import RPC_REQUESTS
from slotmesh.codec import DecodeError, RpcDecoder, parser_of, serializer_of
from slotmesh.codec.types.signature import read_signature
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.handlers import CALL, BatchSettings, HandlerDescription, MethodDescription, MethodKind, describe
from slotmesh.handlers.context import Place, asking, current_place
from slotmesh.handlers.description import outline_of
from slotmesh.handlers.kinds import runnable
from slotmesh.handlers.model_holding import holding
from slotmesh.handlers.multiplexed import multiplexed_of
from slotmesh.logs import get_logger
from slotmesh.runtime.exits import CannotStart


class RpcMethod(HandlerMethod):
    """One rpc of the constructed handler."""

    def __init__(self, rpc: FoundRpc, function: Callable[..., Any], described: MethodDescription) -> None:
        """`function` is the handler's method of that name.

        Raises:
            TypeError: it cannot be called as this rpc.
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
    """Returns the call that begins, from the place that the executor has set."""
    match place:
        case SinglePlace():
            return place.run, place.index
        case TaskPlace():
            return place.call()
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


_log = get_logger(__name__)


def bind_methods(handler: Any, description: HandlerDescription) -> dict[str, HandlerMethod]:
    """The methods of a handler, by the name that calls give. `handler` may be a class: its methods cannot be called.

    A method that implements an rpc of the user's own proto is found by the name of the rpc, too, as
    `package.Service/Method`; where it can be called as that alone, by no other.

    A method whose types no payload can carry is an error. It is left out, with a warning, if a base class of another
    package has defined it: the user does not choose the methods of a library's class.

    Raises:
        TypeError: an annotation that no payload can become, or a method that cannot be called as its rpc is; the
            message names it.
    """
    methods: dict[str, HandlerMethod] = {}
    rpcs = [*found_rpcs(description.methods.keys())]
    implementing = {rpc.method for rpc in rpcs}
    for name, described in description.methods.items():
        called = "" if name == CALL else name
        try:
            function = _function_of(handler, name, described.kind)
            method = methods[called] = HandlerMethod(called, function, described.kind, described.batch)
            method.outline = outline_of(
                name, function, yields=described.kind.yields, is_batch=described.batch is not None
            )
        except TypeError as error:
            if _is_of_a_library(handler, name):
                methods.pop(called, None)
                _log.warning("method of a base class is not served", method=name, reason=str(error))
            elif name not in implementing:
                hidden = "" if name == CALL else f"; if no client is to call it, name it _{name}"
                raise TypeError(f"{description.name}.{name}: {error}{hidden}") from error
    for rpc in rpcs:
        described = description.methods[rpc.method]
        try:
            methods[rpc.path] = RpcMethod(rpc, _function_of(handler, rpc.method, described.kind), described)
        except TypeError as error:
            if rpc.is_whole:  # else it may have the name of an rpc by chance
                raise TypeError(f"{description.name}.{rpc.method}: {error}") from error
    return methods


def _is_of_a_library(handler: Any, name: str) -> bool:
    """Whether the handler inherits the method from a class of another top-level package than its own."""
    kind = handler if inspect.isclass(handler) else type(handler)
    defining = next((each for each in kind.__mro__ if name in vars(each)), kind)
    return _package(defining) != _package(kind)


def _function_of(handler: Any, name: str, kind: MethodKind) -> Any:
    """The function as calls see it, without `self`; that of a class as well, which is not constructed for that."""
    if not inspect.isclass(handler):
        function = handler if name == CALL else getattr(handler, name)
        return holding(function, kind) if multiplexed_of(type(handler)) else function
    found = next(vars(each)[name] for each in handler.__mro__ if name in vars(each))
    return getattr(handler, name) if isinstance(found, staticmethod | classmethod) else MethodType(found, handler)


def _package(kind: type) -> str:
    return kind.__module__.partition(".")[0]


# What `--describe MODULE:NAME` prints: one JSON object on stdout, and nothing else there.


def print_description(path: str) -> int:
    """Imports the handler and prints the settings of its decorators; returns the exit status."""
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what the user's module prints is no part of the answer
            handler = load_handler(path)
            try:
                description = describe(handler)
                methods = bind_methods(handler, description)
            except TypeError as error:
                raise CannotStart(f"{path!r}: {error}") from None
    except CannotStart as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except (Exception, SystemExit, GeneratorExit) as error:  # noqa: BLE001 - the user's own: shown as it is
        sys.stderr.write(users_traceback(error))
        return 1
    document = {"handler": path, **description.as_json()}
    for name, method in methods.items():
        described = document["methods"].get(name or CALL)  # an rpc of the user's proto is a second name of a method
        if described is not None and method.outline.schema:
            described["schema"] = json.loads(method.outline.schema)
    sys.stdout.write(json.dumps(document) + "\n")
    return 0
