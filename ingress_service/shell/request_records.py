"""What is written down of requests."""

from __future__ import annotations

from dataclasses import dataclass

from ingress_service.core.counters import Counters
from ingress_service.shell.failed_requests import FailedRequests
from ingress_service.shell.request_spans import RequestSpans


@dataclass(frozen=True, slots=True)
class RequestRecords:
    """For operators: figures, the log of failures, traces."""

    counters: Counters
    failures: FailedRequests
    spans: RequestSpans
