"""The options of a view of an endpoint, which all of its calls have.

Invariants: options never change once made. What every router would refuse is refused here, by the same reason, before
anything is sent. Options themselves are declared in `slotmesh.call_options.model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from operator import attrgetter
from typing import Any, Final, Literal, Unpack

from slotmesh.call_options.model import OPTIONS, OptionChanges, StatedOptions
from slotmesh.call_options.option import OptionKind
from slotmesh.call_options.wire import options_to_wire
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions(StatedOptions):
    """The options of a view of an endpoint, for all of its calls. Raises BadOption where no call may have one."""

    content_type: str = MSGPACK
    after_failure: AfterFailure = "continue"
    """What calls of a lane do after one of them has failed."""
    traced: bool = False
    """Calls say in which OpenTelemetry span they were made."""
    reply: bool = field(init=False)
    """False: the outcome is only that the call has ended. The opposite of `no_reply`."""

    def __post_init__(self) -> None:
        for option, default, value in zip(_CHECKED, _DEFAULTS, _values_of(self), strict=True):
            if value is not default:
                _CHECKS[option.kind](option.argument, value)
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
        """These options with some of them changed. A new SLO takes the place of the other kind."""
        if unknown := changes.keys() - OptionChanges.__annotations__.keys():
            known = ", ".join(OptionChanges.__annotations__)
            raise TypeError(f"there is no option {', '.join(sorted(unknown))}; there are {known}")
        given: dict[str, Any] = dict(changes)
        if "reply" in given:
            given["no_reply"] = not given.pop("reply")
        for argument in given.keys() & _DURATIONS.keys():
            given[_DURATIONS[argument]] = seconds(given.pop(argument))
        if given.get("slo_s") is not None:
            given.setdefault("slo_at", None)
        elif given.get("slo_at") is not None:
            given.setdefault("slo_s", None)
        if "metadata" in given:
            given["metadata"] = dict(given["metadata"])
        return replace(self, **given)

    def to_wire(self, method: str, stop_generation: int = 0) -> call_pb2.CallOptions:
        """The options of calls of one method. `__call__` travels as the empty name. `stop_generation`: of its lane."""
        wire = options_to_wire(self)
        if method != "__call__":
            wire.method = method
        if stop_generation:
            wire.stop_generation = stop_generation
        return wire


def seconds(time: float | timedelta | None) -> float | None:
    """A length of time as people write it, in seconds."""
    return time.total_seconds() if isinstance(time, timedelta) else time


# -- checks of arguments: each takes the name of the argument, and raises BadOption ------------------------------------


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise BadOption(name, f"must be a str, got {value!r}")


def _check_content_type(name: str, value: Any) -> None:
    if value not in CONTENT_TYPES:
        raise BadOption(name, f"must be one of {', '.join(CONTENT_TYPES)}, got {value!r}")


def _check_duration(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadOption(name, f"must be a number of seconds or a timedelta, got {value!r}")
    if not (0 <= value <= MAX_DURATION_S):  # NaN neither
        raise BadOption(name, f"must be 0 … {MAX_DURATION_S:,} seconds, got {value!r}")


def _check_time(name: str, value: Any) -> None:
    if value.utcoffset() is None:
        raise BadOption(name, f"must be aware of its time zone, as datetime.now(UTC) is, got {value}")


def _check_count(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadOption(name, f"must be an integer that is not negative, got {value!r}")


def _check_metadata(name: str, value: Any) -> None:
    for key, text in value.items():
        if not isinstance(key, str) or not isinstance(text, str):
            raise BadOption(name, f"must map str to str, got {key!r}: {text!r}")


_CHECKS: Final[dict[OptionKind, Callable[[str, Any], None]]] = {
    OptionKind.METHOD: _check_text,
    OptionKind.CONTENT_TYPE: _check_content_type,
    OptionKind.KEY: _check_text,
    OptionKind.DURATION: _check_duration,
    OptionKind.TIME: _check_time,
    OptionKind.COUNT: _check_count,
    OptionKind.METADATA: _check_metadata,
}
"""A flag is what Python takes for one."""
_CHECKED: Final = tuple(each for each in OPTIONS.values() if each.kind in _CHECKS)
_values_of: Final = attrgetter(*(each.attribute for each in _CHECKED))
_DEFAULTS: Final = tuple(
    MSGPACK if each.kind is OptionKind.CONTENT_TYPE else getattr(StatedOptions(), each.attribute) for each in _CHECKED
)
"""Values that need no check."""
_DURATIONS: Final = {each.argument: each.attribute for each in OPTIONS.values() if each.kind is OptionKind.DURATION}
"""Options that callers may give as a timedelta: argument -> attribute."""
