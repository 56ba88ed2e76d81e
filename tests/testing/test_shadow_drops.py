"""Copies of calls that a shadow has no slot for, and those that fail there: commands show how many."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import pytest

import slotmesh.testing
from slotmesh.cli.commands.status import print_tables, status_document
from slotmesh.cli.commands.traffic import as_json as traffic_json
from slotmesh.cli.commands.traffic import print_traffic
from slotmesh.cli.controller_view import ShadowCount, Snapshot
from slotmesh.cli.figures import figures_of
from slotmesh.cli.operator import Operator
from slotmesh.cli.top.screen import document_of
from slotmesh.spec.model import TrafficPolicy
from slotmesh.testing import Backend
from tests.support.wait import within

TOLD = (
    "shadow dark: 4 of 5 copies of calls (80 %) were dropped, since none of its slots was free; give it more replicas, "
    "or a smaller share"
)


def printed(write: Callable[[io.StringIO], None]) -> str:
    out = io.StringIO()
    write(out)
    return out.getvalue()


@pytest.mark.asyncio
async def test_dropped_copies_are_told_with_the_way_out() -> None:
    began, leave = asyncio.Event(), asyncio.Event()

    async def bright(number: int) -> int:
        return number

    async def dark(number: int) -> int:
        began.set()
        await leave.wait()
        return number

    policy = TrafficPolicy(weights={"bright": 1.0}, shadows={"dark": 1.0})
    backends = {"bright": Backend(bright), "dark": Backend(dark, max_ongoing=1)}
    async with (
        slotmesh.testing.mesh(backends, traffic={"numbers": policy}) as mesh,
        Operator.at(mesh.controller_address) as operator,
    ):
        assert await snapshot_of(operator, ShadowCount()) is not None
        numbers = mesh.endpoint("numbers")
        assert await numbers(0) == 0
        await within(began.wait(), "a call that has begun")
        for number in range(1, 5):
            assert await numbers(number) == number
        leave.set()
        snapshot = await snapshot_of(operator, ShadowCount(copies=5, dropped=4))
        revision = snapshot.members.table_revision
        assert TOLD in printed(lambda out: print_tables("here", snapshot, out)).splitlines()
        assert TOLD in printed(lambda out: print_traffic("numbers", revision, snapshot, None, out)).splitlines()
        said = {each["name"]: each for each in status_document("here", snapshot)["backends"]}
        assert (said["dark"]["shadow_copies"], said["dark"]["shadow_drops"]) == (5, 4)
        assert (said["bright"]["shadow_copies"], said["bright"]["shadow_drops"]) == (0, 0)
        document = traffic_json("numbers", revision, snapshot, None)
        assert (document["shadow_copies"], document["shadow_drops"]) == ({"dark": 5}, {"dark": 4})


@pytest.mark.asyncio
async def test_copies_that_fail_are_shown_by_status_traffic_and_top() -> None:
    async def bright(number: int) -> int:
        return number

    async def dark(number: int) -> int:
        if number % 2:
            raise ValueError("the new one has a defect")
        return number

    policy = TrafficPolicy(weights={"bright": 1.0}, shadows={"dark": 1.0})
    backends = {"bright": Backend(bright), "dark": Backend(dark)}
    async with (
        slotmesh.testing.mesh(backends, traffic={"numbers": policy}) as mesh,
        Operator.at(mesh.controller_address) as operator,
    ):
        numbers = mesh.endpoint("numbers")
        assert [await numbers(number) for number in range(10)] == list(range(10))
        snapshot = await snapshot_of(operator, ShadowCount(copies=10, failed=5))
        told = "shadow dark: 5 of the 10 copies that it got (50 %) failed; its log (`slotmesh logs dark`) says why"
        revision = snapshot.members.table_revision
        assert told in printed(lambda out: print_tables("here", snapshot, out)).splitlines()
        assert told in printed(lambda out: print_traffic("numbers", revision, snapshot, None, out)).splitlines()
        said = {each["name"]: each for each in status_document("here", snapshot)["backends"]}
        assert (said["dark"]["shadow_failures"], said["bright"]["shadow_failures"]) == (5, 0)
        assert traffic_json("numbers", revision, snapshot, None)["shadow_failures"] == {"dark": 5}
        figures = figures_of(await operator.sample())
        shown = {each["name"]: each for each in document_of("here", figures)["backends"]}
        assert (shown["dark"]["shadow_ended_total"], shown["dark"]["shadow_failed_total"]) == (10, 5)
        assert (shown["dark"]["failed_total"], shown["bright"]["shadow_ended_total"]) == (0, 0)


async def snapshot_of(operator: Operator, wanted: ShadowCount) -> Snapshot:
    """What the controller says, once it has the router's report of these copies."""
    async with asyncio.timeout(30):
        while (snapshot := await operator.snapshot()).members.shadow("dark") != wanted:  # noqa: ASYNC110 - asked by rpc
            await asyncio.sleep(0.05)  # an rpc each time
        return snapshot
