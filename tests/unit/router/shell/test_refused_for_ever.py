"""A replica that refuses all calls, and reports room: its calls end all the same."""

from __future__ import annotations

import pytest

from slotmesh.errors import Reason
from tests.unit.router.world import OK, World


def test_a_call_that_is_refused_again_and_again_ends_with_its_time_in_the_queue() -> None:
    world = World({"b": ["r"]}, settings={"max_queue_time_s": 5.0})
    world.submit([1, 2])
    for second in range(5):
        world.now = float(second)
        world.refuse("r", 1, 2)
        assert world.at_replica("r") == [1, 2], "sent again at once, in order"
    world.now = 5.0
    world.refuse("r", 1)
    assert world.outcomes == {1: Reason.QUEUE_TIMEOUT}
    assert world.at_replica("r") == [2], "what is not refused may take as long as it likes"
    assert not world.queued
    world.complete("r")
    assert world.outcomes == {1: Reason.QUEUE_TIMEOUT, 2: OK}


@pytest.mark.parametrize("idempotent", [False, True])
def test_a_lost_call_is_not_late_for_having_run_long(idempotent: bool) -> None:
    world = World({"b": ["r", "other"]}, settings={"max_queue_time_s": 5.0})
    world.submit([1], idempotent=idempotent)
    (first,) = (name for name in ("r", "other") if world.at_replica(name))
    (second,) = {"r", "other"} - {first}
    world.now = 20.0
    world.lose(first)
    assert world.outcomes == ({} if idempotent else {1: Reason.REPLICA_LOST})
    assert world.at_replica(second) == ([1] if idempotent else [])
