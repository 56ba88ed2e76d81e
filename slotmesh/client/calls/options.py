"""The options of a view of an endpoint, which all of its calls have, and checks of the values that callers pass.

Invariants: options never change once made. Values that every router would refuse are refused here, with the same
reason, before anything is sent. Each check takes the name of the argument, and raises BadOption, which names it and the
valid values. Options themselves are declared in `slotmesh.calls.call_options`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final, Literal, Unpack

from slotmesh.calls.call_options import OPTIONS, CallRpc, OptionChanges, OptionKind, StatedOptions
from slotmesh.calls.request_ids import NO_EFFECT, WITHOUT_EFFECT
from slotmesh.codec import CONTENT_TYPES, MSGPACK
from slotmesh.convert.call_options import (
    blocks_problem,
    mark_problem,
    options_to_wire,
)
from slotmesh.errors import BadRequest, Failure, Reason
from slotmesh.spec.option_rules import MAX_KEY_BYTES, key_problem, metadata_problem
from slotmesh.spec.rules import request_id_problem
from slotmesh.spec.tenants import tenant_problem
from slotmesh.status import code_of, name_of
from slotmesh.units import MAX_DURATION_S
from slotmesh.v1 import call_pb2

_STATUS: Final = name_of(code_of(Failure(reason=Reason.BAD_REQUEST, message="")))
_FIRST_YEAR: Final = 1970
"""The wire cannot express earlier times of day."""


class BadOption(BadRequest, ValueError):
    """An invalid option: the error that a router would return, and a ValueError."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(
            f"{_STATUS}/{Reason.BAD_REQUEST.value}: {name} {problem}", status=_STATUS, metadata={"field": name}
        )


def seconds(time: float | timedelta | None) -> float | None:
    """A duration in seconds, of a number or a timedelta."""
    return time.total_seconds() if isinstance(time, timedelta) else time


def checked_seconds(name: str, time: Any) -> float:
    """A duration in seconds, of a number of any size or a timedelta."""
    value: Any = seconds(time)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadOption(name, f"must be a number of seconds or a timedelta, got {time!r}")
    return float(value)


def check_known(given: Mapping[str, Any], declared: type, problem: str) -> None:
    """Raises TypeError for arguments that a TypedDict does not declare. `problem`: what the message begins with."""
    if unknown := given.keys() - declared.__annotations__.keys():
        known = ", ".join(declared.__annotations__)
        raise TypeError(f"{problem} {', '.join(sorted(unknown))}; there are {known}")


def check_text(name: str, value: Any) -> None:
    """Text that UTF-8 can carry."""
    if not isinstance(value, str):
        raise BadOption(name, f"must be a str, got {value!r}")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise BadOption(name, f"must be text that UTF-8 can carry, got {value!a}: {error.reason}") from None


def check_key(name: str, value: Any) -> None:
    """The key of a lane or a shard."""
    check_text(name, value)
    if (len(value) > MAX_KEY_BYTES or not value.isascii()) and (problem := key_problem(value)):
        raise BadOption(name, f"must have {problem}")


def check_tenant(name: str, value: Any) -> None:
    """The tenant on whose behalf calls are made."""
    check_text(name, value)
    if problem := tenant_problem(value):
        raise BadOption(name, f"must have {problem}")


def check_mark(name: str, value: Any) -> None:
    """Bytes that cannot be guessed."""
    if not isinstance(value, bytes):
        raise BadOption(name, f"must be bytes, got {type(value).__name__}")
    if problem := mark_problem(value):
        raise BadOption(name, problem)


def check_ordering_key(value: Any) -> None:
    """The key of a lane, which is not empty."""
    if value == "":
        raise BadOption("ordering_key", "must not be empty: calls without an ordering key need no lane")
    check_key("ordering_key", value)


def check_method_name(value: Any) -> None:
    """The name of a handler's public method, or `__call__`."""
    check_text("the name of a method", value)
    if not value or (value.startswith("_") and value != "__call__"):
        raise ValueError(f"a method needs a name that does not start with an underscore, got {value!r}")


def check_content_type(name: str, value: Any) -> None:
    """A supported content type."""
    if value not in CONTENT_TYPES:
        raise BadOption(name, f"must be one of {', '.join(CONTENT_TYPES)}, got {value!r}")


def check_duration(name: str, value: Any) -> None:
    """Seconds that the wire can carry."""
    if not (0 <= checked_seconds(name, value) <= MAX_DURATION_S):  # NaN neither
        raise BadOption(name, f"must be 0 … {MAX_DURATION_S:,} seconds, got {value!r}")


def check_time(name: str, value: Any) -> None:
    """A time of day, aware of its zone."""
    if not isinstance(value, datetime):
        raise BadOption(name, f"must be a datetime that is aware of its time zone, as datetime.now(UTC), got {value!r}")
    if value.utcoffset() is None:
        raise BadOption(name, f"must be aware of its time zone, as datetime.now(UTC) is, got {value}")
    if value.year < _FIRST_YEAR:
        raise BadOption(name, f"must be a time from {_FIRST_YEAR} on, got {value}")


def check_flag(name: str, value: Any) -> None:
    """True or False, and no other value that Python treats as one: `"no"` would be True."""
    if not isinstance(value, bool):
        raise BadOption(name, f"must be True or False, got {value!r}")


