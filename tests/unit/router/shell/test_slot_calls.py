"""A caller that leaves at the very moment in which its slot is granted: the slot is released."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import cast

import pytest

from router_service.core.calls import Dispatch, LeasedSlot, Release, Renew, Reserve, RouterCallOptions
from router_service.core.events import LinkOpened, SlotOperationsAnswered, TableReceived
from router_service.core.features.slot_operations import OutgoingOp, OutgoingRelease, OutgoingReserve
from router_service.core.limits.capacity import ReportedCapacity
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.routing_table import BackendRoute, EndpointRoute, ReplicaRoute, RoutingTable
from router_service.core.scheduler import RouterScheduler
from router_service.shell.clients.unary import UnaryCalls
from router_service.shell.dispatcher import Dispatcher
from router_service.shell.receivers import ReplicaReceiver
from router_service.slot_servicer import UnarySlotOperations
from slotmesh.calls.slot_tokens import format_token
from slotmesh.errors import Failure, Reason
from slotmesh.spec.model import Backend
from tests.support.fakes.clock import FakeClock
from tests.support.requested import requested
from tests.unit.router.values_client import LinkOnPaper

SLOT = LeasedSlot(
    token=format_token("r", "life", bytes(16)),
    backend="b",
    replica_id="r",
    replica_address="",
    ongoing=1,
    ttl_s=10.0,
    expire_time_s=0.0,
)


class Router:
    """A router with one replica, which answers when a test says so."""

    def __init__(self, *, max_pending: int = 10) -> None:
        link = cast("ReplicaReceiver", LinkOnPaper())
        self.dispatcher = Dispatcher(RouterScheduler(lambda: 0.5), FakeClock(), lambda _replica, _dispatcher: link)
        backend = BackendRoute(
            settings=Backend(name="b"), replicas=[ReplicaRoute(key=("r", "life"), address="", max_ongoing=4)]
        )
        endpoint = EndpointRoute(name="e", weights={"b": 1.0}, shadows={})
        table = RoutingTable(generation="g", revision=1, endpoints={"e": endpoint}, backends={"b": backend})
        self.dispatcher.post(TableReceived(table))
        self.dispatcher.first_table.came()
        self.replica: RoutedReplica = next(iter(self.dispatcher.scheduler.topology.replicas.values()))
        self.dispatcher.post(LinkOpened(self.replica, ReportedCapacity(max_ongoing=4)))
        self.slots = UnarySlotOperations(self.dispatcher, UnaryCalls(self.dispatcher, max_pending))

    async def reserving(self, request_id: str = "") -> tuple[asyncio.Task[LeasedSlot | Failure], int]:
        """A reservation that the replica has, and its id there."""
        task, op = await self.reserving_with(RouterCallOptions(), request_id)
        return task, op.op_id

    async def reserving_with(
        self, options: RouterCallOptions, request_id: str = ""
    ) -> tuple[asyncio.Task[LeasedSlot | Failure], OutgoingReserve]:
        task = asyncio.create_task(self.slots.reserve("peer", "e", options, Reserve(request=requested(request_id))))
        await asyncio.sleep(0)
        (op,) = self.ops()
        assert isinstance(op, OutgoingReserve)
        return task, op

    def grant(self, op_id: int) -> None:
        self.dispatcher.post(SlotOperationsAnswered(self.replica, [(op_id, SLOT)]))

    def ops(self) -> list[OutgoingOp]:
        """What has been asked of the replica since."""
        return self.dispatcher.cut_ops(self.replica, 1024)

    def assert_given_back(self) -> None:
        (op,) = self.ops()
        assert isinstance(op, OutgoingRelease)
        assert op.token == SLOT.token


@pytest.mark.asyncio
async def test_a_slot_that_is_granted_is_kept() -> None:
    router = Router()
    task, op_id = await router.reserving()
    router.grant(op_id)
    assert await task == SLOT
    assert router.ops() == []


@pytest.mark.asyncio
async def test_who_leaves_just_after_the_grant_leaves_no_slot() -> None:
    router = Router()
    task, op_id = await router.reserving()
    router.grant(op_id)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    router.assert_given_back()


@pytest.mark.asyncio
async def test_who_leaves_just_before_the_grant_leaves_no_slot() -> None:
    router = Router()
    task, op_id = await router.reserving()
    task.cancel()
    router.grant(op_id)
    with pytest.raises(asyncio.CancelledError):
        await task
    router.assert_given_back()


@pytest.mark.asyncio
async def test_who_can_ask_again_keeps_its_slot() -> None:
    router = Router()
    task, op_id = await router.reserving("once")
    router.grant(op_id)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert router.ops() == []
    again = await router.slots.reserve("peer", "e", RouterCallOptions(), Reserve(request=requested("once")))
    assert isinstance(again, LeasedSlot)
    assert again.token == SLOT.token


@pytest.mark.asyncio
async def test_too_many_at_once_are_refused() -> None:
    router = Router(max_pending=1)
    task, op_id = await router.reserving()
    failure = await router.slots.reserve("peer", "e", RouterCallOptions(), Reserve())
    assert isinstance(failure, Failure)
    assert failure.reason is Reason.QUEUE_FULL

    async def unwanted(*_: str | bytes) -> None:
        raise AssertionError

    key = router.replica.key
    held = [asyncio.create_task(router.slots.renew("peer", key, Renew(token="t")))]
    await asyncio.sleep(0)
    assert not held[0].done(), "what is done with slots goes on"
    for refused in (
        await router.slots.renew("peer", key, Renew(token="t")),
        await router.slots.release("peer", key, Release(token="t")),
        await router.slots.dispatch("peer", key, RouterCallOptions(), b"x", Dispatch(token="t")),
        await router.slots.stream("peer", key, RouterCallOptions(streaming=True), b"x", Dispatch(token="t"), unwanted),
    ):
        assert isinstance(refused, Failure), "but is bounded, too"
        assert refused.reason is Reason.QUEUE_FULL
    held[0].cancel()
    router.grant(op_id)
    await task


@pytest.mark.asyncio
async def test_a_time_of_day_by_which_it_is_wanted_orders_the_queue() -> None:
    router = Router()
    by = router.dispatcher.clock.time_of_day() + 3.0
    task, op = await router.reserving_with(RouterCallOptions(slo_at=datetime.fromtimestamp(by, UTC)))
    assert op.options.slo_s == pytest.approx(3.0)
    router.grant(op.op_id)
    await task
