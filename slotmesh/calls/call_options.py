"""The options of calls, each declared once, with its default. Pure.

The declaration of an option determines which values clients refuse (`slotmesh.client.calls.options`) and servers, too
(`slotmesh.convert.call_options`), its form on the wire, the services that read it, and the rpcs that it has an effect
on: others refuse it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import Enum, Flag, auto
from types import MappingProxyType
from typing import Any, Final, TypedDict, TypeVar

ValueT = TypeVar("ValueT")
_DECLARED: Final = "option"
"""Key in the metadata of a dataclass's field."""


class OptionKind(Enum):
    """The type of an option's values."""

    METHOD = auto()
    CONTENT_TYPE = auto()
    KEY = auto()
    """Text of a bounded length; empty: none."""
    TENANT = auto()
    """Printable text of a bounded length; empty: none."""
    DURATION = auto()
    """Seconds, not negative; None: not set. On the wire a Duration."""
    TIME = auto()
    """A time of day, aware of its zone; None: not set. On the wire a Timestamp."""
    FLAG = auto()
    COUNT = auto()
    """An integer, not negative."""
    METADATA = auto()
    """Text by name, bounded."""
    MARK = auto()
    """Some bytes that cannot be guessed; empty: none."""
    BLOCKS = auto()
    """Integers of 64 bits, not negative; empty: none."""


class Reader(Flag):
    """The services that decide by an option."""

    ROUTER = auto()
    REPLICA = auto()


class CallRpc(Enum):
    """The rpcs whose requests have options. Values are their names."""

    CALL = "RouterService.Call"
    CALL_STREAMING = "RouterService.CallStreaming"
    STREAM_CALLS = "RouterService.StreamCalls"
    BROADCAST = "RouterService.Broadcast"
    RESERVE_SLOT = "SlotService.ReserveSlot"
    DISPATCH = "SlotService.Dispatch"
    DISPATCH_STREAMING = "SlotService.DispatchStreaming"
    ATTACH = "DirectService.Attach"


