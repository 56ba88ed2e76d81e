"""What always holds of a replica's scheduler, whatever was done with it."""

from __future__ import annotations

from math import inf

from replica_service.core.batch_gathering import Batcher
from replica_service.core.call_states import CallState, LaneState
from replica_service.core.permits import CAPACITY_GAP_S
from replica_service.core.runs import ReplicaLane, ReplicaRun
from tests.properties.replica_model import (
    KEYED_WINDOW,
    KEYS,
    LONGEST_RUN,
    SETTINGS,
    WEIGHED,
    ReplicaModel,
    weigh,
)


def permits_are_kept_to(model: ReplicaModel) -> None:
    model.allowed = max(model.max_ongoing, min(model.allowed, model.core.in_use))
    assert 0 <= model.core.in_use <= model.allowed
    in_batches = sum(hi - lo for batch in model.batches for run, lo, hi in batch.parts if run.lane is None)
    lanes = len(model.turns) + sum(len(batch.lanes) for batch in model.batches)
    assert len(model.running_calls) + in_batches + lanes <= model.core.in_use


def no_permit_is_idle(model: ReplicaModel) -> None:
    if model.core.in_use < model.max_ongoing:
        assert model.core.waiting == sum(not run.options.ordering_key for run in model.uploading())
        assert not model.core._state.lanes.ready


def nothing_is_parked_without_need(model: ReplicaModel) -> None:
    for router in model.routers:
        assert not router.link.parked or router.link.fresh_until <= model.now


def no_lane_is_blocked_without_need(model: ReplicaModel) -> None:
    for lane in model.core._state.lanes.all():
        head = lane.head()
        assert lane.state is not LaneState.BLOCKED or (head is not None and head.state is CallState.UPLOADING)


def what_is_late_does_not_wait_for_its_payload(model: ReplicaModel) -> None:
    deadline = model.core.next_deadline()
    for run in model.uploading():
        assert deadline is not None or run.deadline == inf
        assert deadline is None or deadline <= run.deadline


def room_is_told_before_long(model: ReplicaModel) -> None:
    deadline = model.core.next_deadline()
    if model.told_full and model.core.in_use + model.core.waiting < model.room:
        assert deadline is not None
        assert deadline <= model.now + CAPACITY_GAP_S


def revoked_partitions_are_empty_when_nothing_of_them_is_here(model: ReplicaModel) -> None:
    here = model.keyed_here()
    for key in KEYS:
        calls = [call for call in here if call.key == key]
        if not calls:
            assert model.core.is_emptied("e", len(key))
        elif any(call.run.owner_epoch <= model.revoked_through for call in calls):
            assert not model.core.is_emptied("e", len(key))


def no_batch_is_late(model: ReplicaModel) -> None:
    deadline = model.core.next_deadline()
    assert deadline is None or deadline > model.now
    for name, batcher in model.core.batchers.items():
        assert (batcher.gathered.waiting, batcher.gathered.load) == gathered_in(batcher)
        running = sum(each.method == batcher.method for each in model.batches)
        if batcher.gathered.queue and running < SETTINGS[name].max_concurrent_batches:
            assert deadline is not None
            assert batcher.gathered.waiting < model.max_ongoing
            assert (batcher.gathered.load if name == "weighed" else batcher.gathered.waiting) < SETTINGS[
                name
            ].max_batch_size


def routers_are_charged_for_what_is_here(model: ReplicaModel) -> None:
    for router in model.router_of.values():
        here = [call for call in router.calls.values() if call.state in {"waiting", "held", "running"}]
        assert router.link.unkeyed == sum(not call.key for call in here)
        assert router.link.keyed == sum(bool(call.key) for call in here)
        assert 0 <= router.link.handed <= router.link.keyed <= KEYED_WINDOW + LONGEST_RUN * len(KEYS)
        can_be_taken_back = {run_id for run in router.link.waiting.values() for run_id in open_ids(run)}
        waiting = {run_id for run_id, call in router.calls.items() if call.state == "waiting"}
        assert waiting <= can_be_taken_back


def nothing_is_left(model: ReplicaModel) -> None:
    """In the end, when the replica has drained, each call has ended in one way."""
    model.core_drains()
    assert model.core.is_idle
    assert model.core.in_use == model.core.waiting == model.core.keyed == 0
    for router in model.router_of.values():
        assert not router.link.waiting
        for call in router.calls.values():
            assert call.state in {"ended", "failed", "refused"}, call.state


def gathered_in(batcher: Batcher) -> tuple[int, float]:
    """Counted and weighed anew: calls in pieces, and of each lane those that fill a batch.

    Where nothing is weighed, runs count as a whole.
    """
    is_weighed = batcher.method == "weighed"
    total, load = 0, 0.0
    for entry in batcher.gathered.queue:
        if not isinstance(entry, ReplicaLane):
            total += entry.hi - entry.lo
            load += sum(weigh(entry.run, index).weight for index in range(entry.lo, entry.hi)) if is_weighed else 0
            continue
        offered, weight = 0, 0.0
        for run in entry.runs:
            if run.options.method != batcher.method or run.state is CallState.UPLOADING:
                break
            for index in range(run.lo, run.hi):
                if (is_weighed or index == run.lo) and (
                    offered >= batcher.gathered.size or weight >= WEIGHED.max_batch_size
                ):
                    break
                offered += 1
                weight += weigh(run, index).weight if is_weighed else 0
        assert offered, "it holds a permit for nothing"
        total += offered
        load += weight
    return total, load


def open_ids(run: ReplicaRun) -> range:
    return range(run.first + run.begin, run.first + run.end)


ALWAYS = (
    permits_are_kept_to,
    no_permit_is_idle,
    nothing_is_parked_without_need,
    no_lane_is_blocked_without_need,
    what_is_late_does_not_wait_for_its_payload,
    room_is_told_before_long,
    revoked_partitions_are_empty_when_nothing_of_them_is_here,
    no_batch_is_late,
    routers_are_charged_for_what_is_here,
)
