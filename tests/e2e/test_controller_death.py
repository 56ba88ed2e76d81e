"""A controller that is killed, or leaves: its replicas serve on, and the next one at its address takes them over."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

import slotmesh
from tests.support.lone_controller import LoneController, lone_controller
from tests.support.shell import slotmesh as command
from tests.support.tiers import long
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

SPEC = """
backends:
  Whoami: {handler: "tests.e2e.handlers:Whoami", num_replicas: 2, graceful_timeout: 5s}
endpoints:
  Whoami: {traffic: {Whoami: 1.0}}
"""


async def pids_that_answer(client: slotmesh.Client, calls: int = 40) -> set[int]:
    """Unkeyed calls and calls of as many ordering keys: all are answered."""
    whoami = client.endpoint("Whoami")
    unkeyed = [whoami.pid() for _ in range(calls)]
    keyed = [whoami.ordered(f"key-{number}").pid() for number in range(calls)]
    return set(await asyncio.gather(*unkeyed, *keyed))


async def every_pid_answers(client: slotmesh.Client, pids: set[int]) -> None:
    """Returns once each of these processes has answered a call, and no other one."""
    async with asyncio.timeout(30):
        while (answering := await pids_that_answer(client)) != pids:
            assert answering < pids


async def launches(lone: LoneController) -> int:
    return lone.log_text().count("replica_launched")


@pytest.mark.timeout(120)
async def test_replicas_of_a_killed_controller_serve_on_and_are_taken_over(tmp_path: Path) -> None:
    async with lone_controller(tmp_path, SPEC) as lone, slotmesh.connect(lone.router_address) as client:
        before = await lone.ready(2)
        stop = asyncio.Event()
        answered: list[int] = []

        async def load() -> None:
            whoami = client.endpoint("Whoami")
            while not stop.is_set():
                answered.extend(await asyncio.gather(*[whoami.pid() for _ in range(8)]))

        loading = asyncio.ensure_future(load())
        await wait_until(lambda: len(answered) > 100, timeout=60)
        await lone.kill()
        assert await pids_that_answer(client) == set(before.values())
        assert lone.replica_processes() == set(before.values())
        await lone.start()
        assert await lone.ready(2) == before
        assert await pids_that_answer(client) == set(before.values())
        stop.set()
        await loading
        assert await launches(lone) == 2, "nothing was launched twice"

        # They are this controller's as if it had started them: one that dies is replaced, and its keys go on.
        victim, pid = min(before.items())
        os.kill(pid, signal.SIGKILL)
        await wait_until(lambda: pid not in lone.replica_processes(), what="its end")
        after = await lone.ready(2, without=victim)
        # The new one is called when it has its share of keys.
        await every_pid_answers(client, set(after.values()))
        assert await launches(lone) == 3


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_a_killed_controller_that_starts_with_the_same_spec_keeps_what_was_applied(tmp_path: Path) -> None:
    one = SPEC.replace("num_replicas: 2", "num_replicas: 1")
    team = tmp_path / "team.yaml"
    team.write_text(one.replace("Whoami: {handler", "Whoami: {max_queued_calls: 50, env: {MODE: fast}, handler"))
    async with lone_controller(tmp_path, one, f"--state={tmp_path / 'mesh.state'}") as lone:
        applied = await command("apply", str(team), "--yes", "--wait", f"--controller={lone.address}")
        assert applied.status == 0, applied
        before = await lone.ready(1)

        async def restarted() -> tuple[int, str]:
            """How often --spec has changed the configuration, and the text of that, by the next controller."""
            await lone.kill()
            await lone.start()
            assert await lone.ready(1) == before, "no rollout began"
            history, got = [await command(it, f"--controller={lone.address}") for it in ("history", "get")]
            assert (history.status, got.status) == (0, 0), (history, got)
            return history.out.count("--spec"), got.out

        assert (await restarted())[0] == 1, "nothing was configured"
        (tmp_path / "mesh.yaml").write_text(one.replace("Whoami: {handler", "Whoami: {max_queue_time: 7s, handler"))
        changes, text = await restarted()
        assert changes == 2
        for kept_or_new in ("max_queued_calls: 50", "MODE: fast", "max_queue_time: 7s"):
            assert kept_or_new in text
        assert (await restarted())[0] == 2


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_orphans_end_when_their_time_is_over(tmp_path: Path) -> None:
    async with lone_controller(tmp_path, SPEC, "--orphan-timeout=3s") as lone:
        pids = set((await lone.ready(2)).values())
        async with slotmesh.connect(lone.router_address) as client:
            await lone.kill()
            assert await pids_that_answer(client) == pids
        await wait_until(lambda: not lone.replica_processes(), timeout=60.0, what="their end")
        # One that comes back later starts anew.
        await lone.start()
        assert not pids & set((await lone.ready(2)).values())


@pytest.mark.timeout(120)
@pytest.mark.parametrize("on_stop", [long("leave"), "drain"])
async def test_a_controller_that_is_asked_to_stop_drains_its_replicas_or_leaves_them(
    tmp_path: Path, on_stop: str
) -> None:
    async with lone_controller(tmp_path, SPEC, f"--on-stop={on_stop}") as lone:
        before = await lone.ready(2)
        assert await lone.end(signal.SIGTERM) == 0
        if on_stop == "drain":
            assert not lone.replica_processes()
            return
        assert lone.replica_processes() == set(before.values())
        await lone.start()
        assert await lone.ready(2) == before
        assert await launches(lone) == 2
        await lone.kill()  # who leaves its replicas does so at the end of this test, too: nobody replaces them
        for pid in before.values():
            os.kill(pid, signal.SIGTERM)


@pytest.mark.long
@pytest.mark.timeout(120)
async def test_a_found_replica_that_hangs_is_killed_and_replaced(tmp_path: Path) -> None:
    async with lone_controller(tmp_path, SPEC, "--dead-after=4s") as lone:
        before = await lone.ready(2)
        await lone.kill()
        await lone.start()
        assert await lone.ready(2) == before
        victim, pid = min(before.items())
        os.kill(pid, signal.SIGSTOP)
        await wait_until(lambda: pid not in lone.replica_processes(), timeout=40.0, what="its end")
        await lone.ready(2, without=victim)
