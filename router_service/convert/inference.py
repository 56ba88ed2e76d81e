"""Messages of the Open Inference Protocol: requests, answers, and the metadata, configuration and statistics of models.

Invariants: elements are counted before they are iterated; raw ones are never iterated. Errors name the field.
Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, Final

from router_service.core.routing.catalog import ModelFigures, ModelState
from slotmesh.calls.method_outlines import BYTES, FIXED, TYPED_BYTES, UNKNOWN_DIMENSION, MethodTensors, TensorType
from slotmesh.codec.arrays import BrokenArray
from slotmesh.codec.byte_strings import cut_strings, joined_strings
from slotmesh.convert.request_paths import request_path
from slotmesh.errors import Failure, at_field
from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.oip.calls import unreadable
from slotmesh.oip.model import (
    BACKEND,
    MAX_PARAMETERS,
    MAX_TYPED_ELEMENTS,
    NO_PARAMETERS,
    PLATFORM,
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


def metadata_to_wire(
    model: str, versions: Sequence[str], method: str, tensors: MethodTensors | None
) -> wire_pb2.ModelMetadataResponse:
    """Inputs and outputs of an endpoint. If no replica reported them, `tensors` is None and `method` is empty."""
    wire = wire_pb2.ModelMetadataResponse(name=model, versions=versions, platform=PLATFORM)
    if method:
        wire.properties["method"] = method
    if tensors is not None:
        for each, into in ((tensors.inputs, wire.inputs), (tensors.outputs, wire.outputs)):
            for one in each:
                into.add(name=one.name, datatype=one.datatype, shape=one.shape)
    return wire


def config_to_wire(model: str, method: str, tensors: MethodTensors | None) -> wire_pb2.ModelConfigResponse:
    """Inputs and outputs in the form of Triton's configuration."""
    config = wire_pb2.ModelConfig(name=model, platform=PLATFORM, backend=BACKEND)
    if method:
        config.parameters["method"].string_value = method
    if tensors is None:
        return wire_pb2.ModelConfigResponse(config=config)
    config.max_batch_size = tensors.batch_size
    config.model_transaction_policy.decoupled = tensors.yields
    if tensors.batch_size:
        config.dynamic_batching.SetInParent()
    for each in tensors.inputs:
        config.input.add(
            name=each.name, data_type=_type_of(each), dims=_dims(each, tensors.batch_size), optional=each.optional
        )
    for each in tensors.outputs:
        config.output.add(name=each.name, data_type=_type_of(each), dims=_dims(each, tensors.batch_size))
    return wire_pb2.ModelConfigResponse(config=config)


def statistics_to_wire(figures: Iterable[ModelFigures]) -> wire_pb2.ModelStatisticsResponse:
    """The counted figures."""
    wire = wire_pb2.ModelStatisticsResponse()
    for each in figures:
        stats = wire.model_stats.add(
            name=each.endpoint,
            version=each.backend,
            inference_count=each.succeeded,
            execution_count=each.succeeded,
        )
        totals = stats.inference_stats
        totals.success.count, totals.success.ns = each.succeeded, each.success_ns
        totals.fail.count = each.failed
        totals.queue.count, totals.queue.ns = each.queued, each.queue_ns
        totals.compute_infer.count, totals.compute_infer.ns = each.computed, each.compute_ns
    return wire


def index_to_wire(states: Iterable[ModelState]) -> wire_pb2.RepositoryIndexResponse:
    """The index of models."""
    wire = wire_pb2.RepositoryIndexResponse()
    for each in states:
        wire.models.add(name=each.endpoint, version=each.backend, state=each.state, reason=each.reason)
    return wire


def _type_of(tensor: TensorType) -> Any:
    name = "STRING" if tensor.datatype == BYTES else tensor.datatype
    return wire_pb2.DataType.Value(f"TYPE_{name}")


def _dims(tensor: TensorType, batch_size: int) -> Sequence[int]:
    """The shape, without its first dimension if that is the batch dimension."""
    if not batch_size:
        return tensor.shape
    return tensor.shape[1:] or (UNKNOWN_DIMENSION,)


def answer_to_wire(answer: InferenceAnswer, *, typed: bool) -> wire_pb2.ModelInferResponse | Failure:
    """The answer. `typed`: with typed contents, for tensors that allow them.

    Returns a failure if a tensor of BYTES is malformed.
    """
    try:
        return _to_wire(answer, typed=typed)
    except BrokenArray as error:
        return unreadable(error)


def _to_wire(answer: InferenceAnswer, *, typed: bool) -> wire_pb2.ModelInferResponse:
    wire = wire_pb2.ModelInferResponse(model_name=answer.model, model_version=answer.version, id=answer.request_id)
    one_by_one = typed and _can_be_typed(answer.outputs)
    for each in answer.outputs:
        output = wire.outputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        if one_by_one:
            _add_elements(output.contents, each)
        else:
            wire.raw_output_contents.append(bytes(each.data))
    for name, value in answer.parameters.items():
        if isinstance(value, bool):
            wire.parameters[name].bool_param = value
        else:
            wire.parameters[name].string_param = str(value)
    return wire


