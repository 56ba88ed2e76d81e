"""What a replica's log says of the call in which something is logged, by a handler or of it.

Invariants: asked only where something is logged, so that calls pay nothing; where it cannot be told which call it is,
nothing is said; never a payload, metadata or a key. Of a session the log has the beginning of its id.
Owner: the set-up of logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from opentelemetry import trace

from slotmesh.handlers.context import current_place

SESSION_CHARS: Final = 8
REQUEST_ID_FACT: Final = "request_id"


def facts_of_call() -> Mapping[str, str]:
    """Endpoint, session, id of the call and of its request, and trace, as far as there are any here."""
    facts: dict[str, str] = {}
    place = current_place.get()
    if place is not None:
        try:
            calls = place.contexts()
        except RuntimeError:  # it cannot be told which of several calls
            calls = ()
        if len(calls) == 1:
            facts["call_id"] = calls[0].call_id
            if request_id := calls[0].request_id:
                facts[REQUEST_ID_FACT] = request_id
            if calls[0].session_id:
                facts["session"] = calls[0].session_id[:SESSION_CHARS]
        elif calls:
            facts["calls"] = str(len(calls))
        if calls:
            facts["endpoint"] = calls[0].endpoint
    span = trace.get_current_span().get_span_context()
    if span.is_valid:
        facts["trace_id"] = f"{span.trace_id:032x}"
    return facts
