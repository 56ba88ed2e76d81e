"""Which call a request is, by its path and HTTP method. Pure.

Invariants: immutable; a literal segment goes before a parameter; routes of the mesh go before the default ones,
`POST /ENDPOINT` and `POST /ENDPOINT/METHOD`; a path that is not found reveals nothing of the routes. The label of a
match is one of a closed set: the routes' paths, and one for all default routes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import unquote_to_bytes

from slotmesh.names import MAX_METHOD_CHARS
from slotmesh.spec.routes import DEFAULT_METHODS, RESERVED, Route, parameter_of, segments_of
from slotmesh.spec.rules import is_name

DEFAULT_LABEL: Final = "_default"
CALL: Final = "__call__"
MAX_KNOWN: Final = 1_024
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Matched:
    """A request is a call of this method."""

    endpoint: str
    method: str
    label: str
    arguments: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    """What the path's parameters stand for."""


@dataclass(frozen=True, slots=True)
class WrongMethod:
    """There is such a path, with other HTTP methods."""

    label: str
    allow: tuple[str, ...]
    endpoint: str = ""
    """Where it is a default route, which there is only if there is this endpoint, with `method`."""
    method: str = ""


@dataclass(slots=True)
class _Node:
    literals: dict[str, _Node] = field(default_factory=dict)
    parameter: _Node | None = None
    route: Route | None = None


class RouteTable:
    """The routes at one revision."""

    def __init__(self, routes: Iterable[Route] = (), *, has_defaults: bool = True) -> None:
        self.routes = tuple(routes)
        self.has_defaults = has_defaults
        self._root = _Node()
        self._known: dict[tuple[bytes, str], Matched] = {}
        """Matches without arguments that were found before: most requests have few paths."""
        for route in self.routes:
            self._add(route)

    def match(self, raw_path: bytes, http_method: str, *, is_any_method: bool = False) -> Matched | WrongMethod | None:
        """`raw_path` is percent-encoded. `is_any_method`: for WebSockets, which have none of their own."""
        key = (raw_path, http_method)
        if not is_any_method and (known := self._known.get(key)) is not None:
            return known
        found = self._find(raw_path, http_method, is_any_method=is_any_method)
        if isinstance(found, Matched) and not found.arguments and not is_any_method:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            self._known[key] = found
        return found

    def _find(self, raw_path: bytes, http_method: str, *, is_any_method: bool) -> Matched | WrongMethod | None:
        segments = segments_of_request(raw_path)
        if segments is None or (segments and segments[0] == RESERVED):
            return None
        values: list[str] = []
        if (route := _find(self._root, segments, 0, values)) is not None:
            wanted = "GET" if http_method == "HEAD" else http_method
            if not is_any_method and wanted not in route.methods:
                return WrongMethod(route.path, route.methods)
            names = [name for it in segments_of(route.path) if (name := parameter_of(it)) is not None]
            return Matched(route.endpoint, route.method, route.path, dict(zip(names, values, strict=True)))
        if not self.has_defaults or not 1 <= len(segments) <= 2 or not is_name(segments[0]):
            return None
        method = segments[1] if len(segments) == 2 else CALL
        if len(method) > MAX_METHOD_CHARS or not method.isidentifier():
            return None
        if not is_any_method and http_method not in DEFAULT_METHODS:
            return WrongMethod(DEFAULT_LABEL, DEFAULT_METHODS, segments[0], method)
        return Matched(segments[0], method, DEFAULT_LABEL)

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in segments_of(route.path):
            if parameter_of(segment) is None:
                node = node.literals.setdefault(segment, _Node())
            else:
                node.parameter = node.parameter or _Node()
                node = node.parameter
        node.route = route


def _find(node: _Node, segments: list[str], at: int, values: list[str]) -> Route | None:
    """The route of these segments from `at` on; its parameters are put into `values`. Visits each node once at most."""
    if at == len(segments):
        return node.route
    segment = segments[at]
    if (literal := node.literals.get(segment)) is not None and (
        found := _find(literal, segments, at + 1, values)
    ) is not None:
        return found
    if node.parameter is None or not segment:
        return None
    values.append(segment)
    if (found := _find(node.parameter, segments, at + 1, values)) is None:
        values.pop()
    return found


def segments_of_request(raw_path: bytes) -> list[str] | None:
    """The segments of a percent-encoded path; None if they are no text."""
    if not raw_path.startswith(b"/"):
        return None
    if raw_path == b"/":
        return []
    try:
        return [unquote_to_bytes(it).decode() if b"%" in it else it.decode() for it in raw_path[1:].split(b"/")]
    except UnicodeDecodeError:
        return None
