"""An interface, as `slotmesh stubs` writes one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import slotmesh


@dataclass
class Receipt:
    item: str
    total: float


class Carts(slotmesh.Interface[slotmesh.ClientT]):
    @slotmesh.method
    def add(self, item: str, count: int = 1) -> int:
        raise NotImplementedError

    @slotmesh.method
    async def buy(self, item: str) -> Receipt:
        raise NotImplementedError

    @slotmesh.method
    def items(self, cart: str) -> Iterator[str]:
        raise NotImplementedError

    @slotmesh.method
    def changes(self, cart: str) -> AsyncIterator[Receipt]:
        raise NotImplementedError

    @slotmesh.method
    def move(self, item: str, count: int, place: bytes) -> None:
        raise NotImplementedError

    @slotmesh.method
    def __call__(self, cart: str) -> bool:
        raise NotImplementedError
