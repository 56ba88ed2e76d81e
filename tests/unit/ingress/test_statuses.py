"""Statuses of HTTP by hand: what clients see of each failure, whatever table the product has."""

from __future__ import annotations

import pytest

from slotmesh.errors import Executed, Reason
from slotmesh.http_status import http_status
from slotmesh.status import STATUS_NUMBERS, STATUS_OF

OF_HANDLERS = {
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
UNEXECUTED = {
    404: "ENDPOINT_NOT_FOUND BACKEND_NOT_FOUND METHOD_NOT_FOUND REPLICA_NOT_FOUND ROUTE_NOT_FOUND",
    400: "BAD_REQUEST BAD_ARGUMENTS DUPLICATE_CALL_ID BACKEND_IN_USE REPLICA_CONNECTED SLOT_UNKNOWN SLOT_EXPIRED "
    "SLOT_USED REPLICA_GONE",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    409: "REVISION_CONFLICT APPLY_CONFLICT SESSION_FENCED RESULT_EVICTED PREDECESSOR_FAILED",
    413: "PAYLOAD_TOO_LARGE",
    429: "CLIENT_BUFFER_FULL NO_SLOT QUOTA_EXCEEDED TENANT_LIMIT",
    499: "CANCELLED",
    500: "HANDLER_ERROR BATCH_SIZE_MISMATCH INTERNAL",
    501: "NOT_IMPLEMENTED",
    503: "QUEUE_FULL WINDOW_EXCEEDED BACKEND_UNAVAILABLE STORE_UNAVAILABLE NOT_LEADER DRAINING STREAM_SILENT "
    "STALE_TABLE REPLICA_LOST ROUTER_LOST",
    504: "QUEUE_TIMEOUT DEADLINE_IN_QUEUE DEADLINE_RUNNING",
}
BY_REASON = {reason: status for status, reasons in UNEXECUTED.items() for reason in reasons.split()}


def test_each_reason_and_each_status_has_a_line() -> None:
    assert BY_REASON.keys() == {it.value for it in Reason}
    assert OF_HANDLERS.keys() == STATUS_NUMBERS.keys()


@pytest.mark.parametrize("reason", Reason, ids=lambda it: it.value)
def test_a_call_that_did_not_run(reason: Reason) -> None:
    assert http_status(STATUS_OF[reason].name, reason, Executed.NO) == BY_REASON[reason.value]


@pytest.mark.parametrize(("chosen", "status"), OF_HANDLERS.items())
def test_the_choice_of_a_handler(chosen: str, status: int) -> None:
    assert http_status(chosen, Reason.HANDLER_ERROR, Executed.YES) == status
