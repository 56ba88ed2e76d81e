"""DNS of the cluster: the name of a Service leads to the addresses of its ready pods.

It stands for CoreDNS and, as there is no kube-proxy, for virtual addresses: a Service that has one answers like a
headless one. `POD.SERVICE.NAMESPACE.svc.cluster.local` leads to a pod with that hostname and subdomain. Endpoints are
found as the endpoints controller does (selector, readiness, deletion): that one refuses loopback addresses.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, cast

from tests.kube.rig.api import Api, Document
from tests.kube.rig.control_plane import ADMIN_TOKEN, ControlPlane

DOMAIN: Final = "svc.cluster.local"
TTL_S: Final = 1
MOST_UDP_BYTES: Final = 1232
_A: Final = 1
_NO_SUCH_NAME: Final = 3


class ClusterDns:
    """What is known of Services and pods, kept by watches."""

    def __init__(self) -> None:
        self.queries: list[str] = []
        """Names that were asked for."""
        self.services: dict[str, Document] = {}
        self.pods: dict[str, Document] = {}

    def addresses(self, name: str) -> list[str] | None:
        """Addresses of this name. None: there is no such name."""
        parts = name.lower().rstrip(".").removesuffix(f".{DOMAIN}").split(".")
        if not name.lower().rstrip(".").endswith(f".{DOMAIN}") or len(parts) not in (2, 3):
            return None
        *hostname, service, namespace = parts
        found = self.services.get(f"{namespace}/{service}")
        if found is None:
            return None
        pods = [pod for pod in self.pods.values() if _is_endpoint(pod, found)]
        if not hostname:
            return sorted(pod["status"]["podIP"] for pod in pods)
        named = [pod["status"]["podIP"] for pod in pods if pod["spec"].get("hostname") == hostname[0]]
        return named or None

    def answer(self, query: bytes, *, most_bytes: int) -> bytes:
        """The response to a query of one question."""
        number, flags, _, _, _, _ = struct.unpack_from("!6H", query)
        labels, position = [], 12
        while length := query[position]:
            labels.append(query[position + 1 : position + 1 + length].decode("ascii", "replace"))
            position += 1 + length
        question = query[12 : position + 5]
        (kind,) = struct.unpack_from("!H", query, position + 1)
        name = ".".join(labels)
        self.queries.append(name)
        addresses = self.addresses(name)
        code = _NO_SUCH_NAME if addresses is None else 0
        records = [
            struct.pack("!3HIH4B", 0xC00C, _A, 1, TTL_S, 4, *map(int, address.split(".")))
            for address in (addresses or [] if kind == _A else [])
        ]
        is_cut = 12 + len(question) + 16 * len(records) > most_bytes
        if is_cut:
            records = []
        reply = 0x8480 | (flags & 0x0100) | (0x0200 if is_cut else 0) | code
        return struct.pack("!6H", number, reply, 1, len(records), 0, 0) + question + b"".join(records)

    async def serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Queries over TCP, each with its length before it."""
        try:
            while True:
                (length,) = struct.unpack("!H", await reader.readexactly(2))
                answer = self.answer(await reader.readexactly(length), most_bytes=65_000)
                writer.write(struct.pack("!H", len(answer)) + answer)
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    async def observe(self, api: Api, path: str, into: dict[str, Document]) -> None:
        async for kind, item in api.observe(path):
            if kind == "LISTED":
                into.clear()
                into.update({_key(it): it for it in item["items"]})
            elif kind == "DELETED":
                into.pop(_key(item), None)
            else:
                into[_key(item)] = item


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, dns: ClusterDns) -> None:
        self._dns = dns
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        self._transport.sendto(self._dns.answer(data, most_bytes=MOST_UDP_BYTES), addr)


@asynccontextmanager
async def cluster_dns(control_plane: ControlPlane, port: int = 53) -> AsyncIterator[ClusterDns]:
    """Serves on the control plane's address. Port 53 takes root."""
    dns = ClusterDns()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _Datagrams(dns), local_addr=(control_plane.address, port)
    )
    server = await asyncio.start_server(dns.serve_connection, control_plane.address, port)
    async with Api(control_plane.server, ADMIN_TOKEN, str(control_plane.ca)) as api:
        tasks = [
            asyncio.ensure_future(dns.observe(api, "/api/v1/services", dns.services)),
            asyncio.ensure_future(dns.observe(api, "/api/v1/pods", dns.pods)),
        ]
        try:
            yield dns
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            server.close()
            transport.close()


def _is_endpoint(pod: Document, service: Document) -> bool:
    selector, labels = service["spec"].get("selector"), pod["metadata"].get("labels", {})
    metadata, status = pod["metadata"], pod.get("status", {})
    if not selector or metadata["namespace"] != service["metadata"]["namespace"] or not status.get("podIP"):
        return False
    if any(labels.get(key) != value for key, value in selector.items()) or status["phase"] in ("Failed", "Succeeded"):
        return False
    if service["spec"].get("publishNotReadyAddresses"):
        return True
    is_ready = any(it["type"] == "Ready" and it["status"] == "True" for it in status.get("conditions", ()))
    return is_ready and "deletionTimestamp" not in metadata


def _key(item: Document) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"
