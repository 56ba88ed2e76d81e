"""What the parameters of a request mean for its call. Pure.

| parameter | means |
|---|---|
| `method` | the method of the handler |
| `timeout` | time that the call may take in all, µs; 0: no limit |
| `priority` | how urgent: an SLO of 100 ms times the number, so that 1 is the most urgent; 0: none is said |
| `sequence_id` | the ordering key; 0 and an empty text: none |
| `sequence_start`, `sequence_end` | for the handler only |

All that are text, numbers or flags are handed to the handler as metadata of its call, under their names, flags as
`true` and `false`; but for `method`, `timeout`, `priority`, and those that are for servers (`FOR_SERVERS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeGuard

from slotmesh.call_options.model import StatedOptions
from slotmesh.method_names import MAX_METHOD_CHARS
from slotmesh.oip.checks import RequestMistake
from slotmesh.oip.model import MAX_PARAMETERS, ParameterValue
from slotmesh.units import MAX_DURATION_S

SLO_OF_PRIORITY_S: Final = 0.1
"""Calls that state nothing are ordered as if they had an SLO of 1 s, which is priority 10."""
MAX_PRIORITY: Final = 2**32 - 1
_MAX_SLO_S: Final = 3600.0
FINAL_WANTED: Final = "triton_enable_empty_final_response"
FOR_SERVERS: Final = frozenset({FINAL_WANTED, "binary_data", "binary_data_output", "binary_data_size"})
_READ: Final = frozenset({"method", "timeout", "priority"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterMeaning:
    """What a request says of its call."""

    method: str = ""
    """Empty: not said."""
    timeout_s: float | None = None
    slo_s: float | None = None
    ordering_key: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    wants_final: bool = False
    """On a stream: an answer that says that it was the last one."""


NOTHING_SAID: Final = ParameterMeaning(metadata=StatedOptions().metadata)


def meaning_of(parameters: Mapping[str, ParameterValue]) -> ParameterMeaning:
    """What the parameters mean.

    Raises:
        RequestMistake: what is wrong with one of them.
    """
    if not parameters:
        return NOTHING_SAID
    if len(parameters) > MAX_PARAMETERS:
        raise RequestMistake("parameters", f"at most {MAX_PARAMETERS}, got {len(parameters)}")
    method = parameters.get("method", "")
    if not isinstance(method, str):
        raise RequestMistake("parameters.method", "must be the name of a method")
    if len(method) > MAX_METHOD_CHARS:
        raise RequestMistake("parameters.method", f"at most {MAX_METHOD_CHARS} characters, got {len(method)}")
    timeout_us = parameters.get("timeout", 0)
    if not _is_count(timeout_us) or not 0 <= timeout_us <= MAX_DURATION_S * 1e6:
        raise RequestMistake("parameters.timeout", f"must be microseconds, from 0 to {MAX_DURATION_S * 10**6}")
    priority = parameters.get("priority", 0)
    if not _is_count(priority) or not 0 <= priority <= MAX_PRIORITY:
        raise RequestMistake(
            "parameters.priority", f"must be a whole number from 0 to {MAX_PRIORITY}, 1 is most urgent"
        )
    sequence = parameters.get("sequence_id", 0)
    if isinstance(sequence, bool | float):
        raise RequestMistake("parameters.sequence_id", "must be a whole number or text")
    for name in ("sequence_start", "sequence_end", FINAL_WANTED):
        if not isinstance(parameters.get(name, False), bool):
            raise RequestMistake(f"parameters.{name}", "must be a flag")
    return ParameterMeaning(
        method=method,
        timeout_s=timeout_us / 1e6 if timeout_us else None,
        slo_s=min(priority * SLO_OF_PRIORITY_S, _MAX_SLO_S) if priority else None,
        ordering_key=str(sequence) if sequence else "",
        metadata={
            name: _as_text(value) for name, value in parameters.items() if name not in _READ and name not in FOR_SERVERS
        },
        wants_final=bool(parameters.get(FINAL_WANTED)),
    )


def _is_count(value: ParameterValue) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _as_text(value: ParameterValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
