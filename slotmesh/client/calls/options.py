"""The options of a view of an endpoint, which all of its calls have.

Invariants: options never change once made. What every router would refuse is refused here, by the same reason, before
anything is sent. Options themselves are declared in `slotmesh.call_options.model`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, Final, Literal, Unpack

from slotmesh.call_options.model import OPTIONS, OptionChanges, StatedOptions
from slotmesh.call_options.option import OptionKind
from slotmesh.call_options.wire import options_to_wire
from slotmesh.client.calls.argument_checks import (
    BadOption,
    check_content_type,
    check_count,
    check_duration,
    check_flag,
    check_key,
    check_mark,
    check_metadata,
    check_tenant,
    check_text,
    check_time,
    seconds,
)
from slotmesh.codec import MSGPACK
from slotmesh.v1 import call_pb2

AfterFailure = Literal["continue", "stop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewOptions(StatedOptions):
    """The options of a view of an endpoint, for all of its calls. Raises BadOption where no call may have one."""

    content_type: str = MSGPACK
    after_failure: AfterFailure = "continue"
    """What calls of a lane do after one of them has failed."""
    traced: bool = False
    """Calls say in which OpenTelemetry span they were made."""
    inherits: bool = False
    """Calls that are made in a call have no more time than that has left, and say in which trace they were made."""
    reply: bool = field(init=False)
    """False: the outcome is only that the call has ended. The opposite of `no_reply`."""

    def __post_init__(self) -> None:
        for option, default, value in zip(_CHECKED, _DEFAULTS, _values_of(self), strict=True):
            if value is not default:
                _CHECKS[option.kind](option.argument, value)
        check_flag("traced", self.traced)
        check_flag("inherits", self.inherits)
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
        return replace(self, **given)

    def to_wire(self, method: str, stop_generation: int = 0) -> call_pb2.CallOptions:
        """The options of calls of one method. `__call__` travels as the empty name. `stop_generation`: of its lane."""
        wire = options_to_wire(self)
        if method != "__call__":
            wire.method = method
        if stop_generation:
            wire.stop_generation = stop_generation
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
}
_CHECKED: Final = tuple(OPTIONS.values())
_values_of: Final = attrgetter(*(each.attribute for each in _CHECKED))
_DEFAULTS: Final = tuple(
    MSGPACK if each.kind is OptionKind.CONTENT_TYPE else getattr(StatedOptions(), each.attribute) for each in _CHECKED
)
"""Values that need no check."""
_DURATIONS: Final = {each.argument: each.attribute for each in OPTIONS.values() if each.kind is OptionKind.DURATION}
"""Options that callers may give as a timedelta: argument -> attribute."""
