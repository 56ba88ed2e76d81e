"""Direct lanes against real processes that are killed, drained and restarted: what was said of a call is true."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

import slotmesh
from tests.e2e.slot_mesh import counts_of, until, until_idle
from tests.support.faults import faulty_mesh
from tests.support.mesh import ROOT, MeshRun, started_mesh
from tests.support.metrics import scraped
from tests.support.recorder import VARIABLE, Event, read_records
from tests.support.shell import running
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

HANDLER = "tests.e2e.handlers:Ledger"
REPLICAS = 2
CALLS_A_FAULT = 60
"""Calls that are answered between two faults, at least."""


class Load:
    """One caller after another on direct lanes; remembers what each call was told."""

    def __init__(self, endpoint: slotmesh.Endpoint, name: str, slots: int) -> None:
        self.name = name
        self.told: dict[str, str] = {}
        """What each call came to: its result, or `no`, `unknown`, `yes` for what its failure said of the execution."""
        self.stopped = False
        self._endpoint = endpoint
        self._slots = slots

    async def run(self) -> None:
        async with self._endpoint.direct(slots=self._slots, ttl=2) as lanes:
            await asyncio.gather(*(self._call(lanes, number) for number in range(self._slots + 1)))

    async def _call(self, lanes: slotmesh.DirectLanes, caller: int) -> None:
        number = 0
        while not self.stopped:
            call = f"{self.name}-{caller}-{number}"
            number += 1
            try:
                outcome = await (lanes.slowly(call, 0.01) if number % 3 else lanes.add("", call))
            except slotmesh.SlotmeshError as error:
                outcome = error.executed.name.lower()
            assert call not in self.told
            self.told[call] = outcome

    async def more(self, calls: int) -> None:
        """Waits until so many more were answered well."""
        answered = self.answered + calls
        await wait_until(lambda: self.answered >= answered, timeout=40.0, what=f"{calls} calls of {self.name}")

    @property
    def answered(self) -> int:
        return sum(outcome == call for call, outcome in self.told.items())


async def calls_at_routers(mesh: MeshRun) -> float:
    """What the routers' metrics say of calls that wait or are at replicas."""
    routers = (await mesh.members()).routers
    said = await asyncio.gather(*(scraped(each.metrics_address) for each in routers))
    return sum(each.total("slotmesh_router_ongoing") + each.total("slotmesh_router_queued") for each in said)


def assert_told_the_truth(told: dict[str, str], file: Path) -> None:
    """Each execution is at most one, and agrees with what its caller heard."""
    records = read_records(file)
    began = Counter(str(record.call) for record in records if record.event is Event.STARTED)
    ended = {str(record.call) for record in records if record.event is Event.FINISHED and record.outcome == "ok"}
    for call, outcome in told.items():
        match outcome:
            case "no":
                assert began[call] == 0, f"{call} was executed"
            case "unknown":
                assert began[call] <= 1, f"{call} was executed {began[call]} times"
            case _:
                assert outcome == call
                assert began[call] == 1
                assert call in ended
    assert began.keys() <= told.keys(), "nothing ran that nobody asked for"


async def victim(mesh: MeshRun) -> str:
    """A replica at which slots are held."""
    await until(mesh, lambda total: total.reserved > 0)
    return max((await counts_of(mesh)).items(), key=lambda each: each[1].reserved)[0]


@pytest.mark.long
@pytest.mark.timeout(180)
async def test_replicas_that_are_killed_drained_and_restarted(tmp_path: Path) -> None:
    file = tmp_path / "records"
    async with (
        started_mesh(HANDLER, replicas=REPLICAS, routers=2, env={VARIABLE: str(file)}) as mesh,
        slotmesh.connect(mesh.router_addresses) as client,
    ):
        ledger = client.endpoint("Ledger")
        loads = [Load(ledger, "single", 1), Load(ledger, "many", 4)]
        running = asyncio.gather(*(load.run() for load in loads))
        for number in (signal.SIGKILL, signal.SIGTERM):
            await asyncio.gather(*(load.more(CALLS_A_FAULT) for load in loads))
            gone = await mesh.kill_replica(await victim(mesh), number)
            await mesh.wait_for_replicas(REPLICAS, without=gone, timeout=40.0)
        for replica_id in sorted(await mesh.replica_pids()):  # a rolling restart
            await asyncio.gather(*(load.more(CALLS_A_FAULT) for load in loads))
            await mesh.kill_replica(replica_id, signal.SIGTERM)
            await mesh.wait_for_replicas(REPLICAS, without=replica_id, timeout=40.0)
        await asyncio.gather(*(load.more(CALLS_A_FAULT) for load in loads))
        for load in loads:
            load.stopped = True
        await running
        await until_idle(mesh, within_s=10.0)
        assert await calls_at_routers(mesh) == 0
        for load in loads:
            failed = Counter(outcome for call, outcome in load.told.items() if outcome != call)
            assert failed.keys() <= {"unknown"}, "what was not executed goes on elsewhere"
            assert failed["unknown"] <= 4, "no more than what ran at the replica that was killed"
        assert_told_the_truth({call: told for load in loads for call, told in load.told.items()}, file)


PROGRAM = """
import asyncio, sys
import slotmesh

async def main():
    async with slotmesh.connect(sys.argv[1]) as mesh:
        async with mesh.endpoint("Ledger").direct(slots=2, ttl=2, idle=60) as lanes:
            await lanes.add("", "first")
            running = [lanes.slowly(f"long-{number}", 60) for number in range(2)]
            print("running", flush=True)
            await asyncio.gather(*running)

asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.timeout(90)
async def test_a_client_that_is_killed_leaks_nothing(tmp_path: Path) -> None:
    file = tmp_path / "records"
    async with started_mesh(HANDLER, replicas=1, env={VARIABLE: str(file)}) as mesh:
        command = sys.executable, "-c", PROGRAM, mesh.router_address
        async with running(*command, cwd=ROOT, stdout=asyncio.subprocess.PIPE) as client:
            assert client.stdout is not None
            assert await client.stdout.readline() == b"running\n"
            await wait_until(lambda: len(read_records(file)) == 4, what="both calls run")
            await until(mesh, lambda total: total.reserved == total.ongoing == 2)
            os.kill(client.pid, signal.SIGKILL)
        await until_idle(mesh, within_s=5.0)
        ended = {record.call: record.outcome for record in read_records(file) if record.event is Event.FINISHED}
        assert ended == {"first": "ok", "long-0": "CancelledError", "long-1": "CancelledError"}


@pytest.mark.timeout(90)
async def test_routers_that_are_killed_cost_nothing(tmp_path: Path) -> None:
    file = tmp_path / "records"
    async with (
        faulty_mesh(HANDLER, routers=1, replicas=1, env={VARIABLE: str(file)}) as mesh,
        slotmesh.connect(mesh.routers[0].address) as client,
        client.endpoint("Ledger").direct(ttl=1, idle=60) as lanes,
    ):
        assert await lanes.add("", "before") == "before"
        running = lanes.slowly("meanwhile", 2.5)
        await mesh.routers[0].kill()
        assert await running == "meanwhile", "after more than two leases"
        assert await lanes.add("", "after") == "after"
        await mesh.routers[0].start()
    records = read_records(file)
    assert [record.call for record in records if record.event is Event.STARTED] == ["before", "meanwhile", "after"]
