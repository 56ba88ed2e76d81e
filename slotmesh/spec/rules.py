"""What makes a specification valid, resource by resource. Pure.

Invariants: a check never stops at the first violation; a resource gets the same violations from YAML and from the wire.
The controller checks whether the backends that a policy names exist.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any, Final

from slotmesh.names import is_utf8
from slotmesh.spec.devices import amount_problems
from slotmesh.spec.environment import problems_of
from slotmesh.spec.model import BUILT_IN_BALANCERS, SETTINGS, Backend, Endpoint, Mesh, SpecViolation, TrafficPolicy
from slotmesh.spec.routes import HTTP_METHODS, Route, clashes, path_problems
from slotmesh.spec.setting import Setting, SettingKind
from slotmesh.spec.tenants import limit_problems
from slotmesh.units import format_size

WEIGHT_TOLERANCE: Final = 1e-8
"""How far from 1 the sum of weights may be."""

MAX_BALANCER_CHARS: Final = 200
MAX_CONFIG_DEPTH: Final = 32
MAX_CONFIG_VALUES: Final = 100_000
MAX_EXACT_INTEGER: Final = 2**53
"""Configuration travels as JSON numbers, which lose digits of larger integers."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_HANDLER: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_METHOD: Final = re.compile(r"[^\W\d]\w{0,127}")
_QUANTITY: Final = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?")
_FILE: Final = re.compile(r"(?:\./)?(?P<module>\w+(?:/\w+)*)\.py:(?P<name>\w+(?:\.\w+)*)")
_NO_UTF8: Final = "is no text that UTF-8 can carry: it has half of a character"
_SHOWN: Final = 80
"""The longest part of an input that a message repeats, in characters; for an integer, bits."""


def mesh_violations(mesh: Mesh) -> list[SpecViolation]:
    """All violations of a mesh that do not depend on the present state of the controller."""
    violations = [*_repeated("backends", [backend.name for backend in mesh.backends])]
    violations += _repeated("endpoints", [endpoint.name for endpoint in mesh.endpoints])
    for backend in mesh.backends:
        violations += backend_violations(backend)
    for endpoint in mesh.endpoints:
        violations += endpoint_violations(endpoint)
    violations += _repeated("routes", [route.path for route in mesh.routes])
    for route in mesh.routes:
        violations += route_violations(route)
    violations += clash_violations(mesh.routes)
    return violations


def backend_violations(backend: Backend) -> Iterator[SpecViolation]:
    """All violations of a backend."""
    path = f"backends.{show(backend.name)}"
    yield from _name_violations(path, backend.name)
    for name, setting in SETTINGS.items():
        yield from _setting_violations(f"{path}.{name}", setting, getattr(backend, setting.attribute))
    if (autoscale := backend.autoscale) is not None:
        if backend.num_replicas is not None:
            yield SpecViolation(
                f"{path}.num_replicas",
                "contradicts autoscale, which chooses the number, from autoscale.min to autoscale.max: change these, or"
                " leave one of the two out",
            )
        if autoscale.min > autoscale.max:
            text = f"is larger than autoscale.max: {number(autoscale.min)} and {number(autoscale.max)}"
            yield SpecViolation(f"{path}.autoscale.min", text)
    for name in ("cpu", "memory") if backend.pod is not None else ():
        if (quantity := getattr(backend.pod, name)) and not _QUANTITY.fullmatch(quantity):
            text = f"must be a quantity as Kubernetes writes it, 500m or 2Gi, is {show(quantity)!r}"
            yield SpecViolation(f"{path}.pod.{name}", text)
    if backend.max_surge == 0 and backend.max_unavailable == 0:
        yield SpecViolation(
            f"{path}.max_surge", "0 with `max_unavailable` 0 leaves no way to replace a replica: raise one"
        )


def endpoint_violations(endpoint: Endpoint) -> Iterator[SpecViolation]:
    """All violations of an endpoint, its policy included."""
    path = f"endpoints.{show(endpoint.name)}"
    yield from _name_violations(path, endpoint.name)
    if endpoint.traffic is not None:
        yield from traffic_violations(path, endpoint.traffic)
    if endpoint.tenants is not None:
        for where, problem in limit_problems(endpoint.tenants):
            yield SpecViolation(f"{path}.tenants{show(where) if where else ''}", problem)