ROUTED: Final = frozenset({CallRpc.CALL, CallRpc.CALL_STREAMING, CallRpc.STREAM_CALLS})
"""A router chooses the replica."""
IN_SLOTS: Final = frozenset({CallRpc.DISPATCH, CallRpc.DISPATCH_STREAMING, CallRpc.ATTACH})
"""The slot has chosen the replica."""
PLACED: Final = IN_SLOTS | {CallRpc.BROADCAST}
"""The replica is given."""
QUEUED: Final = ROUTED | {CallRpc.RESERVE_SLOT}
IDENTIFIED: Final = frozenset({CallRpc.CALL, CallRpc.CALL_STREAMING})
"""Calls that a client may identify by a request id, beside those in slots."""
GIVES_VALUES: Final = frozenset({CallRpc.CALL_STREAMING, CallRpc.DISPATCH_STREAMING})
"""Each response is one value that the handler yields."""
_STREAMS: Final = frozenset({CallRpc.STREAM_CALLS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, as it was declared."""

    attribute: str
    """Name of the field in Python."""
    kind: OptionKind
    read_by: Reader
    rpcs: frozenset[CallRpc]
    """Where it has an effect."""
    wire: str = ""
    """Name of the field of the message if it differs from `argument`."""
    stays: bool = False
    """Routers remove it from the options for replicas, so that calls which differ only in it travel as one batch."""

    @property
    def argument(self) -> str:
        """Its name for callers."""
        return self.attribute.removesuffix("_s") if self.kind is OptionKind.DURATION else self.attribute

    @property
    def name(self) -> str:
        """Its name on the wire."""
        return self.wire or self.argument

    @property
    def is_of_streams(self) -> bool:
        """Whether it is a field of `CallOptions.stream`."""
        return self.rpcs is _STREAMS

    @property
    def path(self) -> str:
        """Its path in `CallOptions`."""
        return f"stream.{self.name}" if self.is_of_streams else self.name

    @property
    def has_presence(self) -> bool:
        """Whether the message distinguishes an unset field from one with the value 0."""
        return self.kind in {OptionKind.DURATION, OptionKind.TIME}


def option(
    default: ValueT, kind: OptionKind, *, read_by: Reader, rpcs: frozenset[CallRpc], wire: str = "", stays: bool = False
) -> ValueT:
    """Declares a field of a dataclass; `Option` documents each argument."""
    metadata = {_DECLARED: {"kind": kind, "read_by": read_by, "rpcs": rpcs, "wire": wire, "stays": stays}}
    # Dataclasses take no mapping for a default, be it a read-only one, and a mapping has no hash.
    made: Any = (
        field(default_factory=lambda: default, metadata=metadata, hash=False)
        if kind is OptionKind.METADATA
        else field(default=default, metadata=metadata)
    )
    return made  # type: ignore[no-any-return]  # dataclasses make an attribute of the default's type of it


def options_of(model: type[Any]) -> Mapping[str, Option]:
    """The options that a dataclass declares, by their names on the wire, in order."""
    found = [Option(attribute=each.name, **each.metadata[_DECLARED]) for each in fields(model) if each.metadata]
    return {each.name: each for each in found}


NO_METADATA: Final[Mapping[str, str]] = MappingProxyType({})
_BOTH: Final = Reader.ROUTER | Reader.REPLICA


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedOptions:
    """The options of calls. One object for all calls of a batch."""

    method: str = option("", OptionKind.METHOD, read_by=_BOTH, rpcs=ROUTED | PLACED)
    """Empty is `__call__`."""
    content_type: str = option("", OptionKind.CONTENT_TYPE, read_by=_BOTH, rpcs=ROUTED | PLACED)
    ordering_key: str = option("", OptionKind.KEY, read_by=_BOTH, rpcs=ROUTED, stays=True)
    """Calls of one key run one after another. Batches have a field for it: one key for all calls, or one for each."""
    shard_key: str = option("", OptionKind.KEY, read_by=_BOTH, rpcs=QUEUED, stays=True)
    """Calls of one key go to one backend. No effect if there is an ordering key.
    Batches have a field for it, as handlers may read it."""
    affinity_key: str = option("", OptionKind.KEY, read_by=_BOTH, rpcs=QUEUED, stays=True)
    """Calls of one key prefer one replica, and run side by side. No effect if there is an ordering key."""
    model_id: str = option("", OptionKind.KEY, read_by=_BOTH, rpcs=frozenset(CallRpc))
    """Calls prefer a replica that has loaded this model. The handler gets it."""
    timeout_s: float | None = option(None, OptionKind.DURATION, read_by=Reader.ROUTER, rpcs=frozenset(CallRpc))
    """From a call's arrival at the router to its deadline: a later call is dropped. None: there is none."""
    slo_s: float | None = option(
        None, OptionKind.DURATION, read_by=Reader.ROUTER, rpcs=QUEUED, wire="relative_slo", stays=True
    )
    """From a call's arrival at the router to when it should be answered: orders the queue, drops nothing."""
    slo_at: datetime | None = option(
        None, OptionKind.TIME, read_by=Reader.ROUTER, rpcs=QUEUED, wire="absolute_slo", stays=True
    )
    """The same as a time of day. At most one of the two is set."""
    idempotent: bool = option(False, OptionKind.FLAG, read_by=Reader.ROUTER, rpcs=ROUTED)
    """Calls may be executed more than once."""
    no_reply: bool = option(False, OptionKind.FLAG, read_by=_BOTH, rpcs=_STREAMS)
    """The caller's only result is that the call has ended."""
    streaming: bool = option(False, OptionKind.FLAG, read_by=_BOTH, rpcs=_STREAMS, wire="each_value")
    """The caller takes each value that the handler yields. Such a call ends with its connection."""
    stop_generation: int = option(0, OptionKind.COUNT, read_by=_BOTH, rpcs=_STREAMS)
    """Once a call of its ordering key and this generation has failed, none of these starts. 0: calls continue."""
    tenant: str = option(
        "", OptionKind.TENANT, read_by=Reader.ROUTER, rpcs=frozenset(CallRpc) - {CallRpc.ATTACH}, stays=True
    )
    """On whose behalf the client calls. Calls that wait take turns by tenant, and endpoints may limit each. Of calls in
    slots, `TapService` reports it."""
    prefix_blocks: tuple[int, ...] = option((), OptionKind.BLOCKS, read_by=Reader.ROUTER, rpcs=QUEUED, stays=True)
    """Hashes of the blocks that the prompt begins with (`slotmesh.calls.prefix_hashes`). No effect if there is an
    ordering key."""
    metadata: Mapping[str, str] = option(NO_METADATA, OptionKind.METADATA, read_by=Reader.REPLICA, rpcs=ROUTED | PLACED)
    """Handed to the handler."""
    http: bytes = option(b"", OptionKind.MARK, read_by=Reader.REPLICA, rpcs=_STREAMS)
    """Calls came by HTTP, and results that end with this have more before it (`slotmesh.calls.result_envelopes`)."""


OPTIONS: Final = options_of(StatedOptions)
"""All options, by their names on the wire."""


class OptionChanges(TypedDict, total=False):
    """The options in which a view may differ from the view that it is made from.

    Attributes:
        content_type: one of `slotmesh.codec.CONTENT_TYPES`; msgpack at first.
        timeout: the total time that a call may take, from its arrival at the router; seconds or a timedelta. A call
            that takes longer is dropped. None: no limit but the backend's `max_queue_time`.
        slo: when a call should be answered, from its arrival at the router; seconds or a timedelta. It orders calls
            that wait, and drops none. None: they wait as if it were 1 s.
        slo_at: the same as a time of day, aware of its zone. A view has one of the two: the one set last.
        shard_key: calls of one shard key go to one backend, by weight. Empty: none. The key of a lane goes before it.
        affinity_key: calls of one affinity key go to one replica while that has room, and to the next one of a fixed
            order where it has not; they run side by side. Without a shard key it also chooses the backend. Empty: none.
            The key of a lane goes before it.
        model_id: the model that calls need, of a handler with `@slotmesh.multiplexed`: they go to a replica that has
            loaded it, and the handler gets it. Empty: none.
        prefix_blocks: hashes of the blocks that the prompt of the calls begins with, as
            `slotmesh.prefix_blocks(prompt)`: they go to the replica that was sent the longest of these prefixes, unless
            it is overloaded. Empty: routers read them from the arguments if the backend has `affinity: prefix`. No
            effect on calls of a lane.
        tenant: on whose behalf calls are made: the end user, customer or team behind this client. Calls that wait take
            turns by tenant, and an endpoint may limit each. Printable, at most 256 bytes. Empty: none.
        metadata: handed to the handler, replaces the view's. Keys are lower case.
        idempotent: a call may be executed more than once, and is sent again if its outcome is unknown.
        request_id: identifies one call by `unary` or `unary_stream`, 1 to 128 printable ASCII characters without
            blanks. Repeated with the same id within a minute, over any router, it is not executed again: the repetition
            gets the outcome of the first call. `unary` repeats it by itself if its router is lost, while its `timeout`
            lasts. Excludes `shard_key`, `affinity_key` and `prefix_blocks`. None: none.
        reply: False if the result is not wanted. A call returns None once it has ended at its replica, successfully or
            not; an exception means that it did not get there.
        traced: calls carry the OpenTelemetry span that they were made in, which their handler reads as
            `slotmesh.context().traceparent`. Without a span, they carry nothing.
        inherits: calls that a handler makes while it executes a call have at most the time that call has left, also if
            `timeout` is longer or None; and they carry the span that they were made in, as with `traced`: that of the
            executed call, if no other one is current. True for `slotmesh.mesh()`, else False.
    """

    content_type: str
    timeout: float | timedelta | None
    slo: float | timedelta | None
    slo_at: datetime | None
    shard_key: str
    affinity_key: str
    model_id: str
    tenant: str
    prefix_blocks: Sequence[int]
    metadata: Mapping[str, str]
    idempotent: bool
    reply: bool
    traced: bool
    inherits: bool
    request_id: str | None
