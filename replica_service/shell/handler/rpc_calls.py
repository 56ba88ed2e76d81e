"""Rpcs of users' own protos: which ones a handler implements, and the wrappers that call a method as an rpc.

A handler's module imports the generated module of its protos, because it needs the messages. So the services are found
by name in the imported modules, with the message classes of the user's own module. A handler implements an rpc if it
has a public method of that name; services of the mesh itself and of gRPC are excluded.
Wrappers exist for the four kinds of rpcs, each for `async def` and `def`, with and without a context. They are
transparent: an exception thrown into a generator reaches the method where it is suspended, and closing the wrapper
closes the method. A response of another class fails the call.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Generator, Iterator
from typing import Any, NamedTuple

from google.protobuf import message_factory
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor
from google.protobuf.message import Message

from slotmesh.calls.result_envelopes import MESH_SERVICES, MESSAGE, framed
from slotmesh.codec import RpcReply
from slotmesh.handlers.context import current_place
from slotmesh.handlers.rpc_context import RpcContext


class FoundRpc(NamedTuple):
    """One rpc that a handler implements."""

    path: str
    """`package.Service/Method`, the name that calls use."""
    method: str
    """The name of the handler's method."""
    request: type[Message]
    response: type[Message]
    takes_several: bool
    gives_several: bool
    is_whole: bool
    """Whether the handler has a method for each rpc of the service, so that it surely implements it."""


def found_rpcs(methods: Collection[str]) -> Iterator[FoundRpc]:
    """Yields the rpcs of all services in this process whose name is one of these methods."""
    files: dict[str, FileDescriptor] = {}
    for module in list(sys.modules.values()):
        declared = getattr(module, "__dict__", {}).get("DESCRIPTOR")
        if isinstance(declared, FileDescriptor) and declared.services_by_name:
            files[declared.name] = declared
    for name in sorted(files):
        for service in files[name].services_by_name.values():
            if not service.full_name.startswith(MESH_SERVICES):
                is_whole = all(method.name in methods for method in service.methods)
                for method in service.methods:
                    if method.name in methods:
                        yield _found(service.full_name, method, is_whole=is_whole)


def _found(service: str, method: MethodDescriptor, *, is_whole: bool) -> FoundRpc:
    return FoundRpc(
        path=f"{service}/{method.name}",
        method=method.name,
        request=message_factory.GetMessageClass(method.input_type),
        response=message_factory.GetMessageClass(method.output_type),
        takes_several=method.client_streaming,
        gives_several=method.server_streaming,
        is_whole=is_whole,
    )


Serialize = Callable[[Any], bytes]
GiveRequests = Callable[..., Any] | None
"""What makes the iterator over requests; None: the argument is the one request."""


class _Call:
    """What one call is given."""

    __slots__ = ("args", "context")

    def __init__(self, request: Any, requests: GiveRequests, *, takes_context: bool, is_async: bool) -> None:
        place = current_place.get()
        self.context = RpcContext(place) if takes_context and place is not None else None
        given = request if requests is None else requests(is_async=is_async)
        self.args = (given,) if self.context is None else (given, self.context)

    def reply(self, message: bytes) -> bytes:
        """The one response, with what was set."""
        if self.context is None:
            return framed(MESSAGE, message)
        initial, trailers = self.context.end()
        return RpcReply(message, initial, trailers).encoded() if initial or trailers else framed(MESSAGE, message)

    def value(self, message: bytes) -> bytes:
        """One of several."""
        if self.context is not None and (initial := self.context.initial()):
            return RpcReply(message, initial).encoded()
        return framed(MESSAGE, message)

    def end(self) -> bytes:
        """Behind the last one; empty: nothing. Raises HandlerError."""
        if self.context is None:
            return b""
        initial, trailers = self.context.end()
        return RpcReply(None, initial, trailers).encoded()

    def failed(self, error: BaseException) -> None:
        if self.context is not None:
            self.context.raised(error)


def async_call(
    function: Callable[..., Any], serialize: Serialize, requests: GiveRequests, *, takes_context: bool
) -> Callable[[Any], Coroutine[Any, Any, bytes]]:
    """One response of an `async def`."""
    if requests is None and not takes_context:

        async def call_alone(request: Any) -> bytes:
            return framed(MESSAGE, serialize(await function(request)))

        return call_alone

    async def call(request: Any) -> bytes:
        it = _Call(request, requests, takes_context=takes_context, is_async=True)
        try:
            return it.reply(serialize(await function(*it.args)))
        except BaseException as error:
            it.failed(error)
            raise

    return call


def plain_call(
    function: Callable[..., Any], serialize: Serialize, requests: GiveRequests, *, takes_context: bool
) -> Callable[[Any], bytes]:
    """One response of a `def`."""

    def call(request: Any) -> bytes:
        it = _Call(request, requests, takes_context=takes_context, is_async=False)
        try:
            return it.reply(serialize(function(*it.args)))
        except BaseException as error:
            it.failed(error)
            raise

    return call


def async_values(
    function: Callable[..., Any], serialize: Serialize, requests: GiveRequests, *, takes_context: bool
) -> Callable[[Any], AsyncGenerator[bytes, None]]:
    """Several responses of an `async def` that yields, or that returns what can be iterated over."""

    async def values(request: Any) -> AsyncGenerator[bytes, None]:
        it = _Call(request, requests, takes_context=takes_context, is_async=True)
        made = function(*it.args)
        if not hasattr(made, "__anext__"):
            made = _iterated(await made)
        try:
            awaited = made.__anext__()
            while True:
                try:
                    response = await awaited
                except StopAsyncIteration:
                    break
                try:
                    yield it.value(serialize(response))
                except GeneratorExit:
                    raise
                except BaseException as thrown:
                    if not hasattr(made, "athrow"):
                        raise
                    awaited = made.athrow(thrown)
                else:
                    awaited = made.__anext__()
            if end := it.end():
                yield end
        except BaseException as error:
            it.failed(error)
            raise
        finally:
            if hasattr(made, "aclose"):
                await made.aclose()

    return values


async def _iterated(returned: Any) -> AsyncGenerator[Any, None]:
    """What an `async def` that does not yield has returned; None: no responses."""
    if hasattr(returned, "__aiter__"):
        async for each in returned:
            yield each
    else:
        for each in returned or ():
            yield each


def plain_values(
    function: Callable[..., Any], serialize: Serialize, requests: GiveRequests, *, takes_context: bool
) -> Callable[[Any], Generator[bytes, None, None]]:
    """Several responses of a `def` that yields, or that returns what can be iterated over."""

    def values(request: Any) -> Generator[bytes, None, None]:
        it = _Call(request, requests, takes_context=takes_context, is_async=False)
        made = function(*it.args)
        try:
            for response in made or ():
                yield it.value(serialize(response))
            if end := it.end():
                yield end
        except BaseException as error:
            it.failed(error)
            raise
        finally:
            if hasattr(made, "close"):
                made.close()

    return values
