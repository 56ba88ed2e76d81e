"""The options of a view of an endpoint: what it says about all of its calls.

Invariants: options never change once made. What every router would refuse is refused here, where it is said, by the
same reason and before anything is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal, TypedDict, Unpack

from slotmesh.codec import CONTENT_TYPES, MSGPACK
from slotmesh.errors import BadRequest, Failure, Reason
from slotmesh.status import code_of, name_of
from slotmesh.units import MAX_DURATION_S
from slotmesh.v1 import call_pb2

_STATUS: Final = name_of(code_of(Failure(reason=Reason.BAD_REQUEST, message="")))


AfterFailure = Literal["continue", "stop"]


class BadOption(BadRequest, ValueError):
    """An option that no call may have: what a router would answer, and a mistake of the calling program."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(
            f"{_STATUS}/{Reason.BAD_REQUEST.value}: {name} {problem}", status=_STATUS, metadata={"field": name}
        )


class OptionChanges(TypedDict, total=False):
    """What a view may say differently from the view that it is made from. `Endpoint.options` says what each means."""

    content_type: str
    timeout: float | timedelta | None
    slo: float | timedelta | None
    slo_at: datetime | None
    shard_key: str
    metadata: Mapping[str, str]
    idempotent: bool
    reply: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions:
    """What a view of an endpoint says about all of its calls. Raises BadOption where no call may have it."""

    content_type: str = MSGPACK
    timeout_s: float | None = None
    """From the call's arrival at the router, seconds. None: only the backend's `max_queue_time` limits it."""
    slo_s: float | None = None
    """From the call's arrival at the router, seconds."""
    slo_at: datetime | None = None
    """Aware of its time zone. At most one of the two SLOs is set."""
    shard_key: str = ""
    ordering_key: str = ""
    metadata: Mapping[str, str] | None = None
    idempotent: bool = False
    reply: bool = True
    """False: callers hear only that the call has ended."""
    streaming: bool = False
    """Each value that a handler yields comes by itself. Not for callers to say: it is another way to call."""
    after_failure: AfterFailure = "continue"
    """What calls of a lane do after one of them has failed."""

    def __post_init__(self) -> None:
        self._check_types()
        if self.content_type not in CONTENT_TYPES:
            raise BadOption("content_type", f"must be one of {', '.join(CONTENT_TYPES)}, got {self.content_type!r}")
        for name, value in (("timeout", self.timeout_s), ("slo", self.slo_s)):
            if value is not None and not (0 <= value <= MAX_DURATION_S):  # NaN neither
                raise BadOption(name, f"must be 0 … {MAX_DURATION_S:,} seconds, got {value!r}")
        if self.slo_at is not None:
            if self.slo_s is not None:
                raise BadOption("slo", "and slo_at are both given; give one of them")
            if self.slo_at.utcoffset() is None:
                raise BadOption("slo_at", f"must be aware of its time zone, as datetime.now(UTC) is, got {self.slo_at}")

        if self.after_failure not in ("continue", "stop"):
            raise BadOption("after_failure", f"must be 'continue' or 'stop', got {self.after_failure!r}")

    @property
    def stops(self) -> bool:
        """Whether calls fail after one of their lane has failed."""
        return self.after_failure == "stop"

    def _check_types(self) -> None:
        numbers: dict[str, Any] = {"timeout": self.timeout_s, "slo": self.slo_s}
        for name, number in numbers.items():
            if number is not None and (isinstance(number, bool) or not isinstance(number, (int, float))):
                raise BadOption(name, f"must be a number of seconds or a timedelta, got {number!r}")
        texts: dict[str, Any] = {"shard_key": self.shard_key, "ordering_key": self.ordering_key}
        for name, text in texts.items():
            if not isinstance(text, str):
                raise BadOption(name, f"must be a str, got {text!r}")
        entries: Mapping[Any, Any] = self.metadata or {}
        for key, value in entries.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise BadOption("metadata", f"must map str to str, got {key!r}: {value!r}")

    def changed(self, **changes: Unpack[OptionChanges]) -> ViewOptions:
        """These options with some of them changed. A new SLO takes the place of the other kind."""
        if unknown := changes.keys() - OptionChanges.__annotations__.keys():
            known = ", ".join(OptionChanges.__annotations__)
            raise TypeError(f"there is no option {', '.join(sorted(unknown))}; there are {known}")
        given: dict[str, Any] = dict(changes)
        for name in ("timeout", "slo"):
            if name in given:
                given[f"{name}_s"] = seconds(given.pop(name))
        if given.get("slo_s") is not None:
            given.setdefault("slo_at", None)
        elif given.get("slo_at") is not None:
            given.setdefault("slo_s", None)
        if "metadata" in given:
            given["metadata"] = dict(given["metadata"])
        return replace(self, **given)

    def to_wire(self, method: str, stop_generation: int = 0) -> call_pb2.CallOptions:
        """The options of calls of one method. `__call__` travels as the empty name. `stop_generation`: of its lane."""
        wire = call_pb2.CallOptions(
            method="" if method == "__call__" else method,
            content_type=self.content_type,
            shard_key=self.shard_key,
            ordering_key=self.ordering_key,
            idempotent=self.idempotent,
            no_reply=not self.reply,
            streaming=self.streaming,
            stop_generation=stop_generation,
            metadata=self.metadata or {},
        )
        if self.timeout_s is not None:
            wire.timeout.FromNanoseconds(round(self.timeout_s * 1e9))
        if self.slo_s is not None:
            wire.relative_slo.FromNanoseconds(round(self.slo_s * 1e9))
        if self.slo_at is not None:
            wire.absolute_slo.FromDatetime(self.slo_at)
        return wire


def seconds(time: float | timedelta | None) -> float | None:
    """A length of time as people write it, in seconds."""
    return time.total_seconds() if isinstance(time, timedelta) else time
