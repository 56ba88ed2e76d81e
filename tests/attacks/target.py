"""The mesh that is attacked: where it listens, which processes it has, and how an attacker connects to it.

Purpose: a controller, a router and a replica, in plain text or by TLS, and certificates of several clients.
Invariants: freed memory goes back to the kernel at once where the allocator can give it (the processes keep up to
64 MiB of it otherwise), and there is one arena, so that what was needed once is enough the next time; sessions are kept
for `RESUME_TTL_S`, not for a minute.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from slotmesh.client.tls import Tls, dialer_of
from slotmesh.security.identity import Role
from slotmesh.v1 import slot_service_pb2
from tests.attacks.handlers import EXECUTIONS, executions
from tests.attacks.slots import ENDPOINT, SlotCaller
from tests.support.certificates import Authority
from tests.support.mesh import MeshRun, started_mesh

RESUME_TTL_S: Final = 5
_REPLACED_S: Final = 30.0
_LOOK_S: Final = 0.1
_CLIENTS: Final = ("attacker", "bystander", "victim", "ingress")
_ENVIRONMENT: Final = {
    "MALLOC_TRIM_THRESHOLD_": str(128 * 1024),
    "MALLOC_ARENA_MAX": "1",
    "SLOTMESH_RESUME_TTL": f"{RESUME_TTL_S}s",
    "SLOTMESH_LOG_LEVEL": "warning",
}


@dataclass(frozen=True, slots=True)
class Target:
    """A mesh that is ready."""

    mesh: MeshRun
    router: str
    """HOST:PORT, as below."""
    replica: str
    slot: slot_service_pb2.Slot
    """One that the replica has given, and has back."""
    departed: str
    """Token of a slot of a replica that was killed before anything began."""
    pids: dict[str, int]
    """By what the process is."""
    file: Path
    directory: Path | None
    """Of certificates; None in plain text."""

    @property
    def by_tls(self) -> bool:
        return self.directory is not None

    @property
    def kind(self) -> str:
        return "tls" if self.by_tls else "plain"

    def executions(self) -> list[str]:
        """What `note` was executed with."""
        return executions(self.file)

    def living(self) -> dict[str, int]:
        """The processes, as they are now."""
        return _pids(self.mesh)

    def tls(self, name: str = "attacker") -> Tls | None:
        return None if self.directory is None else Tls.from_dir(self.directory, f"client-{name}")

    def channel(self, name: str = "attacker", server: Role = Role.ROUTER) -> grpc.aio.Channel:
        """To the router or the replica, as this client. The caller closes it."""
        dialer = dialer_of(self.tls(name), None)
        if server is Role.REPLICA:
            return dialer.open(self.replica, server, ENDPOINT)
        return dialer.open(self.router, server)

    def ssl(self, name: str = "attacker") -> ssl.SSLContext | None:
        """What a socket needs to speak HTTP/2 by TLS; None in plain text."""
        if self.directory is None:
            return None
        context = ssl.create_default_context(cafile=str(self.directory / "ca.crt"))
        context.check_hostname = False  # servers have names of their roles, not of addresses
        context.set_alpn_protocols(["h2"])
        context.load_cert_chain(self.directory / f"client-{name}.crt", self.directory / f"client-{name}.key")
        return context


@asynccontextmanager
async def target_of(*, by_tls: bool) -> AsyncIterator[Target]:
    with tempfile.TemporaryDirectory(prefix="slotmesh-attacks-") as folder:
        directory = _certificates(Path(folder, "certs")) if by_tls else None
        file = Path(folder, "executions")
        flags = [] if directory is None else ["--tls-dir", str(directory)]
        env = {**_ENVIRONMENT, EXECUTIONS: str(file)}
        if directory is not None:
            env["SLOTMESH_TLS_DIR"] = str(directory)
        async with started_mesh("tests.attacks.handlers:Attacked", env=env, flags=flags) as mesh:
            tls = None if directory is None else Tls.from_dir(directory, "client-victim")
            async with dialer_of(tls, None).open(mesh.router_address, Role.ROUTER) as channel:
                slots = SlotCaller(channel)
                departed = await slots.reserve(ttl_s=1)
                os.kill(_pids(mesh)["replica"], signal.SIGKILL)
                async with asyncio.timeout(_REPLACED_S):
                    while (slot := await slots.reserve(ttl_s=1)).replica_address == departed.replica_address:
                        await asyncio.sleep(_LOOK_S)
                await slots.release(slot.token)
            yield Target(
                mesh=mesh,
                router=mesh.router_address,
                replica=slot.replica_address,
                slot=slot,
                departed=departed.token,
                pids=_pids(mesh),
                file=file,
                directory=directory,
            )


def _certificates(directory: Path) -> Path:
    authority = Authority(directory)
    authority.whole_mesh()
    for name in _CLIENTS:
        authority.issue("client", name)
    return directory


def _pids(mesh: MeshRun) -> dict[str, int]:
    found = mesh.processes()
    names = ("router", "replica", "controller")
    pids = {name: [pid for pid, line in found.items() if f" {name}_service" in line] for name in names}
    assert all(len(each) == 1 for each in pids.values()), found
    return {name: each[0] for name, each in pids.items()}
