"""The face for threads has what the asynchronous one has: methods, parameters, and what is said of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from slotmesh.client.broadcast import Broadcast, BroadcastMethod
from slotmesh.client.calls.values import ValueStream
from slotmesh.client.endpoint import Endpoint, Lane
from slotmesh.client.mesh import Mesh, connect
from slotmesh.client.method import Method
from slotmesh.client.slots.direct_lanes import DirectLanes, DirectMethod
from slotmesh.client.slots.reservations import Reservation, ReservationOfAll
from slotmesh.client.slots.slot import Slot, SlotMethod
from slotmesh.client.sync.broadcast import SyncBroadcast, SyncBroadcastMethod
from slotmesh.client.sync.mesh import SyncEndpoint, SyncLane, SyncMesh, connect_sync
from slotmesh.client.sync.method import SyncMethod, SyncValueStream
from slotmesh.client.sync.slots import (
    SyncDirectLanes,
    SyncDirectMethod,
    SyncReservation,
    SyncReservationOfAll,
    SyncSlot,
    SyncSlotMethod,
)

PROTOCOLS: Final = {
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aclose": "close",
}
"""What has another name where one waits in a thread."""


@dataclass(frozen=True)
class Faces:
    """A class, and what it is for threads."""

    awaited: type
    blocking: type
    inner: frozenset[str] = frozenset()
    """Of the awaited one: what only the SDK itself calls."""
    added: frozenset[str] = frozenset()
    """Of the blocking one: what a caller who cannot await needs besides."""
    waits: frozenset[str] = frozenset()
    """Methods that take a `timeout` besides, as nothing else bounds how long their caller waits."""
    worded: frozenset[str] = frozenset()
    """Methods whose first line says that they wait, or how they are written without `async`."""


FACES: Final = [
    Faces(Mesh, SyncMesh, worded=frozenset({"reserve_all"})),
    Faces(
        Endpoint,
        SyncEndpoint,
        inner=frozenset({"reservation_of"}),
        worded=frozenset({"__call__", "broadcast", "direct", "reserve"}),
    ),
    Faces(Lane, SyncLane, worded=frozenset({"__call__"})),
    Faces(
        Method,
        SyncMethod,
        inner=frozenset(
            {"encode", "in_call", "pieces", "refuse", "renew", "share", "submit", "submit_part", "timeout_s"}
        ),
        added=frozenset({"future"}),
        waits=frozenset({"map"}),
        worded=frozenset({"__call__", "map", "stream", "unary"}),
    ),
    Faces(Slot, SyncSlot, worded=frozenset({"__call__"})),
    Faces(Reservation, SyncReservation, inner=frozenset({"abandon"})),
    Faces(ReservationOfAll, SyncReservationOfAll, inner=frozenset({"abandon"})),
    Faces(
        SlotMethod,
        SyncSlotMethod,
        inner=frozenset({"begin", "begin_stream", "encode"}),
        added=frozenset({"future"}),
        worded=frozenset({"__call__", "options", "returning", "stream"}),
    ),
    Faces(DirectLanes, SyncDirectLanes, worded=frozenset({"__call__"})),
    Faces(
        DirectMethod,
        SyncDirectMethod,
        inner=frozenset({"begin", "encode"}),
        added=frozenset({"future"}),
        worded=frozenset({"__call__", "options", "returning"}),
    ),
    Faces(Broadcast, SyncBroadcast, worded=frozenset({"__call__"})),
    Faces(BroadcastMethod, SyncBroadcastMethod, worded=frozenset({"__call__"})),
    Faces(ValueStream, SyncValueStream, inner=frozenset({"has_next"})),
]

of_each = pytest.mark.parametrize("faces", FACES, ids=lambda faces: faces.awaited.__name__)


def public(cls: type) -> set[str]:
    return {
        name for name in dir(cls) if not name.startswith("_") or name in {"__call__", *PROTOCOLS, *PROTOCOLS.values()}
    }


def shared(faces: Faces) -> Iterator[tuple[str, Any, Any]]:
    """What both have, by its name in the awaited one."""
    for name in sorted(public(faces.awaited) - faces.inner):
        theirs = PROTOCOLS.get(name, name)
        yield name, inspect.getattr_static(faces.awaited, name), inspect.getattr_static(faces.blocking, theirs, None)


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    given = list(inspect.signature(function).parameters.values())
    return [(each.name, each.kind, each.default) for each in given if each.name != "self"]


def first_line(of: Any) -> str:
    return (inspect.getdoc(of) or "").partition("\n")[0]


@of_each
def test_both_have_the_same_names(faces: Faces) -> None:
    renamed = {PROTOCOLS.get(name, name) for name in public(faces.awaited) - faces.inner}
    assert public(faces.blocking) - faces.added == renamed
    assert faces.inner <= public(faces.awaited), "a name that is no more"


@of_each
def test_both_take_the_same_parameters(faces: Faces) -> None:
    for name, awaited, blocking in shared(faces):
        if not callable(awaited):
            continue
        takes, theirs = parameters(awaited), parameters(blocking)
        if name in faces.waits:
            theirs = [each for each in theirs if each[0] != "timeout"]
            assert len(theirs) < len(parameters(blocking))
        if name in PROTOCOLS:
            assert len(takes) == len(theirs), name
        else:
            assert takes == theirs, name


@of_each
def test_both_are_described_alike(faces: Faces) -> None:
    """What differs in words is named above, and does differ."""
    for name, awaited, blocking in shared(faces):
        if name.startswith("__") and name != "__call__":
            continue
        assert first_line(blocking), f"{faces.blocking.__name__}.{name} has no docstring"
        if name in faces.worded:
            assert first_line(awaited) != first_line(blocking), name
        elif name not in PROTOCOLS:
            assert first_line(awaited) == first_line(blocking), name


def test_both_are_reached_alike() -> None:
    assert parameters(connect) == parameters(connect_sync)
