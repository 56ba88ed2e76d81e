"""The methods of the endpoint carts, written by `slotmesh stubs`."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import slotmesh


@dataclass(kw_only=True)
class Receipt:
    item: str
    total: float
    notes: list[str] | None = None


class Carts(slotmesh.Interface[slotmesh.ClientT]):
    """Its methods; those that yield return an iterator."""

    @slotmesh.method
    def __call__(self, cart: str) -> bool: ...

    @slotmesh.method
    def add(self, item: str, count: int = ...) -> int: ...

    @slotmesh.method
    def buy(self, item: str) -> Receipt: ...

    @slotmesh.method
    def changes(self, cart: str) -> Iterator[Receipt]: ...

    @slotmesh.method
    def items(self, cart: str) -> Iterator[str]: ...

    @slotmesh.method
    def move(self, item: str, count: int, place: bytes) -> None: ...

    @slotmesh.method
    def options_(self, item: str, *, size: int = ..., color: str) -> str | None: ...

    @slotmesh.method
    def weigh(self, items: str) -> float: ...
