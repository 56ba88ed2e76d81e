"""Limits of each tenant of an endpoint, at each router, and the form of tenants' names. Pure.

Purpose: names, bounds and defaults of the limits, declared once for documents, the wire and routers. Callers choose the
names of tenants, which logs, metrics and terminals show: only printable names of bounded length are valid.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

MAX_TENANT_BYTES: Final = 256
"""Longest name of a tenant, in UTF-8."""
_SHOWN: Final = 80


def tenant_problem(tenant: str) -> str | None:
    """The problem with a name; None if there is none."""
    if not tenant.isprintable():
        return f"printable characters only, got {tenant[:_SHOWN]!a}"
    size = len(tenant.encode())
    return f"at most {MAX_TENANT_BYTES} bytes, got {size}" if size > MAX_TENANT_BYTES else None


MAX_LIMIT: Final = 1_000_000
"""The largest value of a limit."""
MAX_OVERRIDES: Final = 256
"""The number of tenants of one endpoint with their own limits, which are part of routing tables."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimit:
    """The limits of one tenant. None: no limit."""

    max_calls_per_s: int | None = None
    """Calls a second."""
    burst: int | None = None
    """Calls that a tenant may make at the same moment after a pause. None: those of one second."""
    max_in_flight: int | None = None
    """Calls without an outcome."""

    @property
    def burst_or_default(self) -> int:
        """The capacity of the token bucket."""
        return self.burst or self.max_calls_per_s or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantLimits(TenantLimit):
    """The limits of each tenant of an endpoint."""

    overrides: Mapping[str, TenantLimit] = field(default_factory=lambda: MappingProxyType({}))
    """Tenants with their own limits, which replace the general ones entirely."""

    def limit_of(self, tenant: str) -> TenantLimit:
        """The limits of this tenant."""
        return self.overrides.get(tenant, self) if self.overrides else self


NO_LIMITS: Final = TenantLimits()
LIMITS: Final = tuple(each.name for each in fields(TenantLimit))
"""The names of the limits, in documents and on the wire."""
OVERRIDES: Final = "overrides"


def limits_settings(limits: TenantLimits | None) -> dict[str, Any]:
    """The limits that are set, as a document has them."""
    if limits is None:
        return {}
    overrides = {name: _settings(limit) for name, limit in sorted(limits.overrides.items())}
    return {**_settings(limits), **({OVERRIDES: overrides} if overrides else {})}


def limits_of(settings: Mapping[str, Any]) -> TenantLimits:
    """The limits of a document. Raises ValueError if they are invalid."""
    given = _given(settings, (*LIMITS, OVERRIDES))
    overrides = settings.get(OVERRIDES, {})
    if not isinstance(overrides, Mapping):
        raise ValueError(f"`{OVERRIDES}` must be a map from names of tenants to their limits")  # noqa: TRY004 - one error
    return TenantLimits(
        **given,
        overrides={name: TenantLimit(**_given(each, LIMITS)) for name, each in overrides.items()},
    )


def limit_problems(limits: TenantLimits) -> Iterator[tuple[str, str]]:
    """The problems of the limits: the path, as `.overrides.acme.burst`, and the reason."""
    yield from _problems("", limits)
    if len(limits.overrides) > MAX_OVERRIDES:
        yield f".{OVERRIDES}", f"at most {MAX_OVERRIDES} tenants, got {len(limits.overrides)}"
        return
    for name, limit in limits.overrides.items():
        problem = tenant_problem(name) if name else "the name of a tenant must not be empty"
        if problem is not None:
            yield f".{OVERRIDES}", problem
            continue
        yield from _problems(f".{OVERRIDES}.{name}", limit)


def _problems(path: str, limit: TenantLimit) -> Iterator[tuple[str, str]]:
    for name in LIMITS:
        value = getattr(limit, name)
        if value is not None and not 1 <= value <= MAX_LIMIT:
            yield f"{path}.{name}", f"must be 1 … {MAX_LIMIT:,}, is {value:,}"
    if limit.burst is not None and limit.max_calls_per_s is None:
        yield f"{path}.burst", "has no effect without max_calls_per_s: set that, too"


def _settings(limit: TenantLimit) -> dict[str, int]:
    return {name: value for name in LIMITS if (value := getattr(limit, name)) is not None}


def _given(settings: object, known: Collection[str]) -> dict[str, int]:
    if not isinstance(settings, Mapping) or settings.keys() - set(known):
        raise ValueError(f"must be a map that has {', '.join(known)} only")
    values = {name: settings[name] for name in LIMITS if settings.get(name) is not None}
    if not all(type(value) is int for value in values.values()):
        raise ValueError(f"{', '.join(LIMITS)} must be integers")
    return values
