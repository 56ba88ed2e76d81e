"""Traffic is shifted to another version while clients call: to a good one, and to such as fail or hang."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from math import sqrt
from pathlib import Path

import pytest

import slotmesh
from benchmarks.processes import ProcessMesh, process_mesh
from slotmesh.cli.operator import Operator
from slotmesh.client.mesh import Mesh as Client
from slotmesh.spec.model import Backend, Endpoint, Mesh, TrafficPolicy
from slotmesh.v1 import traffic_shift_pb2 as shift_pb
from tests.support.controllers import eventually
from tests.support.lone_controller import LoneController, lone_controller
from tests.support.shell import Said
from tests.support.shell import slotmesh as run_command
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

CALLERS = 8
CALL_TIMEOUT_S = 1.0
"""Long for calls that take no time, on a busy machine, too."""


def spec(handler: str) -> Mesh:
    return Mesh(
        backends=tuple(
            Backend(
                name=name,
                handler=f"tests.e2e.shift_handlers:{each}",
                num_replicas=1,
                user_config={"name": name},
                max_ongoing=64,
            )
            for name, each in (("v1", "Good"), ("v2", handler))
        ),
        endpoints=(Endpoint(name="e", traffic=TrafficPolicy(weights={"v1": 1.0})),),
    )


@dataclass
class Load:
    """What clients were told."""

    answers: Counter[str] = field(default_factory=Counter[str])
    failures: Counter[str] = field(default_factory=Counter[str])
    is_over: bool = False

    @property
    def calls(self) -> int:
        return self.answers.total() + self.failures.total()


@asynccontextmanager
async def loaded(client: Client) -> AsyncIterator[Load]:
    """Clients that call one after another until the block ends."""
    load, endpoint = Load(), client.endpoint("e").options(timeout=CALL_TIMEOUT_S)

    async def call_on() -> None:
        while not load.is_over:
            try:
                load.answers[await endpoint.name()] += 1
            except slotmesh.SlotmeshError as failure:
                load.failures[str(failure.reason)] += 1
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CALLERS):
            tasks.create_task(call_on())
        try:
            yield load
        finally:
            load.is_over = True


async def shift(mesh: ProcessMesh, *options: str) -> Said:
    """To v2, and waits until that has ended."""
    address = mesh.controller.address
    return await run_command("traffic", "e", "--shift", "v2=1.0", *options, env={"SLOTMESH_ADDRESS": address})


async def weights(mesh: ProcessMesh) -> dict[str, float]:
    return dict((await mesh.operator.endpoint("e")).traffic.weights)


async def test_a_good_version_gets_all_calls_in_the_end_and_none_fails() -> None:
    async with process_mesh(spec("Good")) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        async with loaded(client) as load:
            said = await shift(
                mesh, "--step=0.5", "--every=1s", "--guard=error_rate=0", "--guard=p99=30s", "--min-calls=50", "--wait"
            )
            assert said.status == 0, said
            assert "step 2 of 2: all steps were taken" in said.out
        assert not load.failures
        assert load.answers["v1"]
        assert await weights(mesh) == {"v2": 1.0}
        await mesh.wait_for_revision((await mesh.operator.revisions(1))[0].revision)
        endpoint = client.endpoint("e")
        assert [await endpoint.name() for _ in range(50)] == ["v2"] * 50


@pytest.mark.long
@pytest.mark.parametrize(
    ("handler", "reason", "guard", "expected"),
    [
        ("Broken", "HANDLER_ERROR", "error_rate=0.01", "guard error_rate=0.01 tripped: backend v2 had 1.000"),
        ("Hanging", "DEADLINE_RUNNING", "p99=200ms", "guard p99=200ms tripped: backend v2 had more than 30s"),
    ],
)
async def test_a_bad_version_loses_its_share_and_only_calls_of_that_fail(
    handler: str, reason: str, guard: str, expected: str
) -> None:
    async with process_mesh(spec(handler)) as mesh, slotmesh.connect(mesh.routers[0].address) as client:
        async with loaded(client) as load:
            before = load.calls
            said = await shift(mesh, "--step=0.1", "--every=1h", f"--guard={guard}", "--min-calls=20", "--wait")
            assert said.status == 3, said
            assert said.err.startswith(f"e: rolled back: {expected}")
            assert said.err.endswith("in step 1\n")
            assert await weights(mesh) == {"v1": 1.0}
            made = load.calls - before + CALLERS
        assert load.failures.keys() == {reason}
        assert load.answers.keys() == {"v1"}
        share = 0.1 * made
        assert load.failures[reason] <= share + 5 * sqrt(share) + CALLERS, f"of {made} calls"
        (newest, *_) = await mesh.operator.revisions(1)
        await mesh.wait_for_revision(newest.revision)
        endpoint = client.endpoint("e").options(timeout=10.0)
        assert [await endpoint.name() for _ in range(100)] == ["v1"] * 100
        assert newest.who == "controller"
        assert expected in newest.note


LONE_SPEC = """
backends:
  v1: {handler: "tests.e2e.shift_handlers:Good", user_config: {name: v1}, max_ongoing: 64}
  v2: {handler: "tests.e2e.shift_handlers:%s", user_config: {name: v2}, max_ongoing: 64}
endpoints:
  e: {traffic: {v1: 1.0}}
"""


async def shift_at(lone: LoneController, until: Callable[[shift_pb.TrafficShift], bool]) -> shift_pb.TrafficShift:
    """The shift, once it is so."""

    async def ask() -> shift_pb.TrafficShift | None:
        async with Operator.at(lone.address) as operator:
            found = await operator.shift("e")
        return found if found is not None and until(found) else None

    found = await eventually(ask, what="the shift", timeout=60.0)
    assert found is not None
    return found


@pytest.mark.long
@pytest.mark.parametrize(
    ("handler", "guard", "min_calls", "phase"),
    [
        ("Good", 0.01, 50, shift_pb.SHIFT_PHASE_COMPLETE),
        ("Broken", 0.2, 1_000, shift_pb.SHIFT_PHASE_ROLLED_BACK),
    ],
)
async def test_a_controller_that_is_killed_in_the_middle_goes_on_when_it_is_back(
    handler: str, guard: float, min_calls: int, phase: shift_pb.ShiftPhase.ValueType, tmp_path: Path
) -> None:
    async with lone_controller(tmp_path, LONE_SPEC % handler, f"--state={tmp_path / 'state'}") as lone:
        await lone.ready(2)
        async with slotmesh.connect(lone.router_address) as client, loaded(client) as load:
            options = ("--step=0.25", "--every=2s", f"--guard=error_rate={guard}", f"--min-calls={min_calls}")
            said = await run_command(
                "traffic", "e", "--shift", "v2=1.0", *options, env={"SLOTMESH_ADDRESS": lone.address}
            )
            assert said.status == 0, said
            begun = await shift_at(lone, lambda it: it.steps == 4)
            await lone.kill()
            calls = load.calls
            await wait_until(lambda: load.calls > calls + 100, timeout=60.0, what="calls without a controller")
            await lone.start()
            ended = await shift_at(lone, lambda it: it.phase == phase)
        assert ended.start_time == begun.start_time
        assert (ended.step_number == 4) is (handler == "Good")
        assert bool(load.failures) is (handler == "Broken")
        async with Operator.at(lone.address) as operator:
            found = dict((await operator.endpoint("e")).traffic.weights)
        assert found == ({"v2": 1.0} if handler == "Good" else {"v1": 1.0})
