"""What the ingress itself answers, below `/-/`: health, metrics, routes, the OpenAPI document and a page to try calls.

Invariants: health needs no caller and reveals nothing of the mesh; routes and document have what the caller may call,
as routers report it; metrics are for viewers, if the mesh has certificates.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route as PageRoute

from ingress_service.core.cors import OTHER_PAGE, Cors
from ingress_service.core.openapi import openapi_document
from ingress_service.core.problems import Problem, RequestRefusal, problem_of, refusal
from ingress_service.core.requests import RequestHeaders
from ingress_service.shell.callers import HttpCaller
from ingress_service.shell.mesh_view import MeshView
from ingress_service.shell.metrics import Scrapes
from ingress_service.shell.request_log import FailedRequests
from ingress_service.shell.route_watch import RouteWatch
from slotmesh.errors import Reason, SlotmeshError
from slotmesh.version import VERSION

LABEL: Final = "/-/"
"""Of all pages, in the log."""
PAGE: Final = Path(__file__).with_name("docs_page.html")
_CONTENT_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"


class IngressPages:
    """Makes the Starlette app."""

    def __init__(
        self,
        mesh: MeshView,
        cors: Cors,
        failures: FailedRequests,
        why_not_ready: Callable[[], str],
        watch: RouteWatch,
        scrapes: Scrapes,
    ) -> None:
        """`why_not_ready`: empty while the ingress is ready. `watch`: of the routes. `scrapes`: of its metrics."""
        self._mesh = mesh
        self._cors = cors
        self._failures = failures
        self._why_not_ready = why_not_ready
        self._watch = watch
        self._scrapes = scrapes

    def app(self) -> Starlette:
        routes = [
            PageRoute("/-/healthz", self._health),
            PageRoute("/-/readyz", self._ready),
            PageRoute("/-/routes", self._routes),
            PageRoute("/-/openapi.json", self._openapi),
            PageRoute("/-/docs", self._docs),
            PageRoute("/-/metrics", self._metrics),
        ]
        return Starlette(
            routes=routes,
            exception_handlers={
                RequestRefusal: self._refused,
                SlotmeshError: self._failed,
                404: self._nothing,
                405: self._wrong_method,
            },
        )

    async def _health(self, _request: Request) -> Response:
        return PlainTextResponse("ok\n")

    async def _ready(self, _request: Request) -> Response:
        why = self._why_not_ready()
        return PlainTextResponse(f"{why}\n", status_code=503) if why else PlainTextResponse("ready\n")

    async def _routes(self, request: Request) -> Response:
        known = {it.name for it in await self._described(request)}
        table = self._mesh.table
        listed = [
            {"path": it.path, "endpoint": it.endpoint, "method": it.method, "methods": list(it.methods)}
            for it in table.routes
            if it.endpoint in known
        ]
        document = {
            "version": VERSION,
            "revision": self._watch.revision,
            "follows_controller": not self._watch.problem,
            "routes_held": self._watch.is_held,
            "default_routes": table.has_defaults,
            "routes": listed,
        }
        return self._json(request, document)

    async def _openapi(self, request: Request) -> Response:
        endpoints = await self._described(request)
        table = self._mesh.table
        document = openapi_document(endpoints, table.routes, has_defaults=table.has_defaults, version=VERSION)
        return self._json(request, document)

    async def _docs(self, _request: Request) -> Response:
        return HTMLResponse(PAGE.read_text("utf-8"), headers={"content-security-policy": _CONTENT_POLICY})

    async def _metrics(self, request: Request) -> Response:
        async with self._caller(request) as caller:
            await self._scrapes.check(caller)
            content_type, body = await self._scrapes.page(request.headers.get("accept", ""))
            return Response(body, headers={"content-type": content_type, "cache-control": "no-store"})

    async def _described(self, request: Request) -> Any:
        """What the caller may call. Raises RequestRefusal, SlotmeshError."""
        async with self._caller(request) as caller:
            return await self._mesh.described.ask(caller)

    @asynccontextmanager
    async def _caller(self, request: Request) -> AsyncIterator[HttpCaller]:
        """The caller of the request. Raises RequestRefusal, SlotmeshError."""
        headers = RequestHeaders(request.scope["headers"])
        if not self._cors.may_call(headers, runs_nothing=True):
            raise refusal(403, OTHER_PAGE, Reason.PERMISSION_DENIED)
        with self._mesh.visit(request.scope, headers) as visitor:
            async with self._mesh.caller_of(visitor) as caller:
                yield caller

    def _json(self, request: Request, document: Any) -> Response:
        lines = self._cors.lines(request.headers.get("origin", "").encode("latin-1"))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in lines}
        return JSONResponse(document, headers={"cache-control": "no-store", **headers})

    def _answered(self, request: Request, problem: Problem) -> Response:
        problem = self._failures.noted(problem, LABEL, request_id=request.scope.get("request_id", ""))
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in problem.header_lines()}
        return Response(problem.body(), status_code=problem.status, headers=headers)

    async def _refused(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, RequestRefusal):
            raise error
        return self._answered(request, error.problem)

    async def _failed(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, SlotmeshError):
            raise error
        return self._answered(request, problem_of(error))

    async def _nothing(self, request: Request, _error: Exception) -> Response:
        return self._answered(request, refusal(404, "there is nothing at this path", Reason.ROUTE_NOT_FOUND).problem)

    async def _wrong_method(self, request: Request, _error: Exception) -> Response:
        return self._answered(request, refusal(405, "this path has the methods GET, HEAD", Allow="GET, HEAD").problem)
