"""Guards between gRPC and a servicer: invalid input and exceptions become accurate statuses that leak no secrets.

Purpose: wraps the handlers of a service once, at registration, so that no interceptor runs for each rpc.
Invariants: bytes that are no valid message end the rpc with INVALID_ARGUMENT. So does a stream's frame that exceeds its
bounds (`slotmesh.streams.frame_bounds`), before it is parsed; large frames are counted in slices, in turn with others
(`LargeFrame`). So does a unary request that exceeds its bounds (`slotmesh.server.unary_requests`). A `SlotmeshError`
ends the rpc with its status and details; a disconnected client is no error; any other exception is logged with its
traceback, and the client gets only INTERNAL. Messages of a stream are not changed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final, NoReturn, TypeAlias

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.rpc import code_pb2

from slotmesh.errors import Executed, Failure, Reason, SlotmeshError
from slotmesh.grpc_internals.aborts import released
from slotmesh.grpc_internals.accepting import MANY
from slotmesh.logs import get_logger
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.security.rpc_roles import rule_of
from slotmesh.server.rpc_gate import Edge, admitted
from slotmesh.server.unary_requests import RequestBounds, RequestReader, bounds_of, shape_of
from slotmesh.status import abort, to_exception
from slotmesh.streams.frame_bounds import SMALL_BYTES
from slotmesh.streams.spliced_frames import SplicedFrame
from slotmesh.telemetry.process_times import RpcTimes
from slotmesh.transport.duplex import LargeFrame, writes_bytes

Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # generic only in its stubs
Parse = Callable[[bytes], Any]
Serialise = Callable[[Any], bytes]
Read = Callable[[bytes], Awaitable[Any]]

_log = get_logger(__name__)


class GuardedRegistration:
    """Stands in for the server in the generated `add_XServicer_to_server`, and registers guarded handlers.

    They are registered as generic handlers, and frequent ones by method as well: `grpc.aio` checks all methods that are
    registered that way for each other rpc, with fifteen methods a fiftieth of an rpc's time.
    """

    def __init__(self, server: grpc.aio.Server, name: str, turns: StepQueue, times: RpcTimes, edge: Edge) -> None:
        """`name`: the server's name in logs. `turns` schedules large frames, `times` counts, `edge` admits."""
        self._edge = edge
        self._server = server
        self._times = times
        self._name = name
        self._turns = turns
        self.services: list[str] = []
        """Full names, in order of registration."""
        self.of_many: dict[str, Handler] = {}
        """Handlers that are registered by method, by `/SERVICE/METHOD`."""

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Ignored: generated code registers the same handlers by method as well."""

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
    """The guarded handler. It is a coroutine function, or an async generator function if it streams.

    `method`: its full name; `server`: the server's name in logs. `turns` schedules large frames and requests, `times`
    counts rpcs. `bounds`: of a single request; None: those of the method.
    """
    end = _Ending(method, server, times or RpcTimes())
    behavior: Any = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    serialise: Any = handler.response_serializer
    # A single request is parsed here, as grpc.aio would report a failure to parse in its own way.
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
                response_serializer=None if writes_bytes(behavior) else _frame_serializer(serialise),
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
    """Ends an rpc whose handler raised, and counts all rpcs."""

    def __init__(self, method: str, server: str, times: RpcTimes) -> None:
        self._method = method
        self._server = server
        self._times = times

    @contextmanager
    def timed(self, context: Context) -> Iterator[None]:
        """Measures the rpc while the block lasts."""
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
            # The handler or the transport has ended the rpc: no status can be sent.
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
    """Whether gRPC reports the end of the rpc or of the server.

    Its other errors are defects: misuse of an active rpc, or an error of another rpc.
    """
    misuse = (grpc.aio.UsageError, grpc.aio.AbortError)
    return isinstance(error, grpc.aio.BaseError) and (not isinstance(error, misuse) or context.done())


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors of a task group, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _reader(deserializer: Parse | None, bounds: RequestBounds, turns: StepQueue) -> Read | None:
    """The reader of a unary rpc's request."""
    if deserializer is None:
        return None
    return RequestReader(_message_of(deserializer), _checked(deserializer), bounds, turns).read


def _frame_parser(deserializer: Parse | None, turns: StepQueue) -> Parse | None:
    """The parser of a stream's frames. Their number is unlimited; the content of each is bounded."""
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
            return parse(raw)  # raises the error

    return parse_frame


def _frame_serializer(serialise: Serialise | None) -> Serialise | None:
    """The serializer of a stream's frames, of which some are spliced."""
    if serialise is None:
        return None

    def serialised(frame: Any) -> bytes:
        return frame.SerializeToString() if type(frame) is SplicedFrame else serialise(frame)

    return serialised


_DEEPEST: Final = "100 messages in one another, of which a JSON array is two and an object three"


def _checked(deserializer: Parse) -> Parse:
    """The same parser, raising a SlotmeshError."""
    message = _message_of(deserializer)
    name = message.full_name if message is not None else "message"

    def parse(raw: bytes) -> Any:
        try:
            return deserializer(raw)
        except DecodeError as error:
            message = (
                f"not a valid {name}: malformed protobuf, or nested deeper than protobuf parsers accept: {_DEEPEST}"
            )
            raise to_exception(Failure(reason=Reason.BAD_REQUEST, message=message)) from error

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
    # grpc.aio distinguishes the two by inspection.
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