def failed_on_stream(request_id: str, status: str, message: str) -> wire_pb2.ModelStreamInferResponse:
    """The response for a failed inference of a stream."""
    return wire_pb2.ModelStreamInferResponse(
        error_message=f"{status}: {message}", infer_response=wire_pb2.ModelInferResponse(id=request_id)
    )


def _can_be_typed(outputs: Sequence[Tensor]) -> bool:
    if sum(typed_elements(each.datatype, each.shape) for each in outputs) > MAX_TYPED_ELEMENTS:
        return False
    return all(each.datatype == BYTES or FIXED[each.datatype].typed for each in outputs)


def _add_elements(contents: Any, tensor: Tensor) -> None:
    if tensor.datatype == BYTES:
        getattr(contents, TYPED_BYTES).extend(cut_strings(tensor.data, prod(tensor.shape)))
        return
    getattr(contents, FIXED[tensor.datatype].typed).extend(unpacked(tensor.datatype, tensor.data))


_Input = wire_pb2.ModelInferRequest.InferInputTensor


def request_of(wire: wire_pb2.ModelInferRequest) -> InferenceRequest:
    """The request.

    Raises:
        InvalidRequest: it is invalid.
    """
    check_count_of("inputs", len(wire.inputs))
    check_names([each.name for each in wire.inputs])
    return InferenceRequest(
        model=wire.model_name,
        version=wire.model_version,
        request_id=wire.id,
        parameters=_parameters(wire.parameters) if wire.parameters else NO_PARAMETERS,
        inputs=_tensors(wire),
        outputs=_wanted(wire) if wire.outputs else (),
        is_typed=bool(wire.inputs) and not wire.raw_input_contents,
    )


_FIELDS: Final = {
    "endpoint": "model_name",
    "options.method": "parameters.method",
    "options.metadata": "parameters",
    "options.ordering_key": "parameters.sequence_id",
    "options.timeout": "parameters.timeout",
    "options.relative_slo": "parameters.priority",
    "payload": "inputs",
}
"""Where a request has what its call has."""


def at_field_of(wire: wire_pb2.ModelInferRequest, failure: Failure) -> Failure:
    """The failure of the request's call, or of the request, with the field of the request."""
    field = failure.metadata.get("field", "")
    return at_field(failure, request_path(wire, _FIELDS.get(field, field)))


def _tensors(wire: wire_pb2.ModelInferRequest) -> list[Tensor]:
    raw = wire.raw_input_contents
    if raw and len(raw) != len(wire.inputs):
        raise InvalidRequest(
            "raw_input_contents", f"one for each of {len(wire.inputs)} inputs, or none, got {len(raw)}"
        )
    tensors: list[Tensor] = []
    left = MAX_TYPED_ELEMENTS
    for index, each in enumerate(wire.inputs):
        try:
            shape = check_form(each.datatype, each.shape)
            check_parameters_of_input(each.parameters)
            if not raw:
                left -= typed_elements(each.datatype, shape)
                if left < 0:
                    raise InvalidRequest("contents", f"{TOO_MANY_TYPED}: send more as raw_input_contents")
                data = _typed(each, shape)
            elif each.HasField("contents") and each.contents.ByteSize():
                raise InvalidRequest("contents", "raw_input_contents has the elements of all inputs")
            else:
                data = raw[index]
        except InvalidRequest as error:
            raise error.within(f"inputs[{index}]") from None
        if raw and (wrong := size_problem(each.datatype, shape, len(data))):
            raise InvalidRequest(f"raw_input_contents[{index}]", wrong)
        tensors.append(Tensor(each.name, each.datatype, shape, data))
    return tensors


def _typed(each: _Input, shape: tuple[int, ...]) -> bytes:
    """The elements given as typed contents; their number is within the bound."""
    contents: Any = each.contents
    field = TYPED_BYTES if each.datatype == BYTES else FIXED[each.datatype].typed
    if not field:
        raise InvalidRequest("contents", f"{each.datatype} has none: send it as raw_input_contents")
    if strangers := [found.name for found, _ in contents.ListFields() if found.name != field]:
        raise InvalidRequest(f"contents.{strangers[0]}", f"{each.datatype} has its elements in {field}")
    values = getattr(contents, field)
    check_count(f"contents.{field}", shape, len(values))
    return joined_strings(values) if field == TYPED_BYTES else packed(f"contents.{field}", each.datatype, values)


def _wanted(wire: wire_pb2.ModelInferRequest) -> list[str]:
    """Names of the requested outputs."""
    check_count_of("outputs", len(wire.outputs))
    for index, each in enumerate(wire.outputs):
        try:
            check_parameters_of_output(each.parameters)
        except InvalidRequest as error:
            raise error.within(f"outputs[{index}]") from None
    names = [each.name for each in wire.outputs]
    check_names(names, "outputs")
    return names


def _parameters(wire: Mapping[str, wire_pb2.InferParameter]) -> dict[str, ParameterValue]:
    if len(wire) > MAX_PARAMETERS:
        raise InvalidRequest("parameters", f"at most {MAX_PARAMETERS}, got {len(wire)}")
    parameters: dict[str, ParameterValue] = {}
    for name, value in wire.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is None:
            raise InvalidRequest(f"parameters.{name[:64]}", "has no value")
        parameters[name] = getattr(value, kind)
    return parameters
