from __future__ import annotations

from concurrent.futures import Future
from typing import Any, assert_type

import slotmesh
from tests.typed.carts import Carts, Receipt


def calls(mesh: slotmesh.SyncMesh) -> None:
    carts = mesh.endpoint("carts", Carts)
    assert_type(carts, Carts[slotmesh.SyncEndpoint])
    assert_type(carts.add("tea"), int)
    assert_type(carts.add("tea", count=2), int)
    assert_type(carts.buy("tea"), Receipt)
    assert_type(carts.buy.future("tea"), Future[Receipt])
    assert_type(carts.buy.send("tea"), Future[Receipt])
    assert_type(carts.items("mine"), list[str])
    assert_type(carts("mine"), bool)
    assert_type(carts.options(timeout=1).add.options(idempotent=True)("tea"), int)

    carts.ad("tea")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    carts.add(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    carts.add.future(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    carts.add.futur("tea")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    carts.buy.future("tea").result().totl  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    _: str = carts.add("tea")  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]


def maps(mesh: slotmesh.SyncMesh) -> None:
    carts = mesh.endpoint("carts", Carts)
    assert_type(carts.add.map(["tea"], timeout=3), list[int])
    assert_type(carts.add.map(["tea"], [2]), list[int])
    assert_type(carts.add.map(["tea"], return_exceptions=True), list[int | Exception])
    assert_type(carts.move.map(["tea"], [1], [b"here"]), list[None])

    carts.add.map([1])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    carts.add.map(["tea"], ["two"])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    carts.move.map(["tea"], [1], ["here"])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    _: list[str] = carts.add.map(["tea"])  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]


def values(mesh: slotmesh.SyncMesh) -> None:
    carts = mesh.endpoint("carts", Carts)
    for item in carts.items.stream("mine"):
        assert_type(item, str)
    assert_type(list(carts.changes.stream("mine")), list[Receipt])
    carts.items.stream(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def lanes(mesh: slotmesh.SyncMesh) -> None:
    with mesh.endpoint("carts", Carts).ordered("mine") as lane:
        assert_type(lane.add("tea"), int)
        assert_type(lane.add.future("tea"), Future[int])
        lane.ad("tea")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
        lane.add(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def slots(mesh: slotmesh.SyncMesh) -> None:
    with mesh.endpoint("carts").reserve() as slot:
        assert_type(Carts(slot).add("tea"), int)
        Carts(slot).add(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with mesh.endpoint("carts").direct() as direct:
        assert_type(Carts(direct).add("tea"), int)
        assert_type(Carts(direct).add.future("tea"), Future[int])


def untyped(mesh: slotmesh.SyncMesh) -> None:
    endpoint = mesh.endpoint("carts")
    assert_type(endpoint, slotmesh.SyncEndpoint)
    assert_type(endpoint.anything(1, 2), Any)
    method: slotmesh.SyncMethod[int] = endpoint.add
    assert_type(method("tea", 1), int)


def broadcasts(mesh: slotmesh.SyncMesh) -> None:
    carts = Carts(mesh.endpoint("carts").broadcast)
    assert_type(carts, Carts[slotmesh.SyncBroadcast])
    assert_type(carts.add("tea"), slotmesh.BroadcastResult[int])
    carts.add(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
