"""Answers of the Open Inference Protocol over HTTP: JSON, with tensors in binary behind it on request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import msgspec

from slotmesh.codec.arrays import BrokenArray
from slotmesh.codec.byte_strings import cut_strings
from slotmesh.errors import Failure
from slotmesh.oip.checks import typed_elements
from slotmesh.oip.datatypes import BYTES, FIXED
from slotmesh.oip.elements import unpacked
from slotmesh.oip.json_requests import BINARY_SIZE, HttpInference
from slotmesh.oip.model import MAX_JSON_BYTES, MAX_TYPED_ELEMENTS, InferenceAnswer, Tensor
from slotmesh.oip.results import cannot_be_told, unreadable
from slotmesh.oip.service import EXTENSIONS, PLATFORM, SERVER_NAME
from slotmesh.oip.signatures import MethodTensors, TensorType

JSON_TYPE: Final = "application/json"
BINARY_TYPE: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """A body, and what its headers say."""

    body: bytes
    content_type: str = JSON_TYPE
    json_size: int | None = None
    """The value of `Inference-Header-Content-Length`; None: the header is left out."""


def answer_to_http(answer: InferenceAnswer, inference: HttpInference) -> HttpAnswer | Failure:
    """The body of an answer. Outputs that JSON cannot say, or not in a bounded time, are in binary unasked.

    A failure where a tensor of BYTES is none, or is no text and was not asked for in binary.
    """
    outputs: list[dict[str, Any]] = []
    behind: list[bytes | memoryview] = []
    elements_left, bytes_left = MAX_TYPED_ELEMENTS, MAX_JSON_BYTES
    for each in answer.outputs:
        output: dict[str, Any] = {"name": each.name, "datatype": each.datatype, "shape": each.shape}
        is_binary = inference.is_binary(each.name) or (each.datatype != BYTES and not FIXED[each.datatype].typed)
        if not is_binary:
            elements_left -= typed_elements(each.datatype, each.shape)
            bytes_left -= len(each.data)
            is_binary = min(elements_left, bytes_left) < 0
        if is_binary:
            output["parameters"] = {BINARY_SIZE: len(each.data)}
            behind.append(each.data)
        elif isinstance(elements := _elements(each), Failure):
            return elements
        else:
            output["data"] = elements
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


def error_to_json(message: str, reason: str, executed: str, **more: str) -> bytes:
    """The body of a failure: `error` is what clients of the protocol read."""
    return msgspec.json.encode({"error": message, "reason": reason, "executed": executed, **more})


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


def _elements(tensor: Tensor) -> list[Any] | Failure:
    if tensor.datatype != BYTES:
        return unpacked(tensor.datatype, tensor.data)
    try:
        return [each.decode() for each in cut_strings(tensor.data, prod(tensor.shape))]
    except BrokenArray as error:
        return unreadable(error)
    except UnicodeDecodeError:
        problem = f"{tensor.name} has bytes that are no text: ask for it with the parameter binary_data"
        return cannot_be_told("outputs", problem)
