"""Tenants of a client: whose calls leave next, who is refused, and of how many tenants a router keeps account."""

from __future__ import annotations

from router_service.core.callers import Window
from router_service.core.limits.quotas import CallQuotas
from router_service.core.limits.tenant_limits import TenantAccount, TenantFigures
from router_service.core.queueing.backend_queues import FEW_CALLS, TURN_CALLS, FairQueue
from router_service.core.runs import Caller, RouterRun
from router_service.core.tenants import TenantSettings
from tests.unit.router.parts import run
from tests.unit.router.world import OK, World
from tests.unit.router.world_callers import caller

B = 1_000_000
"""Ids of the calls of tenant B begin here."""


def full(slots: int = 4, **world: object) -> World:
    """A world whose only replica is busy with calls that nobody asks about."""
    busy = World({"v1": ["a"]}, slots=slots, **world)  # type: ignore[arg-type]
    busy.submit(range(B * 10, B * 10 + slots), by=caller())
    return busy


def order_of(world: World) -> list[int]:
    """All calls that wait, in the order in which the replica gets them, one after another."""
    while world.at_replica("a"):
        world.complete("a", world.at_replica("a")[0])
    return [each for each in world.got("a") if each < B * 10]


def known(name: str) -> Caller:
    """A caller whose name is known."""
    return Caller(Window(calls=10**9, bytes=10**12), share=CallQuotas(10**9, 10**12).share_of(name))


# -- turns -------------------------------------------------------------------------------------------------------------


def test_a_call_does_not_wait_behind_the_flood_of_another_tenant_of_its_client() -> None:
    world = full()
    world.submit(range(1, 5_001), tenant="a")
    world.submit([B], tenant="b")
    assert order_of(world).index(B) == 0, "few calls go ahead of all turns, as they do between clients"


def test_tenants_with_many_calls_take_turns() -> None:
    world = full()
    world.submit(range(1, 1_001), tenant="a")
    world.submit(range(B, B + 1_000), tenant="b")
    order = order_of(world)
    assert [each >= B for each in order[: 4 * TURN_CALLS]] == (
        [False] * TURN_CALLS + [True] * TURN_CALLS + [False] * TURN_CALLS + [True] * TURN_CALLS
    )


def test_calls_without_a_tenant_take_turns_with_those_that_have_one() -> None:
    world = full()
    world.submit(range(1, 1_001))
    world.submit(range(B, B + 2 * FEW_CALLS), tenant="b")
    order = order_of(world)
    assert order.index(B) == TURN_CALLS


def test_a_client_that_invents_tenants_gets_no_more_than_another_client() -> None:
    world, inventor, other = full(), caller(), caller()
    for number in range(1, 1_001):
        world.submit([number], by=inventor, tenant=f"t{number}")
    world.submit(range(B, B + 1_000), by=other)
    order = order_of(world)
    assert sum(each >= B for each in order[: 10 * TURN_CALLS]) >= 4 * TURN_CALLS
    late = B + 5_000
    world.submit(range(B * 20, B * 20 + 4), by=caller())
    world.submit(range(2_001, 4_001), by=inventor, tenant="x")
    world.submit([late], by=other)
    again = order_of(world)[len(order) :]
    assert again.index(late) <= TURN_CALLS


def test_one_tenant_alone_keeps_the_order_of_its_calls() -> None:
    world = full()
    for number in range(1, 200, 3):
        world.submit(range(number, number + 3), tenant="a")
    order = order_of(world)
    assert order == sorted(order)


def test_an_slo_orders_within_a_tenant_and_not_between_tenants() -> None:
    world = full(slots=1)
    world.submit(range(1, 101), tenant="a", slo_s=0.0)
    world.submit(range(B, B + 20), tenant="b")
    world.submit([B + 50], tenant="b", slo_s=0.01)
    order = order_of(world)
    assert order.index(B + 50) < order.index(B)
    assert order.index(B + 50) <= TURN_CALLS


def test_calls_that_come_back_keep_their_place_in_their_tenant() -> None:
    world = full(slots=4)
    world.submit(range(1, 21), tenant="a")
    world.submit(range(B, B + 20), tenant="b")
    for each in world.at_replica("a"):
        world.complete("a", each)
    back = world.at_replica("a")
    world.refuse("a", *back)
    order = order_of(world)[len(back) :]
    for lo, hi in ((0, B), (B, 2 * B)):
        mine = [each for each in order if lo <= each < hi]
        assert mine == sorted(mine)
    assert world.reasons([*range(1, 21), *range(B, B + 20)]) == {OK}


def test_calls_of_several_tenants_that_come_back_together_wait_by_tenant() -> None:
    queue, web = FairQueue(), caller()
    a, b = run(1, count=500, by=web), run(2, count=FEW_CALLS + 1, first=1_001, by=web)
    a.tenant, b.tenant = (TenantAccount("e", "", name, TenantFigures()) for name in "ab")
    queue.put_back(a, b)
    served: list[RouterRun] = []
    while (head := queue.head()) is not None and len(served) < 2:
        count = queue.turn(head)
        assert count <= TURN_CALLS
        head.cursor += count
        queue.served(count)
        served.append(head)
    assert served == [a, b]


