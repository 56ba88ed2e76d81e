"""The ASGI app: each request that is no page becomes a call, and its outcome the answer.

Invariants: every request is answered once, and counted once, whatever becomes of its call; a client that leaves
cancels the task of its request, and with it the call; nothing of a payload, token or metadata is logged.
Owner: the app.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from ingress_service.core.arguments import parameters_of, payload_of, read_query
from ingress_service.core.call_options import PLAIN, RequestTerms, terms_of
from ingress_service.core.cors import OTHER_PAGE, Cors
from ingress_service.core.inference import InferencePath, inference_path, is_below
from ingress_service.core.media import OCTETS, Forms, Framing, check_untyped, forms_of
from ingress_service.core.peers import Requester
from ingress_service.core.problems import INTERNAL, Problem, RequestRefusal, problem_of, refusal
from ingress_service.core.raw_results import has_own_type, raw_result
from ingress_service.core.requests import HEADER, RequestHeaders
from ingress_service.core.routes import DEFAULT_LABEL, Matched, WrongMethod
from ingress_service.core.uploads import upload_bytes, upload_forms, upload_payload
from ingress_service.shell.answers import CutShort, RequestAnswer, Send, send_values
from ingress_service.shell.bodies import ClientLeft, HeldBodies, HeldBody, Receive
from ingress_service.shell.callers import HttpCaller
from ingress_service.shell.calls import HttpFacts, head_of, make_call, make_streaming_call
from ingress_service.shell.inference_front import PROBES, InferenceFront
from ingress_service.shell.mesh_view import MeshView, Visitor
from ingress_service.shell.request_log import RequestRecords, request_id_of
from ingress_service.shell.request_spans import FoundPath, carried
from slotmesh.client.calls.call_spec import MAX_UNARY_BYTES
from slotmesh.errors import Executed, Reason, SlotmeshError
from slotmesh.http_status import CLIENT_CLOSED
from slotmesh.logs import get_logger
from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.streams.limits import MAX_PAYLOAD_BYTES

HttpScope = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
PAGES: Final = b"/-/"

_STOPPED: Final = Problem(
    status=503,
    reason=Reason.DRAINING.value,
    detail="the ingress was stopped before the call was answered",
    executed=Executed.UNKNOWN.name.lower(),
    retry_delay_s=1.0,
)

_log = get_logger(__name__)


class HttpFront:
    """Takes requests."""

    def __init__(
        self,
        mesh: MeshView,
        records: RequestRecords,
        bodies: HeldBodies,
        cors: Cors,
        facts: HttpFacts,
        *,
        pages: App,
        sockets: App,
        inference: InferenceFront,
    ) -> None:
        """`pages` answers what is below `/-/`, `sockets` WebSockets, `inference` what is below `/v2`."""
        self._mesh = mesh
        self._counters = records.counters
        self._bodies = bodies
        self._cors = cors
        self._facts = facts
        self._failures = records.failures
        self._spans = records.spans
        self._pages = pages
        self._sockets = sockets
        self._inference = inference
        self._steps = StepQueue()
        self.is_stopping = False
        """Set by the app. From then on a cancelled request does not mean that its client has left."""

    async def __call__(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            if scope["raw_path"].startswith(PAGES):
                scope["request_id"] = request_id_of(RequestHeaders(scope["headers"]))
                await self._pages(scope, receive, _with_id(send, scope["request_id"]))
            else:
                await self._answer(scope, receive, send)
        else:
            await self._sockets(scope, receive, send)

    async def _answer(self, scope: HttpScope, receive: Receive, send: Send) -> None:
        counters = self._counters
        began = asyncio.get_running_loop().time()
        headers = RequestHeaders(scope["headers"])
        answer = RequestAnswer(send, self._failures, request_id_of(headers), scope.get("respond"))
        counters.in_flight += 1
        try:
            await self._serve(scope, headers, receive, answer)
        except RequestRefusal as error:
            await answer.problem(error.problem)
        except SlotmeshError as error:
            await answer.problem(problem_of(error))
        except CutShort:
            pass  # the connection is closed without the end of the answer
        except (asyncio.CancelledError, ClientLeft) as error:
            if self.is_stopping and not isinstance(error, ClientLeft):
                await answer.problem(_STOPPED)
            else:
                counters.left[answer.label] += 1
                answer.has_left = True
                answer.status = answer.status or CLIENT_CLOSED
        except Exception:  # noqa: BLE001 - the outermost frame of a request: logged and answered
            problem = answer.failed(INTERNAL)
            _log.exception("a request failed by a defect", route=answer.label, log_ref=problem.log_ref)
            await answer.send_problem(problem)
        finally:
            counters.in_flight -= 1
            now = asyncio.get_running_loop().time()
            counters.answered(answer.label, answer.status, now - began)
            if answer.trace is not None:
                answer.trace.end(answer.status, answer.failure, now, has_left=answer.has_left)

    async def _serve(self, scope: HttpScope, headers: RequestHeaders, receive: Receive, answer: RequestAnswer) -> None:
        if headers.origin:
            answer.lines = self._cors.lines(headers.origin)
        found = self._found(scope, answer)
        if isinstance(found, InferencePath) and found.operation in PROBES:
            answer.label = found.label
            await self._inference.probe(found, self._mesh.callers.own, answer)
            return
        with self._mesh.visit(scope, headers) as visitor:
            await self._serve_visitor(visitor, found, scope, headers, receive, answer)

    async def _serve_visitor(
        self,
        visitor: Visitor,
        found: FoundPath | None,
        scope: HttpScope,
        headers: RequestHeaders,
        receive: Receive,
        answer: RequestAnswer,
    ) -> None:
        answer.trace = self._spans.begin(scope, headers.trace, found, asyncio.get_running_loop().time())
        if scope["method"] == "OPTIONS":
            await self._options(headers, found, answer)
            return
        if found is None:
            raise refusal(404, "there is nothing at this path", Reason.ROUTE_NOT_FOUND)
        answer.label = found.label
        if isinstance(found, WrongMethod):
            if found.endpoint:
                await self._find(found, visitor)
            allowed = ", ".join(allowed_methods(found))
            raise refusal(405, f"this path has the methods {allowed}", Allow=allowed)
        if not self._cors.may_call(headers):
            raise refusal(403, OTHER_PAGE, Reason.PERMISSION_DENIED)
        answer.facts = self._facts.of(
            scope, answer.request_id, visitor.address, can_respond=not isinstance(found, InferencePath)
        )
        async with self._mesh.caller_of(visitor) as caller:
            with self._bodies.of(visitor.who) as held:
                if isinstance(found, InferencePath):
                    await self._inference.answer(found, caller, held, scope, headers, receive, answer)
                else:
                    await self._call(found, caller, held, scope, headers, receive, answer)

    async def _find(self, found: WrongMethod, visitor: Visitor) -> None:
        """Whether there is such a default route, as far as the requester may call it. Raises RequestRefusal if not."""
        async with self._mesh.caller_of(visitor) as caller:
            if not await self._mesh.described.has(caller, found.endpoint, found.method):
                raise refusal(404, "there is nothing at this path", Reason.ROUTE_NOT_FOUND)

    def _found(self, scope: HttpScope, answer: RequestAnswer) -> FoundPath | None:
        """Routes of the mesh go before the Open Inference Protocol, and that goes before default routes."""
        raw_path, http_method = scope["raw_path"], scope["method"]
        found = self._mesh.table.match(raw_path, http_method)
        if not is_below(raw_path) or (found is not None and found.label != DEFAULT_LABEL):
            return found
        path = inference_path(raw_path)
        if path is not None and ("GET" if http_method == "HEAD" else http_method) in path.operation.methods:
            answer.is_inference = True
            return path
        if isinstance(found, Matched):
            return found
        # A path without a route is the protocol's to refuse: a default route has no word for it but its methods.
        answer.is_inference = True
        return None if path is None else WrongMethod(path.label, path.operation.methods)

    async def _options(self, headers: RequestHeaders, found: FoundPath | None, answer: RequestAnswer) -> None:
        """Not a call: what there is, and for pages of other origins whether they may."""
        if found is None:
            raise refusal(404, "there is nothing at this path", Reason.ROUTE_NOT_FOUND)
        answer.label = found.label
        lines = self._cors.preflight(headers.origin, headers.asks_headers) if headers.asks_method else []
        answer.lines = []
        methods = allowed_methods(found) if isinstance(found, WrongMethod) else ()
        await answer.whole(204, [*lines, (b"allow", ", ".join((*methods, "OPTIONS")).encode())], b"")

    async def _call(
        self,
        found: Matched,
        caller: HttpCaller,
        held: HeldBody,
        scope: HttpScope,
        headers: RequestHeaders,
        receive: Receive,
        answer: RequestAnswer,
    ) -> None:
        forms = forms_of(headers.content_type, headers.accept)
        query: list[tuple[str, str]] = []
        options: list[tuple[str, str]] = []
        if scope["query_string"]:
            query, options = read_query(scope["query_string"])
        terms = terms_of(headers.terms, options) if headers.terms or options else PLAIN
        payload = await held.read(receive, headers)
        if not headers.content_type:
            check_untyped(payload)
        forms, payload = await self._payload(found, caller, held, forms, terms, query, payload)
        held.become(len(payload))
        payload = carried(answer.trace, payload, answer.facts)
        await self._called(found, caller, held.who, forms, terms, payload, answer)

    async def _payload(
        self,
        found: Matched,
        caller: HttpCaller,
        held: HeldBody,
        forms: Forms,
        terms: RequestTerms,
        query: Sequence[tuple[str, str]],
        body: bytes,
    ) -> tuple[Forms, bytes]:
        """The payload of the call, and its form, as the method wants them. Raises RequestRefusal, SlotmeshError."""
        has_parameters = bool(query or found.arguments)
        if not has_parameters and forms.arguments != OCTETS:
            return forms, payload_of(forms, body, {}, (), None)
        method = await self._mesh.method_of(caller, found, held.who, terms)
        if forms.arguments == OCTETS:
            forms = upload_forms(forms, method, has_parameters=has_parameters)
        if not forms.is_upload:
            return forms, payload_of(forms, body, found.arguments, query, method.arguments)
        given = parameters_of(found.arguments, query, method.arguments)
        most = MAX_UNARY_BYTES if terms.request_id else MAX_PAYLOAD_BYTES
        held.hold_beside(upload_bytes(forms.call, len(body), most))
        return forms, await self._steps.take(upload_payload(forms.call, body, given, method.arguments))

    async def _called(
        self,
        found: Matched,
        caller: HttpCaller,
        who: Requester,
        forms: Forms,
        terms: RequestTerms,
        payload: bytes,
        answer: RequestAnswer,
    ) -> None:
        with self._mesh.calling(caller, found.endpoint, who, len(payload), terms.ordering_key) as calls:
            if forms.framing is Framing.WHOLE:
                result = await make_call(calls, found.method, forms.call, terms, payload)
                result, head = head_of(result)
                if head.lines and has_own_type(head, forms.call):
                    method = await self._mesh.described.method(caller, found.endpoint, found.method)
                    result = await self._steps.take(raw_result(forms.call, result, method))
                lines = head.with_lines([(b"content-type", forms.call.encode())])
                await answer.whole(head.status, lines, result if head.has_body else b"")
            else:
                values = make_streaming_call(calls, found.method, forms.call, terms, payload)
                await send_values(values, forms.framing, answer, self._counters)


def _with_id(send: Send, request_id: str) -> Send:
    """Adds the id of a request to its answer."""

    async def send_with_id(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", ()), (HEADER, request_id.encode())]
        await send(message)

    return send_with_id


def allowed_methods(found: WrongMethod) -> tuple[str, ...]:
    """As `Allow` has them: HEAD goes where GET goes."""
    return (*found.allow, *(["HEAD"] if "GET" in found.allow else []))
