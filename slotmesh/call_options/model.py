"""The options of calls, each declared once, with its default. Pure.

Purpose: what clients say, and what routers and replicas read; each of these adds what only it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final, TypedDict

from slotmesh.call_options.option import OptionKind, Reader, option, options_of

NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})
_BOTH: Final = Reader.ROUTER | Reader.REPLICA


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedOptions:
    """What calls say of themselves. One object for all calls of a batch."""

    method: str = option("", OptionKind.METHOD, read_by=_BOTH)
    """Empty is `__call__`."""
    content_type: str = option("", OptionKind.CONTENT_TYPE, read_by=_BOTH)
    ordering_key: str = option("", OptionKind.KEY, read_by=_BOTH, stays=True)
    """Calls of one key run one after another. Batches have a field for it: one key for all calls, or one for each."""
    shard_key: str = option("", OptionKind.KEY, read_by=_BOTH, stays=True)
    """Calls of one key go to one backend. Means nothing where there is an ordering key.
    Batches have a field for it, as handlers may ask for it."""
    timeout_s: float | None = option(None, OptionKind.DURATION, read_by=Reader.ROUTER)
    """From a call's arrival at the router to its deadline: what passes it is dropped. None: there is none."""
    slo_s: float | None = option(None, OptionKind.DURATION, read_by=Reader.ROUTER, wire="relative_slo", stays=True)
    """From a call's arrival at the router to when it should be answered: orders the queue, drops nothing."""
    slo_at: datetime | None = option(None, OptionKind.TIME, read_by=Reader.ROUTER, wire="absolute_slo", stays=True)
    """The same as a time of day. At most one of the two is set."""
    idempotent: bool = option(False, OptionKind.FLAG, read_by=Reader.ROUTER)
    """Calls may be executed more than once."""
    no_reply: bool = option(False, OptionKind.FLAG, read_by=_BOTH)
    """Callers hear only that a call has ended."""
    streaming: bool = option(False, OptionKind.FLAG, read_by=_BOTH)
    """Callers take each value that the handler yields. Such a call ends with its connection."""
    stop_generation: int = option(0, OptionKind.COUNT, read_by=_BOTH)
    """Once a call of its ordering key and this generation has failed, none of these starts. 0: calls go on."""
    tenant: str = option("", OptionKind.TENANT, read_by=Reader.ROUTER, stays=True)
    """On whose behalf the client calls. Calls that wait take turns by tenant, and endpoints may limit each."""
    metadata: Mapping[str, str] = option(NO_METADATA, OptionKind.METADATA, read_by=Reader.REPLICA)
    """Handed to the handler."""
    http: bytes = option(b"", OptionKind.MARK, read_by=Reader.REPLICA)
    """Calls came by HTTP, and results that end with this have more before it (`slotmesh.wire.http_heads`)."""


OPTIONS: Final = options_of(StatedOptions)
"""All options, by their names on the wire."""


class OptionChanges(TypedDict, total=False):
    """What a view may say differently from the view that it is made from. `Endpoint.options` says what each means."""

    content_type: str
    timeout: float | timedelta | None
    slo: float | timedelta | None
    slo_at: datetime | None
    shard_key: str
    tenant: str
    metadata: Mapping[str, str]
    idempotent: bool
    reply: bool
    traced: bool
    inherits: bool
