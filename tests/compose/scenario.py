"""What is done to a mesh of containers while clients call it, and what has to hold.

Replicas 2 → 5 → 2 and routers 1 → 3 → 1, each service restarted, a replica killed: everything is answered, in order and
once, but for calls that may not be executed again and ran on the replica that was killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import grpc

from slotmesh.runtime.channels import open_channel
from slotmesh.v1 import controller_service_pb2 as pb
from slotmesh.v1 import controller_service_pb2_grpc, mesh_pb2
from tests.compose.http_client import HttpLoad, call_by_http
from tests.compose.plain_client import CLIENT, call_plainly
from tests.compose.project import ComposeProject
from tests.e2e.session_workload import EASY_PACE_S, PATIENCE_S, Workload, is_patient, running_workload
from tests.history.checker import assert_holds, assert_results
from tests.history.log import HistoryLog, read_history
from tests.history.model import Death, Fault, History
from tests.history.summary import summary
from tests.support.controllers import eventually
from tests.support.prometheus import JOBS, Prometheus

CONTROLLER: Final = "127.0.0.1:7070"
ROUTERS: Final = "127.0.0.1:7071"
HTTP: Final = "127.0.0.1:8080"
ENDPOINT: Final = "Ledger"
PROMETHEUS: Final = "prometheus"
PROMETHEUS_ADDRESS: Final = "127.0.0.1:9090"
SETTLED_S: Final = 120.0
FRONT: Final = "the front"
"""What its faults begin with."""
SHOWN: Final = 8
PATIENCE: Final = 12.0
"""A dozen containers wait for each other: with 20 of them for two processors, for up to 4 s."""
LOST_WITHIN_S: Final = 10.0
"""What ran on the replica that was killed is known to be lost so soon."""


async def run(project: ComposeProject, folder: Path) -> None:
    """Raises AssertionError where something does not hold."""
    _say("starting")
    await project.up()
    await settled(routers=1, replicas=2)
    stop = asyncio.Event()
    with HistoryLog(folder) as log:
        # The only router may take longer to restart than clients wait by default: containers share two processors.
        patient = running_workload(ENDPOINT, [ROUTERS], log, pace_s=EASY_PACE_S, connect_timeout_s=PATIENCE_S)
        async with patient as workload:
            plain = asyncio.ensure_future(call_plainly(ROUTERS, log, stop))
            await _known_by_http()
            by_http = asyncio.ensure_future(call_by_http(HTTP, log, stop))
            try:
                await workload.wait_loaded()
                await _faults(project, workload, log)
            finally:
                stop.set()
                plain_results, http_load = await plain, await by_http
    history = replace(read_history(folder), patience=PATIENCE)
    _say(summary(history, f"history in {folder}"))
    _assert_answered_by_http(http_load, history)
    _assert_survived(history, plain_results)


async def _faults(project: ComposeProject, workload: Workload, log: HistoryLog) -> None:
    async def step(what: str, work: Awaitable[object], *, routers: int = 1, replicas: int = 2) -> None:
        _say(what)
        at = time.monotonic()
        await work
        await settled(routers=routers, replicas=replicas)
        log.add(Fault(what=what, at=at, cleared_at=time.monotonic(), seen="the controller saw it"))
        await workload.wait_for_progress(timeout=60)

    await step("replicas 2 to 5", project.up(replica=5), replicas=5)
    await step("routers 1 to 3", project.up(router=3), routers=3, replicas=5)
    await _scraped(project, routers=3, replicas=5)
    await step("a replica is killed", _kill_replica(log), routers=3, replicas=5)
    await step("the controller restarts", project.restart("controller"), routers=3, replicas=5)
    await step("routers restart", project.restart("router"), routers=3, replicas=5)
    await step("replicas restart", project.restart("replica"), routers=3, replicas=5)
    await step("replicas 5 to 2", project.up(replica=2), routers=3)
    await step("routers 3 to 1", project.up(router=1))
    # An upgrade, in the order that docs/operations.md has for all.
    await step("the controller is replaced", project.replace("controller"))
    await step("the router is replaced by surge", _surge(project, "router", routers=1, replicas=2))
    await step("replicas are replaced by surge", _surge(project, "replica", routers=1, replicas=2))
    await step("the ingress is replaced by surge", _surge_ingress(project))
    await step(f"{FRONT} is replaced", project.replace("edge"))
    await step(f"{FRONT} restarts", project.restart("edge"))
    await step("the only router restarts", project.restart("router"))
    await _known_by_http()
    await _scraped(project, routers=1, replicas=2)


async def _surge(project: ComposeProject, service: str, *, routers: int, replicas: int) -> None:
    """As docs/operations.md has an upgrade: new containers beside the old ones, which then drain and end."""
    old, count = await project.containers(service), project.scales[service]
    await project.up(**{service: 2 * count})
    await settled(
        routers=routers * (2 if service == "router" else 1), replicas=replicas * (2 if service == "replica" else 1)
    )
    await project.leave(old)
    await project.up(**{service: count})
    assert not {*old} & {*await project.containers(service)}


async def _surge_ingress(project: ComposeProject) -> None:
    """As for the others; the controller knows no ingresses, so the engine is asked for their health."""
    old = await project.containers("ingress")
    await project.up(ingress=2)
    await project.wait_healthy("ingress", 2)
    await project.leave(old)
    await project.up(ingress=1)
    assert not {*old} & {*await project.containers("ingress")}


async def _kill_replica(log: HistoryLog) -> None:
    """The engine starts it again, under its name."""
    victim = min(await _ready_replicas(), key=lambda it: it.replica_id)
    log.add(Death(pid=victim.pid, at=time.monotonic()))
    os.kill(victim.pid, signal.SIGKILL)

    async def is_back() -> bool:
        with suppress(grpc.RpcError):
            return await restarted()
        return False

    async def restarted() -> bool:
        return any(it.replica_id == victim.replica_id and it.pid != victim.pid for it in await _ready_replicas())

    await eventually(is_back, what=f"{victim.replica_id} is back", timeout=SETTLED_S)


async def settled(*, routers: int, replicas: int) -> None:
    """Waits until the controller has so many, and no others, each of which every router is linked to."""

    async def is_settled() -> bool:
        with suppress(OSError, AssertionError, grpc.RpcError):
            ready = {it.replica_id for it in await _ready_replicas()}
            linked = await _linked()
            return len(ready) == replicas and len(linked) == routers and all(it == ready for it in linked)
        return False

    await eventually(is_settled, what=f"{routers} routers with {replicas} replicas", timeout=SETTLED_S)


async def _scraped(project: ComposeProject, *, routers: int, replicas: int) -> None:
    """Waits until Prometheus has all members, up, and no others; and rules without a mistake."""
    if PROMETHEUS not in project.services:
        return
    prometheus, wanted = Prometheus(PROMETHEUS_ADDRESS), dict(zip(JOBS, (1, routers, replicas, 1), strict=True))

    async def all_are() -> bool:
        with suppress(OSError, AssertionError):
            return await prometheus.members_up() == {job: [True] * count for job, count in wanted.items()}
        return False

    await prometheus.wait_for(all_are, what=f"Prometheus has {wanted}, all of them up", timeout=SETTLED_S)
    assert await prometheus.rules_evaluated() > 0
    _say(f"Prometheus scrapes {wanted}")


async def _known_by_http() -> None:
    """Waits until the ingress tells of the endpoint, which it has from a router."""

    def paths() -> set[str]:
        with urlopen(f"http://{HTTP}/-/openapi.json", timeout=10) as response:
            return {*json.load(response)["paths"]}

    async def is_known() -> bool:
        with suppress(OSError):
            return any(it.startswith(f"/{ENDPOINT}/") for it in await asyncio.to_thread(paths))
        return False

    await eventually(is_known, what=f"{ENDPOINT} by HTTP", timeout=SETTLED_S)
    _say(f"the ingress tells of {ENDPOINT}")


async def _ready_replicas() -> Sequence[mesh_pb2.Replica]:
    async with open_channel(CONTROLLER) as channel:
        stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
        replicas = (await stub.ListReplicas(pb.ListReplicasRequest(), timeout=10, wait_for_ready=True)).replicas
        return [it for it in replicas if it.state == mesh_pb2.REPLICA_STATE_READY]


async def _linked() -> list[set[str]]:
    async with open_channel(CONTROLLER) as channel:
        stub = controller_service_pb2_grpc.ControllerServiceStub(channel)
        routers = (await stub.ListRouters(pb.ListRoutersRequest(), timeout=10, wait_for_ready=True)).routers
        return [set(it.linked_replica_ids) for it in routers]


def _assert_answered_by_http(load: HttpLoad, history: History) -> None:
    """Only the front, of which there is one, may refuse or cut off connections: while it is replaced."""
    _say(f"HTTP: {load.answered} answered, {len(load.cut_off)} connections cut off, {len(load.failed)} failed")
    assert load.answered > 0
    assert not load.failed, "\n".join(load.failed[:SHOWN])
    fronts = [(it.at, it.cleared_at) for it in history.faults if it.what.startswith(FRONT)]
    odd = [at for at in load.cut_off if not any(began <= at <= over for began, over in fronts)]
    assert not odd, f"connections were cut off at {[history.since_start(it) for it in odd[:SHOWN]]}"


def _assert_survived(history: History, plain_results: int) -> None:
    assert_holds(history)
    (killed_at,) = history.deaths.values()
    calls = {it.tag: it for it in history.calls}
    lost = {
        it.tag
        for it in history.outcomes
        if it.reason == "REPLICA_LOST" and not calls[it.tag].idempotent and 0 <= it.at - killed_at <= LOST_WITHIN_S
    }
    assert_results(history, of=lambda call: is_patient(call) and call.tag not in lost)
    hasty = sum(not it.is_result and not is_patient(calls[it.tag]) for it in history.outcomes)
    _say(
        f"{len(history.calls)} calls; lost with the replica that was killed: {len(lost)}; deadlines of half a second "
        f"that passed: {hasty}; {CLIENT} client: {plain_results} answered"
    )
    assert plain_results > 0


def _say(text: str) -> None:
    sys.stdout.write(f"compose-test: {text}\n")
    sys.stdout.flush()
