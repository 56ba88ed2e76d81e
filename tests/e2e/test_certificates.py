"""A mesh of processes by TLS: certificates are issued again under load, and no call notices."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import slotmesh
from slotmesh.cli.certificates import CertificatePlace, initialise, issue, lifetime_of, revoke, rotate
from slotmesh.client.tls import dialer_of
from slotmesh.security.identity import Role
from slotmesh.units import parse_host_port
from slotmesh.v1 import controller_service_pb2, controller_service_pb2_grpc
from tests.support.controllers import eventually
from tests.support.mesh import started_mesh
from tests.support.wait import wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.slow, pytest.mark.timeout(90)]
ROTATIONS = 10
PAUSE_S = 0.05
WITHIN_S = 5.0


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> CertificatePlace:
    made = CertificatePlace.of(tmp_path_factory.mktemp("mesh") / "certs", None)
    initialise(made, "mesh.test", "ops", lifetime_of(None, None))
    issue(made, "client/alice", (), None, lifetime_of(None, 24))
    return made


def shown(address: str, directory: Path) -> bytes | None:
    """The certificate that a server shows to whom it lets in, in DER form."""
    context = ssl.create_default_context(cafile=str(directory / "ca.crt"))
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(directory / "client-alice.crt", directory / "client-alice.key")
    with socket.create_connection(parse_host_port(address), timeout=30) as plain, context.wrap_socket(plain) as secured:
        return secured.getpeercert(binary_form=True)


class Load:
    """Calls at a steady pace: on one stream, and on connections that are made for one call each."""

    def __init__(self, address: str, directory: Path, name: str = "client-alice") -> None:
        self.done: Counter[str] = Counter()
        self._is_over = asyncio.Event()
        self._address = address
        self._tls = slotmesh.Tls.from_dir(directory, name)

    def end(self) -> None:
        self._is_over.set()

    async def on_a_stream(self) -> None:
        expected = [2 * number for number in range(20)]
        async with slotmesh.connect(self._address, tls=self._tls) as mesh:
            gallery = mesh.endpoint("Gallery")
            while await self._goes_on():
                assert await asyncio.gather(*(gallery.double(number) for number in range(20))) == expected
                self.done["on a stream"] += 20

    async def on_new_connections(self) -> None:
        while await self._goes_on():
            async with slotmesh.connect(self._address, tls=self._tls) as mesh:
                assert await mesh.endpoint("Gallery").double(1) == 2
            self.done["on new connections"] += 1

    async def _goes_on(self) -> bool:
        """After a pause; False at the end."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PAUSE_S):
                await self._is_over.wait()
        return not self._is_over.is_set()


async def shows_another(server: str, before: bytes | None, directory: Path) -> bytes | None:
    """The certificate that the server shows once it has a new one."""
    async with asyncio.timeout(20):
        while (now := await asyncio.to_thread(shown, server, directory)) == before:  # noqa: ASYNC110 - in another process
            await asyncio.sleep(PAUSE_S)
    return now


async def test_rotation_fails_no_call(place: CertificatePlace) -> None:
    directory = place.directory
    async with started_mesh("tests.e2e.handlers:Gallery", flags=["--tls-dir", str(directory)]) as mesh:
        load, servers = Load(mesh.router_address, directory), (mesh.router_address, mesh.controller_address)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(load.on_a_stream())
            tasks.create_task(load.on_new_connections())
            seen = [await asyncio.to_thread(shown, each, directory) for each in servers]
            for _ in range(ROTATIONS):
                before = load.done.copy()
                await asyncio.to_thread(rotate, place, (), None)
                seen = [await shows_another(*each, directory) for each in zip(servers, seen, strict=True)]
                assert all(load.done[kind] > before[kind] for kind in ("on a stream", "on new connections"))
            load.end()


@pytest.mark.long
async def test_who_was_revoked_is_refused_and_nobody_else_notices(place: CertificatePlace) -> None:
    """By all processes of the mesh, which read the list beside their certificates."""
    directory = place.directory
    issue(place, "client/bob", (), None, lifetime_of(None, 24))
    issue(place, "viewer/eve", (), None, lifetime_of(None, 24))
    async with started_mesh("tests.e2e.handlers:Gallery", flags=["--tls-dir", str(directory)]) as mesh:
        load = Load(mesh.router_address, directory, "client-bob")
        of_alice, of_eve = (slotmesh.Tls.from_dir(directory, name) for name in ("client-alice", "viewer-eve"))
        async with (
            asyncio.TaskGroup() as tasks,
            slotmesh.connect(mesh.router_address, tls=of_alice) as alice,
            dialer_of(of_eve, None).open(mesh.controller_address, Role.CONTROLLER) as eve,
        ):
            tasks.create_task(load.on_a_stream())
            tasks.create_task(load.on_new_connections())
            status: Any = controller_service_pb2_grpc.ControllerServiceStub(eve)
            request = controller_service_pb2.ListBackendsRequest()
            assert await alice.endpoint("Gallery").double(1) == 2
            assert await status.ListBackends(request)
            revoke(place, ["client/alice", "viewer/eve"], [], keep_current=False)

            async def refusals() -> list[str]:
                """Of each, once both are refused."""
                calls = (alice.endpoint("Gallery").double(1), status.ListBackends(request))
                found = [str(each) for each in await asyncio.gather(*calls, return_exceptions=True)]
                return found if all("was revoked" in each for each in found) else []

            of_router, of_controller = await eventually(refusals, what="both are refused", timeout=WITHIN_S)
            assert "the certificate of client/alice was revoked" in of_router
            assert "the certificate of viewer/eve was revoked" in of_controller
            before = load.done.copy()
            await wait_until(lambda: all(load.done[kind] > before[kind] for kind in before), timeout=WITHIN_S)
            load.end()
