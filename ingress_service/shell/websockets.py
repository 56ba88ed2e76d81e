"""WebSockets: each message is a call of the route's method, and its values come back as messages.

A text message is JSON, a binary one msgpack: the arguments, as in a body. Each value comes as `{"value": …}`, a
failure as `{"problem": {…}}`, and after the last value of a call `{"end": true}`, in the form of the message that
asked.
Invariants: calls of a socket run one after another; a client that leaves cancels the task of its socket, and with it
the call that runs; those behind it never start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec

from ingress_service.core.arguments import Schemas, payload_of, read_query
from ingress_service.core.call_options import PLAIN, RequestTerms, terms_of, unrepeatable
from ingress_service.core.cors import OTHER_PAGE, Cors
from ingress_service.core.counters import NO_ROUTE
from ingress_service.core.media import JSON, MSGPACK, Forms, Framing
from ingress_service.core.problems import Problem, RequestRefusal, problem_of, refusal
from ingress_service.core.requests import HEADER, RequestHeaders
from ingress_service.core.routes import Matched
from ingress_service.shell.answers import Send
from ingress_service.shell.bodies import HeldBodies, HeldBody, Receive
from ingress_service.shell.callers import OpenedStream
from ingress_service.shell.calls import HttpFacts, make_streaming_call
from ingress_service.shell.mesh_view import MeshView
from ingress_service.shell.request_log import RequestRecords, request_id_of
from ingress_service.shell.request_spans import RequestTrace, carried
from slotmesh.calls.trace_context import TraceContext
from slotmesh.errors import Reason, SlotmeshError
from slotmesh.logs import get_logger

POLICY: Final = 1008
TRY_AGAIN_LATER: Final = 1013
_ENDS: Final = {JSON: b'{"end":true}', MSGPACK: msgspec.msgpack.encode({"end": True})}
_MSGPACK_VALUE: Final = b"\x81\xa5value"

_log = get_logger(__name__)


class Sockets:
    """The ASGI app of WebSockets."""

    def __init__(
        self, mesh: MeshView, cors: Cors, records: RequestRecords, bodies: HeldBodies, facts: HttpFacts
    ) -> None:
        self.mesh = mesh
        self._bodies = bodies
        self._facts = facts
        self._cors = cors
        self._counters = records.counters
        self._failures = records.failures
        self._spans = records.spans

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        counters = self._counters
        counters.in_flight += 1
        try:
            await self._serve(scope, receive, send)
        except asyncio.CancelledError:
            pass
        except Exception:  # noqa: BLE001 - the outermost frame: logged
            _log.exception("a WebSocket failed")
        finally:
            counters.in_flight -= 1

    async def _serve(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        headers = RequestHeaders(scope["headers"])
        request_id = request_id_of(headers)
        await receive()  # websocket.connect
        found = self.mesh.table.match(scope["raw_path"], "GET", is_any_method=True)
        try:
            if (problem := scope.get("refused")) is not None:
                raise RequestRefusal(problem)
            if not isinstance(found, Matched):
                raise refusal(404, "there is nothing at this path", Reason.ROUTE_NOT_FOUND)
            if not self._cors.may_call(headers):
                raise refusal(403, OTHER_PAGE, Reason.PERMISSION_DENIED)
            query, options = read_query(scope["query_string"])
            terms = terms_of(headers.terms, options) if headers.terms or options else PLAIN
            unrepeatable(terms, "a WebSocket")
            with self.mesh.visit(scope, headers) as visitor:
                async with self.mesh.caller_of(visitor) as caller:
                    lines, held = [(HEADER, request_id.encode())], HeldBody(self._bodies, visitor.who)
                    await send({"type": "websocket.accept", "headers": lines, "held": held})

                    async def schemas() -> Schemas | None:
                        if not query and not found.arguments:
                            return None
                        return (await self.mesh.method_of(caller, found, visitor.who, terms)).arguments

                    def calling(size: int) -> AbstractContextManager[OpenedStream]:
                        return self.mesh.calling(caller, found.endpoint, visitor.who, size, terms.ordering_key)

                    facts = self._facts.of(scope, request_id, visitor.address, method="GET", can_respond=False)
                    conversation = _Conversation(
                        self, found, calling, terms, headers.trace, receive, send, request_id=request_id, facts=facts
                    )
                    with self._bodies.of(visitor.who) as held:
                        await conversation.run(query, schemas, held)
        except RequestRefusal as error:
            await self._refuse(error.problem, request_id, send)
        except SlotmeshError as error:
            # The conversation answers failures of calls: this one is about the caller.
            await self._refuse(problem_of(error), request_id, send)

    async def _refuse(self, problem: Problem, request_id: str, send: Send) -> None:
        """There is no conversation: the handshake is answered so, or the socket closed."""
        problem = self._failures.noted(problem, NO_ROUTE, request_id=request_id)
        code = TRY_AGAIN_LATER if problem.status >= 500 else POLICY
        await send({"type": "websocket.close", "code": code, "problem": problem})

    def counted(self, label: str) -> None:
        """A value was sent."""
        self._counters.values[label] += 1

    def followed(self, given: TraceContext) -> RequestTrace:
        """The trace of one call."""
        return self._spans.followed(given, asyncio.get_running_loop().time())

    def failed(self, problem: Problem, label: str, request_id: str) -> Problem:
        """Records that a call has failed. Returns the problem to send."""
        return self._failures.noted(problem, label, request_id=request_id)


class _Conversation:
    """One socket."""

    def __init__(
        self,
        sockets: Sockets,
        found: Matched,
        calling: Callable[[int], AbstractContextManager[OpenedStream]],
        terms: RequestTerms,
        trace: TraceContext | None,
        receive: Receive,
        send: Send,
        *,
        request_id: str,
        facts: bytes,
    ) -> None:
        """`calling`: the stream for a call, given the bytes of its arguments.

        `trace`: the context of the client in the handshake, which all calls belong to.
        """
        self._sockets = sockets
        self._found = found
        self._calling = calling
        self._terms = terms
        self._trace = trace
        self._request_id = request_id
        self._facts = facts
        self._receive = receive
        self._send = send

    async def run(
        self, query: list[tuple[str, str]], schemas: Callable[[], Awaitable[Schemas | None]], held: HeldBody
    ) -> None:
        """Until it is cancelled, as the client has left.

        `schemas`: those of the method's arguments, as far as a call depends on them. `held`: counts each message while
        its call is under way.
        """
        while True:
            message = await self._receive()
            text, data = message.get("text"), message.get("bytes")
            form, body = (JSON, text.encode()) if text is not None else (MSGPACK, data or b"")
            forms = Forms(form, form, Framing.WHOLE)
            try:
                held.hold(len(body))
                payload = payload_of(forms, body, self._found.arguments, query, await schemas())
                trace = None if self._trace is None else self._sockets.followed(self._trace)
                payload = carried(trace, payload, self._facts)
                await self._call(form, payload)
            except RequestRefusal as error:
                await self._send_problem(form, error.problem)
            except SlotmeshError as error:
                await self._send_problem(form, problem_of(error))
            finally:
                held.close()

    async def _call(self, form: str, payload: bytes) -> None:
        with self._calling(len(payload)) as calls:
            values = make_streaming_call(calls, self._found.method, form, self._terms, payload)
            async with values:
                async for value in values:
                    await self._write(form, _value(form, value))
                    self._sockets.counted(self._found.label)
        await self._write(form, _ENDS[form])

    async def _send_problem(self, form: str, problem: Problem) -> None:
        document = {"problem": self._sockets.failed(problem, self._found.label, self._request_id).document()}
        await self._write(form, msgspec.json.encode(document) if form == JSON else msgspec.msgpack.encode(document))

    async def _write(self, form: str, message: bytes) -> None:
        if form == JSON:
            await self._send({"type": "websocket.send", "text": message.decode("utf-8", "replace")})
        else:
            await self._send({"type": "websocket.send", "bytes": message})


def _value(form: str, value: bytes) -> bytes:
    return b'{"value":%b}' % value if form == JSON else _MSGPACK_VALUE + value
