"""Requests of the Open Inference Protocol as they come over gRPC.

Invariants: elements are counted before they are walked through, raw ones are not walked through at all. What is wrong
names its field.
Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotmesh.codec.byte_strings import joined_strings
from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.oip.checks import (
    TOO_MANY_TYPED,
    RequestMistake,
    check_count,
    check_count_of,
    check_form,
    check_names,
    check_parameters_of_input,
    check_parameters_of_output,
    size_problem,
    typed_elements,
)
from slotmesh.oip.datatypes import BYTES, FIXED, TYPED_BYTES
from slotmesh.oip.elements import packed
from slotmesh.oip.model import (
    MAX_PARAMETERS,
    MAX_TYPED_ELEMENTS,
    NO_PARAMETERS,
    InferenceRequest,
    ParameterValue,
    Tensor,
)

_Input = wire_pb2.ModelInferRequest.InferInputTensor


def request_of(wire: wire_pb2.ModelInferRequest) -> InferenceRequest:
    """The request.

    Raises:
        RequestMistake: what is wrong with it.
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


def _tensors(wire: wire_pb2.ModelInferRequest) -> list[Tensor]:
    raw = wire.raw_input_contents
    if raw and len(raw) != len(wire.inputs):
        raise RequestMistake(
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
                    raise RequestMistake("contents", f"{TOO_MANY_TYPED}: send more as raw_input_contents")
                data = _typed(each, shape)
            elif each.HasField("contents") and each.contents.ByteSize():
                raise RequestMistake("contents", "raw_input_contents has the elements of all inputs")
            else:
                data = raw[index]
        except RequestMistake as mistake:
            raise mistake.within(f"inputs[{index}]") from None
        if raw and (wrong := size_problem(each.datatype, shape, len(data))):
            raise RequestMistake(f"raw_input_contents[{index}]", wrong)
        tensors.append(Tensor(each.name, each.datatype, shape, data))
    return tensors


def _typed(each: _Input, shape: tuple[int, ...]) -> bytes:
    """The elements that were said one by one; they are as many as the bound allows, or fewer."""
    contents: Any = each.contents
    field = TYPED_BYTES if each.datatype == BYTES else FIXED[each.datatype].typed
    if not field:
        raise RequestMistake("contents", f"{each.datatype} has none: send it as raw_input_contents")
    if strangers := [found.name for found, _ in contents.ListFields() if found.name != field]:
        raise RequestMistake(f"contents.{strangers[0]}", f"{each.datatype} has its elements in {field}")
    values = getattr(contents, field)
    check_count(f"contents.{field}", shape, len(values))
    return joined_strings(values) if field == TYPED_BYTES else packed(f"contents.{field}", each.datatype, values)


def _wanted(wire: wire_pb2.ModelInferRequest) -> list[str]:
    """Names of the outputs that are wanted."""
    check_count_of("outputs", len(wire.outputs))
    for index, each in enumerate(wire.outputs):
        try:
            check_parameters_of_output(each.parameters)
        except RequestMistake as mistake:
            raise mistake.within(f"outputs[{index}]") from None
    names = [each.name for each in wire.outputs]
    check_names(names, "outputs")
    return names


def _parameters(wire: Mapping[str, wire_pb2.InferParameter]) -> dict[str, ParameterValue]:
    if len(wire) > MAX_PARAMETERS:
        raise RequestMistake("parameters", f"at most {MAX_PARAMETERS}, got {len(wire)}")
    parameters: dict[str, ParameterValue] = {}
    for name, value in wire.items():
        kind = value.WhichOneof("parameter_choice")
        if kind is None:
            raise RequestMistake(f"parameters.{name[:64]}", "has no value")
        parameters[name] = getattr(value, kind)
    return parameters
