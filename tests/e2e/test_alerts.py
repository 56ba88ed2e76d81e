"""Every alert fires in a real Prometheus, in a mesh that has what it is about; and asks for series that there are."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

import slotmesh
from slotmesh.client.mesh import Mesh as Client
from tests.support import shell
from tests.support.http_client import http
from tests.support.mesh import ROOT, MeshRun, mesh_run
from tests.support.prometheus import Prometheus, needs_prometheus, running_prometheus
from tests.support.promql import alert_expressions, selections

pytestmark = [needs_prometheus, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.long]

RULES: Final = ROOT / "deploy" / "prometheus" / "alerts.yaml"
PROMTOOL_TRIES: Final = frozenset(
    {
        *("SlotmeshCertificateEndsSoon", "SlotmeshHttpsCertificateEndsSoon"),
        *("SlotmeshIngressHasNoRoutes", "SlotmeshStateCannotBeWritten", "SlotmeshStateIsOlder"),
        *("SlotmeshStandbyIsMissing", "SlotmeshRoutersAreMissing", "SlotmeshReplicaIsSuspect"),
    }
)
"""This mesh talks plain text, its ingress finds the controller, its state is in memory, its controller is the only one
and starts all replicas; and routers are missing only in comparison with half an hour ago."""
ALERTS: Final = frozenset(alert_expressions(RULES)) - PROMTOOL_TRIES
FIRE_S: Final = 120.0
"""A backstop: each is true a few scrapes after its cause."""
OF_BUSY_MACHINES: Final = frozenset({"SlotmeshEventLoopIsLate", "SlotmeshMemberIsGone", "SlotmeshReplicasAreMissing"})
"""May be true for a moment, where nothing waits for them to stay so."""
MESH: Final = """\
backends:
  good: {handler: "tests.e2e.handlers:Gallery", num_replicas: 3, max_queue_time: 10m}
  changing: {handler: "tests.e2e.handlers:Gallery", num_replicas: 1}
  blocking: {handler: "tests.e2e.blocking_handlers:Blocker", num_replicas: 1}
  slow: {handler: "tests.e2e.handlers:doze", num_replicas: 1, prefetch: 0}
endpoints:
  good: {traffic: {good: 1.0}}
  blocking: {traffic: {blocking: 1.0}}
  slow: {traffic: {slow: 1.0}}
"""
BROKEN: Final = """\
backends:
  changing: {handler: "tests.e2e.handlers:Crasher", num_replicas: 1}
  broken: {handler: "tests.e2e.handlers:Crasher", num_replicas: 1}
"""
"""The one has been good, and goes back. The other was never good."""


def impatient_rules() -> dict[str, Any]:
    """Those that are shipped, but for the time for which something has to be so: that is promtool's to try."""
    document: dict[str, Any] = yaml.safe_load(RULES.read_text("utf-8"))
    waiting = [rule.pop("for", None) for group in document["groups"] for rule in group["rules"]]
    assert None in waiting, "one at least is tried as it is"
    return document


@asynccontextmanager
async def trouble(client: Client, ingress: str) -> AsyncIterator[None]:
    """Calls that fail, by HTTP as well, that block their replica's loop, and that wait, until the block ends."""
    good, blocking, slow = (client.endpoint(it) for it in ("good", "blocking", "slow"))

    async def go_on(make: Any) -> None:
        while True:
            with suppress(slotmesh.SlotmeshError):
                await make()
            await asyncio.sleep(0.01)

    makes = [
        lambda: good.fail("on purpose"),
        lambda: http(ingress, "POST", "/good/fail", ["on purpose"]),
        lambda: blocking.block(0.6),
        *[lambda: slow(0.7)] * 4,
    ]
    tasks = [asyncio.ensure_future(go_on(make)) for make in makes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def apply(mesh: MeshRun, file: Path) -> None:
    said = await shell.slotmesh("apply", str(file), "--yes", "--no-wait", f"--address={mesh.controller_address}")
    assert said.status == 0, said.out + said.err


@contextmanager
def standing_still(mesh: MeshRun, module: str) -> Iterator[None]:
    """The process that runs this module does nothing as long as the block lasts."""
    # The oldest: what it starts has its command line for a moment.
    pid = min(pid for pid, command in mesh.processes().items() if module in command)
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def kill_replicas(mesh: MeshRun, backend: str) -> None:
    for replica_id in await mesh.replica_pids():
        if replica_id.startswith(f"{backend}-"):
            with suppress(ProcessLookupError, KeyError):
                await mesh.kill_replica(replica_id)


@pytest.mark.asyncio
async def test_every_alert_fires_when_there_is_cause(tmp_path: Path) -> None:
    first, then = tmp_path / "mesh.yaml", tmp_path / "broken.yaml"
    first.write_text(MESH, "utf-8")
    then.write_text(BROKEN, "utf-8")
    flags = ("--routers=2", "--router-port=0", "--controller-port=0", "--http=0", "--log-level=info")
    async with (
        running_prometheus(impatient_rules()) as prometheus,
        mesh_run(str(first), *flags) as mesh,
    ):
        await mesh.wait_ready()
        await prometheus.follow(mesh)
        await prometheus.wait_for(lambda: prometheus.has_data("up == 1"), timeout=60, what="a scrape")

        async def nothing_is_wrong() -> bool:
            return await prometheus.firing() <= OF_BUSY_MACHINES

        # Before the first scrape of the controller, nobody leads.
        await prometheus.wait_for(nothing_is_wrong, timeout=FIRE_S, what="a mesh that is well")
        await apply(mesh, then)
        async with slotmesh.connect(mesh.router_addresses) as client, trouble(client, mesh.http_address):
            await fired(prometheus, ALERTS - {"SlotmeshRouterHasNoLink", "SlotmeshMemberIsGone", "SlotmeshNobodyLeads"})

            async def links_break() -> bool:
                await kill_replicas(mesh, "good")
                return "SlotmeshRouterHasNoLink" in await prometheus.firing()

            await prometheus.wait_for(links_break, timeout=FIRE_S, what="links break often enough")
            await fired(prometheus, ALERTS - {"SlotmeshNobodyLeads"})
            with standing_still(mesh, "controller_service"):
                await fired(prometheus, frozenset({"SlotmeshNobodyLeads"}))
        for name, expression in alert_expressions(RULES).items():
            for selection in selections(expression) if name in ALERTS else ():
                assert await prometheus.has_data(f"last_over_time({selection}[10m])"), f"{name}: nothing is {selection}"


async def fired(prometheus: Prometheus, wanted: frozenset[str]) -> None:
    """Waits until each has fired, at the same time as others or not."""
    seen = set[str]()

    async def all_have() -> bool:
        seen.update(await prometheus.firing())
        return wanted <= seen

    try:
        await prometheus.wait_for(all_have, timeout=FIRE_S, what="alerts fire")
    except AssertionError as error:
        error.add_note(f"silent: {sorted(wanted - seen)}")
        raise
