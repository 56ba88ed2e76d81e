"""`slotmesh traffic` against a real controller, with routers that take its tables or do not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from slotmesh.internal.v1 import membership_service_pb2 as pb
from slotmesh.spec.model import TrafficPolicy
from tests.support.controllers import Controlled, running_controller
from tests.support.fakes.members import FakeReplica, FakeRouter
from tests.support.shell import Said, slotmesh

pytestmark = pytest.mark.asyncio

MESH = """
backends:
  v1: {handler: "app:Digits", num_replicas: 2}
  v2: {handler: "app:Digits"}
  v3: {handler: "app:Digits"}
endpoints:
  digits: {traffic: {v1: 1.0}, shadows: {v3: 0.1}}
  waiting:
"""


class PromptRouter(FakeRouter):
    """Has every table in force as soon as it comes."""

    async def _received(self, frame: pb.AttachRouterResponse) -> None:
        await super()._received(frame)
        self.acknowledging = asyncio.create_task(self.acknowledge())


@pytest_asyncio.fixture
async def mesh() -> AsyncIterator[Controlled]:
    async with running_controller() as mesh:
        await mesh.apply(MESH)
        yield mesh


async def traffic(mesh: Controlled, *arguments: str) -> Said:
    return await slotmesh("traffic", *arguments, env={"SLOTMESH_ADDRESS": mesh.controller.address})


def stored(mesh: Controlled) -> TrafficPolicy | None:
    return mesh.controller.store.read().endpoints["digits"].traffic


def rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line.startswith("│")]


async def test_weights_are_set_at_once_and_shadows_stay(mesh: Controlled) -> None:
    async with PromptRouter(mesh.channel, "router-1"), PromptRouter(mesh.channel, "router-2", "127.0.0.1:7081"):
        said = await traffic(mesh, "digits", "v1=0.9", "v2=0.1", "--force")
        assert (said.status, said.err) == (0, "")
        revision = mesh.controller.store.read().revision
        heading, *_ = said.out.splitlines()
        assert heading == f"endpoint digits  revision {revision}, in force at 2 of 2 routers"
        assert rows(said.out) == [["v1", "0.9", "", "0/2"], ["v2", "0.1", "", "0/any"], ["v3", "", "0.1", "0/any"]]
        assert stored(mesh) == TrafficPolicy(weights={"v1": 0.9, "v2": 0.1}, shadows={"v3": 0.1})

        shown, document = await asyncio.gather(traffic(mesh, "digits"), traffic(mesh, "digits", "--json"))
        assert shown.out == said.out
        assert json.loads(document.out) == {
            "endpoint": "digits",
            "revision": revision,
            "traffic": {"v1": 0.9, "v2": 0.1},
            "shadows": {"v3": 0.1},
            "grpc_services": [],
            "shadow_copies": {"v3": 0},
            "shadow_drops": {"v3": 0},
            "shadow_failures": {"v3": 0},
            "routers": [
                {"router_id": "router-1", "address": "127.0.0.1:7071", "current": True},
                {"router_id": "router-2", "address": "127.0.0.1:7081", "current": True},
            ],
            "shift": None,
        }


@pytest.mark.long
async def test_shadows_are_set_and_taken_away_and_weights_stay(mesh: Controlled) -> None:
    said = await traffic(mesh, "digits", "--shadow", "v2=0.2", "--shadow", "v3=0.05")
    assert (said.status, rows(said.out)[1:]) == (0, [["v2", "", "0.2", "0/any"], ["v3", "", "0.05", "0/any"]])
    assert stored(mesh) == TrafficPolicy(weights={"v1": 1.0}, shadows={"v2": 0.2, "v3": 0.05})
    said = await traffic(mesh, "digits", "v2=1", "--no-shadows", "--force")
    assert said.status == 0
    assert "no router is attached" in said.out
    assert stored(mesh) == TrafficPolicy(weights={"v2": 1.0})


async def test_it_returns_when_every_router_has_the_change(mesh: Controlled) -> None:
    async with PromptRouter(mesh.channel, "prompt"), FakeRouter(mesh.channel, "slow", "127.0.0.1:7081") as slow:
        await slow.wait_for(lambda table: bool(table.endpoints), what="a table")
        await slow.acknowledge()
        changing = asyncio.create_task(traffic(mesh, "digits", "v2=1", "--timeout=20s", "--force"))
        # The command is a process of its own, which takes a while to start on a busy machine.
        await slow.wait_for(
            lambda table: dict(table.endpoints[0].traffic.weights) == {"v2": 1.0}, what="the change", timeout=30.0
        )
        assert not changing.done()
        await slow.acknowledge()
        said = await changing
        assert (said.status, said.err) == (0, "")
        assert "in force at 2 of 2 routers" in said.out


async def test_a_router_that_does_not_take_the_change_is_named_and_the_change_stays(mesh: Controlled) -> None:
    async with FakeRouter(mesh.channel, "stuck") as stuck:
        await stuck.wait_for(lambda _: True, what="a table")
        impatient = await traffic(mesh, "digits", "v2=1", "--timeout=100ms", "--force")
        assert (impatient.status, impatient.out) == (3, "")
        lacking = "routers: 1 of 1 do not have the change yet: stuck (127.0.0.1:7071)"
        assert f"but not in force within 100ms:\n  {lacking}\n" in impatient.err
        assert stored(mesh) == TrafficPolicy(weights={"v2": 1.0}, shadows={"v3": 0.1})
        unconcerned = await traffic(mesh, "digits", "v1=1", "--no-wait", "--force")
        assert (unconcerned.status, unconcerned.err) == (0, "")
        assert "in force at 0 of 1 router\n" in unconcerned.out


@pytest.mark.long
async def test_what_is_wrong_is_told_and_changes_nothing(mesh: Controlled) -> None:
    before = mesh.controller.store.read()
    sums, typed, unknown, backend, shown = await asyncio.gather(
        traffic(mesh, "digits", "v1=0.9", "v2=0.05"),
        traffic(mesh, "digits", "v1", "v2=x", "v3=1", "v3=1"),
        traffic(mesh, "digit", "v1=1"),
        traffic(mesh, "digits", "v1=0.5", "v9=0.5"),
        traffic(mesh, "digit"),
    )
    assert all(said.out == "" for said in (sums, typed, unknown, backend, shown))
    sum_of_weights = "weights sum to 0.95, must be 1: list all backends that get calls"
    assert (sums.status, sums.err) == (
        2,
        f"digits: nothing was changed\n  digits.traffic: {sum_of_weights}\n",
    )
    assert (typed.status, len(typed.err.splitlines())) == (2, 4)
    for said in (unknown, shown):
        assert said.status == 1
        named = "no endpoint is named 'digit'; did you mean digits?; there is: digits, waiting"
        assert said.err == f"NOT_FOUND/ENDPOINT_NOT_FOUND: {named}\n"
    assert backend.status == 1
    assert backend.err == (
        'INVALID_ARGUMENT/BAD_REQUEST: traffic.weights["v9"]: no backend has this name (there are v1, v2, v3)\n'
    )
    assert mesh.controller.store.read() == before


@pytest.mark.long
async def test_an_endpoint_without_a_policy_gets_its_first(mesh: Controlled) -> None:
    said = await traffic(mesh, "waiting")
    assert (said.status, said.out.splitlines()[1:]) == (0, ["no traffic policy: calls wait until there is one"])
    said = await traffic(mesh, "waiting", "v1=1", "--force")
    assert (said.status, rows(said.out)) == (0, [["v1", "1", "", "0/2"]])


async def test_a_change_that_changes_nothing_is_no_change(mesh: Controlled) -> None:
    async with PromptRouter(mesh.channel, "router-1") as router:
        await router.wait_for(lambda _: True, what="a table")
        before = mesh.controller.store.read()
        said = await traffic(mesh, "digits", "v1=1")
        assert (said.status, said.err) == (0, "")
        assert f"revision {before.configured_at}, in force at 1 of 1 router\n" in said.out
        assert mesh.controller.store.read().configured_at == before.configured_at


@pytest.mark.long
async def test_calls_go_to_no_backend_without_a_ready_replica_unless_it_is_forced(mesh: Controlled) -> None:
    before = mesh.controller.store.read()
    for options in (("v1=0.9", "v2=0.1"), ("--shift", "v2=0.1")):
        refused = await traffic(mesh, "digits", *options)
        assert (refused.status, refused.out) == (1, "")
        assert refused.err.removeprefix("INVALID_ARGUMENT/BAD_REQUEST: ").removeprefix("traffic.") == (
            'weights["v2"]: backend v2 has no ready replica: no replica of'
            " it is attached to this controller. Start one, or change the traffic nevertheless: --force (in a request:"
            " without require_ready)\n"
        )
    assert mesh.controller.store.read() == before
    async with FakeReplica(mesh.channel, "v2", "a") as replica:
        await replica.report("READY")
        assert (await traffic(mesh, "digits", "v1=0.9", "v2=0.1")).status == 0
    assert (await traffic(mesh, "digits", "--shift", "v3=1", "--force")).status == 0
    assert mesh.controller.store.read().shifts["digits"].is_under_way
