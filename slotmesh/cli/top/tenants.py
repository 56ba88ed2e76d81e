"""The tenants with most calls, over all routers. Pure.

Invariant: what a router says that has been silent for a while is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from slotmesh.cli.top.rates import is_heard
from slotmesh.cli.top.samples import MeshSample, TenantSample
from slotmesh.telemetry.names import OTHER_TENANTS


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRow:
    """A tenant of an endpoint, over the routers at which it is among the busiest."""

    name: str
    """As ENDPOINT/TENANT."""
    endpoint: str
    tenant: str
    """Empty: all beyond the number of which routers keep account."""
    calls_per_s: float
    """Refused ones included."""
    refused_per_s: float
    """By a limit of the tenant."""
    unanswered: int


def tenants_of(sample: MeshSample) -> tuple[TenantRow, ...]:
    """Of the routers that have reported a moment ago."""
    said: dict[tuple[str, str], list[TenantSample]] = {}
    for router in sample.routers:
        for endpoint, load in router.newest.endpoints.items() if router.newest and is_heard(router) else ():
            for each in load.tenants:
                said.setdefault((endpoint, each.name), []).append(each)
    rows = [
        TenantRow(
            name=f"{endpoint}/{tenant or OTHER_TENANTS}",
            endpoint=endpoint,
            tenant=tenant,
            calls_per_s=sum(it.calls_per_s for it in each),
            refused_per_s=sum(it.refused_per_s for it in each),
            unanswered=sum(it.unanswered for it in each),
        )
        for (endpoint, tenant), each in said.items()
    ]
    return tuple(sorted(rows, key=lambda it: (-it.calls_per_s, it.name)))
