"""Every bound of a specification: exactly at it a value passes, one step beyond it is refused, with its path.

The numbers are written down by hand, and not asked of the code under test.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from slotmesh.spec.document import load_mesh
from slotmesh.spec.model import SETTINGS, Autoscale, Backend, Endpoint, InvalidSpec, SpecViolation, TrafficPolicy
from slotmesh.spec.routes import Route
from slotmesh.spec.rules import backend_violations, endpoint_violations, route_violations, traffic_violations
from slotmesh.spec.sections import MAX_SPEC_BYTES
from slotmesh.spec.tenants import TenantLimit, TenantLimits
from tests.support.edges import Edge, each_edge

DAY: Final = 86_400.0
STEP: Final = 1e-6
"""Of a setting that is no whole number."""
BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "version": (0, 100),
    "code": (0, 200),
    "num_replicas": (0, 10_000),
    "max_ongoing": (1, 1_000_000),
    "prefetch": (0, 1_000_000),
    "max_queued_calls": (1, 10_000_000),
    "max_queued_bytes": (1, 2**40),
    "max_queue_time": (0.001, DAY),
    "max_wire_batch_size": (1, 100_000),
    "graceful_timeout": (0.0, DAY),
    "health_check_period": (0.01, DAY),
    "health_check_timeout": (0.01, DAY),
    "max_surge": (0, 10_000),
    "max_unavailable": (0, 10_000),
    "min_ready": (0.0, DAY),
    "progress_deadline": (0.1, DAY),
    "max_error_rate": (0.0, 1.0),
    "python": (0, 4_096),
    "cwd": (0, 4_096),
    "cpus": (0.01, 4_096.0),
    "memory": (2**20, 2**50),
    "autoscale.min": (0, 10_000),
    "autoscale.max": (1, 10_000),
    "autoscale.target_ongoing": (0.01, 1_000_000.0),
    "autoscale.target_queue_time": (0.001, DAY),
    "autoscale.up_delay": (0.0, DAY),
    "autoscale.down_delay": (0.0, DAY),
    "autoscale.idle_timeout": (0.0, DAY),
    "autoscale.up_rate": (1.0, 10_000.0),
    "autoscale.down_rate": (0.0, 1.0),
}
"""Of each setting of a backend that has any: characters of a text, bytes of a size, seconds of a duration."""
TEXTS: Final = ("version", "code", "python", "cwd")
WHOLE: Final = {name for name, (low, high) in BOUNDS.items() if isinstance(low, int)}
"""Whole numbers."""
NAN: Final = float("nan")
WIDE: Final = Autoscale(min=0, max=10_000)
"""So that no setting of it contradicts another one."""


def with_setting(name: str, value: Any) -> Backend:
    section, _, inner = name.rpartition(".")
    if section:
        attribute = SETTINGS["autoscale"].settings[inner].attribute
        return Backend(name="b", autoscale=replace(WIDE, **{attribute: value}))
    return replace(Backend(name="b", max_surge=1), **{SETTINGS[inner].attribute: value})


def mistakes_of(name: str, value: Any) -> list[SpecViolation]:
    return [it for it in backend_violations(with_setting(name, value)) if it.path == f"backends.b.{name}"]


def test_each_setting_with_bounds_is_in_the_table() -> None:
    declared = {name: each.bounds for name, each in SETTINGS.items() if each.bounds is not None}
    inner = SETTINGS["autoscale"].settings
    declared |= {f"autoscale.{name}": each.bounds for name, each in inner.items() if each.bounds is not None}
    assert set(BOUNDS) == set(declared)


@pytest.mark.parametrize("name", BOUNDS)
def test_a_setting_has_its_bounds_and_may_be_at_each_of_them(name: str) -> None:
    low, high = BOUNDS[name]
    if name in TEXTS:
        assert not mistakes_of(name, "")
        assert not mistakes_of(name, "x" * int(high))
        assert len(mistakes_of(name, "x" * (int(high) + 1))) == 1
        return
    step = 1 if name in WHOLE else STEP
    for fits in (low, low + step, high - step, high):
        assert not mistakes_of(name, fits), fits
    for beyond in (low - step, high + step, low - 1 if name in WHOLE else NAN):
        assert len([it for it in mistakes_of(name, beyond) if it.message.startswith("must be ")]) == 1, beyond


def test_the_least_number_of_replicas_may_be_the_largest() -> None:
    for least, fits in ((9, True), (10, True), (11, False)):
        found = [*backend_violations(Backend(name="b", autoscale=Autoscale(min=least, max=10)))]
        assert (not found) is fits, least


def nested(depth: int) -> Any:
    value: Any = 1
    for number in range(depth):
        value = [value] if number % 2 else {"a": value}
    return value


def configured(value: Any) -> bool:
    return not [*backend_violations(Backend(name="b", user_config={"it": value}))]


def routed(**changes: Any) -> bool:
    route = replace(Route(path="/a", endpoint="e", method="m"), **changes)
    return not [*route_violations(route)]


def limited(limits: TenantLimits) -> bool:
    return not [*endpoint_violations(Endpoint(name="e", tenants=limits))]


def weighted(*weights: float) -> bool:
    named = {f"b{number}": weight for number, weight in enumerate(weights)}
    return not [*traffic_violations("endpoints.e", TrafficPolicy(weights=named))]


def overrides(count: int) -> TenantLimits:
    return TenantLimits(overrides={f"t{number}": TenantLimit(max_in_flight=1) for number in range(count)})


def tenant(nbytes: int) -> str:
    return "é" * (nbytes // 2) + "a" * (nbytes % 2)


def sum_off_by(nanos: int) -> bool:
    return weighted(0.25, 0.25, 0.5 + nanos * 1e-9) and weighted(0.25, 0.25, 0.5 - nanos * 1e-9)


LIMITS: Final[dict[str, Callable[[int], TenantLimits]]] = {
    "max_calls_per_s": lambda n: TenantLimits(max_calls_per_s=n),
    "burst": lambda n: TenantLimits(max_calls_per_s=1, burst=n),
    "max_in_flight": lambda n: TenantLimits(max_in_flight=n),
}


def of_all(name: str) -> Callable[[int], bool]:
    return lambda n: limited(LIMITS[name](n))


def of_one(name: str) -> Callable[[int], bool]:
    return lambda n: limited(TenantLimits(overrides={"a": TenantLimit(), "b": TenantLimit(), "c": LIMITS[name](n)}))


EDGES: Final = (
    Edge("characters of a backend's name", 63, lambda n: not [*backend_violations(Backend(name="b" * n))]),
    Edge("characters of an endpoint's name", 63, lambda n: not [*endpoint_violations(Endpoint(name="e" * n))]),
    Edge("maps and lists around a value of user_config", 31, lambda n: configured(nested(n))),
    Edge("values of user_config", 100_000 - 2, lambda n: configured([0] * n)),
    Edge("an integer of user_config", 2**53, configured),
    Edge("a negative integer of user_config", 2**53, lambda n: configured(-n)),
    Edge("characters of a path", 256, lambda n: routed(path="/" + "a" * (n - 1))),
    Edge("segments of a path", 16, lambda n: routed(path="/a" * n)),
    Edge("characters of a method", 128, lambda n: routed(method="m" * n)),
    Edge("billionths by which weights are off", 10, sum_off_by),
    Edge("tenants with limits of their own", 256, lambda n: limited(overrides(n))),
    *(Edge(f"{name} of tenants", 1_000_000, of_all(name)) for name in LIMITS),
    *(Edge(f"{name} of one of several tenants", 1_000_000, of_one(name)) for name in LIMITS),
    Edge("bytes of a tenant's name", 256, lambda n: limited(TenantLimits(overrides={tenant(n): TenantLimit()}))),
)


@each_edge(EDGES)
def test_exactly_at_the_bound_it_passes_and_one_beyond_it_is_refused(edge: Edge) -> None:
    edge.check()


@pytest.mark.parametrize("name", LIMITS)
def test_a_limit_of_a_tenant_is_at_least_one(name: str) -> None:
    assert limited(LIMITS[name](1))
    assert not limited(LIMITS[name](0))


def test_a_share_is_from_nothing_to_all() -> None:
    for share, fits in ((0.0, True), (1.0, True), (-1e-12, False), (1.0 + 1e-12, False), (float("nan"), False)):
        policy = TrafficPolicy(weights={"b": 1.0}, shadows={"s": 0.5, "t": share, "u": 0.5})
        found = [it.path for it in traffic_violations("endpoints.e", policy)]
        assert found == ([] if fits else ["endpoints.e.shadows.t"]), share


@pytest.mark.slow
def test_a_file_of_exactly_the_largest_size_is_read(tmp_path: Path) -> None:
    assert MAX_SPEC_BYTES == 4_194_304
    path = tmp_path / "mesh.yaml"
    begin = b"backends: {b: }\n#"
    path.write_bytes(begin + b"x" * (MAX_SPEC_BYTES - len(begin)))
    assert load_mesh(path).backends[0].name == "b"
    path.write_bytes(begin + b"x" * (MAX_SPEC_BYTES + 1 - len(begin)))
    with pytest.raises(InvalidSpec, match="is larger than 4,194,304 bytes"):
        load_mesh(path)


@pytest.mark.parametrize(
    ("balancer", "problem"),
    [
        ("least_loaded", ""),
        ("my_balancers:MostMemory", ""),
        ("of-a-package", ""),
        ("random", ""),
        ("a:" + "b" * 198, ""),
        ("a:" + "b" * 199, "must be"),
        ("n" * 63, ""),
        ("n" * 64, "must be"),
        ("", "must be"),
        ("no module", "must be"),
        ("./mine.py:Mine", "did you mean mine:Mine?"),
        ("round-robin", "did you mean round_robin?"),
        ("Least_Loaded", "did you mean least_loaded?"),
        ("leastloaded", "did you mean least_loaded?"),
        ("power_of_2", "did you mean power_of_two?"),
    ],
)
def test_the_form_of_a_balancer_is_checked_and_near_misses_are_caught(balancer: str, problem: str) -> None:
    found = [it.message for it in backend_violations(Backend(name="b", balancer=balancer)) if "balancer" in it.path]
    assert [problem in message for message in found] == ([True] if problem else [])