def test_cancelled_calls_leave_no_trace_of_their_tenant() -> None:
    world = full()
    world.submit(range(1, 101), tenant="a")
    world.submit(range(B, B + 100), tenant="b")
    world.cancel((1, 100))
    assert order_of(world) == list(range(B, B + 100))
    assert [each.unanswered for each in world.scheduler.tenants.busiest(9, world.now)] == [0, 0]


# -- room in the queue -------------------------------------------------------------------------------------------------


def test_a_tenant_that_fills_the_queue_leaves_room_for_others() -> None:
    world = full(settings={"max_queued_calls": 1_000})
    world.submit(range(1, 5_001), tenant="a")
    assert world.queued == {"v1": 333}
    world.submit(range(B, B + 100), tenant="b")
    order_of(world)
    assert world.reasons(range(B, B + 100)) == {OK}
    assert world.reasons(range(334, 5_001)) == {"QUEUE_FULL"}
    world.submit(range(B * 30, B * 30 + 4), by=caller())
    world.submit(range(10_001, 15_001), tenant="a")
    assert world.queued == {"v1": 333}, "what has left takes no room"


def test_a_tenant_on_many_streams_leaves_room_for_others_on_each() -> None:
    world, streams = full(settings={"max_queued_calls": 1_000}), [caller() for _ in range(8)]
    for number, stream in enumerate(streams):
        world.submit(range(number * 5_000 + 1, number * 5_000 + 5_001), by=stream, tenant="a")
    for number, stream in enumerate(streams):
        world.submit([B + number], by=stream, tenant="b")
    order_of(world)
    assert world.reasons(range(B, B + 8)) == {OK}


def test_a_tenant_gets_into_a_queue_that_other_clients_have_filled() -> None:
    world, web = full(settings={"max_queued_calls": 1_000}), caller()
    world.submit(range(1, 5_001), by=caller())
    world.submit(range(10_001, 10_101), by=web, tenant="a")
    world.submit([B, B + 1], by=web, tenant="b")
    order_of(world)
    assert world.reasons([B, B + 1]) == {OK}


# -- how many ----------------------------------------------------------------------------------------------------------


def test_accounts_are_bounded_and_those_beyond_share_one() -> None:
    world = full(book=TenantSettings(most=8, most_named=2), slots=1)
    for number in range(1, 101):
        world.submit([number], tenant=f"t{number}")
    assert len(world.scheduler.tenants) == 4, "one caller has as many as it leaves to others"
    order_of(world)
    assert world.reasons(range(1, 101)) == {OK}


def test_a_caller_with_many_tenants_leaves_accounts_for_others() -> None:
    world, inventor = full(book=TenantSettings(most=100, most_named=2)), known("inventor")
    for number in range(1, 1_001):
        world.submit([number], by=inventor, tenant=f"t{number}")
    for number in range(20):
        world.submit([B + number], by=known("honest"), tenant=f"u{number}")
    names = {each.name for each in world.scheduler.tenants.busiest(10_000, 0.0) if each.caller == "honest"}
    assert names == {f"u{number}" for number in range(20)}


def test_idle_accounts_are_forgotten_for_new_ones() -> None:
    world = World({"v1": ["a"]}, slots=10, book=TenantSettings(most=10, most_named=2))
    for number in range(1, 101):
        world.submit([number], tenant=f"t{number}")
        world.complete("a")
    assert len(world.scheduler.tenants) <= 10
    assert {each.name for each in world.scheduler.tenants.busiest(1, 0.0)} != {""}


# -- figures -----------------------------------------------------------------------------------------------------------


def test_the_busiest_tenants_are_named_and_the_others_added_up() -> None:
    world = full(book=TenantSettings(most=100, most_named=2))
    for number in range(5):
        world.submit(range(number * 1_000 + 1, number * 1_000 + 1 + number), tenant=f"t{number}")
    book = world.scheduler.tenants
    assert [(each.name, each.unanswered) for each in book.loads(3, world.now)] == [("t4", 4), ("t3", 3), ("t2", 2)]
    assert book.others["e"].accepted == 10
    world.now = 1.0
    world.submit([8_000], tenant="t4")
    assert {each.name for each in book.named()} == {"t4", "t3"}
    world.submit(range(9_001, 9_011), tenant="t4")
    world.submit(range(9_101, 9_111), tenant="t0")
    assert {each.name: each.figures.accepted for each in book.named()} == {"t4": 10, "t3": 0}
    assert book.others["e"].accepted == 1 + 2 + 3 + 4 + 1 + 10
    world.now = 2.0
    world.submit([8_001], tenant="t4")
    assert {each.name for each in book.named()} == {"t4", "t0"}
    before = book.others["e"].accepted
    world.submit([9_500], tenant="t3")
    assert book.others["e"].accepted == before + 1, "totals never go back"


def test_calls_of_endpoints_that_do_not_exist_take_no_account() -> None:
    world = World({"v1": ["a"]})
    for number in range(1, 50):
        world.submit([number], to=f"nowhere {number}", tenant="acme")
    assert world.reasons(range(1, 50)) == {"ENDPOINT_NOT_FOUND"}
    assert len(world.scheduler.tenants) == 0


def test_failures_of_a_tenant_name_it() -> None:
    world = World({"v1": ["a"]})
    world.submit([1], tenant="acme")
    world.submit([2])
    world.fail("a")
    assert world.failures[1].metadata["tenant"] == "acme"
    assert [each.tenant for each in world.failure_commands] == ["acme", ""]
    assert "tenant" not in world.failures[2].metadata
