"""Lists of replicas in pages that fit a message, however much replicas have to say.

A page token is where the page before ended: the backend and the id of its last replica, by which replicas are sorted.
So replicas that come and go meanwhile move no others to another page.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

from controller_service.convert.replicas import replica_to_wire
from controller_service.core.observed import ObservedReplica
from controller_service.core.replica_load import SampledLoad
from slotmesh.spec.model import InvalidSpec, Mistake
from slotmesh.spec.rules import show
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import mesh_pb2

PAGE_SIZE: Final = 1_000
"""Replicas in a page whose size nobody states."""
MAX_PAGE_BYTES: Final = 1 << 20
MAX_LINE_BYTES: Final = 512
"""Of an error's last line."""


def page_of_replicas(
    request: pb.ListReplicasRequest,
    replicas: Iterable[ObservedReplica],
    wall_s: Callable[[float], float],
    load_of: Callable[[str], SampledLoad | None],
    is_outdated: Callable[[ObservedReplica], bool] = lambda _: False,
) -> pb.ListReplicasResponse:
    """The page that is asked for. Raises InvalidSpec.

    `wall_s` makes seconds since 1970 of monotonic ones; `load_of` has the newest load of a replica, if there is one.
    `is_outdated`: whether a replica runs anything but the present settings of its backend.
    """
    if request.page_size < 0:
        raise InvalidSpec([Mistake("page_size", f"must be 0 or more, is {request.page_size}")])
    ordered = sorted(replicas, key=_place)
    first = bisect_right(ordered, _place_of_token(request.page_token), key=_place) if request.page_token else 0
    page, size = pb.ListReplicasResponse(), 0
    for number, replica in enumerate(ordered[first : first + (request.page_size or PAGE_SIZE)], first + 1):
        wire = replica_to_wire(replica, wall_s, load_of(replica.replica_id), outdated=is_outdated(replica))
        if not request.whole_errors:
            without_long_texts(wire)
        size += wire.ByteSize()
        if size > MAX_PAGE_BYTES and page.replicas:
            return page
        page.replicas.append(wire)
        page.next_page_token = "/".join(_place(replica)) if number < len(ordered) else ""
    return page


def without_long_texts(wire: mesh_pb2.Replica) -> mesh_pb2.Replica:
    """The same replica, with the last line of its error and warning, and nothing of what its process has written."""
    wire.error, wire.warning = _last_line(wire.error), _last_line(wire.warning)
    wire.last_output = ""
    return wire


def _place(replica: ObservedReplica) -> tuple[str, str]:
    return replica.backend, replica.replica_id


def _place_of_token(token: str) -> tuple[str, str]:
    backend, slash, replica_id = token.partition("/")
    if not (backend and slash and replica_id):
        raise InvalidSpec([Mistake("page_token", f"must be a page's next_page_token, is {show(token)!r}")])
    return backend, replica_id


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1].encode()[:MAX_LINE_BYTES].decode(errors="ignore") if lines else ""
