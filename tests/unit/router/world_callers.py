"""Callers without a connection, and options of calls as the edge would make them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from router_service.core.callers import Window
from router_service.core.calls import RouterCallOptions
from router_service.core.rosters import SessionConnection
from router_service.core.runs import Caller
from slotmesh.calls.id_ranges import Range
from slotmesh.calls.key_hash import partition_of

SESSION = "5e55" * 8

Fields = dict[str, Any]
"""Options of calls."""


@lru_cache
def options(**fields: Any) -> RouterCallOptions:
    """Options as the edge would make them: equal ones are one object."""
    key = fields.get("ordering_key", "")
    routing = ("ordering_key", "shard_key", "affinity_key", "prefix_blocks", "slo_s", "slo_at", "tenant")
    wire = repr(sorted((name, value) for name, value in fields.items() if name not in routing)).encode()
    return RouterCallOptions(partition=partition_of(key) if key else -1, wire=wire, **fields)


def caller() -> Caller:
    """A caller whose window is of no concern, with a flow of its own."""
    return Caller(Window(calls=10**9, bytes=10**12))


def session_caller(epoch: int = 1, *unanswered: Range, session_id: str = SESSION) -> Caller:
    """A caller whose calls are those of a session."""
    return Caller(Window(calls=10**9, bytes=10**12), session=SessionConnection(session_id, epoch, unanswered))
