from __future__ import annotations

import asyncio
from typing import Any, assert_type

import slotmesh
from tests.typed.carts import Carts, Receipt


async def calls(mesh: slotmesh.Mesh) -> None:
    carts = mesh.endpoint("carts", Carts)
    assert_type(carts, Carts[slotmesh.Endpoint])
    assert_type(await carts.add("tea"), int)
    assert_type(await carts.add(item="tea", count=2), int)
    assert_type(await carts.add("tea", count=2), int)
    assert_type(carts.buy("tea"), asyncio.Future[Receipt])
    assert_type(await carts.items("mine"), list[str])
    assert_type(await carts("mine"), bool)
    assert_type(await carts.weigh("tea"), float)
    assert_type(await carts.add.options(timeout=1)("tea"), int)
    assert_type(await carts.options(timeout=1).add("tea"), int)
    assert_type(await (await carts.add.send("tea")), int)
    assert_type(await carts.add.unary("tea"), int)
    assert_type(await carts.buy.returning(str)("tea"), str)

    carts.ad("tea")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    carts.add()  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    carts.add(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    carts.add("tea", 1, 2)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    carts.add("tea", number=1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    carts(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    carts.add.options(timout=1)  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    carts.add.options(timeout=1)(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await carts.add.send(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    await carts.add.unary(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    carts.add("tea") + 1  # type: ignore[operator] # pyright: ignore[reportOperatorIssue]
    _: str = await carts.add("tea")  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]
    (await carts.buy("tea")).totl  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    async with asyncio.TaskGroup() as group:
        group.create_task(carts.add("tea"))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    mesh.endpoint("carts", Receipt)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


async def maps(mesh: slotmesh.Mesh) -> None:
    carts = mesh.endpoint("carts", Carts)
    assert_type(await carts.add.map(["tea"]), list[int])
    assert_type(await carts.add.map(["tea"], [2]), list[int])
    assert_type(await carts.buy.map({"tea"}), list[Receipt])
    assert_type(await carts.add.map(["tea"], return_exceptions=True), list[int | Exception])
    assert_type(await carts.add.map(["tea"], [2], return_exceptions=True), list[int | Exception])
    assert_type(await carts.items.map(["mine"]), list[list[str]])
    assert_type(await carts.move.map(["tea"], [1], [b"here"]), list[None])
    assert_type(await carts.add.options(timeout=1).map(["tea"]), list[int])

    carts.add.map()  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]
    carts.add.map([1])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    carts.add.map("tea", "two")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    carts.buy.map(["tea"], [1])  # type: ignore[call-overload] # pyright: ignore[reportCallIssue]
    carts.move.map(["tea"], [1], ["here"])  # type: ignore[list-item] # pyright: ignore[reportArgumentType]
    _: list[str] = await carts.add.map(["tea"])  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]


async def values(mesh: slotmesh.Mesh) -> None:
    carts = mesh.endpoint("carts", Carts)
    async for item in carts.items.stream("mine"):
        assert_type(item, str)
    async with carts.changes.stream("mine") as changes:
        assert_type([each async for each in changes], list[Receipt])
    async for number in carts.add.stream("tea"):
        assert_type(number, int)
    async for receipt in carts.changes.unary_stream("mine"):
        assert_type(receipt, Receipt)

    carts.item.stream("mine")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    carts.items.stream(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    async for item in carts.items.stream("mine"):
        item.total  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    for _ in carts.items.stream("mine"):  # type: ignore[attr-defined] # pyright: ignore[reportGeneralTypeIssues]
        pass


async def lanes(mesh: slotmesh.Mesh) -> None:
    carts = mesh.endpoint("carts", Carts)
    async with carts.ordered("mine") as lane:
        assert_type(await lane.add("tea"), int)
        assert_type(await lane.add.map(["tea"]), list[int])
        lane.ad("tea")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
        lane.add(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        _: str = await lane.add("tea")  # type: ignore[assignment] # pyright: ignore[reportAssignmentType]
    ledger = carts.ordered("mine", after_failure="stop")
    ledger.reset()
    carts.ordered("mine", after_failure="halt")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    with carts.ordered("mine"):  # type: ignore[misc] # pyright: ignore[reportGeneralTypeIssues]
        pass


async def slots(mesh: slotmesh.Mesh) -> None:
    endpoint = mesh.endpoint("carts")
    async with endpoint.reserve() as slot:
        assert_type(await Carts(slot).add("tea"), int)
        async for item in Carts(slot).items.stream("mine"):
            assert_type(item, str)
        Carts(slot).add(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
        Carts(slot).add.map(["tea"])  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    async with endpoint.direct(slots=2) as lanes:
        assert_type(await Carts(lanes).add("tea"), int)
        Carts(lanes).ad("tea")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]


async def untyped(mesh: slotmesh.Mesh) -> None:
    endpoint = mesh.endpoint("carts")
    assert_type(endpoint, slotmesh.Endpoint)
    assert_type(await endpoint.anything(1, 2), Any)
    assert_type(await endpoint.anything.map([1], [2], [3], [4]), list[Any])
    method: slotmesh.Method[int] = endpoint.add
    assert_type(await method("tea", 1), int)
    assert_type(await method.map(["tea"], [1]), list[int])


async def a_task_group(mesh: slotmesh.Mesh) -> None:
    carts = mesh.endpoint("carts", Carts)

    async def buy(item: str) -> float:
        return (await carts.buy(item)).total

    async with asyncio.TaskGroup() as group:
        assert_type(group.create_task(buy("tea")), asyncio.Task[float])


async def broadcasts(mesh: slotmesh.Mesh) -> None:
    carts = Carts(mesh.endpoint("carts").broadcast)
    assert_type(carts, Carts[slotmesh.Broadcast])
    result = await carts.add("tea", count=2)
    assert_type(result, slotmesh.BroadcastResult[int])
    assert_type(result.ok["a"], int)
    assert_type(result.failed["a"], Exception)
    await carts.add(1)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    carts.ad("tea")  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
