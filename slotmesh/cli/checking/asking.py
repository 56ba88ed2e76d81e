"""Queries the identity of each server of a mesh, concurrently, each for a bounded time.

Invariants: a server that does not respond in time is reported as a result, too; concurrent queries are bounded.
Owner: `gathering.py`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import grpc

from slotmesh.cli.checking.findings import AnnouncedAddress, OwnTls, ServerAnswer, Validity
from slotmesh.cli.credentials import credentials, dialer
from slotmesh.cli.figures import unix_time
from slotmesh.client.tls import Tls
from slotmesh.errors import Reason
from slotmesh.security.identity import Role
from slotmesh.security.secret_files import authorities_in
from slotmesh.status import from_rpc_error
from slotmesh.units import parse_host_port
from slotmesh.v1 import info_service_pb2 as pb
from slotmesh.v1.info_service_pb2_grpc import InfoServiceStub

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
        stub: Any = InfoServiceStub(channel)
        began, sent_at = time.monotonic(), time.time()
        try:
            info = await stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=ANSWER_WITHIN_S)
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
    return dialer().problem(failure.message, role, backend) or failure.message.splitlines()[0]


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
