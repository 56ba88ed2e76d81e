"""What members say is refused by: each refusal names its field."""

from __future__ import annotations

import re
from typing import Final, NoReturn

from slotmesh.errors import Failure, Reason
from slotmesh.spec.rules import show
from slotmesh.status import to_exception
from slotmesh.units import parse_host_port
from slotmesh.version import VERSION

ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
INCARNATION: Final = re.compile(r"[0-9a-f]{32}")
_MAX_GENERATION_CHARS: Final = 64
MAX_PROCESS_CHARS: Final = 256
MAX_VERSION_CHARS: Final = 64
MAX_TERM_ID_CHARS: Final = 64
MAX_END_REASON_CHARS: Final = 300
MAX_EPOCH: Final = 2**62


def require(pattern: re.Pattern[str], field: str, value: str, expected: str) -> None:
    if not pattern.fullmatch(value):
        refuse(field, f"must be {expected}, is {show(value)!r}")


def require_generation(field: str, value: str) -> None:
    if not 0 < len(value) <= _MAX_GENERATION_CHARS:
        refuse(field, f"must be 1 to {_MAX_GENERATION_CHARS} characters, is {show(value)!r}")


def require_address(field: str, value: str) -> None:
    try:
        parse_host_port(value)
    except ValueError as error:
        refuse(field, str(error))


def end_reason_from_wire(text: str) -> str:
    """Why a member ends, in a line; what is longer is cut."""
    return " ".join(text[:MAX_END_REASON_CHARS].split())


def refuse_frame(kind: str | None, *, known: dict[str, str]) -> NoReturn:
    if kind is not None and kind in known:
        refuse(kind, known[kind])
    text = f"frame {kind or 'without a known kind'} is not implemented by slotmesh {VERSION}"
    raise to_exception(Failure(reason=Reason.NOT_IMPLEMENTED, message=text, metadata={"field": kind or "frame"}))


def refuse(field: str, message: str) -> NoReturn:
    raise to_exception(Failure(reason=Reason.BAD_REQUEST, message=f"{field}: {message}", metadata={"field": field}))
