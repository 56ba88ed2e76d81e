"""What a replica says of how quickly it gets through calls."""

from __future__ import annotations

import pytest

from replica_service.core.batch_gathering import Batcher
from replica_service.core.call_times import FRAME_S, LEAST_S, ServiceTimes
from slotmesh.handlers.batch_settings import BatchControl
from slotmesh.spec.handler_settings import BatchSettings
from slotmesh.streams.pacing import QUICK_S


class Clock:
    """Ends of calls, one after another."""

    def __init__(self, **batchers: Batcher) -> None:
        self.times = ServiceTimes(batchers)
        self.now = 10.0

    def end(self, calls: int, seconds: float, *, after: float = 1.0, method: str = "m") -> None:
        """Calls start when nothing has been there for a while, and end together."""
        self.now += after
        started_at = self.now
        self.now += seconds
        self.times.ended(method, calls, started_at, self.now)

    def time(self, method: str = "m") -> float:
        (found,) = [each.service_s for each in self.times.reported if each.method == method]
        return found


def test_nothing_is_told_before_anything_has_ended() -> None:
    clock = Clock()
    assert (clock.times.version, clock.times.reported, clock.times.are_quick) == (0, [], False)
    clock.times.ended("m", 0, 0.0, 1.0)
    assert clock.times.version == 0


def test_calls_that_end_together_share_their_time() -> None:
    clock = Clock()
    clock.end(100, 0.01 + FRAME_S)
    assert clock.time() == pytest.approx(0.0001)


def test_what_a_frame_takes_however_little_is_in_it_is_not_counted() -> None:
    clock = Clock()
    for _ in range(20):
        clock.end(1000, FRAME_S + 0.001)
    assert clock.time() == pytest.approx(LEAST_S)
    assert clock.times.are_quick


def test_of_a_call_alone_half_of_its_time_counts_at_least() -> None:
    """What is the frame's and what the handler's is not known; a burst of such calls must not go to one replica."""
    clock = Clock()
    for _ in range(20):
        clock.end(1, 0.0002)
    assert clock.time() == pytest.approx(0.0001)


def test_a_slow_method_stays_slow_beside_a_quick_one() -> None:
    """Ends of others say nothing of how long it takes."""
    clock = Clock()
    for _ in range(20):
        began = clock.now
        for _ in range(50):
            clock.end(1, 0.001, after=0.001, method="quick")
        clock.times.took("slow", 1, clock.now - began)
    assert clock.time("slow") == pytest.approx(0.1, rel=0.1)
    assert clock.time("quick") < QUICK_S


def test_a_call_alone_takes_its_time() -> None:
    clock = Clock()
    clock.end(1, 0.5)
    assert clock.time() == pytest.approx(0.5, rel=0.01)
    assert not clock.times.are_quick


def test_time_in_the_queue_does_not_count() -> None:
    """Ten runs of one call start at once, and are executed one after another."""
    clock = Clock()
    clock.end(1, 0.01)
    started_at = clock.now
    for place in range(1, 11):
        clock.times.ended("m", 1, started_at, started_at + 0.01 * place)
    assert clock.time() == pytest.approx(0.01, rel=0.05)


def test_of_calls_that_wait_beside_one_another_each_has_its_whole_time() -> None:
    clock = Clock()
    for place in range(200):
        clock.times.took("m", 1, 0.01 + place * 0.00001)
    assert clock.time() == pytest.approx(0.01, rel=0.3)
    assert not clock.times.are_quick


def test_one_that_took_long_is_forgotten() -> None:
    """The first call loads a model, or the machine has done something else."""
    clock = Clock()
    clock.end(1, 5.0)
    for _ in range(60):
        clock.end(64, 64 * 1e-5 + FRAME_S)
    assert clock.time() < 4e-5


def test_a_handler_that_becomes_slow_is_known_to_be_slow_soon() -> None:
    clock = Clock()
    for _ in range(100):
        clock.end(512, 0.001)
    assert clock.times.are_quick
    for _ in range(40):
        clock.end(1, 0.01, after=0.0)
    assert clock.time() > QUICK_S


def test_little_changes_are_not_told() -> None:
    clock = Clock()
    clock.end(10, 0.01)
    version = clock.times.version
    for seconds in (0.012, 0.008, 0.013, 0.009) * 10:
        clock.end(10, seconds)
    assert clock.times.version == version
    for _ in range(40):
        clock.end(10, 0.1)
    assert clock.times.version > version


def test_methods_are_told_apart() -> None:
    clock = Clock()
    clock.end(10, 0.01, method="a")
    clock.end(1, 1.0, method="b")
    assert clock.time("a") < 0.01 < clock.time("b")


def test_batch_methods_say_how_much_they_take_at_once_and_when_that_changes() -> None:
    control = BatchControl(BatchSettings(max_batch_size=8))
    clock = Clock(m=Batcher("m", control, 100))
    clock.end(8, 0.01)
    (told,) = clock.times.reported
    assert (told.method, told.batch_size) == ("m", 8)
    assert told.service_s == pytest.approx((0.01 - FRAME_S) / 8)
    control.set_max_batch_size(16)
    clock.times._batchers["m"].gathered.follow()
    clock.end(8, 0.01)
    assert clock.times.reported[0].batch_size == 16
