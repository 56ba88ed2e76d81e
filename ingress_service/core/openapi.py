"""The OpenAPI 3.1 document of what a caller may call, from the descriptions of handlers. Pure.

Invariants: each method of each endpoint is one operation, at its routes and at its default path; definitions of
different methods never get into each other's way; what is not known has no schema, and the operation is listed without.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ingress_service.core.arguments import Schemas, bytes_argument
from ingress_service.core.media import JSON, MSGPACK, OCTETS
from ingress_service.core.routes import CALL
from slotmesh.spec.routes import Route, parameter_of, segments_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMethod:
    """What routers have reported of one method."""

    name: str
    yields: bool = False
    schema: Mapping[str, Any] = field(default_factory=dict)
    """`arguments`, `result` and `$defs`; empty where nothing is known."""

    @property
    def arguments(self) -> Schemas | None:
        """The schemas of its arguments, by name, with `$defs`; None if they are not known."""
        arguments = self.schema.get("arguments")
        if not isinstance(arguments, Mapping) or not isinstance(named := arguments.get("properties"), Mapping):
            return None
        return {**named, "$defs": self.schema.get("$defs", {})}

    @property
    def first_argument(self) -> str:
        """The argument that a call gives by position, if it gives one; empty if that has no name, or is not known."""
        if parameters := self.schema.get("parameters"):
            first = parameters[0]
            return first["name"] if first["kind"] == "positional_or_keyword" else ""
        return next(iter(self.arguments or ("",)))


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedEndpoint:
    """What routers have reported of one endpoint."""

    name: str
    methods: tuple[DescribedMethod, ...]


PROBLEM: Final = "Problem"
_BODILESS: Final = frozenset({"GET", "DELETE"})
_PROBLEM_SCHEMA: Final = {
    "type": "object",
    "description": "A problem document (RFC 9457).",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "reason": {"type": "string"},
        "executed": {"type": "string", "enum": ["no", "unknown", "yes"]},
        "log_ref": {"type": "string"},
    },
}


def openapi_document(
    endpoints: Sequence[DescribedEndpoint], routes: Iterable[Route], *, has_defaults: bool, version: str
) -> dict[str, Any]:
    """Plain values, as JSON has them."""
    known = {(endpoint.name, method.name): method for endpoint in endpoints for method in endpoint.methods}
    names = {endpoint.name for endpoint in endpoints}
    paths: dict[str, dict[str, Any]] = {}
    components: dict[str, Any] = {PROBLEM: _PROBLEM_SCHEMA}
    for route in routes:
        if route.endpoint in names:
            method = known.get((route.endpoint, route.method), DescribedMethod(name=route.method))
            for http_method in route.methods:
                item = paths.setdefault(route.path, {})
                item[http_method.lower()] = _operation(route, http_method, method, components)
    if has_defaults:
        for (endpoint, name), method in known.items():
            path = f"/{endpoint}" if name == CALL else f"/{endpoint}/{name}"
            route = Route(path=path, endpoint=endpoint, method=name)
            paths.setdefault(path, {}).setdefault("post", _operation(route, "POST", method, components))
    return {
        "openapi": "3.1.0",
        "info": {"title": "slotmesh", "version": version, "description": "What handlers of this mesh offer by HTTP."},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"bearer": []}],
    }


def _operation(route: Route, http_method: str, method: DescribedMethod, components: dict[str, Any]) -> dict[str, Any]:
    prefix = f"{route.endpoint}.{method.name}"
    schema = _renamed(method.schema, prefix)
    for name, definition in schema.get("$defs", {}).items():
        components[f"{prefix}.{name}"] = definition
    found = schema.get("arguments")
    arguments: Mapping[str, Any] = found if isinstance(found, Mapping) else {}
    properties, required = arguments.get("properties", {}), set(arguments.get("required", ()))
    in_path = [name for it in segments_of(route.path) if (name := parameter_of(it)) is not None]
    operation: dict[str, Any] = {
        "operationId": f"{http_method.lower()} {route.path}",
        "tags": [route.endpoint],
        "summary": f"{route.endpoint}.{method.name}",
        "parameters": [_parameter(name, "path", properties.get(name, {}), is_required=True) for name in in_path],
        "responses": _responses(method, schema.get("result", {})),
    }
    if http_method in _BODILESS:
        operation["parameters"] += [
            _parameter(name, "query", each, is_required=name in required)
            for name, each in properties.items()
            if name not in in_path
        ]
    else:
        body = {**arguments, "properties": {name: it for name, it in properties.items() if name not in in_path}}
        if required:
            body["required"] = sorted(required - set(in_path))
        named = body if arguments else {}
        content = {media: {"schema": named} for media in (JSON, MSGPACK)}
        if bytes_argument(method.arguments, dict.fromkeys(in_path)) is not None:
            content[OCTETS] = {"schema": {"type": "string", "format": "binary"}}
        operation["requestBody"] = {"content": content}
    return operation


def _parameter(name: str, place: str, schema: Any, *, is_required: bool) -> dict[str, Any]:
    return {"name": name, "in": place, "required": is_required, "schema": schema}


def _responses(method: DescribedMethod, result: Any) -> dict[str, Any]:
    kinds = ("text/event-stream", "application/x-ndjson") if method.yields else (JSON, MSGPACK)
    words = "Each value that the handler yields." if method.yields else "The result."
    problem = {"application/problem+json": {"schema": {"$ref": f"#/components/schemas/{PROBLEM}"}}}
    return {
        "200": {"description": words, "content": {kind: {"schema": result} for kind in kinds}},
        "default": {"description": "What went wrong, and whether the call was executed.", "content": problem},
    }


def _renamed(schema: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The schema with references to definitions of this method."""
    if not schema:
        return {}
    text = json.dumps(schema).replace('"#/$defs/', f'"#/components/schemas/{prefix}.')
    renamed = json.loads(text)
    return renamed if isinstance(renamed, dict) else {}
