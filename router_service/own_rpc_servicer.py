"""Rpcs of users' own protos at the router: their bytes are passed to the handler that has the service, and back.

Purpose: finds the endpoint of an rpc, makes options of its metadata and its deadline, and returns status, details and
trailing metadata as the handler set them.
Invariants: no message is parsed here. An rpc that no endpoint has ends with UNIMPLEMENTED, as in gRPC; callers that may
call certain endpoints only do not learn of other services. Before there is a routing table no rpc is unknown.
Owner: the app.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple, NoReturn

import grpc
from google.rpc import code_pb2

from router_service import convert
from router_service.convert.options import REQUEST_ID, metadata_of, own_rpc_options, stated_options
from router_service.core.calls import RouterCallOptions
from router_service.core.commands import DeliverDone
from router_service.core.failures import NO_TABLE
from router_service.shell.clients.own_rpcs import NOT_FRAMED, OwnServices, PassedCall
from router_service.shell.clients.unary import HandedMetadata, UnaryCalls
from router_service.shell.dispatcher import Dispatcher
from slotmesh.calls.result_envelopes import INITIAL, MESSAGE, BadFrames, frames_in, message_alone
from slotmesh.calls.trace_context import TraceContext
from slotmesh.errors import Failure, Reason, bad_metadata
from slotmesh.security.rpc_roles import endpoint_refusal, known_endpoints, service_refusal
from slotmesh.server.call_values import identity_of_own_rpc
from slotmesh.server.reflection import Descriptors
from slotmesh.spec.descriptor_sets import OwnRpc
from slotmesh.spec.rules import show
from slotmesh.status import abort, abort_own_rpc
from slotmesh.streams.chunks import joined
from slotmesh.streams.limits import MAX_INLINE_BYTES
from slotmesh.transport.duplex import read_request
from slotmesh.transport.open_streams import stream_of
from slotmesh.v1 import call_pb2

Context = grpc.aio.ServicerContext[Any, Any]
_UNARY: Final = OwnRpc(takes_several=False, gives_several=False)
_GIVES_SEVERAL: Final = OwnRpc(takes_several=False, gives_several=True)


class OwnCall(NamedTuple):
    """The endpoint and the options of one rpc."""

    endpoint: str
    rpc: OwnRpc
    options: RouterCallOptions
    trace: TraceContext | None
    request_id: str = ""
    """Of an rpc with one request; empty: nothing identifies the call."""

    def identified(self, path: str, request: bytes) -> OwnCall | Failure:
        """The call with the identity that its request id and its request make."""
        if not self.request_id:
            return self
        options = self.options
        identity = identity_of_own_rpc(self.request_id, path, options.ordering_key, options.model_id, request)
        identified = convert.with_request(options, identity)
        return identified if isinstance(identified, Failure) else self._replace(options=identified)


class OwnRpcServicer:
    """Answers all rpcs that the router does not have itself."""

    def __init__(self, dispatcher: Dispatcher, unary: UnaryCalls, handed: HandedMetadata) -> None:
        """`handed`: the metadata of rpcs that handlers get."""
        self._dispatcher = dispatcher
        self._unary = unary
        self._handed = handed
        self._own = OwnServices(lambda: dispatcher.scheduler.table)

    # -- for the server ----------------------------------------------------------------------------------------------

    @property
    def services(self) -> Sequence[str]:
        """Full names of the current services, for reflection."""
        return self._own.names

    @property
    def descriptors(self) -> Sequence[Descriptors]:
        """Descriptors for reflection."""
        return self._own.descriptors

    def kind_of(self, path: str) -> OwnRpc | None:
        """The kind of the rpc; None if it is unknown, or endpoints do not agree on it."""
        kinds = set(self._own.endpoints_of(path).values())
        return kinds.pop() if len(kinds) == 1 else None

    def handler_of(self, path: str) -> Any:
        """The handler of `package.Service/Method`, known or not."""
        match self.kind_of(path):
            case OwnRpc(takes_several=False, gives_several=False):
                return grpc.unary_unary_rpc_method_handler(partial(self._answer, path), None, bytes)
            case OwnRpc(takes_several=False, gives_several=True):
                return grpc.unary_stream_rpc_method_handler(partial(self._stream, path))
            case _:
                # Whatever the kind of an rpc, it can be served as a stream of requests and one of responses.
                return grpc.stream_stream_rpc_method_handler(partial(self._pass, path))

    # -- rpcs --------------------------------------------------------------------------------------------------------

    async def _answer(self, path: str, request: bytes, context: Context) -> bytes:
        """One request, one response."""
        call = await self._call_of(path, context, request, kind=_UNARY)
        outcome = await self._unary.call(
            context.peer(), call.endpoint, call.options, request, call.trace, context.time_remaining
        )
        if isinstance(outcome, Failure):
            await self._fail(context, outcome, call.endpoint)
        payload = b"" if isinstance(outcome, DeliverDone) else joined(outcome.payloads[0])
        if (message := message_alone(payload)) is not None:
            if len(message) > MAX_INLINE_BYTES:
                await self._fail(
                    context, convert.result_too_large(len(message), convert.STREAM_RESPONSES), call.endpoint
                )
            return message
        response = b""
        try:
            for kind, content in frames_in(payload):
                if kind == MESSAGE:
                    response = content
                elif kind == INITIAL:
                    await context.send_initial_metadata(metadata_of(content))
                else:
                    context.set_trailing_metadata(metadata_of(content))
        except BadFrames:
            await self._fail(context, NOT_FRAMED, call.endpoint)
        return response

    async def _stream(self, path: str, request: bytes, context: Context) -> None:
        """One request, several responses."""
        call = await self._call_of(path, context, request, kind=_GIVES_SEVERAL)
        await self._run(context, call, request, streams=False)

    async def _pass(self, path: str, _requests: Any, context: Context) -> None:
        """Any rpc: several requests, or one that is read here."""
        if (stream := stream_of(context)) is not None:
            stream.has_spoken, stream.is_busy = True, lambda: True  # its deadline is its own
        call = await self._call_of(path, context)
        if call.rpc.takes_several:
            await self._run(context, call, b"", streams=True)
            return
        request: Any = await read_request(context)
        if request is None:
            await self._fail(context, _NO_REQUEST, call.endpoint)
        if len(request) > MAX_INLINE_BYTES:
            await self._fail(context, convert.too_large(len(request), fix=convert.STREAM_REQUESTS), call.endpoint)
        identified = call.identified(path, request)
        if isinstance(identified, Failure):
            await self._fail(context, identified, call.endpoint)
        call = identified
        await self._run(context, call, request, streams=False)

    async def _run(self, context: Context, call: OwnCall, request: bytes, *, streams: bool) -> None:
        read = partial(read_request, context) if streams else None
        passed = PassedCall(self._dispatcher, context.write, context.send_initial_metadata, read)
        failure = await self._unary.passed(
            context.peer(), call.endpoint, call.options, request, passed, call.trace, context.time_remaining
        )
        if failure is not None:
            await self._fail(context, failure, call.endpoint)
        if passed.trailers:
            context.set_trailing_metadata(passed.trailers)

    # -- what is called ----------------------------------------------------------------------------------------------

    async def _call_of(
        self, path: str, context: Context, request: bytes = b"", *, kind: OwnRpc | None = None
    ) -> OwnCall:
        """The call of an rpc that is served as one of this kind. Aborts an unknown rpc."""
        await self._dispatcher.first_table.wait_a_while()
        found = self._found(path, context)
        if isinstance(found, OwnCall) and kind not in {None, found.rpc}:
            found = _unknown(path, " of this kind")  # the table has just changed
        if isinstance(found, OwnCall) and len(request) > MAX_INLINE_BYTES:
            found = convert.too_large(len(request), fix=convert.STREAM_REQUESTS)
        elif isinstance(found, OwnCall) and kind is not None:
            found = found.identified(path, request)
        if isinstance(found, Failure):
            await abort(context, self._dispatcher.noted(found, ""))
        return found

    def _found(self, path: str, context: Context) -> OwnCall | Failure:
        metadata: Any = context.invocation_metadata() or ()
        found = stated_options(metadata)
        if isinstance(found, Failure):
            return found
        chosen = self._endpoint(path, found.endpoint)
        if isinstance(chosen, Failure):
            return chosen
        endpoint, rpc = chosen
        if found.request_id and rpc.takes_several:
            return bad_metadata(REQUEST_ID, "has no effect on an rpc with several requests: leave it out")
        stated = found.options
        handed = call_pb2.CallOptions() if stated is None else stated
        trace = self._handed.take_of(metadata, handed)
        if handed.metadata:
            stated = handed
        options = own_rpc_options(path, rpc, stated)
        if isinstance(options, Failure):
            return options
        if (left_s := context.time_remaining()) is not None:
            options = replace(options, timeout_s=max(0.0, left_s))
        return OwnCall(endpoint, rpc, options, trace, found.request_id)

    def _endpoint(self, path: str, wanted: str) -> tuple[str, OwnRpc] | Failure:
        """The endpoint that answers the rpc, and the kind of the rpc there."""
        if wanted and (failure := endpoint_refusal(wanted)):
            return failure
        known = known_endpoints()
        having = {name: rpc for name, rpc in self._own.endpoints_of(path).items() if known is None or name in known}
        if wanted:
            return (
                (wanted, having[wanted]) if wanted in having else _unknown(path, f" of the endpoint {show(wanted)!r}")
            )
        if len(having) == 1:
            return next(iter(having.items()))
        if having:
            message = f"several endpoints have {show(path)}: name one of {', '.join(sorted(having))}"
            return bad_metadata("slotmesh-endpoint", message)
        if known is not None and not self._may_know(path, known):
            return service_refusal(path.partition("/")[0])
        return NO_TABLE if not self._dispatcher.scheduler.table.revision else _unknown(path)

    def _may_know(self, path: str, known: frozenset[str]) -> bool:
        """Whether a service that the caller may call lacks the rpc: it is no secret then."""
        service = path.partition("/")[0]
        table = self._dispatcher.scheduler.table
        routes = (table.endpoints.get(name) for name in known)
        return any(
            it is not None and it.grpc_services is not None and service in it.grpc_services.names for it in routes
        )

    async def _fail(self, context: Context, failure: Failure, endpoint: str) -> NoReturn:
        if failure.reason is Reason.METHOD_NOT_FOUND:
            failure = replace(failure, code=code_pb2.UNIMPLEMENTED)  # as gRPC has it
        await abort_own_rpc(context, self._dispatcher.noted(failure, endpoint), metadata_of(failure.trailers))


_NO_REQUEST: Final = Failure(reason=Reason.BAD_REQUEST, message="this rpc takes one request, and got none")


def _unknown(path: str, where: str = "") -> Failure:
    service, _, method = path.partition("/")
    return Failure(
        reason=Reason.NOT_IMPLEMENTED,
        message=f"no rpc {show(method)} of a service {show(service)}{where} here; reflection lists what there is",
        metadata={"service": show(service), "method": show(method)},
    )
