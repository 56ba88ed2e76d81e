"""When a handler's `on_keys_gained` and `on_keys_lost` run: before the first call of the keys, and after the last."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replica_service.core.events import (
    BatchEnded,
    DrainBegan,
    EpochFenced,
    KeysGained,
    KeysLost,
    PartitionsRevoked,
    ReplicaCommand,
    ReplicaEvent,
    ReplicaTimePassed,
    RunsCancelled,
    RunsReceived,
    TurnEnded,
)
from replica_service.core.runs import ReplicaRun, RouterPeer
from tests.unit.replica.scheduler_notes import GATHER_S, batch_of, run, scheduler, told, turn_of


class ToldHandler:
    """A scheduler whose handler has both hooks."""

    def __init__(self, max_ongoing: int = 4) -> None:
        self.core = scheduler(max_ongoing=max_ongoing)
        self.core.hold_keys()
        self.link = RouterPeer()
        self.now = 0.0
        self._next = 1

    def keyed(
        self, key: str, count: int = 1, *, partition: int = 7, epoch: int = 1, method: str = "plain"
    ) -> ReplicaRun:
        made = run(self.link, self._next, count, key=key, epoch=epoch, method=method)
        made.partition = partition
        self._next += count
        return made

    def step(self, event: ReplicaEvent) -> list[ReplicaCommand]:
        return self.core.step(event, self.now)

    def gained(self, *partitions: int) -> list[ReplicaCommand]:
        return self.step(KeysGained("e", partitions))

    def lost(self, *partitions: int) -> list[ReplicaCommand]:
        return self.step(KeysLost("e", partitions))

    def hold(self, key: str = "a", *, partition: int = 7, epoch: int = 1) -> ReplicaCommand:
        """A call of the key runs: the turn that it has."""
        self.step(RunsReceived([self.keyed(key, partition=partition, epoch=epoch)]))
        return turn_of(self.gained(partition))

    def revoke(self, partition: int = 7, epoch: int = 1) -> list[ReplicaCommand]:
        return self.step(PartitionsRevoked({"e": {partition: epoch}}))

    def is_emptied(self, partition: int = 7) -> bool:
        return self.core.is_emptied("e", partition)


def end(turn: ReplicaCommand) -> TurnEnded:
    return TurnEnded(turn, turn.hi)  # type: ignore[arg-type, union-attr]  # a turn


@pytest.fixture
def handler() -> ToldHandler:
    return ToldHandler()


def test_no_call_starts_before_the_hook_has_ended(handler: ToldHandler) -> None:
    assert told(handler.step(RunsReceived([handler.keyed("a", 2), handler.keyed("b")]))) == ["gained 7 at 1"]
    assert told(handler.step(ReplicaTimePassed())) == []
    assert told(handler.step(RunsReceived([handler.keyed("a"), handler.keyed("c")]))) == [], "they wait as well"
    assert told(handler.gained(7)) == ["turn 1-2", "turn 3-3", "turn 5-5"]


def test_the_hook_runs_once_for_each_partition(handler: ToldHandler) -> None:
    came = [handler.keyed("a"), handler.keyed("b", partition=8), handler.keyed("c", partition=9)]
    assert told(handler.step(RunsReceived(came))) == ["gained 7 at 1", "gained 8 at 1", "gained 9 at 1"]
    assert told(handler.gained(8)) == ["turn 2-2"], "each is told by itself"
    assert told(handler.gained(7, 9)) == ["turn 1-1", "turn 3-3"]
    assert told(handler.step(RunsReceived([handler.keyed("d", partition=8)]))) == ["turn 4-4"]


def test_calls_without_a_key_do_not_wait(handler: ToldHandler) -> None:
    handler.step(RunsReceived([handler.keyed("a")]))
    assert told(handler.step(RunsReceived([run(handler.link, 50, 2)]))) == ["calls 50-51"]


def test_a_batch_method_waits_as_well(handler: ToldHandler) -> None:
    assert told(handler.step(RunsReceived([handler.keyed("a", 2, method="batch")]))) == ["gained 7 at 1"]
    handler.gained(7)
    handler.now = GATHER_S
    batch = batch_of(handler.step(ReplicaTimePassed()))
    assert told(handler.revoke()) == []
    assert not handler.is_emptied()
    assert told(handler.step(BatchEnded(batch))) == ["lost 7 at 1"]


def test_the_loss_waits_for_the_last_call_and_the_partition_for_the_hook(handler: ToldHandler) -> None:
    turn = handler.hold()
    handler.step(RunsReceived([handler.keyed("a")]))
    assert told(handler.revoke()) == ["refuse 2-2 STALE_TABLE"]
    assert not handler.is_emptied()
    assert told(handler.step(end(turn))) == ["lost 7 at 1"]
    assert not handler.is_emptied(), "the next owner waits for the hook"
    assert told(handler.lost(7)) == []
    assert handler.is_emptied()


def test_an_idle_partition_is_lost_at_once(handler: ToldHandler) -> None:
    handler.step(end(handler.hold()))
    assert told(handler.revoke()) == ["lost 7 at 1"]
    assert not handler.is_emptied()
    handler.lost(7)
    assert handler.is_emptied()


def test_a_partition_that_had_no_call_is_neither_gained_nor_lost(handler: ToldHandler) -> None:
    assert told(handler.revoke(partition=9)) == []
    assert handler.is_emptied(9)


def test_the_second_of_two_partitions_is_lost_by_itself(handler: ToldHandler) -> None:
    first, second = handler.hold("a", partition=7), handler.hold("b", partition=8)
    assert told(handler.step(PartitionsRevoked({"e": {7: 1, 8: 1}}))) == []
    assert told(handler.step(end(second))) == ["lost 8 at 1"]
    handler.lost(8)
    assert (handler.is_emptied(8), handler.is_emptied(7)) == (True, False)
    assert told(handler.step(end(first))) == ["lost 7 at 1"]


def test_a_loss_waits_for_all_lanes_of_its_partition(handler: ToldHandler) -> None:
    one, other = handler.hold("a"), turn_of(handler.step(RunsReceived([handler.keyed("b")])))
    handler.revoke()
    assert told(handler.step(end(one))) == []
    assert told(handler.step(end(other))) == ["lost 7 at 1"]


def test_what_is_given_up_while_it_is_gained_is_lost_afterwards(handler: ToldHandler) -> None:
    handler.step(RunsReceived([handler.keyed("a")]))
    assert told(handler.revoke()) == ["refuse 1-1 STALE_TABLE"]
    assert not handler.is_emptied()
    assert told(handler.gained(7)) == ["lost 7 at 1"]
    handler.lost(7)
    assert handler.is_emptied()


def test_what_comes_back_is_gained_again_at_its_new_epoch(handler: ToldHandler) -> None:
    handler.step(end(handler.hold()))
    handler.revoke()
    handler.lost(7)
    assert told(handler.step(RunsReceived([handler.keyed("a", epoch=2)]))) == ["gained 7 at 2"]
    assert told(handler.gained(7)) == ["turn 2-2"]


def test_what_comes_back_while_it_is_lost_waits_for_both_hooks(handler: ToldHandler) -> None:
    """A controller that starts again takes all partitions back, and may give one back at once."""
    turn = handler.hold()
    assert told(handler.step(EpochFenced(1))) == []
    assert handler.core.busy() == {"e": {7}}
    assert told(handler.step(RunsReceived([handler.keyed("b", epoch=2)]))) == []
    assert told(handler.step(end(turn))) == ["lost 7 at 1"]
    assert told(handler.lost(7)) == ["gained 7 at 2"]
    assert told(handler.gained(7)) == ["turn 2-2"]


def test_a_newer_epoch_without_an_order_is_a_loss_and_a_gain(handler: ToldHandler) -> None:
    turn = handler.hold()
    assert told(handler.step(RunsReceived([handler.keyed("b", epoch=2)]))) == []
    assert told(handler.step(end(turn))) == ["lost 7 at 1"]
    assert told(handler.lost(7)) == ["gained 7 at 2"]


def test_what_a_fence_leaves_idle_counts_as_busy_until_the_handler_was_told(handler: ToldHandler) -> None:
    handler.step(end(handler.hold()))
    assert told(handler.step(EpochFenced(1))) == ["lost 7 at 1"]
    assert handler.core.busy() == {"e": {7}}
    handler.lost(7)
    assert handler.core.busy() == {}


def test_a_fence_of_older_epochs_takes_nothing(handler: ToldHandler) -> None:
    handler.step(end(handler.hold(epoch=5)))
    assert told(handler.step(EpochFenced(4))) == []
    assert told(handler.step(RunsReceived([handler.keyed("a", epoch=5)]))) == ["turn 2-2"]


@pytest.mark.parametrize("runs", [True, False], ids=["running", "idle"])
def test_a_drain_ends_with_the_losses(handler: ToldHandler, runs: bool) -> None:
    turn = handler.hold()
    if not runs:
        handler.step(end(turn))
    assert told(handler.step(DrainBegan())) == ([] if runs else ["lost 7 at 1"])
    if runs:
        assert told(handler.step(end(turn))) == ["lost 7 at 1"]
    assert not handler.core.is_idle
    handler.lost(7)
    assert handler.core.is_idle


def test_a_replica_that_serves_on_is_idle_with_keys(handler: ToldHandler) -> None:
    handler.step(RunsReceived([handler.keyed("a")]))
    assert not handler.core.is_idle
    turn = turn_of(handler.gained(7))
    handler.step(end(turn))
    assert handler.core.is_idle


def test_a_call_that_is_taken_back_while_its_keys_are_gained_never_starts(handler: ToldHandler) -> None:
    handler.step(RunsReceived([handler.keyed("a"), handler.keyed("a")]))
    handler.step(RunsCancelled(handler.link, [(1, 1)]))
    assert told(handler.gained(7)) == ["turn 2-2"]


def test_a_call_whose_time_is_over_when_its_keys_are_gained_fails(handler: ToldHandler) -> None:
    late = handler.keyed("a")
    late.deadline = 5.0
    handler.step(RunsReceived([late]))
    handler.now = 6.0
    assert told(handler.gained(7)) == ["fail 1-1 DEADLINE_IN_QUEUE"]


@pytest.mark.parametrize("event", [lambda: PartitionsRevoked({"e": {7: 1}}), DrainBegan], ids=["revoked", "drain"])
def test_a_handler_without_hooks_is_told_nothing(event: Callable[[], ReplicaEvent]) -> None:
    core, link = scheduler(), RouterPeer()
    made = run(link, 1, 1, key="a")
    made.partition = 7
    turn = turn_of(core.step(RunsReceived([made]), 0.0))
    assert told(core.step(event(), 0.0)) == []
    assert told(core.step(end(turn), 0.0)) == []
    assert core.is_emptied("e", 7)
