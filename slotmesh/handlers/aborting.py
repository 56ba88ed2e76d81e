"""`slotmesh.abort`: a handler ends its call with a status of its own choice.

Invariant: a wrong use raises ValueError or TypeError where it is written, so that no call ends as something that gRPC
does not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from slotmesh.errors import Executed, HandlerError
from slotmesh.status import STATUS_NUMBERS, name_of

MAX_METADATA_BYTES: Final = 4096


def abort(code: str | int, message: str, metadata: Mapping[str, str] | None = None) -> NoReturn:
    """Ends the call, or all calls of the batch, that is being executed: the caller's HandlerError has this status.

    It is a decision, not a defect: the replica's log has no traceback of it. It is raised as an exception, which a
    handler's own `except Exception` would catch.

    Args:
        code: a status of gRPC other than OK, by its name, as "NOT_FOUND", or its number.
        message: for whoever reads the error.
        metadata: facts for programs, found in the error's `metadata`; 4,096 bytes in all.

    Raises:
        HandlerError: always, unless it was used wrongly.
        TypeError: an argument of another type.
        ValueError: OK, a code that gRPC does not have, or too much metadata.
    """
    if not isinstance(message, str):
        raise TypeError(f"message must be a str, got {message!r}")
    raise HandlerError(message, status=status_named(code), executed=Executed.YES, metadata=_checked(metadata))


def status_named(code: Any) -> str:
    """The name of a status, given by name or number. Raises TypeError, ValueError."""
    if isinstance(code, bool) or not isinstance(code, str | int):
        raise TypeError(f"code must be the name or the number of a gRPC status, got {code!r}")
    if code in {"OK", 0}:
        raise ValueError(f"code {code!r}: a call that is well returns its result")
    name = name_of(code) if isinstance(code, int) else code
    if STATUS_NUMBERS.get(name) is None or (isinstance(code, int) and STATUS_NUMBERS[name] != code):
        known = ", ".join(f"{name} ({number})" for name, number in STATUS_NUMBERS.items())
        raise ValueError(f"code {code!r} is no gRPC status; it is one of {known}")
    return name


def _checked(metadata: Any) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, Mapping):
        raise TypeError(f"metadata must be a mapping of str to str, got {metadata!r}")
    for key, value in metadata.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"metadata must be a mapping of str to str, got {key!r}: {value!r}")
        if not key or key == "executed":
            raise ValueError(f"metadata: the key {key!r} is reserved")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if size > MAX_METADATA_BYTES:
        raise ValueError(f"metadata has {size} bytes; at most {MAX_METADATA_BYTES} are allowed")
    return dict(metadata)
