"""What always holds of a router's scheduler with slots, whatever was done with it."""

from __future__ import annotations

from collections import Counter

from router_service.core import balancers
from router_service.core.calls import Reserve
from router_service.core.events import RouterTimePassed
from router_service.core.queueing.run_queues import constraint_of
from router_service.core.replicas.replica import RoutedReplica
from router_service.core.run_states import RunState
from router_service.core.runs import Caller
from tests.properties.router_slots_model import RouterSlotsModel
from tests.properties.router_slots_operations import (
    LINK_WAIT_S,
    QUEUE_TIME_S,
)


def books_agree(model: RouterSlotsModel) -> None:
    for held in model.held.values():
        replica = held.replica
        unsent = [*replica.ops, *replica.outbox]
        roomy = sum(sent.count for sent in unsent if sent.takes_room)
        assert replica.own == len(held.calls) + len(held.waiting) + roomy
        assert replica.bound == len(held.asked) + len(held.dispatched) + sum(not s.takes_room for s in unsent)
        assert not unsent or not held.linked or replica in model.to_flush, "to be sent, and nobody was told"
        if not held.linked:
            assert not any(sent.takes_room for sent in unsent)
    topology = model.scheduler.topology
    accounts = [each.account for each in topology.backends.values()]
    accounts += [each.account for each in topology.endpoints.values()]
    callers: set[Caller] = {*model.operations, *model.scheduler._parts.slot_operations.requests.pending}
    waiting = [run for caller in callers for run in caller.runs if run.waiting]
    waiting = [run for run in waiting if run.slot is None or run.reserves]
    waiting = [run for run in waiting if run.state is not RunState.HELD]  # their slots are looked for
    assert all(run.account in accounts for run in waiting)
    for account in accounts:
        assert account.calls == sum(run.waiting for run in waiting if run.account is account)


def nobody_waits_for_who_never_comes(model: RouterSlotsModel) -> None:
    if not model.exists or model.policy is None:
        return
    there = {key[0] for key, backend in model.listed.items() if backend in model.policy}
    for operation in model.alive():
        if isinstance(operation.work, Reserve) and (wanted := operation.work.replica_id):
            assert wanted in there or not any(run.waiting for run in operation.caller.runs)


def balancers_hear_in_pairs(model: RouterSlotsModel) -> None:
    expected: Counter[RoutedReplica] = Counter()
    for held in model.held.values():
        replica = held.replica
        dispatching = [*replica.ops, *replica.inflight.values()]
        at_work = sum(balancers.is_counted(sent) for sent in dispatching if not sent.takes_room)
        expected[replica] += replica.own + at_work
    for slot in model.scheduler._parts.slot_operations.routed._slots.values():
        expected[slot.replica] += 1
    assert +model.listener.balance == +expected
    assert min(model.listener.balance.values(), default=0) >= 0


def nothing_idles(model: RouterSlotsModel) -> None:
    for backend in model.scheduler.topology.backends.values():
        roomy = [replica for replica in backend.replicas.values() if replica.free > 0]
        if backend.queue.head() is not None:
            assert not roomy
        for run in backend.constrained:
            constraint = constraint_of(run)
            assert constraint is not None
            assert not any(constraint.admits(each.replica_id) for each in roomy)


def nothing_is_left(model: RouterSlotsModel) -> None:
    """In the end, everybody has one outcome, and nothing is kept."""
    for _ in range(3):
        model.now += QUEUE_TIME_S + 1
        model.step(RouterTimePassed())
        for held in list(model.held.values()):
            if held.linked:
                model.cut_off(held)
    model.now += QUEUE_TIME_S + LINK_WAIT_S + 1
    model.step(RouterTimePassed())
    assert not model.alive(), "somebody waits for ever"
    assert not any(caller.runs for caller in model.operations)
    requests = model.scheduler._parts.slot_operations.requests
    assert not requests.pending
    assert not len(requests)
    assert not len(model.scheduler._parts.slot_operations.routed)
    assert model.scheduler.next_deadline() is None
    assert not +model.listener.balance


ALWAYS = (
    books_agree,
    nobody_waits_for_who_never_comes,
    balancers_hear_in_pairs,
    nothing_idles,
)
