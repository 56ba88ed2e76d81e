"""The Open Inference Protocol over HTTP: JSON, with Triton's extension for tensors in binary. Pure.

A body is JSON. With the header `Inference-Header-Content-Length`, only that number of bytes is JSON, and the elements
of the inputs whose `parameters` have `binary_data_size` follow it, in the order of the inputs. Responses have the same
form; their outputs are in binary if the request asks for that.

Invariants: the values in the JSON are counted before any is decoded. Each error names its field.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import prod
from typing import Any, Final

import msgspec

from slotmesh.calls.method_outlines import BYTES, FIXED, MethodTensors, TensorType
from slotmesh.codec.arrays import BrokenArray
from slotmesh.codec.byte_strings import cut_strings, joined_strings
from slotmesh.codec.decoding_bounds import TooMuchToDecode, check_json, json_decoder
from slotmesh.errors import Failure
from slotmesh.oip.calls import output_unavailable, unreadable
from slotmesh.oip.model import (
    EXTENSIONS,
    MAX_DIMENSIONS,
    MAX_JSON_BYTES,
    MAX_PARAMETERS,
    MAX_TYPED_ELEMENTS,
    NO_PARAMETERS,
    PLATFORM,
    SERVER_NAME,
    TOO_MANY_TYPED,
    InferenceAnswer,
    InferenceRequest,
    InvalidRequest,
    ParameterValue,
    Tensor,
    check_count,
    check_count_of,
    check_form,
    check_names,
    check_parameters_of_input,
    check_parameters_of_output,
    packed,
    size_problem,
    typed_elements,
    unpacked,
)

LENGTH_HEADER: Final = "Inference-Header-Content-Length"
BINARY_SIZE: Final = "binary_data_size"
BINARY_OUTPUTS: Final = "binary_data_output"
BINARY_OUTPUT: Final = "binary_data"
_NOTHING: Final = msgspec.Raw(b"{}")
_NULL: Final = b"null"
_ABSENT: Final = msgspec.Raw(_NULL)


# Optional fields may also be null, which means absent: clients write out all fields of their own models.


class JsonInput(msgspec.Struct):
    """One input."""

    name: str
    datatype: str
    shape: msgspec.Raw
    parameters: msgspec.Raw = _NOTHING
    data: msgspec.Raw = _ABSENT


class JsonWanted(msgspec.Struct):
    """A requested output."""

    name: str
    parameters: msgspec.Raw = _NOTHING


class JsonRequest(msgspec.Struct):
    """The JSON of a request."""

    inputs: list[JsonInput] | None = None
    outputs: list[JsonWanted] | None = None
    id: str | None = None
    parameters: msgspec.Raw = _NOTHING


_decode_request: Final = msgspec.json.Decoder(JsonRequest).decode
_decode_shape: Final = msgspec.json.Decoder(list[int]).decode
_decode_list: Final = json_decoder(list[Any])
_decode_parameters: Final = json_decoder(dict[str, bool | int | float | str | None] | None)


@dataclass(frozen=True, slots=True)
class HttpInference:
    """A request, and the outputs that it wants in binary."""

    request: InferenceRequest
    binary: Mapping[str, bool]
    """By name; outputs for which the request states no preference are missing."""
    binary_by_default: bool = False

    def is_binary(self, output: str) -> bool:
        """Whether this output follows the JSON in binary."""
        return self.binary.get(output, self.binary_by_default)


def inference_from_http(model: str, version: str, body: bytes, json_size: int | None = None) -> HttpInference:
    """The request in a body. `json_size`: the value of the header; None without one.

    Raises:
        InvalidRequest: the body is not a valid request.
    """
    size = len(body) if json_size is None else json_size
    if not 0 <= size <= len(body):
        raise InvalidRequest(LENGTH_HEADER, f"must be from 0 to {len(body)}, the bytes of the body, got {size}")
    view = memoryview(body)
    try:
        check_json(body if size == len(body) else bytes(view[: min(size, MAX_JSON_BYTES + 1)]))
    except TooMuchToDecode as error:
        raise InvalidRequest("body", f"JSON has {error}: send tensors in binary") from None
    wire = _decoded(view[:size], _decode_request, "body")
    inputs, outputs = wire.inputs or [], wire.outputs or []
    check_count_of("inputs", len(inputs))
    check_names([each.name for each in inputs])
    check_count_of("outputs", len(outputs))
    names = [each.name for each in outputs]
    check_names(names, "outputs")
    parameters = _parameters(wire.parameters, "parameters")
    binary: dict[str, bool] = {}
    for index, each in enumerate(outputs):
        of_output = _parameters(each.parameters, f"outputs[{index}].parameters")
        try:
            check_parameters_of_output(of_output)
        except InvalidRequest as error:
            raise error.within(f"outputs[{index}]") from None
        if BINARY_OUTPUT in of_output:
            binary[each.name] = bool(of_output[BINARY_OUTPUT])
    request = InferenceRequest(
        model=model,
        version=version,
        request_id=wire.id or "",
        parameters=parameters or NO_PARAMETERS,
        inputs=_tensors(inputs, view[size:]),
        outputs=names,
        is_typed=True,
    )
    return HttpInference(request, binary, bool(parameters.get(BINARY_OUTPUTS)))


def _tensors(inputs: Sequence[JsonInput], behind: memoryview) -> list[Tensor]:
    tensors: list[Tensor] = []
    left, at = MAX_TYPED_ELEMENTS, 0
    for index, each in enumerate(inputs):
        field = f"inputs[{index}]"
        try:
            shape = check_form(each.datatype, _shape(each.shape, "shape"))
            parameters = _parameters(each.parameters, "parameters")
            check_parameters_of_input(parameters)
        except InvalidRequest as error:
            raise error.within(field) from None
        size = parameters.get(BINARY_SIZE)
        if size is not None:
            place = f"{field}.parameters.{BINARY_SIZE}"
            if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(behind) - at:
                raise InvalidRequest(place, f"must be from 0 to {len(behind) - at}, the bytes behind the JSON")
            if bytes(each.data) != _NULL:
                raise InvalidRequest(f"{field}.data", f"cannot be combined with {BINARY_SIZE}")
            if wrong := size_problem(each.datatype, shape, size):
                raise InvalidRequest(place, wrong)
            tensors.append(Tensor(each.name, each.datatype, shape, behind[at : at + size]))
            at += size
            continue
        if bytes(each.data) == _NULL:
            raise InvalidRequest(f"{field}.data", f"is required, or {BINARY_SIZE} among the parameters")
        left -= typed_elements(each.datatype, shape)
        if left < 0:
            raise InvalidRequest(f"{field}.data", f"{TOO_MANY_TYPED}: send more in binary")
        tensors.append(Tensor(each.name, each.datatype, shape, _elements(each, shape, f"{field}.data")))
    if at != len(behind):
        raise InvalidRequest("body", f"{len(behind) - at} bytes are left behind the tensors")
    return tensors


def _elements(each: JsonInput, shape: tuple[int, ...], field: str) -> bytes:
    if each.datatype != BYTES and not FIXED[each.datatype].typed:
        raise InvalidRequest(field, f"{each.datatype} is sent in binary only")
    flat = _flat(_decoded(each.data, _decode_list, field), field)
    check_count(field, shape, len(flat))
    if each.datatype != BYTES:
        return packed(field, each.datatype, flat)
    if not set(map(type, flat)) <= {str}:
        raise InvalidRequest(field, "elements of BYTES are texts; what is none is sent in binary")
    return joined_strings(map(str.encode, flat))


def _flat(values: list[Any], field: str) -> list[Any]:
    """The elements as one list; clients may nest them by the shape, or send them flat."""
    for _ in range(MAX_DIMENSIONS):
        nested = list in set(map(type, values))
        if not nested:
            return values
        if set(map(type, values)) != {list}:
            break
        values = list(chain.from_iterable(values))
    raise InvalidRequest(field, "must be lists of one depth")


def _shape(raw: msgspec.Raw, field: str) -> tuple[int, ...]:
    if bytes(raw).count(b",") >= MAX_DIMENSIONS:
        raise InvalidRequest(field, f"at most {MAX_DIMENSIONS} dimensions")
    return tuple(_decoded(raw, _decode_shape, field))


def _parameters(raw: msgspec.Raw, field: str) -> dict[str, ParameterValue]:
    if raw is _NOTHING:
        return {}
    if len(raw) > 1024 * MAX_PARAMETERS:
        raise InvalidRequest(field, f"at most {1024 * MAX_PARAMETERS} bytes, got {len(raw)}")
    parameters: dict[str, ParameterValue | None] | None = _decoded(raw, _decode_parameters, field)
    return {name: value for name, value in (parameters or {}).items() if value is not None}


def _decoded(raw: Any, decode: Callable[[Any], Any], field: str) -> Any:
    try:
        return decode(raw)
    except RecursionError:
        raise InvalidRequest(field, "is nested too deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(field, f"{error}".replace("`", "")) from None


JSON_TYPE: Final = "application/json"
BINARY_TYPE: Final = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """The body and the binary header of a response."""

    body: bytes
    content_type: str = JSON_TYPE
    json_size: int | None = None
    """The value of `Inference-Header-Content-Length`; None if the header is omitted."""


def answer_to_http(answer: InferenceAnswer, inference: HttpInference) -> HttpAnswer | Failure:
    """The body of a response. Outputs that JSON cannot express, or not in bounded time, are in binary unrequested.

    Returns a failure if a tensor of BYTES is malformed, or is not text and was not requested in binary.
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
        elif isinstance(elements := _elements_of(each), Failure):
            return elements
        else:
            output["data"] = elements
        outputs.append(output)
    body: dict[str, Any] = {"model_name": answer.model, "model_version": answer.version, "outputs": outputs}
    if answer.request_id:
        body["id"] = answer.request_id
    if answer.parameters:
        body["parameters"] = dict(answer.parameters)
    text = msgspec.json.encode(body)
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
    """`GET /v2/models/MODEL`. While no replica has reported its methods, `tensors` is None and `method` is empty."""
    body: dict[str, Any] = {"name": model, "versions": versions, "platform": PLATFORM}
    body["inputs"] = _types(tensors.inputs if tensors is not None else ())
    body["outputs"] = _types(tensors.outputs if tensors is not None else ())
    if method:
        body["properties"] = {"method": method}
    return msgspec.json.encode(body)


def _types(tensors: Iterable[TensorType]) -> list[dict[str, Any]]:
    return [{"name": each.name, "datatype": each.datatype, "shape": each.shape} for each in tensors]


def _elements_of(tensor: Tensor) -> list[Any] | Failure:
    if tensor.datatype != BYTES:
        return unpacked(tensor.datatype, tensor.data)
    try:
        return [each.decode() for each in cut_strings(tensor.data, prod(tensor.shape))]
    except BrokenArray as error:
        return unreadable(error)
    except UnicodeDecodeError:
        problem = f"{tensor.name} has bytes that are no text: ask for it with the parameter binary_data"
        return output_unavailable("outputs", problem)
