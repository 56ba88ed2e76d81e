"""Small parts of the shell: the work queue, the lease watch, the event feed."""

from __future__ import annotations

import asyncio

import pytest

from controller_service.shell.events import EventFeed
from controller_service.shell.launchers.protocol import Exit
from controller_service.shell.members.member_stream import STOOD_STILL_S, LeaseWatch
from controller_service.shell.mesh_state import Concern, Key, MeshState, WorkQueue
from tests.support.fakes.clock import FakeClock
from tests.support.wait import wait_until


@pytest.mark.asyncio
async def test_a_key_waits_once_however_often_it_is_added() -> None:
    queue = WorkQueue[str]()
    for key in ("a", "b", "a"):
        queue.add(key)
    queue.add_after("a", 0.001)  # due already: later adds nothing
    assert await queue.take() == ["a", "b"]
    taking = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not taking.done()
    queue.add("c")
    assert await taking == ["c"]
    queue.close()


@pytest.mark.asyncio
async def test_of_two_times_the_earlier_counts() -> None:
    queue = WorkQueue[str]()
    queue.add_after("a", 60.0)
    queue.add_after("a", 0.01)
    queue.add_after("a", 30.0)
    queue.add_after("b", 60.0)
    async with asyncio.timeout(20.0):
        assert await queue.take() == ["a"]
    queue.add("b")  # now is earlier still, and the timer has nothing left to do
    assert await queue.take() == ["b"]
    queue.close()


@pytest.mark.asyncio
async def test_a_closed_queue_forgets_its_timers() -> None:
    queue = WorkQueue[str]()
    queue.add_after("a", 0.0)
    queue.close()
    taking = asyncio.create_task(queue.take())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not taking.done()
    taking.cancel()
    await asyncio.gather(taking, return_exceptions=True)


@pytest.mark.asyncio
async def test_the_lease_watch_names_the_silent_and_only_them() -> None:
    silent: list[str] = []
    clock = FakeClock()
    watch = LeaseWatch(clock, lease_s=0.05, on_silent=silent.append)
    watch.renew("quiet")
    watch.renew("gone")
    watch.end("gone")
    clock.advance(0.04)
    watch.renew("talker")
    clock.advance(0.02)
    await wait_until(lambda: silent, what="silence")
    assert silent == ["quiet"]
    assert watch.is_heard("talker")
    watch.renew("quiet")  # it came back
    clock.advance(0.06)
    await wait_until(lambda: len(silent) == 3, what="silence again")
    assert sorted(silent) == ["quiet", "quiet", "talker"]
    watch.close()


@pytest.mark.asyncio
async def test_who_stood_still_suspects_nobody_for_what_it_could_not_hear() -> None:
    silent: list[str] = []
    clock = FakeClock()
    watch = LeaseWatch(clock, lease_s=0.05, on_silent=silent.append)
    watch.renew("a")
    clock.advance(STOOD_STILL_S + 0.06)
    await wait_until(lambda: watch.is_heard("a"), what="another lease")
    assert not silent
    clock.advance(0.05)
    await wait_until(lambda: silent == ["a"], what="silence")
    watch.close()


@pytest.mark.asyncio
async def test_the_end_of_any_replica_has_deferred_starts_tried_again() -> None:
    queue = WorkQueue[Key]()
    state = MeshState(FakeClock(), queue, EventFeed("f"))
    state.deferred_starts = {"waits": "no device is free"}
    state.replica_exited(Exit(replica_id="another-1", how="exited with status 0", failed=False))
    async with asyncio.timeout(20.0):
        assert await queue.take() == [Key(Concern.BACKEND, "waits")]
    queue.close()
