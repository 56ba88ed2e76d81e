"""InfoService: identifies the server at an address. The same for every server."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

from slotmesh.telemetry.exports import Exports
from slotmesh.v1 import info_service_pb2, info_service_pb2_grpc
from slotmesh.version import VERSION

if TYPE_CHECKING:
    # Takes most of a second to import; only for processes with certificates.
    from slotmesh.security.tls import TlsSource


class InfoServicer(info_service_pb2_grpc.InfoServiceServicer):
    """Returns the server's identity. `address` is set once it is known."""

    def __init__(
        self,
        kind: info_service_pb2.ServerKind.ValueType,
        *,
        server_id: str = "",
        incarnation: str = "",
        tls: TlsSource | None = None,
        amend: Callable[[info_service_pb2.GetServerInfoResponse], None] = lambda _: None,
    ) -> None:
        """Fields of `GetServerInfoResponse`. Created when the server starts.

        `tls`: the server's certificates; None for plain text. `amend` adds fields that change at run time.
        """
        self._tls = tls
        self._amend = amend
        self.exports: Sequence[Exports | None] = ()
        """Those of traces and of metrics, as far as there are any."""
        self.address = ""
        """The address for clients, `HOST:PORT`."""
        self._info = info_service_pb2.GetServerInfoResponse(
            kind=kind, server_id=server_id, version=VERSION, incarnation=incarnation
        )
        self._info.start_time.FromMicroseconds(round(time.time() * 1e6))

    async def GetServerInfo(
        self, request: info_service_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> info_service_pb2.GetServerInfoResponse:
        info = info_service_pb2.GetServerInfoResponse(address=self.address)
        info.MergeFrom(self._info)
        info.time.FromMicroseconds(round(time.time() * 1e6))
        info.open_descriptors, info.max_descriptors = _descriptors()
        if self._tls is not None:
            _describe_tls(self._tls, info.tls)
        for exports in self.exports:
            if exports is not None:
                _describe_exports(exports, info.exports)
        self._amend(info)
        return info


def _describe_exports(exports: Exports, standing: info_service_pb2.ExportStanding) -> None:
    standing.SetInParent()  # present even if all is well
    standing.dropped_spans += exports.dropped
    if (since := exports.failing_since) is not None:
        time_of = standing.traces_fail_time if exports.signal == "traces" else standing.metrics_fail_time
        time_of.FromMicroseconds(round(since * 1e6))


def _describe_tls(tls: TlsSource, standing: info_service_pb2.TlsStanding) -> None:
    standing.SetInParent()  # present even if all fields are zero
    trust = tls.current().trust
    revocations = trust.revocations
    standing.revoked = len(revocations.revoked)
    standing.keeps_older_files = tls.keeps_older_files
    for name in {each.subject.public_bytes() for each in trust.authorities}:
        authority = standing.authorities.add(id=sha256(name).hexdigest()[:16])
        if (made_at := revocations.made_at.get(name)) is not None:
            authority.list_create_time.FromSeconds(round(made_at))
    if revocations.next_update is not None:
        standing.lists_expire_time.FromSeconds(round(revocations.next_update))


def _descriptors() -> tuple[int, int]:
    """The number of open descriptors, and the limit; 0 if unknown."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        count = sum(1 for _ in Path("/proc/self/fd").iterdir())
    except OSError:
        count = 0
    return count, 0 if limit == resource.RLIM_INFINITY else limit
