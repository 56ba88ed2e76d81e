"""The traffic policy changes all the time while calls pour in: none is lost, none goes where it must not."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import count
from pathlib import Path

import pytest

import slotmesh
from benchmarks.processes import ProcessMesh, process_mesh
from slotmesh.codec import OCTET_STREAM
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from tests.support.recorder import VARIABLE, Event, read_records

pytestmark = pytest.mark.long

CHANGES = 300
CHANGE_EVERY_S = 0.01
TURNS = 30
TURN_CALLS = 64
WORKERS = 8
BURST = 16
PACE_S = 0.01
"""Between two bursts of a worker: calls are always under way, and the processors are not all theirs."""
ANSWER_TIMEOUT_S = 20.0
POLICIES = ({"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 1.0}, {"a": 0.5, "b": 0.5}, {"b": 1.0})
"""None gives anything to `c`."""

SPEC = Mesh(
    backends=tuple(
        Backend(name=name, handler="tests.e2e.traffic_handlers:RecordedVersion", user_config={"name": name})
        for name in "abc"
    ),
    endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights={"a": 0.5, "b": 0.5, "c": 0.0})),),
)


class Load:
    """Bursts of calls from several workers, each call with a number of its own, until told to stop."""

    def __init__(self, client: slotmesh.Mesh) -> None:
        self._method = client.endpoint("e").options(content_type=OCTET_STREAM).method("take")
        self._numbers = count(1)
        self._stop = asyncio.Event()
        self.answered: dict[int, str] = {}
        """Which backend answered."""

    async def calls(self, number: int) -> dict[int, str]:
        """Makes calls, each of which must be answered; says by which backend."""
        calls = [next(self._numbers) for _ in range(number)]
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            replies = await asyncio.gather(*(self._method(str(call).encode()) for call in calls))
        answered = {call: reply.decode() for call, reply in zip(calls, replies, strict=True)}
        self.answered.update(answered)
        return answered

    async def run(self) -> None:
        async def again() -> None:
            while not self._stop.is_set():
                await self.calls(BURST)
                await asyncio.sleep(PACE_S)

        await asyncio.gather(*(again() for _ in range(WORKERS)))

    def stop(self) -> None:
        self._stop.set()


@pytest.mark.asyncio
@pytest.mark.timeout(120)
async def test_no_call_is_lost_and_none_runs_where_the_weight_was_0(tmp_path: Path) -> None:
    file = tmp_path / "records"
    async with (
        process_mesh(SPEC, env={VARIABLE: str(file)}) as mesh,
        slotmesh.connect(mesh.routers[0].address) as client,
    ):
        load = Load(client)
        pouring = asyncio.create_task(load.run())
        await change_all_the_time(mesh, pouring)
        assert set(load.answered.values()) == {"a", "b"}

        # What was admitted under a policy that was in force all the time of the call went where that policy says.
        for turn in range(TURNS):
            only, other = ("a", "b") if turn % 2 else ("b", "a")
            revision = await mesh.operator.set_traffic("e", TrafficPolicy(weights={only: 1.0, other: 0.0}), ["weights"])
            await mesh.wait_for_revision(revision)
            assert set((await load.calls(TURN_CALLS)).values()) == {only}

        load.stop()
        await pouring

    executed = Counter(record.call for record in read_records(file) if record.event is Event.STARTED)
    assert executed.keys() == load.answered.keys()
    assert set(executed.values()) == {1}, "a call ran twice"
    assert {record.key for record in read_records(file)} == {"a", "b"}, "c never had a weight"


async def change_all_the_time(mesh: ProcessMesh, pouring: asyncio.Task[None]) -> None:
    """A hundred changes a second, or as many as the controller takes."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    for change in range(CHANGES):
        assert not pouring.done(), pouring.exception()
        await mesh.operator.set_traffic(
            "e", TrafficPolicy(weights={**POLICIES[change % len(POLICIES)], "c": 0.0}), ["weights"]
        )
        await asyncio.sleep(started + (change + 1) * CHANGE_EVERY_S - loop.time())