def route_violations(route: Route) -> Iterator[SpecViolation]:
    """All violations of a route. Whether its endpoint exists is checked when the route is called."""
    path = f"routes.{show(route.path)}"
    for problem in path_problems(route.path):
        yield SpecViolation(path, problem)
    yield from _name_violations(f"{path}.endpoint", route.endpoint)
    if not _METHOD.fullmatch(route.method):
        yield SpecViolation(
            f"{path}.method",
            "must be the name of a method of the handler, 1 to 128 characters; __call__ where it is a function",
        )
    if not route.methods:
        yield SpecViolation(f"{path}.methods", f"needs at least one of {', '.join(HTTP_METHODS)}")
    for method in route.methods:
        if method not in HTTP_METHODS:
            yield SpecViolation(f"{path}.methods", f"must be of {', '.join(HTTP_METHODS)}, is {show(method)!r}")
    if len(set(route.methods)) < len(route.methods):
        yield SpecViolation(f"{path}.methods", "names one twice")


def clash_violations(routes: Iterable[Route]) -> Iterator[SpecViolation]:
    """Routes that match the same paths as another one."""
    for path, other in clashes(routes):
        yield SpecViolation(f"routes.{show(path)}", f"matches the same paths as {show(other)}: leave one of them out")


def traffic_violations(path: str, traffic: TrafficPolicy) -> Iterator[SpecViolation]:
    """All violations of a traffic policy; `path` is its endpoint's."""
    shares_in_range = [*_share_violations(f"{path}.traffic", traffic.weights)]
    yield from shares_in_range
    if not traffic.weights:
        yield SpecViolation(f"{path}.traffic", "needs at least one backend with its weight, as {digits-v1: 1.0}")
    elif not shares_in_range:
        total = math.fsum(traffic.weights.values())
        if abs(total - 1.0) > WEIGHT_TOLERANCE:
            yield SpecViolation(
                f"{path}.traffic", f"weights sum to {total:.12g}, must be 1: list all backends that get calls"
            )
    yield from _share_violations(f"{path}.shadows", traffic.shadows)


def is_name(text: str) -> bool:
    """Whether a backend or an endpoint may have this name."""
    return _NAME.fullmatch(text) is not None


def is_path(text: str) -> bool:
    """Whether this has the form `MODULE:NAME`."""
    return _HANDLER.fullmatch(text) is not None


def _balancer_problem(balancer: str) -> str:
    """The problem of a balancer's name; empty if there is none. Which ones there are, only the routers know."""
    names = ", ".join(BUILT_IN_BALANCERS)
    if balancer in BUILT_IN_BALANCERS or (is_path(balancer) and len(balancer) <= MAX_BALANCER_CHARS):
        return ""
    if not is_name(balancer):
        there = f"{names}, MODULE:NAME ({MAX_BALANCER_CHARS} characters at most) or the name of an entry point"
        return f"must be {there}, is {show(balancer)!r}{_meant(balancer)}"
    if meant := get_close_matches(balancer.lower().replace("-", "_"), BUILT_IN_BALANCERS, n=1, cutoff=0.8):
        return f"is {show(balancer)!r}; did you mean {meant[0]}? There are {names}"
    return ""


def _meant(handler: str) -> str:
    """`; did you mean MODULE:NAME?` if `handler` is the path of a file with a name. Empty otherwise."""
    file = _FILE.fullmatch(handler)
    return f"; did you mean {file['module'].replace('/', '.')}:{file['name']}?" if file else ""


def show(text: str) -> str:
    """An input as a message may repeat it: shortened, and printable."""
    clipped = text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
    return "".join(char if char.isprintable() else "?" for char in clipped) or "(empty)"


_REQUEST_ID: Final = re.compile(r"[!-~]{1,128}")


def request_id_problem(request_id: str) -> str | None:
    """The problem of a request id that is not empty; None if it is valid."""
    if _REQUEST_ID.fullmatch(request_id) is not None:
        return None
    return f"must be 1 … 128 printable ASCII characters without blanks, is {show(request_id)!r}"


def number(value: float) -> str:
    """A number as a message may repeat it. Python refuses to format very long integers."""
    if isinstance(value, int) and value.bit_length() > _SHOWN:
        return f"about 2^{value.bit_length():,}"
    return f"{value:,}"


def _name_violations(path: str, name: str) -> Iterator[SpecViolation]:
    if not is_name(name):
        yield SpecViolation(path, "a name has 1 to 63 of `a-z A-Z 0-9 _ . -` and starts with a letter or digit")


