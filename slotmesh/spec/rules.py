"""What makes a specification valid, resource by resource. Pure.

Invariants: a check never stops at the first mistake; the same resource gets the same mistakes whether it came as YAML
or over the wire. Whether the backends that a policy names exist is checked by the controller.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from slotmesh.spec.model import SETTINGS, Backend, Endpoint, Mesh, Mistake, TrafficPolicy
from slotmesh.spec.routes import HTTP_METHODS, Route, clashes, path_problems
from slotmesh.spec.setting import Setting, SettingKind
from slotmesh.spec.tenants import limit_problems

WEIGHT_TOLERANCE: Final = 1e-8
"""How far from 1 the sum of weights may be."""

MAX_CONFIG_DEPTH: Final = 32
MAX_CONFIG_VALUES: Final = 100_000
MAX_EXACT_INTEGER: Final = 2**53
"""Configuration travels as JSON numbers do: larger integers would lose digits."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HANDLER: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_METHOD: Final = re.compile(r"[^\W\d]\w{0,127}")
_FILE: Final = re.compile(r"(?:\./)?(?P<module>\w+(?:/\w+)*)\.py:(?P<name>\w+(?:\.\w+)*)")
_SHOWN: Final = 80
"""Characters, or bits, of an input that a message repeats."""


def mesh_mistakes(mesh: Mesh) -> list[Mistake]:
    """All mistakes of a mesh that can be seen without knowing what is there already."""
    mistakes = [*_repeated("backends", [backend.name for backend in mesh.backends])]
    mistakes += _repeated("endpoints", [endpoint.name for endpoint in mesh.endpoints])
    for backend in mesh.backends:
        mistakes += backend_mistakes(backend)
    for endpoint in mesh.endpoints:
        mistakes += endpoint_mistakes(endpoint)
    mistakes += _repeated("routes", [route.path for route in mesh.routes])
    for route in mesh.routes:
        mistakes += route_mistakes(route)
    mistakes += clash_mistakes(mesh.routes)
    return mistakes


def backend_mistakes(backend: Backend) -> Iterator[Mistake]:
    """All mistakes of a backend."""
    path = f"backends.{show(backend.name)}"
    yield from _name_mistakes(path, backend.name)
    for name, setting in SETTINGS.items():
        yield from _setting_mistakes(f"{path}.{name}", setting, getattr(backend, setting.attribute))
    if (autoscale := backend.autoscale) is not None:
        if backend.num_replicas is not None:
            yield Mistake(
                f"{path}.num_replicas", "contradicts autoscale, which chooses the number: leave one of them out"
            )
        if autoscale.min > autoscale.max:
            text = f"is larger than autoscale.max: {number(autoscale.min)} and {number(autoscale.max)}"
            yield Mistake(f"{path}.autoscale.min", text)
    if backend.max_surge == 0 and backend.max_unavailable == 0:
        yield Mistake(f"{path}.max_surge", "0 with `max_unavailable` 0 leaves no way to replace a replica: raise one")


def endpoint_mistakes(endpoint: Endpoint) -> Iterator[Mistake]:
    """All mistakes of an endpoint, its policy included."""
    path = f"endpoints.{show(endpoint.name)}"
    yield from _name_mistakes(path, endpoint.name)
    if endpoint.traffic is not None:
        yield from traffic_mistakes(path, endpoint.traffic)
    if endpoint.tenants is not None:
        for where, problem in limit_problems(endpoint.tenants):
            yield Mistake(f"{path}.tenants{show(where) if where else ''}", problem)


def route_mistakes(route: Route) -> Iterator[Mistake]:
    """All mistakes of a route. Whether its endpoint exists is seen when it is called."""
    path = f"routes.{show(route.path)}"
    for problem in path_problems(route.path):
        yield Mistake(path, problem)
    yield from _name_mistakes(f"{path}.endpoint", route.endpoint)
    if not _METHOD.fullmatch(route.method):
        yield Mistake(
            f"{path}.method",
            "must be the name of a method of the handler, 1 to 128 characters; __call__ where it is a function",
        )
    if not route.methods:
        yield Mistake(f"{path}.methods", f"needs at least one of {', '.join(HTTP_METHODS)}")
    for method in route.methods:
        if method not in HTTP_METHODS:
            yield Mistake(f"{path}.methods", f"must be of {', '.join(HTTP_METHODS)}, is {show(method)!r}")
    if len(set(route.methods)) < len(route.methods):
        yield Mistake(f"{path}.methods", "names one twice")


def clash_mistakes(routes: Iterable[Route]) -> Iterator[Mistake]:
    """Routes that match the same paths as another one."""
    for path, other in clashes(routes):
        yield Mistake(f"routes.{show(path)}", f"matches the same paths as {show(other)}: leave one of them out")


