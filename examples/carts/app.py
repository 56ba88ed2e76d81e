"""Shopping carts by user: state that survives replicas, in a database; what a replica remembers is a cache of it.

Call it in the order of each user: `mesh.endpoint("Carts").ordered(user).add(user, item)`.
"""

from __future__ import annotations

import os
from pathlib import Path

import slotmesh
from examples.carts.store import Cart, CartStore, ConflictError

DATABASE = "CARTS_DATABASE"
"""The variable that names the database file."""
_ATTEMPTS = 3


@slotmesh.deployment(max_ongoing=8)
class Carts:
    """Each user's cart, in `CARTS_DATABASE`."""

    def __init__(self, database: str = "") -> None:
        self._store = CartStore(Path(database or os.environ.get(DATABASE, "carts.db")))
        self._cache: dict[str, Cart] = {}
        """Carts of keys that this replica owns. Right as long as it does; a compare-and-set finds out if it is not."""

    def add(self, user: str, item: str) -> int:
        """Adds an item; returns how many there are."""
        call = slotmesh.context()
        if call.ordering_key != user or call.owner_epoch is None:
            raise ValueError("carts are changed in the order of their users: endpoint.ordered(user).add(user, item)")
        for _ in range(_ATTEMPTS):
            seen = self._cache.get(user) or self._store.read(user)
            try:
                new = self._store.put(
                    user, item, seen=seen, owner_epoch=call.owner_epoch, request_id=call.idempotency_key
                )
            except ConflictError:
                self._cache.pop(user, None)
            else:
                self._cache[user] = new
                return len(new.items)
        raise ConflictError(f"the cart of {user!r} belongs to a later owner of its key, or is changed by others")

    def items(self, user: str) -> list[str]:
        """What is in a cart, oldest first."""
        return self._store.read(user).items

    def on_keys_gained(self, keys: slotmesh.OwnedKeys) -> None:
        """Before the first call of these keys: another replica may have changed their carts."""
        self._forget(keys)

    def on_keys_lost(self, keys: slotmesh.OwnedKeys) -> None:
        """After the last call of these keys: the memory is for others."""
        self._forget(keys)

    def _forget(self, keys: slotmesh.OwnedKeys) -> None:
        for user in [user for user in self._cache if user in keys]:
            self._cache.pop(user, None)
