"""Findings about one host: what would stop if all processes on it ended. Pure.

Invariants: hosts are those of announced addresses. A name and an IP address cannot be compared, and a loopback address
names no host for others: such members may be on the host, and count neither as there nor as elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final

from slotmesh.cli.checking.findings import MeshFinding, Section, SeenMesh, Severity, ok
from slotmesh.cli.console import some_of
from slotmesh.cli.controller_view import READY_STATE
from slotmesh.units import is_loopback, parse_host_port

_MOST_NAMED: Final = 5


def is_on(host: str, address: str) -> bool | None:
    """Whether a member that announces this address runs on the host; None: not known."""
    other = _host_of(address)
    if not other:
        return None
    if other.lower() == host.lower():
        return True
    is_comparable = _is_ip(other) == _is_ip(host) and is_loopback(other) == is_loopback(host)
    return False if is_comparable else None


def _host_of(address: str) -> str:
    """Empty where the member has announced none that can be read."""
    try:
        return parse_host_port(address)[0]
    except ValueError:
        return ""


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Servers:
    """Servers that work and can stand in for each other, by where they run."""

    here: tuple[str, ...]
    elsewhere: tuple[str, ...]
    unknown: tuple[str, ...]

    @staticmethod
    def of(host: str, addresses: Collection[tuple[str, str]]) -> _Servers:
        """`addresses`: each server's name and announced address."""
        by_place = {
            place: tuple(name for name, address in addresses if is_on(host, address) is place)
            for place in (True, False, None)
        }
        return _Servers(by_place[True], by_place[False], by_place[None])

    def finding(self, host: str, subject: str, what: str, loss: str, fix: str) -> Iterator[MeshFinding]:
        """Nothing if enough of them are elsewhere, or none is here."""
        if self.elsewhere or not (self.here or self.unknown):
            return
        if not self.unknown:
            text = f"{what} only on {host} ({some_of(self.here, _MOST_NAMED)}): {loss}"
            yield MeshFinding(Section.HOST, Severity.ERROR, subject, text, fix)
        else:
            unknown = some_of(self.unknown, _MOST_NAMED)
            text = f"{what} perhaps only on {host}, as the host of {unknown} is not known; if so, {loss}"
            fix = f"see where it runs; let members announce (--advertise) addresses like {host}"
            yield MeshFinding(Section.HOST, Severity.WARNING, subject, text, fix)


def without_host(seen: SeenMesh, host: str) -> Iterator[MeshFinding]:
    """What would stop if all processes on the host ended."""
    snapshot, members = seen.snapshot, seen.snapshot.members
    standing = snapshot.controller
    controllers = () if standing is None else (standing.address, *standing.role.standby_addresses)
    replicas = [it for it in members.replicas if it.state == READY_STATE]
    ingresses = [it.announced for it in seen.answers if it.announced.kind == "ingress" and not it.problem]
    everyone = [
        *((f"controller {it}", it) for it in controllers),
        *((f"router/{it.router_id}", it.address) for it in members.routers),
        *((f"replica/{it.replica_id}", it.address) for it in replicas),
        *((it.subject, it.address) for it in ingresses),
    ]
    there = _Servers.of(host, everyone)
    if not (there.here or there.unknown):
        hosts = some_of(sorted({_host_of(address) for _, address in everyone}), _MOST_NAMED)
        text = f"no member announces an address on {host}; they are on {hosts or 'no host'}"
        yield MeshFinding(Section.HOST, Severity.ERROR, "", text, "name the host as members announce it")
        return
    found = [*_losses(seen, host, controllers)]
    yield from found
    if seen.routes and not ingresses:
        text = f"whether the ingresses are only on {host} is not known: no controller lists them"
        yield MeshFinding(Section.HOST, Severity.WARNING, "", text, "name them all with --http")
    if not found:
        yield ok(Section.HOST, f"nothing that works now is only on {host}, where {len(there.here)} members are")


def _losses(seen: SeenMesh, host: str, controllers: Collection[str]) -> Iterator[MeshFinding]:
    """By role, then by backend."""
    members = seen.snapshot.members
    yield from _Servers.of(host, [(f"controller {it}", it) for it in controllers]).finding(
        host,
        "",
        "the controllers are",
        "calls go on, but nothing is changed, scaled or replaced",
        "start a controller that stands by on another host",
    )
    yield from _Servers.of(host, [(it.router_id, it.address) for it in members.routers]).finding(
        host, "", "the routers are", "no call gets through", "start a router on another host"
    )
    ready_ingresses = [
        (it.announced.subject, it.announced.address)
        for it in seen.answers
        if it.ingress is not None and not it.problem and not it.ingress.not_ready
    ]
    yield from _Servers.of(host, ready_ingresses).finding(
        host, "", "the ready ingresses named with --http are", "HTTP requests fail", "start one on another host"
    )
    for backend in seen.snapshot.backends:
        name = backend.name
        ready = [(it.replica_id, it.address) for it in members.replicas if it.backend == name]
        ready = [it for it in ready if it[0] in members.ready(name)]
        yield from _Servers.of(host, ready).finding(
            host,
            f"backend/{name}",
            f"{name} has ready replicas",
            "its calls fail or wait",
            "start a replica on another host, and wait until it is ready",
        )
