"""What can be called: endpoints, and the methods of their handlers, as replicas have told them. It only reads.

Invariant: an answer names a bounded number of methods, however many endpoints there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from router_service.core.routing.topology import Topology
from slotmesh.wire.outlines import MAX_TOLD_CHARS, MethodOutline, fitting

MAX_NAMES: Final = 10_000
"""Names of methods in one answer; those of endpoints after them are left out."""


def callable_methods(topology: Topology, endpoint: str = "") -> Iterator[tuple[str, list[str]]]:
    """The methods of each endpoint, by name; only of `endpoint` where it is not empty."""
    of_backends: dict[str, frozenset[str]] = {}
    left = MAX_NAMES
    endpoints = topology.table.endpoints
    for name in sorted(endpoints) if not endpoint else [endpoint] if endpoint in endpoints else []:
        found = frozenset[str]()
        for backend in endpoints[name].weights or ():
            if backend not in of_backends:
                of_backends[backend] = _methods_of(topology, backend)
            found |= of_backends[backend]
        told = sorted(found)[:left]
        left -= len(told)
        yield name, told


def told_outlines(topology: Topology, endpoints: Iterable[str]) -> Iterator[tuple[str, tuple[MethodOutline, ...]]]:
    """What the methods of each endpoint take and give, by the endpoint: as the first backend says it."""
    left = MAX_TOLD_CHARS
    for name in endpoints:
        found: dict[str, MethodOutline] = {}
        for backend in topology.table.endpoints[name].weights or ():
            known = topology.backends.get(backend)
            for replica in known.replicas.values() if known is not None else ():
                if replica.linked:
                    found = {it.method: it for it in replica.outlines} | found
        told = fitting((found[each] for each in sorted(found)), left)
        left -= sum(it.size for it in told)
        yield name, told


def _methods_of(topology: Topology, backend: str) -> frozenset[str]:
    """All that its replicas have named: while a rollout is under way they may differ."""
    known = topology.backends.get(backend)
    told = {replica.methods for replica in known.replicas.values() if replica.linked} if known is not None else set()
    return frozenset[str]().union(*told)
