"""Few results wait for others on their way to a router, but only while calls wait at the replica for their permits."""

from __future__ import annotations

import pytest

from replica_service.convert.slots import Issuer
from replica_service.core.call_metadata import ReplicaCallOptions
from replica_service.core.events import RunsReceived
from replica_service.core.permits import PermitCapacity
from replica_service.core.runs import ReplicaRun, RouterPeer
from replica_service.core.scheduler import ReplicaScheduler
from replica_service.shell.router_outbox import Outbox
from slotmesh.codec import OCTET_STREAM
from tests.support.fakes.clock import FakeClock

pytestmark = pytest.mark.asyncio


class Desk:
    """An outbox that has sent a frame just now."""

    def __init__(self) -> None:
        self.about_to_end = 500
        self.outbox = Outbox(
            lambda: PermitCapacity(8, 2, 100, False, 1),
            Issuer(FakeClock()),
            about_to_end=lambda: self.about_to_end,
            are_quick=lambda: True,
        )
        self.outbox.connect(lambda: None, FakeClock().now)
        self.outbox.next_frame()
        self.results(1)
        assert self.kinds() == ["results"]

    def results(self, *run_ids: int) -> None:
        for run_id in run_ids:
            self.outbox.results(run_id, [b"x"], 1, OCTET_STREAM)

    def kinds(self) -> list[str | None]:
        kinds: list[str | None] = []
        while (frame := self.outbox.next_frame()) is not None:
            kinds.append(frame.WhichOneof("frame"))
        return kinds


async def test_few_results_wait_for_what_is_about_to_end() -> None:
    desk = Desk()
    desk.results(2)
    assert desk.kinds() == []
    desk.about_to_end = 0
    assert desk.kinds() == ["results"], "nothing is left to wait for"


async def test_news_of_capacity_takes_them_along() -> None:
    desk = Desk()
    desk.results(2)
    desk.outbox.tell_capacity()
    assert desk.kinds() == ["results"]


async def test_values_do_not_wait() -> None:
    desk = Desk()
    desk.results(2)
    desk.outbox.values(3, [b"v"], 1, OCTET_STREAM)
    assert desk.kinds() == ["results"]


async def test_in_a_hurry_nothing_waits() -> None:
    desk = Desk()
    desk.results(2)
    desk.outbox.hurry()
    assert desk.kinds() == ["results"]


async def test_while_permits_are_free_nothing_is_about_to_end_as_only_results_bring_more() -> None:
    core, link = ReplicaScheduler({"": None}, max_ongoing=4, prefetch=4), RouterPeer()
    core.step(RunsReceived([ReplicaRun(link, 1, [b""] * 3, ReplicaCallOptions(), "e", 0.0)]), 0.0)
    assert core.about_to_end(link) == 0
    core.step(RunsReceived([ReplicaRun(link, 10, [b""] * 3, ReplicaCallOptions(), "e", 0.0)]), 0.0)
    assert core.about_to_end(link) == 6, "two of them wait for permits"
