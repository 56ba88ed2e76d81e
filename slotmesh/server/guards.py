"""Guards between gRPC and a servicer: wrong input and errors become statuses that are true and tell no secrets.

Purpose: wraps the handlers of a service once, at registration, so that no interceptor runs for each rpc.
Invariants: bytes that are no valid message end the rpc with INVALID_ARGUMENT, and so does a frame of a stream that
holds more than one may (`slotmesh.streams.frame_bounds`), before it is parsed: a large one is counted where it is read,
in
turn with others (`LargeFrame`). So does the request of a unary rpc that is larger than its rpc needs, or holds more
(`slotmesh.server.unary_requests`). A `SlotmeshError` ends it with its status and details; a client that has left is no
error; anything else is logged with its traceback, and the client reads INTERNAL and nothing more. Nothing is added to
the messages of a stream.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.rpc import code_pb2

from slotmesh.errors import Executed, Failure, Reason, SlotmeshError
from slotmesh.grpc_internals.aborts import released
from slotmesh.grpc_internals.accepting import MANY
from slotmesh.logs import get_logger
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.security.permissions import rule_of
from slotmesh.server.edge import Edge, admitted
from slotmesh.server.unary_requests import RequestBounds, RequestReader, bounds_of, shape_of
from slotmesh.status import abort, to_exception
from slotmesh.streams.frame_bounds import SMALL_BYTES
from slotmesh.telemetry.process_times import RpcTimes
from slotmesh.transport.duplex import LargeFrame, writes_bytes

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic in its stubs only
Parse = Callable[[bytes], Any]
Read = Callable[[bytes], Awaitable[Any]]

_log = get_logger(__name__)


class GuardedRegistration:
    """Takes the place of the server in the generated `add_XServicer_to_server`, and registers guarded handlers.

    They are registered as generic ones, and those that come by the thousand by themselves as well: `grpc.aio` looks at
    each method that is registered so for each rpc of the others: with fifteen methods a fiftieth of an rpc's time.
    """

    def __init__(
        self,
        server: grpc.aio.Server,
        name: str,
        turns: StepQueue,
        times: RpcTimes,
        edge: Edge,
    ) -> None:
        """`name` is the server whose log errors refer to. Large frames are counted in `turns`, rpcs in `times`.

        `edge` lets rpcs in.
        """
        self._edge = edge
        self._server = server
        self._times = times
        self._name = name
        self._turns = turns
        self.services: list[str] = []
        """Full names, in the order of registration."""
        self.of_many: dict[str, Handler] = {}
        """Handlers that are registered by themselves, by `/SERVICE/METHOD`."""

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """The unguarded form of what is registered by method: left out."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Handler]) -> None:
        guarded = {
            method: released(
                admitted(
                    guard(
                        handler,
                        method=f"{service}/{method}",
                        server=self._name,
                        turns=self._turns,
                        times=self._times,
                        bounds=bounds_of(f"{service}/{method}", is_open=rule.is_open),
                    ),
                    rule,
                    self._edge,
                )
            )
            for method, handler, rule in ((name, each, rule_of(service, name)) for name, each in handlers.items())
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, guarded),))
        if of_many := {method: guarded[method] for method in guarded if f"{service}/{method}" in MANY}:
            self._server.add_registered_method_handlers(service, of_many)
            self.of_many |= {f"/{service}/{method}": handler for method, handler in of_many.items()}
        if service not in self.services:
            self.services.append(service)


def guard(
    handler: Handler,
    *,
    method: str,
    server: str,
    turns: StepQueue,
    times: RpcTimes | None = None,
    bounds: RequestBounds | None = None,
) -> Handler:
    """The same handler, guarded. It is made of coroutine functions, or of async generators where it streams.

    `method` is its full name; `server` is the one whose log errors refer to. Large frames and requests are counted in
    `turns`, rpcs in `times`. `bounds`: of its request, where that is one message; None: those of its method.
    """
    end = _Ending(method, server, times or RpcTimes())
    behavior: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    serialise: Any = handler.response_serializer
    # Where the request is one message it is parsed in here: grpc.aio would report a failure to parse it by itself.
    deserialise = handler.request_deserializer
    parse = _frame_parser(deserialise, turns) if handler.request_streaming else None
    read = None if handler.request_streaming else _reader(deserialise, bounds or bounds_of(method), turns)
    match handler.request_streaming, handler.response_streaming:
        case False, False:
            return grpc.unary_unary_rpc_method_handler(_unary(behavior, read, serialise, end))
        case False, True:
            return grpc.unary_stream_rpc_method_handler(_streaming(behavior, read, end), response_serializer=serialise)
        case True, False:
            return grpc.stream_unary_rpc_method_handler(
                _unary(behavior, None, serialise, end), request_deserializer=parse
            )
        case _:
            return grpc.stream_stream_rpc_method_handler(
                _streaming(behavior, None, end),
                request_deserializer=parse,
                response_serializer=None if writes_bytes(behavior) else serialise,
            )


