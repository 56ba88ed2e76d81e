"""What a client that passes a bound of its connection is answered. Pure."""

from __future__ import annotations

from ingress_service.core.connection.limits import ConnectionLimits
from ingress_service.core.counters import ConnectionCut
from ingress_service.core.problems import Problem
from slotmesh.errors import Reason


def bad_request(detail: str, status: int = 400) -> Problem:
    return Problem(status=status, reason=Reason.BAD_REQUEST.value, detail=detail)


def too_many_connections() -> Problem:
    text = "too many connections (--max-connections)"
    return Problem(status=503, reason=Reason.QUOTA_EXCEEDED.value, detail=text, retry_delay_s=1.0)


def too_slow(what: ConnectionCut) -> Problem:
    part = "headers" if what is ConnectionCut.HEADER_TIME else "body"
    return bad_request(f"the {part} did not arrive in time (--{part.removesuffix('s')}-timeout)", 408)


def too_much_ahead(limits: ConnectionLimits) -> Problem:
    most = f"{limits.ahead_requests} requests, or {limits.ahead_bytes:,} bytes"
    flags = "--max-pipelined-requests, --max-ahead-size"
    return bad_request(f"more than {most}, were sent ahead of their answers ({flags})")
