"""Bounds of what is accepted: whatever operators configure fits everything that carries it later.

Purpose: a configuration travels in requests and answers of operators, in routing tables, to replicas and to ingresses.
A change that would make something too large for that is refused when it is planned, with both sizes.
Invariants: what was accepted before the bounds were there stays: a change is refused for what it makes larger. Sizes
are those on the wire; each resource is measured once.
Owner: the configurator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from controller_service.core.desired import ChangeSet, Desired
from controller_service.core.revisions import Resource, subject_of
from slotmesh.spec.model import Backend, Endpoint, InvalidSpec, Mistake
from slotmesh.spec.routes import route_subject
from slotmesh.spec.rules import show
from slotmesh.spec.wire import backend_to_wire, endpoint_to_wire, route_to_wire

MAX_BACKEND_BYTES: Final = 4 * 1024 * 1024
"""Of one backend with its `user_config`. Replicas get it twice in one frame, for older and for newer versions."""
MAX_CONFIGURATION_BYTES: Final = 16 * 1024 * 1024
"""Of all backends, endpoints and routes: half of a frame, in which lists, snapshots and routes are answered."""
MAX_BACKENDS: Final = 10_000
MAX_ENDPOINTS: Final = 20_000
"""A router keeps about 2 KB for each, and 40 KB for each different assignment of partitions."""
MAX_ROUTES: Final = 20_000


class ConfigurationBounds:
    """Measures the configuration, and each change of it."""

    def __init__(self) -> None:
        self._measured: dict[str, tuple[Resource, int]] = {}
        self._of: tuple[Mapping[str, Resource], ...] = ()
        """The mappings that were measured last."""
        self._total = 0

    def require_kept(self, desired: Desired, change: ChangeSet) -> None:
        """Raises InvalidSpec where the change passes a bound."""
        self._measure(desired)
        if mistakes := [*self._too_large(change), *self._too_many(desired, change)]:
            raise InvalidSpec(mistakes)

    def _measure(self, desired: Desired) -> None:
        of = (desired.backends, desired.endpoints, desired.routes)
        if len(self._of) == len(of) and all(one is other for one, other in zip(of, self._of, strict=True)):
            return
        measured: dict[str, tuple[Resource, int]] = {}
        for resources in of:
            for resource in resources.values():
                subject = subject_of(resource)
                known = self._measured.get(subject)
                is_known = known is not None and known[0] is resource
                measured[subject] = known if known is not None and is_known else (resource, _size_of(resource))
        self._measured, self._of = measured, of
        self._total = sum(size for _, size in measured.values())

    def _too_large(self, change: ChangeSet) -> Iterator[Mistake]:
        put: list[Resource] = [*change.put_backends, *change.put_endpoints, *change.put_routes]
        total = self._total
        for resource in put:
            size, before = _size_of(resource), self._size_before(subject_of(resource))
            total += size - before
            if isinstance(resource, Backend) and size > max(MAX_BACKEND_BYTES, before):
                yield Mistake(
                    f"backends.{show(resource.name)}",
                    f"has {size:,} bytes with its user_config, at most {MAX_BACKEND_BYTES:,}: keep what is larger in a"
                    " file or a store that the handler reads, and its name in user_config",
                )
        deleted = (
            *(f"backend/{it}" for it in change.delete_backends),
            *(f"endpoint/{it}" for it in change.delete_endpoints),
            *map(route_subject, change.delete_routes),
        )
        total -= sum(map(self._size_before, deleted))
        if total > max(MAX_CONFIGURATION_BYTES, self._total):
            text = f"all backends, endpoints and routes would have {total:,} bytes, at most {MAX_CONFIGURATION_BYTES:,}"
            yield Mistake("mesh", f"{text}: make them smaller, or divide them between meshes")

    def _size_before(self, subject: str) -> int:
        known = self._measured.get(subject)
        return 0 if known is None else known[1]

    def _too_many(self, desired: Desired, change: ChangeSet) -> Iterator[Mistake]:
        for kind, there, put, deleted, most in (
            (
                "backends",
                desired.backends,
                [it.name for it in change.put_backends],
                change.delete_backends,
                MAX_BACKENDS,
            ),
            (
                *("endpoints", desired.endpoints, [it.name for it in change.put_endpoints]),
                *(change.delete_endpoints, MAX_ENDPOINTS),
            ),
            ("routes", desired.routes, [it.path for it in change.put_routes], change.delete_routes, MAX_ROUTES),
        ):
            count = len(there) + sum(name not in there for name in put) - len(deleted)
            if count > max(most, len(there)):
                yield Mistake(kind, f"would be {count:,}, at most {most:,}: divide them between meshes")


def _size_of(resource: Resource) -> int:
    """On the wire."""
    if isinstance(resource, Backend):
        return backend_to_wire(resource).ByteSize()
    return (endpoint_to_wire(resource) if isinstance(resource, Endpoint) else route_to_wire(resource)).ByteSize()