def _setting_violations(path: str, setting: Setting, value: Any) -> Iterator[SpecViolation]:
    match setting.kind:
        case SettingKind.SECTION:
            for name, inner in setting.settings.items() if value is not None else ():
                yield from _setting_violations(f"{path}.{name}", inner, getattr(value, inner.attribute))
        case SettingKind.INTEGER | SettingKind.NUMBER | SettingKind.SIZE | SettingKind.DURATION:
            yield from _bounded(path, value, setting)
        case SettingKind.AMOUNTS:
            for name, problem in amount_problems(value):
                yield SpecViolation(f"{path}.{show(name)}" if name else path, problem)
        case SettingKind.JSON:
            yield from _config_violations(path, value)
        case SettingKind.ENVIRONMENT:
            for name, problem in problems_of(value):
                yield SpecViolation(f"{path}.{show(name)}" if name else path, problem)
        case SettingKind.HANDLER:
            if value and not is_path(value):
                yield SpecViolation(path, f"must be MODULE:NAME, is {show(value)!r}{_meant(value)}")
        case SettingKind.BALANCER:
            if problem := _balancer_problem(value):
                yield SpecViolation(path, problem)
        case SettingKind.TEXT:
            most = int(setting.bounds[1]) if setting.bounds is not None else 0
            if len(value) > most or not value.isprintable():
                yield SpecViolation(path, f"must be a line of at most {most} printable characters, is {show(value)!r}")
        case SettingKind.FLAG | SettingKind.CHOICE:
            pass  # each value of the type is valid


def _share_violations(path: str, shares: Mapping[str, float]) -> Iterator[SpecViolation]:
    for name, share in shares.items():
        if not 0.0 <= share <= 1.0:  # also false for NaN
            yield SpecViolation(f"{path}.{show(name)}", f"must be 0 … 1, is {share:g}")


def _bounded(path: str, value: float | None, setting: Setting) -> Iterator[SpecViolation]:
    if value is None or setting.bounds is None:
        return
    low, high = setting.bounds
    unit = " s" if setting.kind is SettingKind.DURATION else ""
    if not low <= value <= high:
        if setting.kind is SettingKind.SIZE and value >= 0:
            least, most, given = (format_size(int(it)) for it in (low, high, value))
        else:
            least, most, given = f"{low:,}", f"{high:,}", number(value)
        yield SpecViolation(path, f"must be {least}{unit} … {most}{unit}, is {given}{unit}")


def _config_violations(path: str, config: object) -> Iterator[SpecViolation]:
    """Checks that `config` is a JSON value. YAML may give anything else; aliases make a short text very large."""
    pending: list[tuple[str, object, int]] = [(path, config, 0)]
    values = 1
    while pending:
        where, value, depth = pending.pop()
        match value:
            case None | bool() | str():
                if isinstance(value, str) and not is_utf8(value):
                    yield SpecViolation(where, _NO_UTF8)
                continue
            case int():
                if abs(value) > MAX_EXACT_INTEGER:
                    yield SpecViolation(where, "integers over 2^53 lose digits on the way: make it a string")
                continue
            case float():
                if not math.isfinite(value):
                    yield SpecViolation(where, f"must be finite, is {value}")
                continue
            case _ if depth == MAX_CONFIG_DEPTH:
                yield SpecViolation(where, f"is nested deeper than {MAX_CONFIG_DEPTH}")
                return  # endless nesting would have endless violations
            case Mapping() | list() | tuple():
                values += len(value)
            case _:
                yield SpecViolation(where, f"a {type(value).__name__} is no JSON value: make it a string")
                continue
        if values > MAX_CONFIG_VALUES:
            yield SpecViolation(path, f"holds more than {MAX_CONFIG_VALUES:,} values, those behind aliases included")
            return
        if isinstance(value, Mapping):
            for name in value:
                if not isinstance(name, str) or not is_utf8(name):
                    problem = _NO_UTF8 if isinstance(name, str) else f"is a {type(name).__name__}, not a name: quote it"
                    yield SpecViolation(where, f"{show(str(name))} {problem}")
            pending += [(f"{where}.{show(str(name))}", inner, depth + 1) for name, inner in value.items()]
        else:
            pending += [(f"{where}[{index}]", inner, depth + 1) for index, inner in enumerate(value)]


def _repeated(kind: str, names: list[str]) -> Iterator[SpecViolation]:
    for name, times in Counter(names).items():
        if times > 1:
            yield SpecViolation(f"{kind}.{show(name)}", f"is given {times} times")
