"""What callers give as options and arguments, checked where they give it.

Purpose: a wrong value is named there, with what would be right, and not deep inside, or by a router.
Invariants: what routers refuse is refused here (`slotmesh.call_options.rules`). Each check takes the name of the
argument, and raises BadOption.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from slotmesh.call_options.rules import MAX_KEY_BYTES, key_problem, mark_problem, metadata_problem
from slotmesh.codec import CONTENT_TYPES
from slotmesh.errors import BadRequest, Failure, Reason
from slotmesh.status import code_of, name_of
from slotmesh.tenant_names import tenant_problem
from slotmesh.units import MAX_DURATION_S

_STATUS: Final = name_of(code_of(Failure(reason=Reason.BAD_REQUEST, message="")))
_FIRST_YEAR: Final = 1970
"""Earlier times of day cannot be said on the wire."""


class BadOption(BadRequest, ValueError):
    """An option that no call may have: what a router would answer, and a mistake of the calling program."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(
            f"{_STATUS}/{Reason.BAD_REQUEST.value}: {name} {problem}", status=_STATUS, metadata={"field": name}
        )


def seconds(time: float | timedelta | None) -> float | None:
    """A length of time as people write it, in seconds."""
    return time.total_seconds() if isinstance(time, timedelta) else time


def checked_seconds(name: str, time: Any) -> float:
    """A length of time as people write it, in seconds: a number, of whatever size."""
    value: Any = seconds(time)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadOption(name, f"must be a number of seconds or a timedelta, got {time!r}")
    return float(value)


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
    """On whose behalf calls are made."""
    check_text(name, value)
    if problem := tenant_problem(value):
        raise BadOption(name, f"must have {problem}")


def check_mark(name: str, value: Any) -> None:
    """Bytes that nobody can guess."""
    if not isinstance(value, bytes):
        raise BadOption(name, f"must be bytes, got {type(value).__name__}")
    if problem := mark_problem(value):
        raise BadOption(name, problem)


def check_ordering_key(value: Any) -> None:
    """The key of a lane: there is one."""
    if value == "":
        raise BadOption("ordering_key", "must not be empty: calls without an ordering key need no lane")
    check_key("ordering_key", value)


def check_method_name(value: Any) -> None:
    """The name of a handler's public method, or `__call__`."""
    check_text("the name of a method", value)
    if not value or (value.startswith("_") and value != "__call__"):
        raise ValueError(f"a method needs a name that does not start with an underscore, got {value!r}")


def check_content_type(name: str, value: Any) -> None:
    """One that there is."""
    if value not in CONTENT_TYPES:
        raise BadOption(name, f"must be one of {', '.join(CONTENT_TYPES)}, got {value!r}")


def check_duration(name: str, value: Any) -> None:
    """Seconds that the wire can carry."""
    if not (0 <= checked_seconds(name, value) <= MAX_DURATION_S):  # NaN neither
        raise BadOption(name, f"must be 0 … {MAX_DURATION_S:,} seconds, got {value!r}")


def check_time(name: str, value: Any) -> None:
    """A time of day that says its zone."""
    if not isinstance(value, datetime):
        raise BadOption(name, f"must be a datetime that is aware of its time zone, as datetime.now(UTC), got {value!r}")
    if value.utcoffset() is None:
        raise BadOption(name, f"must be aware of its time zone, as datetime.now(UTC) is, got {value}")
    if value.year < _FIRST_YEAR:
        raise BadOption(name, f"must be a time from {_FIRST_YEAR} on, got {value}")


def check_flag(name: str, value: Any) -> None:
    """True or False, and nothing that Python takes for one: `"no"` would be True."""
    if not isinstance(value, bool):
        raise BadOption(name, f"must be True or False, got {value!r}")


def check_count(name: str, value: Any) -> None:
    """An integer, not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadOption(name, f"must be an integer that is not negative, got {value!r}")


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
