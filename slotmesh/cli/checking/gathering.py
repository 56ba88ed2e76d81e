"""Gathers the input of a check: queries the controller, and every server that it lists, concurrently.

Invariants: a state that may be momentary, such as a router without the newest table, counts only if it lasts. A server
that does not respond in time is reported as a result, too; the time and the number of queries are bounded.
Owner: the command `check`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import grpc

from slotmesh.cli.checking.asking_ingresses import ask_ingresses
from slotmesh.cli.checking.findings import AnnouncedAddress, IngressUrl, OwnTls, SeenMesh, ServerAnswer, Validity
from slotmesh.cli.checking.losses import ASK_WITHIN_S, lost_members, still_lost
from slotmesh.cli.connection import begin, resolved
from slotmesh.cli.console import CommandFailed, looks
from slotmesh.cli.controller_view import ENDED, Members, Snapshot
from slotmesh.cli.credentials import credentials, dialer
from slotmesh.cli.figures import figures_of, report_age_s, unix_time
from slotmesh.cli.operator import Operator
from slotmesh.client.tls import Tls
from slotmesh.errors import NotLeader, Reason, SlotmeshError
from slotmesh.security.identity import Role
from slotmesh.security.secret_files import authorities_in
from slotmesh.spec.model import Prospect
from slotmesh.status import from_rpc_error
from slotmesh.units import parse_host_port
from slotmesh.v1.info_service_pb2 import GetServerInfoRequest
from slotmesh.version import VERSION

SETTLES_WITHIN_S: Final = 3.0
"""How long a router may take to get a table, or a link."""
_LOOK_EVERY_S: Final = 0.1
SILENT_S: Final = 10.0
"""Routers report every second."""


async def look_at(address: str, ingresses: Sequence[IngressUrl] = ()) -> SeenMesh:
    """The whole mesh, and the named ingresses.

    Raises CommandFailed or SlotmeshError if no leading controller can be queried.
    """
    own = own_tls()
    given = [each for each, _ in await resolved(address.split(","), "controller")]
    async with Operator.at(address) as operator:
        try:
            async with asyncio.timeout(ASK_WITHIN_S):
                snapshot = await operator.snapshot()
                routes = (await operator.configuration()).routes
        except NotLeader:
            standing = await operator.standing()
            leader = standing.role.leader_address
            way_out = f"check that one: --address {leader}" if leader else "name all controllers, with commas"
            raise CommandFailed(f"{standing.address} stands by, and does not lead; {way_out}") from None
        except TimeoutError:
            raise CommandFailed(f"the controller does not answer within {ASK_WITHIN_S:g} s") from None
        answers, asked, (snapshot, lagging, unlinked), (silent, prospects, failing), lost = await asyncio.gather(
            ask_all([*announced_by(snapshot), *_others(given, snapshot)]),
            ask_ingresses(ingresses),
            _settled(operator, snapshot),
            _sampled(operator),
            lost_members(operator),
        )
    return SeenMesh(
        now=time.time(),
        own_version=VERSION,
        snapshot=snapshot,
        answers=(*answers, *asked),
        routes=routes,
        own_tls=own,
        lost_members=still_lost(lost, snapshot.members, time.time()),
        silent_routers=silent,
        prospects=prospects,
        failing_calls=failing,
        lagging_routers=lagging,
        unlinked=unlinked,
    )


def announced_by(snapshot: Snapshot) -> Iterator[AnnouncedAddress]:
    """All addresses that members announce: each server, each page of metrics."""
    if (standing := snapshot.controller) is not None:
        yield AnnouncedAddress(subject=f"controller {standing.address}", kind="controller", address=standing.address)
        for address in standing.role.standby_addresses:
            yield AnnouncedAddress(subject=f"controller {address}", kind="standby", address=address)
    for router in snapshot.members.routers:
        subject = f"router/{router.router_id}"
        yield AnnouncedAddress(subject=subject, kind="router", address=router.address, server_id=router.router_id)
        if router.metrics_address:
            yield AnnouncedAddress(subject=subject, kind="metrics of a router", address=router.metrics_address)
    for replica in snapshot.members.replicas:
        if replica.state in ENDED or not replica.address:
            continue
        subject, backend = f"replica/{replica.replica_id}", replica.backend
        yield AnnouncedAddress(
            subject=subject, kind="replica", address=replica.address, server_id=replica.replica_id, backend=backend
        )
        if replica.metrics_address:
            yield AnnouncedAddress(subject=subject, kind="metrics of a replica", address=replica.metrics_address)


def _others(addresses: Sequence[str], snapshot: Snapshot) -> Iterator[AnnouncedAddress]:
    """Controllers that the command was given, and that the leader does not name: they may lead as well."""
    standing = snapshot.controller
    known = () if standing is None else (standing.address, *standing.role.standby_addresses)
    for address in addresses:
        if address not in known:
            yield AnnouncedAddress(subject=f"controller {address}", kind="controller", address=address, is_listed=False)


async def _settled(
    operator: Operator, snapshot: Snapshot
) -> tuple[Snapshot, frozenset[str], dict[str, tuple[str, ...]]]:
    """The newest snapshot, routers that are behind all the while, and links that are lacking all the while."""
    lagging, lacking = _lagging(snapshot.members), _lacking(snapshot.members)
    async for is_last in looks(_LOOK_EVERY_S, SETTLES_WITHIN_S):
        lagging, lacking = lagging & _lagging(snapshot.members), lacking & _lacking(snapshot.members)
        if is_last or not (lagging or lacking):
            break
        snapshot = await operator.snapshot()
    unlinked: dict[str, tuple[str, ...]] = {}
    for router_id, replica_id in sorted(lacking):
        unlinked[router_id] = (*unlinked.get(router_id, ()), replica_id)
    return snapshot, lagging, unlinked


def _lagging(members: Members) -> frozenset[str]:
    return frozenset(it.router_id for it in members.routers if not members.is_current(it))


def _lacking(members: Members) -> frozenset[tuple[str, str]]:
    ready = members.ready()
    return frozenset((it.router_id, name) for it in members.routers for name in members.unlinked(it, ready))


async def _sampled(operator: Operator) -> tuple[dict[str, float], dict[str, Prospect], dict[str, tuple[float, float]]]:
    """The age of reports that are overdue, by router; prospects, by backend; `failing_calls`. Empty without an answer.

    Failures are those of the last seconds, as in `slotmesh top`.
    """
    try:
        sample = await operator.sample(timeout_s=ASK_WITHIN_S)
    except (CommandFailed, SlotmeshError):
        return {}, {}, {}
    ages = {it.router.router_id: report_age_s(it, sample) for it in sample.routers}
    known = {it.value: it for it in Prospect}
    prospects = {it.name: known[it.status.prospect] for it in sample.backends if it.status.prospect in known}
    silent = {router_id: age_s for router_id, age_s in ages.items() if age_s is not None and age_s > SILENT_S}
    rows = figures_of(sample).endpoints
    failing = {it["name"]: (it["failures_per_s"] or 0.0, it["calls_per_s"] or 0.0) for it in rows}
    return silent, prospects, failing


ANSWER_WITHIN_S: Final = 3.0
AT_A_TIME: Final = 64
_NO_SERVER: Final = "what answers there is no server of a mesh"


async def ask_all(announced: Sequence[AnnouncedAddress]) -> tuple[ServerAnswer, ...]:
    """An answer for each, in this order."""
    room = asyncio.Semaphore(AT_A_TIME)

    async def ask(each: AnnouncedAddress) -> ServerAnswer:
        async with room:
            if each.kind.startswith("metrics"):
                return await _connect(each)
            answer, (certificate, uris) = await asyncio.gather(_ask(each), _certificate(each.address))
            return replace(answer, certificate=certificate, certificate_uris=uris)

    return tuple(await asyncio.gather(*map(ask, announced)))


def own_tls() -> OwnTls:
    """What the command that runs connects with. Raises CommandFailed where it cannot be used."""
    tls = credentials().tls
    dialer()  # raises CommandFailed, worded as in other commands
    if tls is None:
        return OwnTls()
    # Most of a second, for those who have certificates.
    from slotmesh.security.tls.certificates import read_certificates  # noqa: PLC0415 - see above
    from slotmesh.security.tls.files import read_pem  # noqa: PLC0415

    own, authority = (
        None if path is None else read_certificates(read_pem(path, "certificate"))[0] for path in (tls.cert, tls.ca)
    )
    return OwnTls(
        by_tls=True,
        name="" if own is None else ", ".join(own.uris),
        certificate=None if own is None else Validity(own.not_before, own.not_after),
        authority=None if authority is None else Validity(authority.not_before, authority.not_after),
    )


async def _ask(announced: AnnouncedAddress) -> ServerAnswer:
    role = announced.role
    async with dialer().open(announced.address, role, announced.backend) as channel:
        began, sent_at = time.monotonic(), time.time()
        try:
            info = await begin(channel, GetServerInfoRequest(), timeout=ANSWER_WITHIN_S)
        except grpc.RpcError as error:
            return ServerAnswer(announced=announced, problem=_problem(error, role, announced.backend))
        took_s = time.monotonic() - began
    ahead_s = unix_time(info.time) - sent_at - took_s / 2 if info.HasField("time") else None
    return ServerAnswer(announced=announced, info=info, ahead_s=ahead_s, uncertain_s=took_s / 2)


def _problem(error: grpc.RpcError, role: Role, backend: str) -> str:
    failure = from_rpc_error(error)
    if failure.reason is Reason.NOT_IMPLEMENTED:
        return _NO_SERVER
    if failure.reason is Reason.DEADLINE_RUNNING:
        return f"no answer within {ANSWER_WITHIN_S:g} s"
    return dialer().explained(failure.message.splitlines()[0], role, backend)


async def _connect(announced: AnnouncedAddress) -> ServerAnswer:
    """Whether anything listens there."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            _, writer = await asyncio.open_connection(*parse_host_port(announced.address))
    except (OSError, ValueError) as error:  # TimeoutError is an OSError
        problem = getattr(error, "strerror", None) or f"no connection within {ANSWER_WITHIN_S:g} s"
        return ServerAnswer(announced=announced, problem=problem)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return ServerAnswer(announced=announced)


async def _certificate(address: str) -> tuple[Validity | None, tuple[str, ...]]:
    """The validity and the names of the certificate that the server presents.

    None for plain text, or if it presents no valid certificate.
    """
    tls = credentials().tls
    if tls is None:
        return None, ()
    try:
        host, port = parse_host_port(address)
        async with asyncio.timeout(ANSWER_WITHIN_S):
            _, writer = await asyncio.open_connection(host, port, ssl=_context(tls), server_hostname=host)
    except (OSError, ValueError):  # SSLError is an OSError
        return None, ()
    shown = writer.get_extra_info("peercert") or {}
    writer.transport.abort()
    names: Any = shown.get("subjectAltName", ())
    return Validity.shown(shown), tuple(str(name) for kind, name in names if kind == "URI")


def _context(tls: Tls) -> ssl.SSLContext:
    """Trusts the same authority, but does not check the certificate's name: the rpc's own connection does."""
    context = ssl.create_default_context(cadata=None if tls.ca is None else authorities_in(tls.ca))
    context.check_hostname = False
    context.set_alpn_protocols(["h2"])
    if tls.cert is not None and tls.key is not None:
        context.load_cert_chain(tls.cert, tls.key)
    return context
