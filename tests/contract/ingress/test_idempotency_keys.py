"""Requests with an Idempotency-Key: repeated over another ingress or router, executed once, answered alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any

import pytest
import pytest_asyncio

import slotmesh
from ingress_service.app import Ingress, serve
from ingress_service.config import IngressSettings
from tests.support.http_client import HttpAnswer, http
from tests.support.ingresses import ServedMesh, served_mesh
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio


class Orders:
    """Records each execution, in all replicas."""

    placed: list[str]
    gate: asyncio.Event

    async def place(self, item: str) -> str:
        self.placed.append(item)
        await self.gate.wait()
        call = slotmesh.context().http
        assert call is not None
        call.respond(201, [("Location", f"/orders/{len(self.placed)}")])
        return f"{item} for {call.path}"

    async def ids(self, _item: str) -> list[str]:
        call = slotmesh.context()
        return [call.own_request_id, call.request_id]

    async def fail(self, item: str) -> None:
        self.placed.append(item)
        raise ValueError(f"no {item}")

    async def each(self, item: str) -> AsyncIterator[str]:
        self.placed.append(item)
        yield item

    async def raw(self, item: bytes) -> bytes:
        self.placed.append(item.decode())
        return item


@pytest.fixture(autouse=True)
def placed() -> list[str]:
    """What was executed, in order."""
    Orders.placed, Orders.gate = [], asyncio.Event()
    return Orders.placed


@asynccontextmanager
async def another_ingress(served: ServedMesh, **settings: Any) -> AsyncIterator[Ingress]:
    """With a mark of its own, as of another process."""
    mesh = served.mesh
    given = IngressSettings(
        routers=",".join(reversed(mesh.router_addresses)),
        controller=mesh.controller_address,
        port=0,
        metrics_port=-1,
        **settings,
    )
    async with serve(given) as ingress:
        await wait_until(ingress.routes.has_routes.is_set, timeout=20.0, what="the first routes")
        yield ingress


@pytest_asyncio.fixture
async def served() -> AsyncIterator[ServedMesh]:
    orders = slotmesh.testing.Backend(Orders, num_replicas=2)
    async with served_mesh({"orders": orders}, routers=2) as served:
        yield served


def order(address: str, key: str, item: str = "tea", path: str = "/orders/place", **headers: str) -> Any:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return http(address, "POST", path, [item], {"Idempotency-Key": key, **named})


def shown(answer: HttpAnswer) -> list[Any]:
    return [answer.status, answer.headers.get("location"), answer.body]


async def test_a_repetition_over_another_ingress_and_router_gets_the_whole_first_answer(
    served: ServedMesh, placed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = served.mesh.router_addresses
    async with another_ingress(served) as other:
        begun = asyncio.ensure_future(order(served.address, "a"))
        await wait_until(lambda: placed)
        joined = asyncio.ensure_future(order(other.address, '"a"'))
        await served.mesh.kill_router(first)
        Orders.gate.set()
        expected = [201, "/orders/1", b'"tea for /orders/place"']
        assert [shown(await within(it, "an answer")) for it in (begun, joined)] == [expected] * 2
        monkeypatch.setattr("ingress_service.shell.calls.MARK", b"of another process")
        assert shown(await order(other.address, "a")) == expected
    assert placed == ["tea"]


async def test_who_has_left_finds_the_outcome(served: ServedMesh, placed: list[str]) -> None:
    left = asyncio.ensure_future(order(served.address, "a"))
    await wait_until(lambda: placed)
    left.cancel()
    await asyncio.wait([left])
    Orders.gate.set()
    assert (await order(served.address, "a")).status == 201
    assert placed == ["tea"]


async def test_handlers_get_the_key_beside_the_id_of_the_request(served: ServedMesh) -> None:
    assert (await order(served.address, "a", path="/orders/ids", X_Request_ID="log-1")).json == ["a", "log-1"]


async def test_what_failed_is_kept_and_another_request_is_refused(served: ServedMesh, placed: list[str]) -> None:
    Orders.gate.set()
    for _ in range(2):
        answer = await order(served.address, "a", path="/orders/fail")
        assert (answer.status, answer.json["reason"]) == (500, "HANDLER_ERROR")
    assert placed == ["tea"]
    refused = [
        await order(served.address, "a", "milk", path="/orders/fail"),
        await order(served.address, "a", path="/orders/place"),
        await order(served.address, "a", path="/orders/fail", X_Slotmesh_Model_Id="other"),
    ]
    for answer in refused:
        assert (answer.status, answer.json["executed"]) == (422, "no")
        assert answer.json["title"] == "Unprocessable Content"
        assert "Idempotency-Key: was used for another request" in answer.json["detail"]
    assert placed == ["tea"]


async def test_keys_of_tenants_are_independent(served: ServedMesh, placed: list[str]) -> None:
    Orders.gate.set()
    for tenant, item in (("ann", "tea"), ("bob", "milk"), ("ann", "tea")):
        answer = await order(served.address, "1", item, X_Slotmesh_Tenant=tenant)
        assert answer.json.startswith(item)
    assert placed == ["tea", "milk"]
    assert (await order(served.address, "1", "juice")).status == 201
    scoped = "tenant-" + blake2b(b"ann\x001", digest_size=32).hexdigest()
    assert (await order(served.address, scoped)).status == 201
    assert placed == ["tea", "milk", "juice", "tea"], "no key is that of a tenant"


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("", "is empty"),
        ('""', "is empty"),
        ("a b", "without blanks"),
        ("k" * 129, "1 … 128"),
        ('"a', "quotes do not end"),
        ('"a"b', "something follows"),
        ('"a\\b"', "quotes do not end"),
    ],
)
async def test_what_is_no_key_is_refused(served: ServedMesh, placed: list[str], key: str, said: str) -> None:
    answer = await order(served.address, key)
    assert (answer.status, placed) == (400, [])
    assert answer.json["detail"].startswith("Idempotency-Key: ")
    assert said in answer.json["detail"]


async def test_a_quoted_key_is_what_its_quotes_contain(served: ServedMesh, placed: list[str]) -> None:
    Orders.gate.set()
    for key in ('a"b\\c', '"a\\"b\\\\c"'):
        assert (await order(served.address, key)).status == 201
    assert placed == ["tea"]


async def test_where_no_outcome_is_kept_a_key_is_refused(served: ServedMesh, placed: list[str]) -> None:
    streamed = await order(served.address, "a", path="/orders/each", Accept="application/x-ndjson")
    assert (streamed.status, "leave it out" in streamed.json["detail"]) == (400, True)
    sharded = await order(served.address, "a", X_Slotmesh_Shard_Key="k")
    assert (sharded.status, "X-Slotmesh-Shard-Key" in sharded.json["detail"]) == (400, True)
    large = await http(served.address, "POST", "/orders/raw", b"x" * (4 * 1024 * 1024 + 1), {"Idempotency-Key": "a"})
    assert (large.status, large.json["reason"]) == (413, "PAYLOAD_TOO_LARGE")
    assert not placed
    Orders.gate.set()
    in_order = await order(served.address, "a", X_Slotmesh_Shard_Key="k", X_Slotmesh_Ordering_Key="lane")
    assert in_order.status == 201


@pytest.mark.parametrize(("text", "status"), [("true", 201), ("false", 201), ("1", 400)])
async def test_a_call_may_be_idempotent_without_a_key(served: ServedMesh, text: str, status: int) -> None:
    Orders.gate.set()
    answer = await http(served.address, "POST", "/orders/place", ["tea"], {"X-Slotmesh-Idempotent": text})
    assert answer.status == status
