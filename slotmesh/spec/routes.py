"""Routes: which HTTP requests become calls of which method of an endpoint, and which routes are valid. Pure.

Purpose: one interpretation of paths for `rules`, the controller and the ingress.
Invariants: a path consists of literal segments and parameters, `/users/{name}`; no two routes of a mesh have the same
shape, so that the order of routes does not matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

HTTP_METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
"""The methods that a route may have. HEAD uses the route of GET; the ingress answers OPTIONS itself."""
DEFAULT_METHODS: Final = ("POST",)
RESERVED: Final = "-"
"""The first segment of the ingress's own paths, as `/-/healthz`."""
MAX_PATH_CHARS: Final = 256
MAX_SEGMENTS: Final = 16

_LITERAL: Final = re.compile(r"[A-Za-z0-9._~-]+", re.ASCII)
_PARAMETER: Final = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Requests to a path, and the method of an endpoint that is called for each."""

    path: str
    """As `/users/{name}`: the text at `{name}` becomes the argument of that name."""
    endpoint: str
    method: str
    methods: tuple[str, ...] = DEFAULT_METHODS
    """HTTP methods, sorted."""

    @property
    def name(self) -> str:
        """The key of the route: its path."""
        return self.path


def route_subject(path: str) -> str:
    """The subject of a route, as `route/users/{name}`."""
    return f"route{path}"


def route_path(subject: str) -> str:
    """The path of a route's subject."""
    return subject.removeprefix("route")


def segments_of(path: str) -> tuple[str, ...]:
    """`/users/{name}` has `users` and `{name}`; `/` has none."""
    return tuple(path[1:].split("/")) if len(path) > 1 else ()


def parameter_of(segment: str) -> str | None:
    """The name of a parameter; None for a literal segment."""
    found = _PARAMETER.fullmatch(segment)
    return None if found is None else found[1]


def shape_of(path: str) -> str:
    """The path with unnamed parameters; routes of the same shape match the same requests."""
    return "/" + "/".join("{}" if parameter_of(it) is not None else it for it in segments_of(path))


def path_problems(path: str) -> Iterator[str]:
    """The problems of a path, each with what would be valid."""
    if not path.startswith("/") or len(path) > MAX_PATH_CHARS:
        yield f"a path begins with / and has {MAX_PATH_CHARS} characters at most"
        return
    segments = segments_of(path)
    if len(segments) > MAX_SEGMENTS:
        yield f"a path has {MAX_SEGMENTS} segments at most, this one has {len(segments)}"
        return
    if segments and segments[0] == RESERVED:
        yield f"/{RESERVED}/ is for what the ingress itself answers"
    names = [name for it in segments if (name := parameter_of(it)) is not None]
    if len(set(names)) < len(names):
        yield "a parameter is named twice"
    if any(it in {".", ".."} or (parameter_of(it) is None and not _LITERAL.fullmatch(it)) for it in segments):
        yield "a segment is of `a-z A-Z 0-9 . _ ~ -`, or a parameter as {name}; there is no / at the end"


def clashes(routes: Iterable[Route]) -> Iterator[tuple[str, str]]:
    """Pairs of paths that match the same requests."""
    by_shape: dict[str, str] = {}
    for route in routes:
        other = by_shape.setdefault(shape_of(route.path), route.path)
        if other != route.path:
            yield route.path, other
