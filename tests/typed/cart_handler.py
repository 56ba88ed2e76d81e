"""The handler whose interface is `carts.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import slotmesh


@dataclass
class Receipt:
    item: str
    total: float
    notes: list[str] | None = None


class Carts:
    async def add(self, item: str, count: int = 1) -> int:
        return count

    async def buy(self, item: str) -> Receipt:
        return Receipt(item, 1.5)

    def items(self, cart: str) -> Iterator[str]:
        yield cart

    async def changes(self, cart: str) -> AsyncIterator[Receipt]:
        yield Receipt(cart, 0.0)

    @slotmesh.batch
    async def weigh(self, items: list[str]) -> list[float]:
        return [float(len(item)) for item in items]

    def move(self, item: str, count: int, place: bytes) -> None: ...

    async def options(self, item: str, *, size: int = 1, color: str) -> str | None:
        return color

    async def __call__(self, cart: str) -> bool:
        return True