def traffic_mistakes(path: str, traffic: TrafficPolicy) -> Iterator[Mistake]:
    """All mistakes of a traffic policy; `path` is its endpoint's."""
    shares_in_range = [*_share_mistakes(f"{path}.traffic", traffic.weights)]
    yield from shares_in_range
    if not traffic.weights:
        yield Mistake(f"{path}.traffic", "needs at least one backend with its weight, as {digits-v1: 1.0}")
    elif not shares_in_range:
        total = math.fsum(traffic.weights.values())
        if abs(total - 1.0) > WEIGHT_TOLERANCE:
            yield Mistake(f"{path}.traffic", f"weights sum to {total:.12g}, must be 1")
    yield from _share_mistakes(f"{path}.shadows", traffic.shadows)


def is_name(text: str) -> bool:
    """Whether a backend or an endpoint may have this name."""
    return _NAME.fullmatch(text) is not None


def is_path(text: str) -> bool:
    """Whether this names something of a module, as `MODULE:NAME`."""
    return _HANDLER.fullmatch(text) is not None


def _meant(handler: str) -> str:
    """`; did you mean MODULE:NAME?` where it is the path of a file, and a name in it."""
    file = _FILE.fullmatch(handler)
    return f"; did you mean {file['module'].replace('/', '.')}:{file['name']}?" if file else ""


def show(text: str) -> str:
    """An input as a message may repeat it: bounded, and in printable characters."""
    clipped = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return "".join(char if char.isprintable() else "?" for char in clipped) or "(empty)"


def number(value: float) -> str:
    """A number as a message may repeat it: Python refuses to write out very long ones."""
    if isinstance(value, int) and value.bit_length() > _SHOWN:
        return f"about 2^{value.bit_length():,}"
    return f"{value:,}"


def _name_mistakes(path: str, name: str) -> Iterator[Mistake]:
    if not is_name(name):
        yield Mistake(path, "a name has 1 to 63 of `a-z A-Z 0-9 _ . -` and starts with a letter or digit")


def _setting_mistakes(path: str, setting: Setting, value: Any) -> Iterator[Mistake]:
    match setting.kind:
        case SettingKind.SECTION:
            for name, inner in setting.settings.items() if value is not None else ():
                yield from _setting_mistakes(f"{path}.{name}", inner, getattr(value, inner.attribute))
        case SettingKind.INTEGER | SettingKind.NUMBER | SettingKind.SIZE | SettingKind.DURATION:
            yield from _bounded(path, value, setting)
        case SettingKind.JSON:
            yield from _config_mistakes(path, value)
        case SettingKind.HANDLER:
            if value and not is_path(value):
                yield Mistake(path, f"must be MODULE:NAME, is {show(value)!r}{_meant(value)}")
        case SettingKind.TEXT:
            most = int(setting.bounds[1]) if setting.bounds is not None else 0
            if len(value) > most or not value.isprintable():
                yield Mistake(path, f"must be a line of at most {most} printable characters, is {show(value)!r}")
        case SettingKind.FLAG | SettingKind.CHOICE:
            pass  # each value that they can have is a right one


def _share_mistakes(path: str, shares: Mapping[str, float]) -> Iterator[Mistake]:
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:  # also false for NaN
            yield Mistake(f"{path}.{show(name)}", f"must be 0 … 1, is {share:g}")


def _bounded(path: str, value: float | None, setting: Setting) -> Iterator[Mistake]:
    if value is None or setting.bounds is None:
        return
    low, high = setting.bounds
    unit = " s" if setting.kind is SettingKind.DURATION else ""
    if not low <= value <= high:
        yield Mistake(path, f"must be {low:,}{unit} … {high:,}{unit}, is {number(value)}{unit}")


def _config_mistakes(path: str, config: object) -> Iterator[Mistake]:
    """`config` should be a JSON value, and may be anything that YAML can have: aliases make a short text endless."""
    pending: list[tuple[str, object, int]] = [(path, config, 0)]
    values = 1
    while pending:
        where, value, depth = pending.pop()
        match value:
            case None | bool() | str():
                continue
            case int():
                if abs(value) > MAX_EXACT_INTEGER:
                    yield Mistake(where, "integers over 2^53 lose digits on the way: make it a string")
                continue
            case float():
                if not math.isfinite(value):
                    yield Mistake(where, f"must be finite, is {value}")
                continue
            case _ if depth == MAX_CONFIG_DEPTH:
                yield Mistake(where, f"is nested deeper than {MAX_CONFIG_DEPTH}")
                return  # what has no end has no end of mistakes either
            case Mapping() | list() | tuple():
                values += len(value)
            case _:
                yield Mistake(where, f"a {type(value).__name__} is no JSON value: make it a string")
                continue
        if values > MAX_CONFIG_VALUES:
            yield Mistake(path, f"holds more than {MAX_CONFIG_VALUES:,} values, those behind aliases included")
            return
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str):
                    yield Mistake(where, f"{show(str(name))} is a {type(name).__name__}, not a name: quote it")
            pending += [(f"{where}.{show(str(name))}", inner, depth + 1) for name, inner in value.items()]
        else:
            pending += [(f"{where}[{index}]", inner, depth + 1) for index, inner in enumerate(value)]


def _repeated(kind: str, names: list[str]) -> Iterator[Mistake]:
    for name, times in Counter(names).items():
        if times > 1:
            yield Mistake(f"{kind}.{show(name)}", f"is given {times} times")
