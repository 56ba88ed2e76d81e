"""Calls of a tenant whose share of a queue is full: what their failure names, and where they are counted."""

from __future__ import annotations

from router_service.core.limits.admission import Account
from slotmesh.errors import Reason
from tests.unit.router.limits.test_tenants import B, full
from tests.unit.router.parts import caller, run
from tests.unit.router.world import World


def refused_load(world: World, tenant: str) -> float:
    (load,) = [it for it in world.scheduler.tenants.loads(10, world.now) if it.name == tenant]
    return load.refused_per_s


def test_the_share_of_the_tenant_is_named_where_the_queue_has_room() -> None:
    world = full(settings={"max_queued_calls": 20})
    world.submit(range(1, 20), tenant="acme")
    failure = world.failures[19]
    assert failure.reason is Reason.QUEUE_FULL
    assert "the share of tenant 'acme' in the queue of v1 is full" in failure.message
    assert "6 of its calls" in failure.message
    assert "6 of 20 calls" in failure.message
    assert "max_queued_calls" in failure.message
    assert failure.metadata == {"backend": "v1", "tenant": "acme"}
    world.submit(range(B, B + 1), tenant="other")
    assert B not in world.failures, "another tenant has room"


def test_bytes_are_shared_likewise() -> None:
    each, by = Account("b", max_calls=1_000, max_bytes=30, max_queue_time_s=1.0), caller()
    world = full()
    world.submit([1], tenant="acme")
    account = world.scheduler.tenants.busiest(1, 0.0)[0]
    waiting = run(count=10, size=3, by=by, tenant="acme")
    waiting.tenant = account
    fits = waiting.charge(each)
    assert 0 < fits < 10
    assert "the share of tenant 'acme'" in waiting.refused_by(each, fits, 0.0, 0.5).message


def test_a_queue_without_room_for_any_tenant_of_the_client_is_full() -> None:
    world = full()
    world.submit([1], tenant="acme")
    each, waiting = Account("b", max_calls=8, max_bytes=1_000, max_queue_time_s=1.0), run(count=3, tenant="acme")
    run(count=8, by=caller()).charge(each)
    waiting.tenant = world.scheduler.tenants.busiest(1, 0.0)[0]
    assert waiting.charge(each) == 1, "a client with little waiting has room for one more"
    failure = waiting.refused_by(each, 1, 0.0, 0.5)
    assert failure.message.startswith("the queue of b is full: 9 of 8 calls")
    assert failure.metadata == {"backend": "b"}


def test_calls_that_find_no_room_count_as_refused_of_their_tenant() -> None:
    world = full(settings={"max_queued_calls": 20})
    world.submit(range(1, 20), tenant="acme")
    world.submit([B], tenant="other")
    assert refused_load(world, "acme") > 0
    assert refused_load(world, "other") == 0
    figures = {it.name: it.figures.refused for it in world.scheduler.tenants.named()}
    assert figures["acme"] == 13