def failure_of(error: SlotmeshError) -> Failure:
    """The failure of a `SlotmeshError`, as a value."""
    return Failure(
        reason=error.reason,
        message=str(error).removeprefix(f"{error.status}/{error.reason}: "),
        executed=error.executed,
        retry_delay_s=error.retry_delay_s,
        code=code_pb2.Code.Value(error.status) if error.status else None,
        metadata=error.metadata,
    )


class _Ending:
    """Ends an rpc whose handler raised, and counts all."""

    def __init__(self, method: str, server: str, times: RpcTimes) -> None:
        self._method = method
        self._server = server
        self._times = times

    @contextmanager
    def timed(self, context: Context) -> Iterator[None]:
        """The rpc lasts as long as the block."""
        began, well = perf_counter(), False
        try:
            yield
            well = True
        finally:
            self._times.ended(self._method, context, began, well=well)

    async def __call__(self, error: Exception, context: Context) -> NoReturn:
        leaves = list(_leaves(error))
        failures = [failure_of(leaf) for leaf in leaves if isinstance(leaf, SlotmeshError)]
        defects = [leaf for leaf in leaves if not (isinstance(leaf, SlotmeshError) or _is_end(leaf, context))]
        if defects:
            _log.error("rpc failed", method=self._method, exc_info=error)
        if context.done() or not (failures or defects):
            # The rpc has ended, by the handler or by the transport: no status can be sent.
            raise asyncio.CancelledError from error
        failure = (
            failures[0]
            if failures
            else Failure(
                reason=Reason.INTERNAL,
                message=f"internal error; see the log of {self._server}",
                executed=Executed.UNKNOWN,
            )
        )
        await abort(context, failure)


def _is_end(error: BaseException, context: Context) -> bool:
    """Whether gRPC says that the rpc or the server has ended.

    Of its errors, only misuse of a live rpc is a defect, and one that belongs to another rpc.
    """
    misuse = (grpc.aio.UsageError, grpc.aio.AbortError)
    return isinstance(error, grpc.aio.BaseError) and (not isinstance(error, misuse) or context.done())


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group of a task group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _reader(deserializer: Parse | None, bounds: RequestBounds, turns: StepQueue) -> Read | None:
    """What makes a request of the bytes of a unary rpc."""
    if deserializer is None:
        return None
    return RequestReader(_message_of(deserializer), _checked(deserializer), bounds, turns).read


def _frame_parser(deserializer: Parse | None, turns: StepQueue) -> Parse | None:
    """What makes frames of bytes. A peer may send any number of them; how much one may hold is bounded."""
    if deserializer is None:
        return None
    message = _message_of(deserializer)
    shape = shape_of(message) if message is not None else None
    parse = _checked(deserializer)

    def parse_frame(raw: bytes) -> Any:
        if shape is not None and len(raw) > SMALL_BYTES:
            return LargeFrame(raw, shape, parse, turns)
        try:
            return deserializer(raw)
        except DecodeError:
            return parse(raw)  # which says what is wrong

    return parse_frame


def _checked(deserializer: Parse) -> Parse:
    """The same, whose failure is one of ours."""
    message = _message_of(deserializer)
    name = message.full_name if message is not None else "message"

    def parse(raw: bytes) -> Any:
        try:
            return deserializer(raw)
        except DecodeError as error:
            failure = Failure(reason=Reason.BAD_REQUEST, message=f"not a valid {name}: malformed protobuf")
            raise to_exception(failure) from error

    return parse


def _message_of(deserializer: Parse) -> Descriptor | None:
    # `FromString` is a bound method of the generated message class.
    return getattr(getattr(deserializer, "__self__", None), "DESCRIPTOR", None)


def _unary(behavior: Callable[..., Any], read: Read | None, serialise: Callable[[Any], bytes], end: _Ending) -> Any:
    async def guarded(request: Any, context: Context) -> bytes:
        with end.timed(context):
            try:
                return serialise(await behavior(request if read is None else await read(request), context))
            except Exception as error:  # noqa: BLE001 - the outermost boundary: logged, mapped and redacted
                await end(error, context)

    return guarded


def _streaming(behavior: Callable[..., Any], read: Read | None, end: _Ending) -> Any:
    # grpc.aio asks by inspection which of the two it has.
    if inspect.isasyncgenfunction(behavior):

        async def generate(request: Any, context: Context) -> AsyncIterator[Any]:
            with end.timed(context):
                try:
                    async for response in behavior(request if read is None else await read(request), context):
                        yield response
                except Exception as error:  # noqa: BLE001 - the outermost boundary: logged, mapped and redacted
                    await end(error, context)

        return generate

    async def guarded(request: Any, context: Context) -> None:
        with end.timed(context):
            try:
                await behavior(request if read is None else await read(request), context)
            except Exception as error:  # noqa: BLE001 - the outermost boundary: logged, mapped and redacted
                await end(error, context)

    return guarded
