"""What always holds of a router's scheduler, whatever was done with it."""

from __future__ import annotations

from collections import Counter

from router_service.core.events import RouterTimePassed
from router_service.core.features.broadcasts import BroadcastClosed, PinnedRun
from router_service.core.routing.open_calls import OpenCallsFilter, OpenCallState
from router_service.core.run_states import RunState
from tests.properties.router_model import RouterModel
from tests.properties.router_model_parts import QUEUE_TIME_S


def books_agree(model: RouterModel) -> None:
    runs = [run for caller in model.callers for run in caller.runs]
    assert sum(run.unanswered for run in runs) == len(model.pending)
    assert set(model.outcomes).isdisjoint(model.pending)
    for held in model.held.values():
        unsent = [(sent.count, sent.run.partition) for sent in held.replica.outbox]
        assert held.replica.own == held.unkeyed() + sum(count for count, key in unsent if key is None)
        keyed = len(held.runs) - held.unkeyed()
        assert held.replica.keyed == keyed + sum(count for count, key in unsent if key is not None)
        assert not unsent or held.replica in model.to_flush, "something is to be sent, and nobody was told"
    topology = model.scheduler.topology
    accounts = [each.account for each in topology.backends.values()]
    accounts += [each.account for each in topology.endpoints.values()]
    charged = [run for run in runs if run.account is not None and run.waiting]
    assert {run for run in runs if run.waiting and not isinstance(run, PinnedRun)} == set(charged)
    assert {run for run in runs if run.state is RunState.QUEUED} == set(charged)
    assert not {run.state for run in runs} & {RunState.NEW, RunState.ENDED}, "no step ends with such a run"
    for account in accounts:
        mine = [run for run in charged if run.account is account]
        assert account.calls == sum(run.waiting for run in mine)
        assert account.size == sum(len(payload) for run in mine for payload in run.payloads[run.cursor :])
        for caller in model.callers:
            waiting = sum(run.waiting for run in mine if run.caller is caller)
            assert account.waiting_of(caller.flow) == waiting
    assert all(run.account in accounts for run in charged)
    for backend in topology.backends.values():
        able = [each for each in backend.replicas.values() if each.linked and not each.draining]
        heard = [each for each in able if each.key not in model.suspects]
        taking = {each for each in backend.replicas.values() if each.taking}
        assert taking == {*(heard or able)}, "suspects are passed over as long as others take calls"
        assert backend.candidates == len(taking)


def tenants_agree(model: RouterModel) -> None:
    """What each tenant has unanswered is what the model says, at each endpoint."""
    unanswered = Counter((call.endpoint, call.tenant) for call in model.pending.values() if call.tenant)
    accounts = model.scheduler.tenants.busiest(100, model.now)
    assert Counter({(each.endpoint, each.name): each.unanswered for each in accounts}) == unanswered


def open_calls_are_listed(model: RouterModel) -> None:
    """A scan in small steps lists each call once: where it waits, or at the replica that owes the answer."""
    scan = model.scheduler.scan_calls(OpenCallsFilter(limit=10_000), model.callers)
    while not scan.step(2):
        pass
    listed = [call for call in scan.calls(model.now) if not call.is_shadow]
    copies = sum(call.is_shadow for call in scan.calls(model.now))
    assert len(listed) + copies == scan.waiting + scan.at_replicas
    assert [call.age_s for call in listed] == sorted((call.age_s for call in listed), reverse=True)
    owed = [
        (call_id in model.pending, key, held.replica.replica_id)
        for held in model.held.values()
        for call_id, key, _ in held.runs.values()
        if not held.is_dark
    ]
    at_replicas = [call for call in listed if call.state in {OpenCallState.AT_REPLICA, OpenCallState.ABANDONED}]
    assert Counter(owed) == Counter(
        (call.state is OpenCallState.AT_REPLICA, call.ordering_key, call.replica_id) for call in at_replicas
    )
    waiting = len(model.pending) - sum(is_pending for is_pending, _, _ in owed)
    assert len(listed) - len(at_replicas) == waiting


def nothing_idles(model: RouterModel) -> None:
    for backend in model.scheduler.topology.backends.values():
        if backend.queue.head() is not None:
            assert all(replica.free <= 0 for replica in backend.replicas.values())
    for partition in model.scheduler.topology.partitions():
        if partition.queue.head() is not None and partition.sendable:
            assert partition.owner is not None
            assert partition.owner.keyed_room <= 0


def broadcasts_wait_for_room(model: RouterModel) -> None:
    """A call for one replica waits while that has no room or no link, and no longer than it may take calls."""
    for run in [run for caller in model.targets for run in caller.runs if run.waiting]:
        assert isinstance(run, PinnedRun)
        target = run.target
        assert target.listed
        assert not target.draining
        taken = target.own + target.capacity.others
        assert not target.linked or taken >= target.capacity.max_ongoing + target.capacity.prefetch


def nothing_waits_in_vain(model: RouterModel) -> None:
    """What waits, waits for a backend that can serve; where none can, for one that is on its way."""
    if not model.policy:
        return
    can_serve = [name for name in model.policy if model.can_serve(name)]
    topology = model.scheduler.topology
    for run in [run for caller in model.callers for run in caller.runs if run.waiting]:
        if run.partition is not None:
            assert topology.endpoints[run.endpoint].partitions[run.partition.number].owner or not model.is_unavailable()
            continue
        if isinstance(run, PinnedRun):
            continue
        assert run.account is not None
        name = run.account.name
        assert model.can_serve(name) or not can_serve, "it waits for a backend that cannot serve"
        assert model.can_serve(name) or (name in model.policy and model.is_coming(name)), "nothing is on its way"


def nothing_is_left(model: RouterModel) -> None:
    """In the end, every call has its one outcome, and nothing is kept."""
    for _ in range(3):  # what is lost and idempotent is sent again, and lost again
        model.now += QUEUE_TIME_S + 1
        model.step(RouterTimePassed())
        for held in list(model.held.values()):
            if held.linked:
                model.cut_off(held)
    model.now += QUEUE_TIME_S + 1
    model.step(RouterTimePassed())
    assert not model.pending
    assert len(model.outcomes) == model.next_id - 1 + sum(map(len, model.targets.values()))
    for caller in model.targets:
        model.step(BroadcastClosed(caller))
    parts = model.scheduler._parts
    assert not parts.broadcasts.under_way
    assert not parts.sender.awaited
    assert not any(replica.link_users for replica in parts.topology.replicas.values())
    assert not any(caller.runs for caller in model.callers)
    assert not model.scheduler.shadows_under_way
    assert model.scheduler.next_deadline() is None
    counters = model.scheduler.counters
    assert sum(counters.calls.values()) == len(model.outcomes), "each call is counted once"
    well = sum(outcome in {"result", "done"} for outcome in model.outcomes.values())
    failed = sum(counters.failures.values())
    silent_failures = failed - sum(outcome not in {"result", "done"} for outcome in model.outcomes.values())
    assert 0 <= silent_failures <= len(model.silent)
    assert well + failed - silent_failures == len(model.outcomes)
    ended_well = sum(sum(each.ended.sum().times.counts) for each in counters.backends.values())
    assert ended_well == well - silent_failures, "copies are no calls"


ALWAYS = (
    books_agree,
    tenants_agree,
    open_calls_are_listed,
    nothing_idles,
    broadcasts_wait_for_room,
    nothing_waits_in_vain,
)
