"""A controller that leads, and is cut off from etcd while another one is not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from controller_service.process_life import LEADS_NO_MORE
from controller_service.shell import succession
from controller_service.shell.events import EventFeed
from controller_service.shell.leadership import LeadershipBoard
from controller_service.shell.mesh_state import Key, MeshState, WorkQueue
from controller_service.shell.succession import Succession
from controller_service.store.protocol import MemoryStore, Standing
from slotmesh.runtime.channels import PLAIN_TEXT
from slotmesh.runtime.clock import MonotonicClock
from slotmesh.v1.info_service_pb2 import ControllerStanding, GetServerInfoResponse
from tests.support.etcd import etcd_cluster, needs_etcd
from tests.support.fakes.members import FakeReplica
from tests.support.standing_by import LivingController
from tests.support.tcp_proxy import tcp_proxy
from tests.support.wait import wait_until, within

pytestmark = pytest.mark.asyncio


@needs_etcd
async def test_it_ends_when_the_other_one_leads_and_its_members_are_free(tmp_path: Path) -> None:
    async with etcd_cluster(tmp_path) as cluster, tcp_proxy(cluster.place().members[0]) as to_etcd:
        mesh = cluster.place().mesh
        async with (
            LivingController(f"etcd://{to_etcd.address}/{mesh}") as first,
            LivingController(str(cluster.place())) as second,
        ):
            await first.leads(second.address)
            async with FakeReplica(first.channel, "v1", "a") as replica:
                await replica.report("READY", stamp=1)
                await wait_until(lambda: replica.acknowledged, what="an acknowledgement")
                to_etcd.cut()
                await second.leads()
                assert await within(first.running, "the end of the first one") == LEADS_NO_MORE
                await wait_until(lambda: replica.is_ended, what="the end of its stream")


class Answered(Succession):
    """Controllers that answer as a test says."""

    def __init__(self, board: LeadershipBoard) -> None:
        super().__init__(board, PLAIN_TEXT)
        self.answers: dict[str, GetServerInfoResponse | None] = {}
        self.looks = 0

    async def _ask(self, address: str) -> GetServerInfoResponse | None:
        self.looks += 1
        await asyncio.sleep(0)
        return self.answers.get(address)


def answer(generation: str, term: int, *, leads: bool = True) -> GetServerInfoResponse:
    return GetServerInfoResponse(incarnation=generation, controller=ControllerStanding(leads=leads, term=term))


async def test_it_leads_on_unless_one_that_stood_by_leads_the_same_mesh_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(succession, "LOOK_EVERY_S", 0.0)
    state = MeshState(MonotonicClock(), WorkQueue[Key](), EventFeed("f"))
    board = LeadershipBoard(MemoryStore(generation="g", epoch_floor=0), state)
    board.standing = Standing(4, ("h:1", "h:2", ""), 3, "")
    asked, lost = Answered(board), list[str]()
    watching = asyncio.create_task(asked.watch(lambda: lost.append(board.lost)))
    asked.answers = {"h:2": answer("g", 5)}
    for _ in range(20):
        await asyncio.sleep(0)  # a turn of the loop
    assert not asked.looks, "its store answers"
    others = [None, answer("g", 4), answer("g", 0, leads=False), answer("other", 9), answer("g", 9, leads=False)]
    asked.answers = {"h:1": answer("g", 3)}
    board.standing = replace(board.standing, problem="etcd does not answer")
    for other in others:
        asked.answers["h:2"], before = other, asked.looks
        await wait_until(lambda: asked.looks > before + 4, what="more looks")  # noqa: B023
        assert not board.lost
    asked.answers["h:2"] = answer("g", 5)
    await within(watching, "the end")
    assert lost == [board.lost]
    assert "leads in term 5, and etcd does not answer" in board.lost
