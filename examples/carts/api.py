"""The methods of the endpoint Carts, as `slotmesh stubs` writes them."""

# mypy: disable-error-code="empty-body"

from __future__ import annotations

import slotmesh


class CartsApi(slotmesh.Interface[slotmesh.ClientT]):
    """Its methods; those that yield return an iterator."""

    @slotmesh.method
    def add(self, user: str, item: str) -> int: ...

    @slotmesh.method
    def items(self, user: str) -> list[str]: ...
