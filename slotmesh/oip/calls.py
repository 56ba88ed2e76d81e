"""Inferences as calls of methods: parameters, the method, and tensors as payloads. Pure, and without numpy.

Purpose: tensors travel to and from replicas in payloads of the content type `application/x-tensors`. Elements are
copied once and never inspected. `slotmesh.oip.model` has checked the tensors of a request; the result of a replica is
validated here, and its tensors are counted before they are parsed.
Invariant: routers and ingresses choose the method by the same function, and refuse in the same words.

Parameters of a request set options of its call:

| parameter | meaning |
|---|---|
| `method` | the method of the handler |
| `timeout` | the total time that the call may take, µs; 0: no limit |
| `priority` | an SLO of 100 ms times the number, so 1 is the most urgent; 0: no SLO |
| `sequence_id` | the ordering key; 0 or an empty text: none |
| `sequence_start`, `sequence_end` | for the handler only |

Every parameter that is a text, a number or a flag is also passed to the handler as metadata of its call, under its
name, flags as `true` and `false`; except `method`, `timeout`, `priority`, and those for servers (`FOR_SERVERS`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, TypeGuard

from slotmesh.calls.call_options import StatedOptions
from slotmesh.calls.method_outlines import BF16, BYTES, FIXED, OF_DTYPE
from slotmesh.codec.arrays import EXTENSION, BrokenArray, head, parse_head
from slotmesh.codec.byte_strings import STRINGS_EXTENSION, parse_strings, strings_head
from slotmesh.codec.tensors import MAX_TENSORS, map_head, name_head
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.names import MAX_METHOD_CHARS
from slotmesh.oip.model import (
    MAX_NAME_BYTES,
    MAX_PARAMETERS,
    InferenceAnswer,
    InferenceRequest,
    InvalidRequest,
    ParameterValue,
    Tensor,
)
from slotmesh.spec.option_rules import key_problem
from slotmesh.units import MAX_DURATION_S

_STRING_HEADS: Final = {0xD9: 1, 0xDA: 2, 0xDB: 4}
"""What begins a text, and the bytes of its length behind that."""
_EXT_HEADS: Final = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_FIXED_EXTS: Final = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}


class BrokenPayload(ValueError):
    """The payload is no map of tensors."""


def payload_of(tensors: Iterable[Tensor], count: int) -> bytes:
    """The payload of a call with `count` tensors, which must have been checked (`slotmesh.oip.model`)."""
    parts: list[bytes | memoryview] = [map_head(count)]
    size = len(parts[0])
    for tensor in tensors:
        key, data = name_head(tensor.name), tensor.data
        if tensor.datatype == BYTES:
            begin = strings_head(tensor.shape, len(data))
        else:
            if tensor.datatype == BF16:
                data = widened(data)
            begin = head(FIXED[tensor.datatype].dtype, tensor.shape, size + len(key))
        parts += (key, begin, data)
        size += len(key) + len(begin) + len(data)
    return b"".join(parts)


def widened(data: bytes | memoryview) -> bytes:
    """BF16 as FP32, which has all its values: two bytes of zeros below each."""
    wide = bytearray(2 * len(data))
    wide[2::4] = data[0::2]
    wide[3::4] = data[1::2]
    return bytes(wide)


def tensors_of(payload: bytes) -> list[Tensor]:
    """The tensors in the result of a call. They share its memory.

    Raises:
        BrokenPayload: it is no map of tensors.
    """
    view = memoryview(payload)
    try:
        count, at = _map_of(view)
        tensors: list[Tensor] = []
        for _ in range(count):
            name, at = _text_at(view, at)
            tensor, at = _tensor_at(name, view, at)
            tensors.append(tensor)
    except (IndexError, struct.error, UnicodeDecodeError):
        raise BrokenPayload("the result was cut off") from None
    except BrokenArray as error:
        raise BrokenPayload(str(error)) from None
    if at != len(view):
        raise BrokenPayload(f"{len(view) - at} bytes are left behind the tensors")
    return tensors


def _map_of(view: memoryview) -> tuple[int, int]:
    first = view[0]
    if 0x80 <= first < 0x90:
        count, at = first & 0x0F, 1
    elif first == 0xDE:
        count, at = int.from_bytes(view[1:3], "big"), 3
    else:
        raise BrokenPayload("the result is no map of tensors")
    if count > MAX_TENSORS:
        raise BrokenPayload(f"at most {MAX_TENSORS} tensors, got {count}")
    return count, at


def _text_at(view: memoryview, at: int) -> tuple[str, int]:
    first = view[at]
    at += 1
    if 0xA0 <= first < 0xC0:
        size = first & 0x1F
    elif (width := _STRING_HEADS.get(first)) is not None:
        size, at = int.from_bytes(view[at : at + width], "big"), at + width
    else:
        raise BrokenPayload("a tensor has no name")
    if size > MAX_NAME_BYTES or at + size > len(view):
        raise BrokenPayload(f"a name of {size} bytes")
    return str(view[at : at + size], "utf-8"), at + size


def _tensor_at(name: str, view: memoryview, at: int) -> tuple[Tensor, int]:
    first = view[at]
    if (width := _EXT_HEADS.get(first)) is not None:
        size, at = int.from_bytes(view[at + 1 : at + 1 + width], "big"), at + 1 + width
    elif (size := _FIXED_EXTS.get(first, -1)) >= 0:
        at += 1
    else:
        raise BrokenPayload(f"{name} is no tensor")
    code, begin, end = view[at], at + 1, at + 1 + size
    if end > len(view):
        raise BrokenPayload(f"{name} was cut off")
    data = view[begin:end]
    if code == STRINGS_EXTENSION:
        shape, elements = parse_strings(data)
        return Tensor(name, BYTES, shape, elements), end
    if code != EXTENSION:
        raise BrokenPayload(f"{name} is no tensor")
    dtype, shape, offset = parse_head(data)
    if (datatype := OF_DTYPE.get(dtype)) is None:
        raise BrokenPayload(f"{name} has elements of {dtype}, which the protocol lacks")
    return Tensor(name, datatype, shape, data[offset:]), end


SLO_OF_PRIORITY_S: Final = 0.1
"""Calls that state nothing are ordered as if they had an SLO of 1 s, which is priority 10."""
MAX_PRIORITY: Final = 2**32 - 1
_MAX_SLO_S: Final = 3600.0
FINAL_WANTED: Final = "triton_enable_empty_final_response"
FOR_SERVERS: Final = frozenset({FINAL_WANTED, "binary_data", "binary_data_output", "binary_data_size"})
_READ: Final = frozenset({"method", "timeout", "priority"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterMeaning:
    """What the parameters of a request mean for its call."""

    method: str = ""
    """Empty if the request names no method."""
    timeout_s: float | None = None
    slo_s: float | None = None
    ordering_key: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    wants_final: bool = False
    """On a stream: send a final, empty response after the last result."""


NOTHING_SAID: Final = ParameterMeaning(metadata=StatedOptions().metadata)


def meaning_of(parameters: Mapping[str, ParameterValue]) -> ParameterMeaning:
    """What the parameters mean.

    Raises:
        InvalidRequest: a parameter has an invalid value.
    """
    if not parameters:
        return NOTHING_SAID
    if len(parameters) > MAX_PARAMETERS:
        raise InvalidRequest("parameters", f"at most {MAX_PARAMETERS}, got {len(parameters)}")
    method = parameters.get("method", "")
    if not isinstance(method, str):
        raise InvalidRequest("parameters.method", "must be the name of a method")
    if len(method) > MAX_METHOD_CHARS:
        raise InvalidRequest("parameters.method", f"at most {MAX_METHOD_CHARS} characters, got {len(method)}")
    timeout_us = parameters.get("timeout", 0)
    if not _is_count(timeout_us) or not 0 <= timeout_us <= MAX_DURATION_S * 1e6:
        raise InvalidRequest("parameters.timeout", f"must be microseconds, from 0 to {MAX_DURATION_S * 10**6}")
    priority = parameters.get("priority", 0)
    if not _is_count(priority) or not 0 <= priority <= MAX_PRIORITY:
        raise InvalidRequest(
            "parameters.priority", f"must be a whole number from 0 to {MAX_PRIORITY}, 1 is most urgent"
        )
    sequence = parameters.get("sequence_id", 0)
    if isinstance(sequence, bool | float):
        raise InvalidRequest("parameters.sequence_id", "must be a whole number or text")
    ordering_key = str(sequence) if sequence else ""
    if problem := key_problem(ordering_key):
        raise InvalidRequest("parameters.sequence_id", problem)
    for name in ("sequence_start", "sequence_end", FINAL_WANTED):
        if not isinstance(parameters.get(name, False), bool):
            raise InvalidRequest(f"parameters.{name}", "must be a flag")
    return ParameterMeaning(
        method=method,
        timeout_s=timeout_us / 1e6 if timeout_us else None,
        slo_s=min(priority * SLO_OF_PRIORITY_S, _MAX_SLO_S) if priority else None,
        ordering_key=ordering_key,
        metadata={
            name: _as_text(value) for name, value in parameters.items() if name not in _READ and name not in FOR_SERVERS
        },
        wants_final=bool(parameters.get(FINAL_WANTED)),
    )


def _is_count(value: ParameterValue) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _as_text(value: ParameterValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


DEFAULT_METHOD: Final = "infer"
CALL: Final = "__call__"
_SHOWN: Final = 8


def method_of_inference(endpoint: str, methods: AbstractSet[str]) -> str | Failure:
    """The method of a request that names none: `infer`, or the only one, or `__call__`.

    `methods`: those of the endpoint; empty if no replica has reported any, and then the method is `infer`.
    """
    if not methods or DEFAULT_METHOD in methods:
        return DEFAULT_METHOD
    if len(methods) == 1:
        return next(iter(methods))
    if CALL in methods:
        return CALL
    return Failure(
        reason=Reason.METHOD_NOT_FOUND,
        message=f"parameters.method: {endpoint} has no method infer, and several others: name one of "
        f"{', '.join(sorted(methods)[:_SHOWN])}",
        executed=Executed.NO,
        metadata={"endpoint": endpoint, "field": "parameters.method"},
    )


def has_many_results(method: str, way_out: str) -> Failure:
    """Of a method that yields, where there is room for one result only."""
    return Failure(
        reason=Reason.NOT_IMPLEMENTED, message=f"{method} yields, and has any number of results: use {way_out}"
    )


_SHOWN_OUTPUTS = 8


def answer_of(request: InferenceRequest, payload: bytes, version: str) -> InferenceAnswer | Failure:
    """The response to an inference, with the outputs that the request asks for.

    Its failures are found after the call was executed, and state that.
    """
    try:
        outputs = tensors_of(payload)
    except BrokenPayload as error:
        return unreadable(error)
    if request.outputs:
        by_name = {each.name: each for each in outputs}
        wanted: list[Tensor] = []
        for index, name in enumerate(request.outputs):
            if name not in by_name:
                returned = ", ".join(list(by_name)[:_SHOWN_OUTPUTS]) or "none"
                problem = f"there is no output {name[:64]!r}; the method returned {returned}"
                return output_unavailable(f"outputs[{index}].name", problem)
            wanted.append(by_name[name])
        outputs = wanted
    return InferenceAnswer(model=request.model, version=version, request_id=request.request_id, outputs=outputs)


def unreadable(error: Exception) -> Failure:
    """The failure of a call whose result is not a map of tensors."""
    return Failure(reason=Reason.INTERNAL, message=f"the result cannot be read: {error}", executed=Executed.YES)


def output_unavailable(field: str, what: str) -> Failure:
    """The failure of a request for an output that the result lacks, or cannot have in the requested form."""
    return Failure(
        reason=Reason.BAD_REQUEST, message=f"{field}: {what}", executed=Executed.YES, metadata={"field": field}
    )
