"""Stores in a real cluster of three, while its members and the controllers are killed, stopped and without room.

Each test compares what writers had acknowledged with what is there in the end.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from controller_service.store.etcd.moving import read_state
from slotmesh.config.etcd import PLAIN_ACCESS
from tests.support.etcd import EtcdCluster, etcd_cluster, needs_etcd
from tests.support.etcd_writing import Writer, check_history
from tests.support.wait import wait_until

pytestmark = [needs_etcd, pytest.mark.asyncio, pytest.mark.timeout(120)]
BOUND_S: Final = 30.0
"""For a busy machine. A lease of 3 s lapses within 4 s; measured: the lines that tests print."""


@asynccontextmanager
async def writing(
    folder: Path, *names: str, size: int = 3, flags: tuple[str, ...] = ()
) -> AsyncIterator[tuple[EtcdCluster, list[Writer]]]:
    """The first one leads, the others wait; in the end the history is compared with the state."""
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(etcd_cluster(folder, size, *flags))
        writers = [Writer(cluster.place(), it) for it in names]
        for each in writers:
            stack.push_async_callback(each.end)
            await each.start()
            await wait_until(
                partial(each.of, "leads" if each is writers[0] else "waits"), timeout=BOUND_S, what=f"{each.name}"
            )
        await wait_until(lambda: writers[0].acknowledged > 5, timeout=BOUND_S, what="changes")
        yield cluster, writers
        for each in writers:
            await each.end()
        _, found = await read_state(cluster.place(), PLAIN_ACCESS)
        assert check_history(writers, found) > 5


async def more_changes(writer: Writer) -> float:
    """Returns how long it took until another change was acknowledged."""
    begin, before = time.monotonic(), writer.acknowledged
    await wait_until(lambda: writer.acknowledged > before + 2, timeout=BOUND_S, what="further changes")
    return time.monotonic() - begin


async def more_changes_of_one(*writers: Writer) -> None:
    before = [it.acknowledged for it in writers]
    await wait_until(
        lambda: any(it.acknowledged > count + 2 for it, count in zip(writers, before, strict=True)),
        timeout=BOUND_S,
        what="further changes of one of them",
    )


def problems(writer: Writer) -> list[Any]:
    return [it["problem"] for it in writer.of("standing")]


async def takes_over(writer: Writer, since: float, what: str) -> None:
    await wait_until(lambda: writer.leads, timeout=BOUND_S, what=f"{writer.name} leads")
    print(f"{what}: the other one leads after {writer.of('leads')[0]['at'] - since:.2f} s")  # noqa: T201 - measured
    await more_changes(writer)


async def test_another_controller_leads_soon_after_the_leader_was_killed(tmp_path: Path) -> None:
    async with writing(tmp_path, "a", "b") as (_, (first, second)):
        await takes_over(second, first.signal(signal.SIGKILL), "SIGKILL")


async def test_another_controller_leads_immediately_after_the_leader_has_ended(tmp_path: Path) -> None:
    async with writing(tmp_path, "a", "b", size=1) as (_, (first, second)):
        await takes_over(second, first.signal(signal.SIGTERM), "SIGTERM")
        assert second.of("leads")[0]["term"] == 2


async def test_a_leader_that_was_stopped_and_goes_on_changes_nothing_any_more(tmp_path: Path) -> None:
    async with writing(tmp_path, "a", "b") as (_, (first, second)):
        await takes_over(second, first.signal(signal.SIGSTOP), "SIGSTOP")
        before = first.acknowledged
        first.signal(signal.SIGCONT)
        await wait_until(lambda: first.of("lost"), timeout=BOUND_S, what="it finds out")
        await wait_until(lambda: first.of("ended"), timeout=BOUND_S, what="it ends")
        assert first.acknowledged <= before + 1, "the answer to one change may have been under way"
        assert "was taken over by" in first.of("lost")[0]["why"], "by which one, is known while that one holds the key"
        await more_changes(second)


async def test_changes_continue_when_the_leader_of_etcd_was_killed(tmp_path: Path) -> None:
    async with writing(tmp_path, "a") as (cluster, (writer,)):
        for _ in range(2):
            member = await cluster.leader()
            member.kill()
            took_s = await more_changes(writer)
            print(f"etcd's leader was killed: the next changes after {took_s:.2f} s")  # noqa: T201 - measured
            cluster.start(member)
            await cluster.leader()
            await wait_until(member_answers(member), timeout=BOUND_S, what="the member is back")
        assert not writer.of("refused"), "a change waits for the election"
        assert not any(problems(writer))


def member_answers(member: Any) -> Callable[[], bool]:
    def look() -> bool:
        try:
            return bool(member.status().get("leader"))
        except OSError:
            return False

    return look


@pytest.mark.long
async def test_without_a_quorum_changes_are_refused_and_the_same_controller_leads_afterwards(tmp_path: Path) -> None:
    async with writing(tmp_path, "a", "b") as (cluster, (first, second)):
        leader = await cluster.leader()
        others = [it for it in cluster.members if it is not leader]
        for each in (leader, others[0]):
            each.kill()
        await wait_until(lambda: any(problems(first)), timeout=BOUND_S, what="the leader reports it")
        await wait_until(lambda: len(first.of("refused")) > 1, timeout=BOUND_S, what="changes are refused")
        assert "etcd" in first.of("refused")[-1]["why"]
        await asyncio.sleep(5.0)  # longer than a lease lives
        cluster.start(leader, others[0])
        await wait_until(lambda: problems(first)[-1] == "", timeout=BOUND_S, what="the problem is over")
        await more_changes(first)
        assert not second.leads
        assert not first.of("lost")


@pytest.mark.long
@pytest.mark.parametrize("which", ["leader", "follower"])
async def test_a_member_that_is_stopped_holds_up_little(which: str, tmp_path: Path) -> None:
    async with writing(tmp_path, "a", "b") as (cluster, (first, second)):
        leader = await cluster.leader()
        members = [leader] if which == "leader" else [it for it in cluster.members if it is not leader]
        for each in members:
            each.signal(signal.SIGSTOP)
            took_s = await more_changes(first)
            print(f"a {which} was stopped: the next changes after {took_s:.2f} s")  # noqa: T201 - measured
            await asyncio.sleep(4.0)  # longer than a lease lives
            each.signal(signal.SIGCONT)
            await more_changes_of_one(first, second)
        await wait_until(lambda: second.leads == bool(first.of("lost")), timeout=BOUND_S, what="one of them leads")
        # Before 3.4.31 and 3.5.13, a leader of etcd that was stopped revokes leases when it continues (etcd #15247).
        assert which == "leader" or not second.leads


@pytest.mark.long
async def test_a_full_etcd_refuses_changes_with_the_way_out_until_there_is_room(tmp_path: Path) -> None:
    quota = ("--quota-backend-bytes=2000000",)
    async with writing(tmp_path, "a", size=1, flags=quota) as (cluster, (writer,)):
        member = cluster.members[0]
        await wait_until(lambda: writer.of("refused"), timeout=90.0, what="there is no room")
        why = writer.of("refused")[0]
        assert why["is_unwritten"]
        assert "database space exceeded: compact and defragment etcd, or raise its --quota-backend-bytes" in why["why"]
        await wait_until(lambda: any(problems(writer)), timeout=BOUND_S, what="it is reported")
        status = await asyncio.to_thread(member.status)
        for path, request in (
            ("kv/compaction", {"revision": status["header"]["revision"], "physical": True}),
            ("maintenance/defragment", {}),
            (
                "maintenance/alarm",
                {"action": "DEACTIVATE", "memberID": status["header"]["member_id"], "alarm": "NOSPACE"},
            ),
        ):
            await asyncio.to_thread(member.post, path, request)
        await more_changes(writer)
        await wait_until(lambda: problems(writer)[-1] == "", timeout=BOUND_S, what="the problem is over")
        assert not writer.of("lost")
