"""Answers of the Open Inference Protocol over HTTP: JSON, with tensors in binary behind it on request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import msgspec

from slotmesh.codec.byte_strings import cut_strings
from slotmesh.errors import Failure
from slotmesh.oip.checks import RequestMistake
from slotmesh.oip.datatypes import BYTES, FIXED
from slotmesh.oip.elements import unpacked
from slotmesh.oip.json_requests import BINARY_SIZE, HttpInference
from slotmesh.oip.model import MAX_TYPED_ELEMENTS, InferenceAnswer, Tensor
from slotmesh.oip.service import EXTENSIONS, PLATFORM, SERVER_NAME
from slotmesh.oip.signatures import MethodTensors, TensorType

JSON_TYPE: Final = "application/json"
BINARY_TYPE: Final = "application/octet-stream"
HTTP_STATUS: Final[Mapping[int, int]] = {
    1: 499,  # CANCELLED
    3: 400,  # INVALID_ARGUMENT
    4: 504,  # DEADLINE_EXCEEDED
    5: 404,  # NOT_FOUND
    7: 403,  # PERMISSION_DENIED
    8: 429,  # RESOURCE_EXHAUSTED
    9: 400,  # FAILED_PRECONDITION
    10: 409,  # ABORTED
    12: 501,  # UNIMPLEMENTED
    14: 503,  # UNAVAILABLE
    16: 401,  # UNAUTHENTICATED
}
"""By the number of a gRPC status; 500 for all others."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A body, and what its headers say."""

    body: bytes
    content_type: str = JSON_TYPE
    json_size: int | None = None
    """The value of `Inference-Header-Content-Length`; None: the header is left out."""


def answer_to_http(answer: InferenceAnswer, inference: HttpInference) -> HttpAnswer:
    """The body of an answer. Outputs that JSON cannot say, or not in a bounded time, are in binary unasked.

    Raises:
        BrokenArray: a tensor of BYTES is none.
        RequestMistake: an output was wanted as JSON, which cannot say it.
    """
    outputs: list[dict[str, Any]] = []
    behind: list[bytes | memoryview] = []
    left = MAX_TYPED_ELEMENTS
    for each in answer.outputs:
        output: dict[str, Any] = {"name": each.name, "datatype": each.datatype, "shape": each.shape}
        left -= 0 if inference.is_binary(each.name) else prod(each.shape)
        if inference.is_binary(each.name) or left < 0 or (each.datatype != BYTES and not FIXED[each.datatype].typed):
            output["parameters"] = {BINARY_SIZE: len(each.data)}
            behind.append(each.data)
        else:
            output["data"] = _elements(each)
        outputs.append(output)
    said: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version, "outputs": outputs}
    if answer.request_id:
        said["id"] = answer.request_id
    if answer.parameters:
        said["parameters"] = dict(answer.parameters)
    text = msgspec.json.encode(said)
    if not behind:
        return HttpAnswer(text)
    return HttpAnswer(b"".join((text, *behind)), BINARY_TYPE, len(text))


def failure_to_http(failure: Failure, code: int) -> tuple[int, bytes]:
    """HTTP status and body of a failure; `code` is the number of its gRPC status."""
    said = {"error": failure.message, "reason": failure.reason.value, "executed": failure.executed.name.lower()}
    return HTTP_STATUS.get(code, 500), msgspec.json.encode(said)


def server_to_json(version: str) -> bytes:
    """`GET /v2`."""
    return msgspec.json.encode({"name": SERVER_NAME, "version": version, "extensions": EXTENSIONS})


def metadata_to_json(model: str, versions: Sequence[str], method: str, tensors: MethodTensors | None) -> bytes:
    """`GET /v2/models/MODEL`. `tensors` is None where no replica has told it, `method` is empty then."""
    said: dict[str, Any] = {"name": model, "versions": versions, "platform": PLATFORM}
    said["inputs"] = _types(tensors.inputs if tensors is not None else ())
    said["outputs"] = _types(tensors.outputs if tensors is not None else ())
    if method:
        said["properties"] = {"method": method}
    return msgspec.json.encode(said)


def _types(tensors: Iterable[TensorType]) -> list[dict[str, Any]]:
    return [{"name": each.name, "datatype": each.datatype, "shape": each.shape} for each in tensors]


def _elements(tensor: Tensor) -> list[Any]:
    if tensor.datatype != BYTES:
        return unpacked(tensor.datatype, tensor.data)
    try:
        return [each.decode() for each in cut_strings(tensor.data, prod(tensor.shape))]
    except UnicodeDecodeError:
        raise RequestMistake(
            "outputs", f"{tensor.name} has bytes that are no text: ask for it with the parameter binary_data"
        ) from None