def check_count(name: str, value: Any) -> None:
    """An integer, not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadOption(name, f"must be an integer that is not negative, got {value!r}")


def check_blocks(name: str, value: Any) -> None:
    """Hashes, as `slotmesh.prefix_blocks` makes them."""
    if not isinstance(value, tuple) or not all(isinstance(each, int) and 0 <= each < 2**64 for each in value):
        raise BadOption(
            name, f"must be integers of 0 … 2⁶⁴-1, as slotmesh.prefix_blocks(prompt), got {str(value)[:80]}"
        )
    if problem := blocks_problem(value):
        raise BadOption(name, f"must have {problem}")


def blocks_of(value: Any) -> Any:
    """Hashes in the form that options have; another value as it is."""
    return tuple(value) if isinstance(value, list) else value


def check_metadata(name: str, value: Any) -> None:
    """Text by name."""
    if not isinstance(value, Mapping):
        raise BadOption(name, f"must be a mapping of str to str, got {value!r}")
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise BadOption(name, f"must map str to str, got {key!r}: {text!r}")
        check_text(name, key)
        check_text(name, text)
    if problem := metadata_problem(value):
        raise BadOption(name, f"must be what handlers may get: {problem}")


def check_request_id(view: ViewOptions, request_id: str) -> None:
    """An id of calls that may have one."""
    check_text("request_id", request_id)
    if problem := request_id_problem(request_id):
        raise BadOption("request_id", problem)
    for name in WITHOUT_EFFECT if not view.ordering_key else ():
        if getattr(view, name):
            raise BadOption(name, NO_EFFECT)


AfterFailure = Literal["continue", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions(StatedOptions):
    """The options of a view of an endpoint, for all of its calls. Raises BadOption for an invalid one."""

    content_type: str = MSGPACK
    after_failure: AfterFailure = "continue"
    """What calls of a lane do after one of them has failed."""
    traced: bool = False
    """Calls carry the OpenTelemetry span that they were made in."""
    inherits: bool = False
    """Calls that are made in a call inherit its remaining time, and carry its trace."""
    request_id: str | None = None
    """What identifies the call, of those by an rpc of its own; None: nothing does."""
    reply: bool = field(init=False)
    """False: the outcome is only that the call has ended. The opposite of `no_reply`."""

    def __post_init__(self) -> None:
        for option, default, value in zip(_CHECKED, _DEFAULTS, _values_of(self), strict=True):
            if value is not default:
                _CHECKS[option.kind](option.argument, value)
        check_flag("traced", self.traced)
        check_flag("inherits", self.inherits)
        if self.request_id is not None:
            check_request_id(self, self.request_id)
        if self.slo_at is not None and self.slo_s is not None:
            raise BadOption("slo", "and slo_at are both given; give one of them")
        if self.after_failure not in ("continue", "stop"):
            raise BadOption("after_failure", f"must be 'continue' or 'stop', got {self.after_failure!r}")
        object.__setattr__(self, "reply", not self.no_reply)

    @property
    def stops(self) -> bool:
        """Whether calls fail after one of their lane has failed."""
        return self.after_failure == "stop"

    def changed(self, **changes: Unpack[OptionChanges]) -> ViewOptions:
        """These options with some changes. A new SLO replaces the other kind."""
        check_known(changes, OptionChanges, "there is no option")
        given: dict[str, Any] = dict(changes)
        if "reply" in given:
            check_flag("reply", given["reply"])
            given["no_reply"] = not given.pop("reply")
        for argument in given.keys() & _DURATIONS.keys():
            given[_DURATIONS[argument]] = seconds(given.pop(argument))
        if given.get("slo_s") is not None:
            given.setdefault("slo_at", None)
        elif given.get("slo_at") is not None:
            given.setdefault("slo_s", None)
        if "metadata" in given:
            check_metadata("metadata", given["metadata"])
            given["metadata"] = dict(given["metadata"])
        if "prefix_blocks" in given:
            given["prefix_blocks"] = blocks_of(given["prefix_blocks"])
        return replace(self, **given)

    def to_wire(
        self, method: str, stop_generation: int = 0, rpc: CallRpc = CallRpc.STREAM_CALLS
    ) -> call_pb2.CallOptions:
        """The options of calls of one method by this rpc. `__call__` travels as the empty name.

        `stop_generation`: of its lane.
        """
        wire = options_to_wire(self, rpc)
        if method != "__call__":
            wire.method = method
        if stop_generation:
            wire.stream.stop_generation = stop_generation
        return wire


_CHECKS: Final[dict[OptionKind, Callable[[str, Any], None]]] = {
    OptionKind.METHOD: check_text,
    OptionKind.CONTENT_TYPE: check_content_type,
    OptionKind.KEY: check_key,
    OptionKind.TENANT: check_tenant,
    OptionKind.DURATION: check_duration,
    OptionKind.TIME: check_time,
    OptionKind.FLAG: check_flag,
    OptionKind.COUNT: check_count,
    OptionKind.METADATA: check_metadata,
    OptionKind.MARK: check_mark,
    OptionKind.BLOCKS: check_blocks,
}
_CHECKED: Final = tuple(OPTIONS.values())
_values_of: Final = attrgetter(*(each.attribute for each in _CHECKED))
_DEFAULTS: Final = tuple(
    MSGPACK if each.kind is OptionKind.CONTENT_TYPE else getattr(StatedOptions(), each.attribute) for each in _CHECKED
)
"""Values that need no check."""
_DURATIONS: Final = {each.argument: each.attribute for each in OPTIONS.values() if each.kind is OptionKind.DURATION}
"""Options that callers may pass as a timedelta: argument -> attribute."""
