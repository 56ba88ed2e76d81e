"""What is written down of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ingress_service.core.counters import Counters
from ingress_service.core.request_ids import given_id
from ingress_service.core.requests import RequestHeaders
from ingress_service.shell.failed_requests import FailedRequests
from ingress_service.shell.request_spans import RequestSpans
from slotmesh.ids import new_id

_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class RequestRecords:
    """For operators: figures, the log of failures, traces."""

    counters: Counters
    failures: FailedRequests
    spans: RequestSpans


def request_id_of(headers: RequestHeaders) -> str:
    """What a request is called in answers and logs: as its client says, or a new id."""
    return (given_id(headers.x_request_id) if headers.x_request_id else "") or new_request_id()


def new_request_id() -> str:
    """Of a request whose client has given it none."""
    return new_id(_ID_BYTES)
