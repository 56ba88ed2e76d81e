"""The store of the carts example: compare-and-set, fencing tokens, requests that come again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from examples.carts.app import Carts
from examples.carts.store import Cart, CartStore, ConflictError
from slotmesh.calls.key_hash import partition_of
from slotmesh.handlers.context import OwnedKeys
from slotmesh.testing import call_context


@pytest.fixture
def store(tmp_path: Path) -> Iterator[CartStore]:
    made = CartStore(tmp_path / "carts.db")
    yield made
    made.close()


def put(store: CartStore, item: str, seen: Cart, epoch: int = 1, request: str = "") -> Cart:
    return store.put("ada", item, seen=seen, owner_epoch=epoch, request_id=request or item)


def test_a_change_is_based_on_what_is_stored(store: CartStore) -> None:
    one = put(store, "tea", store.read("ada"))
    two = put(store, "milk", one)
    assert store.read("ada") == two == Cart(["tea", "milk"], 2)


@pytest.mark.parametrize("version", [0, 1])
def test_a_change_of_an_older_cart_is_refused(store: CartStore, version: int) -> None:
    put(store, "milk", put(store, "tea", Cart()))
    with pytest.raises(ConflictError):
        put(store, "jam", Cart(["tea"][:version], version))
    assert store.read("ada").items == ["tea", "milk"]


def test_an_owner_of_before_changes_nothing_any_more(store: CartStore) -> None:
    newest = put(store, "tea", Cart(), epoch=5)
    with pytest.raises(ConflictError):
        put(store, "late", newest, epoch=4)
    assert put(store, "milk", newest, epoch=5).items == ["tea", "milk"]


def test_a_request_is_applied_once(store: CartStore) -> None:
    one = put(store, "tea", Cart(), request="r")
    assert put(store, "tea", one, request="r") == one
    assert put(store, "tea", Cart(), request="r") == one, "also where it was made from an older cart"


def test_a_replica_that_gains_a_key_reads_what_others_have_written(tmp_path: Path) -> None:
    one, two = Carts(str(tmp_path / "carts.db")), Carts(str(tmp_path / "carts.db"))
    ada = OwnedKeys("Carts", {partition_of("ada"): 2})
    try:
        with call_context(ordering_key="ada", owner_epoch=1, idempotency_key="1"):
            assert one.add("ada", "tea") == 1
        one.on_keys_lost(ada)
        two.on_keys_gained(ada)
        with call_context(ordering_key="ada", owner_epoch=2, idempotency_key="2"):
            assert two.add("ada", "milk") == 2
        with call_context(ordering_key="ada", owner_epoch=1, idempotency_key="3"), pytest.raises(ConflictError):
            one.add("ada", "late")
        assert one.items("ada") == ["tea", "milk"]
    finally:
        one._store.close()
        two._store.close()


def test_a_call_in_another_order_is_refused(tmp_path: Path) -> None:
    carts = Carts(str(tmp_path / "carts.db"))
    try:
        with call_context(ordering_key="grace"), pytest.raises(ValueError, match="in the order of their users"):
            carts.add("ada", "tea")
    finally:
        carts._store.close()
