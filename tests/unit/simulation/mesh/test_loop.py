"""Event loops on virtual time: order, pauses, deaths."""

from __future__ import annotations

import asyncio
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
