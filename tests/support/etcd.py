"""Real etcd servers on loopback, as processes of the test: one member, or a cluster of three.

Invariants: members end with the block that started them, whatever became of them in between. Their ports are free ones:
a member that was killed is started again at the same ports, with its data.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import urllib.request
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import pytest

from slotmesh.config.etcd import EtcdPlace
from tests.support.controllers import eventually

ETCD: Final = shutil.which("etcd")
needs_etcd: Final = pytest.mark.skipif(
    ETCD is None, reason="etcd IS NOT INSTALLED: tests of the store in etcd are SKIPPED; install Debian's `etcd-server`"
)


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [it.getsockname()[1] for it in held]
    for each in held:
        each.close()
    return ports


class EtcdMember:
    """One server."""

    def __init__(self, folder: Path, name: str, client_port: int, peer_port: int) -> None:
        self.folder = folder
        self.name = name
        self.address = f"127.0.0.1:{client_port}"
        self.peer = f"http://127.0.0.1:{peer_port}"
        self.flags: Sequence[str] = ()
        self.scheme = "http"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, cluster: str) -> None:
        assert ETCD is not None
        url = f"{self.scheme}://{self.address}"
        log = (self.folder / f"{self.name}.log").open("ab")
        with closing(log):
            self.process = subprocess.Popen(
                [
                    *(ETCD, f"--name={self.name}", f"--data-dir={self.folder / self.name}"),
                    *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
                    *(f"--listen-peer-urls={self.peer}", f"--initial-advertise-peer-urls={self.peer}"),
                    f"--initial-cluster={cluster}",
                    *self.flags,
                ],
                stdout=log,
                stderr=log,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        if number is signal.SIGSTOP:  # its threads may run on for a moment, and answer
            os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """As a power failure does."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def post(self, path: str, request: dict[str, Any]) -> Any:
        """By its JSON gateway: what the product needs not."""
        data = json.dumps(request).encode()
        with urllib.request.urlopen(f"http://{self.address}/v3/{path}", data, timeout=10) as response:
            return json.load(response)

    def status(self) -> Any:
        return self.post("maintenance/status", {})


class EtcdCluster:
    """Members that know each other."""

    def __init__(self, folder: Path, size: int, flags: Sequence[str] = ()) -> None:
        ports = _free_ports(2 * size)
        self.members = [EtcdMember(folder, f"m{it}", ports[2 * it], ports[2 * it + 1]) for it in range(size)]
        for each in self.members:
            each.flags = flags

    @property
    def _cluster(self) -> str:
        return ",".join(f"{it.name}={it.peer}" for it in self.members)

    def place(self, mesh: str = "m") -> EtcdPlace:
        return EtcdPlace(tuple(it.address for it in self.members), mesh)

    def start(self, *members: EtcdMember) -> None:
        for each in members or self.members:
            each.start(self._cluster)

    async def leader(self) -> EtcdMember:
        """The member that leads, once one does."""

        async def look() -> EtcdMember | None:
            for each in (it for it in self.members if it.process is not None):
                assert each.process is not None
                assert each.process.poll() is None, (each.folder / f"{each.name}.log").read_text()
                try:
                    status = await asyncio.to_thread(each.status)
                except OSError:
                    continue
                if status.get("leader", "0") == status["header"]["member_id"]:
                    return each
            return None

        found = await eventually(look, what="a member of etcd that leads", timeout=30)
        assert found is not None
        return found

    def kill(self) -> None:
        for each in self.members:
            each.kill()

    def keys(self, prefix: str) -> dict[str, bytes]:
        """All that is stored, by the gateway of the first member that runs."""
        member = next(it for it in self.members if it.process is not None)
        start = prefix.encode()
        request = {
            "key": b64encode(start).decode(),
            "range_end": b64encode(start[:-1] + bytes([start[-1] + 1])).decode(),
        }
        found = member.post("kv/range", request).get("kvs", [])
        return {b64decode(it["key"]).decode(): b64decode(it.get("value", "")) for it in found}


@asynccontextmanager
async def etcd_cluster(folder: Path, size: int = 1, *flags: str) -> AsyncIterator[EtcdCluster]:
    """Members that serve."""
    folder.mkdir(exist_ok=True)  # noqa: ASYNC240 - a test's own
    cluster = EtcdCluster(folder, size, flags)
    try:
        cluster.start()
        await cluster.leader()
        yield cluster
    finally:
        cluster.kill()
