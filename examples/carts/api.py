"""The methods of the endpoint Carts, written by `slotmesh stubs`."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import slotmesh


class Carts(slotmesh.Interface[slotmesh.ClientT]):
    """Its methods; those that yield return an iterator."""

    @slotmesh.method
    def add(self, user: str, item: str) -> int: ...

    @slotmesh.method
    def items(self, user: str) -> list[str]: ...
