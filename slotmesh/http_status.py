"""The one table from gRPC statuses and reasons to statuses of HTTP. Pure.

Invariants: each gRPC status has one; a reason goes before its status only if HTTP has a status of its own for it. A
failure of a call that ran is never reported as an error of the request, unless the handler chooses such a status.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from slotmesh.errors import Executed, Reason

HTTP_STATUS_OF: Final[Mapping[str, int]] = MappingProxyType(
    {
        "CANCELLED": 499,
        "UNKNOWN": 500,
        "INVALID_ARGUMENT": 400,
        "DEADLINE_EXCEEDED": 504,
        "NOT_FOUND": 404,
        "ALREADY_EXISTS": 409,
        "PERMISSION_DENIED": 403,
        "RESOURCE_EXHAUSTED": 429,
        "FAILED_PRECONDITION": 400,
        "ABORTED": 409,
        "OUT_OF_RANGE": 400,
        "UNIMPLEMENTED": 501,
        "INTERNAL": 500,
        "UNAVAILABLE": 503,
        "DATA_LOSS": 500,
        "UNAUTHENTICATED": 401,
    }
)
"""By the name of the gRPC status."""
HTTP_STATUS_OF_REASON: Final[Mapping[Reason, int]] = MappingProxyType(
    {
        Reason.PAYLOAD_TOO_LARGE: 413,
        Reason.QUEUE_FULL: 503,
        Reason.WINDOW_EXCEEDED: 503,
    }
)
"""Before the status: what is too large; and queues of the mesh, which no single caller has filled."""
CLIENT_CLOSED: Final = 499
"""No standard: the caller has left, or took the call back."""
_TITLES: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "Bad Request",
        401: "Unauthorized",
        403: "Forbidden",
        404: "Not Found",
        405: "Method Not Allowed",
        406: "Not Acceptable",
        408: "Request Timeout",
        409: "Conflict",
        413: "Content Too Large",
        415: "Unsupported Media Type",
        422: "Unprocessable Content",
        429: "Too Many Requests",
        431: "Request Header Fields Too Large",
        499: "Client Closed Request",
        500: "Internal Server Error",
        501: "Not Implemented",
        503: "Service Unavailable",
        504: "Gateway Timeout",
        505: "HTTP Version Not Supported",
    }
)


def http_status(status: str, reason: Reason, executed: Executed) -> int:
    """Of a failure: the name of its gRPC status, its reason, and whether the call was executed."""
    if executed is Executed.YES and reason is Reason.PAYLOAD_TOO_LARGE:
        return 500  # the result is too large: nothing was wrong with the request
    if (special := HTTP_STATUS_OF_REASON.get(reason)) is not None:
        return special
    return HTTP_STATUS_OF.get(status, 500)


def title_of(status: int) -> str:
    """The words of a status."""
    return _TITLES.get(status, "Error")
