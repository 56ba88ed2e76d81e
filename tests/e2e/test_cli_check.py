"""`slotmesh check` on real meshes: one that is well, one with several faults, one by TLS."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ingress_service.app import serve
from ingress_service.config import IngressSettings
from slotmesh.runtime.channels import open_channel
from tests.support.certificates import Authority
from tests.support.controllers import eventually
from tests.support.fakes.members import FakeRouter
from tests.support.mesh import started_mesh
from tests.support.shell import Said, slotmesh
from tests.support.tls_mesh import tls_mesh
from tests.support.wait import wait_until

pytestmark = [pytest.mark.timeout(180), pytest.mark.asyncio]

NOBODY = "127.0.0.1:1"
FAULTS = """
backends:
  broken: {handler: "tests.e2e.starting_handlers:NoSuchHandler", num_replicas: 1}
endpoints:
  lost: {traffic: {broken: 1.0}}
  nowhere: {}
"""


async def checked(*arguments: str) -> tuple[Said, dict[str, Any]]:
    said = await slotmesh("check", "--output", "json", *arguments)
    document: dict[str, Any] = json.loads(said.out)
    return said, document


def not_well(document: dict[str, Any]) -> set[tuple[str, str, str | None]]:
    return {(it["section"], it["severity"], it["subject"]) for it in document["findings"] if it["severity"] != "ok"}


def text_of(document: dict[str, Any], subject: str) -> str:
    return next((it["text"] for it in document["findings"] if it["subject"] == subject), "")


@asynccontextmanager
async def router_that_takes_no_new_table(controller: str) -> AsyncIterator[None]:
    """It is heard of all the while, and announces an address at which nothing is."""
    async with open_channel(controller) as channel, FakeRouter(channel, "stuck", NOBODY) as stuck:
        old = await stuck.wait_for(lambda _: True, what="a table")

        async def report() -> None:
            while True:
                await stuck.acknowledge(table=old)
                await asyncio.sleep(0.5)

        reporting = asyncio.create_task(report())
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)


async def test_a_mesh_that_is_well_and_then_has_several_faults(tmp_path: Path) -> None:
    async with started_mesh("tests.e2e.handlers:Gallery", routers=2) as mesh:
        at = ("--address", mesh.controller_address)
        said, document = await checked("--wait", "20s", *at)
        assert (said.status, document["well"], not_well(document)) == (0, True, set()), document
        texts = [it["text"] for it in document["findings"]]
        # A controller, two routers, a replica, and the metrics of the latter three.
        assert "7 of 7 announced addresses answer from here" in texts
        assert "4 clocks differ by less than 1 s" in texts
        said, document = await checked("--without-host", "127.0.0.1", *at)
        stops = [it["text"].partition(" only on ")[0] for it in document["findings"] if it["severity"] == "error"]
        assert said.status == 4
        assert {"the controllers are", "the routers are"} < {*stops}
        assert any(it.endswith(" has ready replicas") for it in stops), stops
        table = await slotmesh("check", *at)
        assert (table.status, table.out.splitlines()[-1]) == (0, "all is well")

        (tmp_path / "faults.yaml").write_text(FAULTS, "utf-8")
        async with router_that_takes_no_new_table(mesh.controller_address):
            await slotmesh("apply", str(tmp_path / "faults.yaml"), "--yes", "--no-wait", *at)
            # Until a replica has failed to start, calls wait for it.
            async with asyncio.timeout(60.0):
                said, document = await checked(*at)
                while "are starting" in text_of(document, "backend/broken"):
                    said, document = await checked(*at)
        assert (said.status, document["well"]) == (4, False)
        found = not_well(document)
        assert {
            ("reachability", "error", "router/stuck"),
            ("routers", "error", "router/stuck"),
            ("backends", "error", "backend/broken"),
            ("endpoints", "warning", "endpoint/nowhere"),
        } <= found, document
        assert all(it["fix"] for it in document["findings"] if it["severity"] != "ok")
        broken = text_of(document, "backend/broken")
        assert "0 of 1 replicas ready" in broken
        assert "calls fail, as its replicas fail to start" in broken


@pytest.mark.long
async def test_ingresses_that_are_named_are_looked_at(tmp_path: Path) -> None:
    async with started_mesh("tests.e2e.handlers:Gallery", flags=["--http=0"]) as mesh:
        at = ("--address", mesh.controller_address, "--wait", "20s")
        said, document = await checked("--http", f"http://{mesh.http_address}", *at)
        assert (said.status, not_well(document)) == (0, set()), document
        texts = [it["text"] for it in document["findings"]]
        assert "1 of 1 ingresses are ready" in texts
        # A controller, a router, a replica, the metrics of these two, and the ingress.
        assert "6 of 6 announced addresses answer from here" in texts

        others = ("--http", NOBODY, "--http", f"http://{mesh.router_address}", "--http", f"https://{mesh.http_address}")
        said, document = await checked(*others, *at[:2])
        wrong = {it["subject"]: it["text"] for it in document["findings"] if it["severity"] == "error"}
        assert said.status == 4
        assert wrong.keys() == {f"ingress {each}" for each in (NOBODY, mesh.router_address, mesh.http_address)}, (
            document
        )
        assert "what answers there is no ingress" in wrong[f"ingress {mesh.router_address}"]
        assert "does not speak TLS" in wrong[f"ingress {mesh.http_address}"]

        said = await slotmesh("check", "--http", "ftp://x", *at[:2])
        assert (said.status, "expected http://HOST:PORT" in said.err) == (2, True)


@pytest.mark.long
async def test_an_ingress_by_tls_and_who_may_see_its_routes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("client", "ingress")
    web = authority.issue("client", "web", dns=["localhost"])
    async with tls_mesh(authority) as mesh:
        settings = IngressSettings(
            port=0,
            metrics_port=-1,
            routers=",".join(mesh.routers),
            controller=mesh.controller.address,
            tls_dir=authority.directory,
            https_cert=web.cert,
            https_key=web.key,
        )
        async with serve(settings) as ingress:
            await wait_until(ingress.routes.has_routes.is_set, timeout=60, what="the first routes")
            port = ingress.address.rpartition(":")[2]
            at = ("--tls-dir", str(authority.directory), "--address", mesh.controller.address)
            said, document = await checked("--http", f"localhost:{port}", *at)
            texts = [it["text"] for it in document["findings"]]
            assert said.status == 0, document
            assert "1 of 1 ingresses are ready" in texts
            assert any("without a token that may call" in it for it in texts)
            # Asked by another name than its certificate's, which its clients would not take either.
            said, document = await checked("--http", f"https://127.0.0.1:{port}", *at)
            assert ("reachability", "error", f"ingress 127.0.0.1:{port}") in not_well(document)


async def test_where_no_controller_answers_it_is_one_line() -> None:
    said, document = await checked("--address", NOBODY)
    assert (said.status, said.err) == (4, "")
    (finding,) = document["findings"]
    assert finding["text"] == f"no controller answers at {NOBODY}"
    assert "start it again, with the --state file that it had" in finding["fix"]
    assert "--address" in finding["fix"]


@pytest.mark.long
async def test_certificates_of_servers_and_the_own_one(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with tls_mesh(authority) as mesh:
        at = ("--tls-dir", str(authority.directory), "--address", mesh.controller.address)
        said, document = await checked(*at)
        assert {it["section"] for it in document["findings"]} >= {"certificates", "security"}
        ends_soon = [it for it in document["findings"] if it["section"] == "certificates" and it["severity"] != "ok"]
        assert (said.status, len(ends_soon)) == (0, 0), document
        # It lasts for 70 minutes. Servers read their new certificates by themselves: one that ends soon is seen.
        authority.issue("router", not_after=datetime.now(UTC) + timedelta(minutes=10))

        async def ends_soon_at_router() -> bool:
            _, document = await checked(*at)
            return ("certificates", "warning", "router/r0") in not_well(document)

        await eventually(ends_soon_at_router, what="the router's new certificate ends soon", timeout=30)
        # Without certificates it is not answered.
        said, document = await checked("--address", mesh.controller.address)
        assert (said.status, len(document["findings"])) == (4, 1)


@pytest.mark.long
async def test_which_list_of_revoked_certificates_servers_have(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    async with tls_mesh(authority) as mesh:
        at = ("--tls-dir", str(authority.directory), "--address", mesh.controller.address)
        authority.revoke(authority.issue("client", "alice").cert)
        have_it = "3 servers have the newest list of revoked certificates, of"

        async def all_have_it() -> bool:
            _, document = await checked(*at)
            return any(have_it in it["text"] for it in document["findings"])

        await eventually(all_have_it, what="the list was read", timeout=30)
        authority.crl.write_text("no list")
        members = ("controller", "router/", "replica/")

        async def all_keep_it() -> bool:
            _, document = await checked(*at)
            wrong = [subject or "" for section, severity, subject in not_well(document) if section == "certificates"]
            return all(any(subject.startswith(each) for subject in wrong) for each in members) and any(
                have_it in it["text"] for it in document["findings"]
            )

        await eventually(all_keep_it, what="none can use what came after it, and all keep what they have", timeout=30)
