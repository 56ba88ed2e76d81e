"""An interface makes its calls with the declared names and types, wherever they are made from."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import slotmesh
import slotmesh.testing

if TYPE_CHECKING:
    from elsewhere import Missing  # type: ignore[import-not-found]


@dataclass
class Receipt:
    item: str
    count: int


class Handler:
    def __init__(self) -> None:
        self.added: list[str] = []

    async def add(self, item: str, count: int = 1) -> Receipt:
        self.added.append(item)
        return Receipt(item, count)

    async def list_of(self, items: Any) -> Any:
        return items

    async def each(self, count: int) -> AsyncIterator[Receipt]:
        for number in range(count):
            yield Receipt("tea", number)

    @slotmesh.batch(max_batch_size=4)
    async def measure(self, words: list[str]) -> list[int]:
        return [len(word) for word in words]

    async def forget(self) -> None: ...

    async def options(self) -> str:
        return "of the handler"

    async def only(self, item: str, /, count: int) -> int:
        return count

    async def __call__(self, cart: str) -> bool:
        return cart == "mine"


class Carts(slotmesh.Interface[slotmesh.ClientT]):
    @slotmesh.method
    def add(self, item: str, count: int = 1) -> Receipt:
        raise NotImplementedError

    @slotmesh.method
    def list_of(self, items: Any) -> list[int]:
        raise NotImplementedError

    @slotmesh.method
    def each(self, count: int) -> Iterator[Receipt]:
        raise NotImplementedError

    @slotmesh.method
    def measure(self, word: str) -> int:
        raise NotImplementedError

    @slotmesh.method
    def forget(self) -> None:
        raise NotImplementedError

    @slotmesh.method
    def options_(self) -> str:
        raise NotImplementedError

    @slotmesh.method
    def only(self, item: str, /, count: int) -> int:
        raise NotImplementedError

    @slotmesh.method
    def missing(self) -> Missing:
        raise NotImplementedError

    @slotmesh.method
    def __call__(self, cart: str) -> bool:
        raise NotImplementedError


@pytest.mark.asyncio
async def test_results_have_the_declared_types() -> None:
    async with slotmesh.testing.mesh({"carts": Handler}) as mesh:
        carts = mesh.endpoint("carts", Carts)
        assert await carts.add("tea") == Receipt("tea", 1)
        assert await carts.add(item="tea", count=2) == Receipt("tea", 2)
        assert await carts.add.map(["tea", "milk"], [1, 2]) == [Receipt("tea", 1), Receipt("milk", 2)]
        assert await carts.add.unary("tea") == Receipt("tea", 1)
        assert await carts.options(timeout=60).add.options(timeout=50)("tea") == Receipt("tea", 1)
        assert await carts.measure.map(["a", "bc"]) == [1, 2]
        await carts.forget()
        assert await carts.options_() == "of the handler"
        assert await carts("mine") is True
        assert await carts.add.returning(dict)("tea") == {"item": "tea", "count": 1}
        assert carts.add is carts.add is mesh.endpoint("carts", Carts).add, "calls of one method share a batch"


@pytest.mark.asyncio
async def test_a_handler_that_yields_has_values_and_a_list_of_them() -> None:
    async with slotmesh.testing.mesh({"carts": Handler}) as mesh:
        carts = mesh.endpoint("carts", Carts)
        assert await carts.each(2) == [Receipt("tea", 0), Receipt("tea", 1)]
        assert [each async for each in carts.each.stream(2)] == [Receipt("tea", 0), Receipt("tea", 1)]
        assert [each async for each in carts.each.options(timeout=60).stream(1)] == [Receipt("tea", 0)]


@pytest.mark.asyncio
async def test_a_result_of_another_type_is_an_error() -> None:
    async with slotmesh.testing.mesh({"carts": Handler}) as mesh:
        carts = mesh.endpoint("carts", Carts)
        assert await carts.list_of([1, 2]) == [1, 2]
        with pytest.raises(ValueError, match=r"carts\.list_of.*expected int, got str"):
            await carts.list_of(["one"])
        assert await mesh.endpoint("carts").list_of(["one"]) == ["one"]


@pytest.mark.asyncio
async def test_arguments_may_be_positional_and_named() -> None:
    async with slotmesh.testing.mesh({"carts": Handler}) as mesh:
        carts = mesh.endpoint("carts", Carts)
        assert await carts.add("tea", count=2) == Receipt("tea", 2)
        for wrong in ({"item": "milk"}, {"count": 2, "item": "milk"}):
            with pytest.raises(TypeError, match=r"carts\.\w+: got 1 positional and \d named arguments"):
                carts.add("tea", **wrong)
        with pytest.raises(TypeError, match=r"carts\.\w+: got 1 positional and \d named arguments"):
            carts.only("tea", count=1)
        assert mesh.instances("carts")[0].added == ["tea"]


@pytest.mark.asyncio
async def test_lanes_slots_and_direct_lanes_have_the_methods() -> None:
    async with slotmesh.testing.mesh({"carts": Handler}) as mesh:
        async with mesh.endpoint("carts", Carts).ordered("mine", after_failure="stop") as lane:
            first, second = lane.add("tea"), lane.add("milk", count=2)
            lane.reset()
        assert (first.result(), second.result()) == (Receipt("tea", 1), Receipt("milk", 2))
        async with mesh.endpoint("carts").reserve() as slot:
            assert await Carts(slot).add("tea", count=3) == Receipt("tea", 3)
        async with mesh.endpoint("carts").reserve() as slot:
            assert [each async for each in Carts(slot).each.stream(1)] == [Receipt("tea", 0)]
        async with mesh.endpoint("carts").direct() as lanes:
            assert await Carts(lanes).add("tea") == Receipt("tea", 1)


def test_threads_have_the_same_types() -> None:
    with slotmesh.testing.sync_mesh({"carts": Handler}) as mesh:
        carts = mesh.endpoint("carts", Carts)
        assert carts.add("tea", count=2) == Receipt("tea", 2)
        assert carts.add.future("tea").result() == Receipt("tea", 1)
        assert carts.add.map(["tea"]) == [Receipt("tea", 1)]
        assert list(carts.each.stream(1)) == carts.each(1) == [Receipt("tea", 0)]
        assert carts("mine") is True
        with carts.ordered("mine") as lane:
            future = lane.add.future("tea")
            lane.reset()
        assert future.done()
        with mesh.endpoint("carts").reserve() as slot:
            assert Carts(slot).add("tea") == Receipt("tea", 1)
        with mesh.endpoint("carts").direct() as lanes:
            assert Carts(lanes).add("tea") == Receipt("tea", 1)


@pytest.mark.asyncio
async def test_wrong_uses_are_refused() -> None:
    async with slotmesh.testing.mesh({"carts": Handler}) as mesh:
        with pytest.raises(TypeError, match=r"Handler is no slotmesh.Interface.*slotmesh stubs ENDPOINT"):
            mesh.endpoint("carts", Handler)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="Carts takes an endpoint, a lane, a slot or direct lanes"):
            Carts("carts")
        carts = mesh.endpoint("carts", Carts)
        with pytest.raises(TypeError, match=r"ordered is of an endpoint, and this is <slotmesh lane 'mine'"):
            carts.ordered("mine").ordered("mine")
        with pytest.raises(TypeError, match=r"reset is of a lane, as `ordered\(key\)` makes it"):
            carts.reset()
        with pytest.raises(TypeError, match="async with is of a lane"):
            async with carts:
                pass
        with pytest.raises(TypeError, match=r"Carts.missing cannot be resolved: name 'Missing'.*also at run time"):
            carts.missing()
        with pytest.raises(AttributeError, match="ad"):
            carts.ad  # type: ignore[attr-defined]  # noqa: B018 - misspelt


def test_a_method_of_a_handler_can_be_declared() -> None:
    class OfHandler(slotmesh.Interface[slotmesh.ClientT]):
        add = slotmesh.method(Handler.add)

    with slotmesh.testing.sync_mesh({"carts": Handler}) as mesh:
        assert mesh.endpoint("carts", OfHandler).add("tea", count=2).count == 2
    with pytest.raises(TypeError, match=r"Handler.measure is a batch method, whose callers pass one item"):
        slotmesh.method(Handler.measure)
