"""Event loops on virtual time: order, pauses, deaths."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

from simulation.mesh.loop import NodeLoop, node_loop
from simulation.mesh.timeline import Timeline


def loop_of(timeline: Timeline, name: str = "node") -> NodeLoop:
    return node_loop(timeline, name, timeline.chance(name), zero=1000.0)


def start(loop: NodeLoop, main: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    loop.deliver(lambda: loop.create_task(main()))


def test_sleeping_takes_virtual_time_only() -> None:
    timeline = Timeline(1)
    loop = loop_of(timeline)
    woken: list[float] = []

    async def main() -> None:
        began = loop.time()
        for delay_s in (0.5, 3600.0):
            await asyncio.sleep(delay_s)
            woken.append(loop.time() - began)

    start(loop, main)
    timeline.run(until=4000.0)

    assert [round(at, 2) for at in woken] == [0.5, 3600.5]
    assert timeline.now == 4000.0


def test_time_goes_on_while_a_loop_turns_in_circles() -> None:
    timeline = Timeline(1)
    loop = loop_of(timeline)
    ended: list[float] = []

    async def main() -> None:
        until = loop.time() + 0.1
        while loop.time() < until:  # noqa: ASYNC110 - this is what the test is about
            await asyncio.sleep(0)
        ended.append(loop.time())

    start(loop, main)
    timeline.run(until=1.0)

    assert ended


def test_asyncio_works_on_it() -> None:
    timeline = Timeline(1)
    loop = loop_of(timeline)
    seen: list[object] = []

    async def main() -> None:
        event, queue = asyncio.Event(), asyncio.Queue[int]()

        async def feed() -> None:
            await event.wait()
            await queue.put(7)

        async with asyncio.TaskGroup() as group:
            group.create_task(feed())
            event.set()
            seen.append(await queue.get())
        try:
            async with asyncio.timeout(0.2):
                await asyncio.sleep(10)
        except TimeoutError:
            seen.append("late")

    start(loop, main)
    timeline.run(until=5.0)

    assert seen == [7, "late"]


def test_a_paused_node_does_nothing_and_finds_its_timers_late() -> None:
    timeline = Timeline(1)
    loop = loop_of(timeline)
    seen: list[tuple[str, float]] = []

    async def main() -> None:
        await asyncio.sleep(1.0)
        seen.append(("timer", timeline.now))

    start(loop, main)
    timeline.run(until=0.5)
    loop.pause()
    loop.deliver(lambda: seen.append(("message", timeline.now)))
    timeline.run(until=5.0)
    assert seen == []
    loop.resume()
    timeline.run(until=5.1)

    assert {what for what, _ in seen} == {"timer", "message"}
    assert all(at >= 5.0 for _, at in seen)


def test_nothing_of_a_dead_node_runs_again_not_even_its_clean_up() -> None:
    timeline = Timeline(1)
    loop = loop_of(timeline)
    seen: list[str] = []

    async def main() -> None:
        try:
            await asyncio.sleep(1.0)
            seen.append("woken")
        finally:
            seen.append("cleaned up")

    start(loop, main)
    timeline.run(until=0.5)
    loop.kill()
    loop.deliver(lambda: seen.append("message"))
    timeline.run(until=5.0)

    assert seen == []
    for work in loop.left_behind():
        work.close()


def test_a_node_that_is_killed_in_its_own_turn_goes_no_further() -> None:
    timeline = Timeline(1)
    loop = loop_of(timeline)
    seen: list[str] = []

    def first() -> None:
        seen.append("first")
        loop.kill()

    loop.deliver(first)
    loop.deliver(lambda: seen.append("second"))
    timeline.run(until=1.0)

    assert seen == ["first"]


def test_no_loop_goes_past_what_is_to_happen_meanwhile() -> None:
    timeline = Timeline(1)
    loops = [loop_of(timeline, name) for name in ("one", "other")]
    seen: list[float] = []

    async def main() -> None:
        for _ in range(50):
            seen.append(timeline.now)
            await asyncio.sleep(0)

    start(loops[0], main)
    timeline.at(0.0003, lambda _: start(loops[1], main))
    timeline.at(0.0004, lambda _: seen.append(timeline.now))
    timeline.run(until=0.0008)
    assert len(seen) < 101
    assert timeline.now == 0.0008
    timeline.run(until=1.0)

    assert len(seen) == 101
    assert seen == sorted(seen)
    assert seen.count(0.0004) == 1


def test_tasks_and_futures_have_the_same_numbers_in_each_run() -> None:
    numbers: list[list[int]] = []
    for seed in (1, 2):
        loop = loop_of(Timeline(seed))

        async def main(loop: NodeLoop = loop) -> None:
            tasks = [loop.create_task(asyncio.sleep(0)) for _ in range(100)]
            numbers.append([hash(each) for each in [*tasks, loop.create_future()]])
            await asyncio.gather(*tasks)

        start(loop, main)
        loop.timeline.run(until=1.0)

    assert numbers[0] == numbers[1]
    assert len(set(numbers[0])) == 101


def test_tasks_that_have_ended_are_forgotten() -> None:
    loop = loop_of(Timeline(1))
    tasks: list[weakref.ref[asyncio.Task[None]]] = []

    async def main() -> None:
        for _ in range(1000):
            task = loop.create_task(asyncio.sleep(0))
            tasks.append(weakref.ref(task))
            await task

    start(loop, main)
    loop.timeline.run(until=1.0)

    assert len(tasks) == 1000
    assert sum(task() is not None for task in tasks) <= 128


def test_a_loop_that_is_alone_stops_when_the_time_is_over() -> None:
    timeline = Timeline(1)
    loop = loop_of(timeline)

    async def main() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)

    start(loop, main)
    timeline.run(until=0.001)

    assert timeline.now == 0.001
    timeline.is_over = True
    timeline.run(until=1.0)
    assert timeline.now == 0.001
    for work in loop.left_behind():
        work.close()
