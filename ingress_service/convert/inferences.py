"""Inferences of one version, as messages for routers, and their answers. Pure."""

from __future__ import annotations

from typing import Final

from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.oip.checks import RequestMistake
from slotmesh.oip.model import InferenceAnswer, InferenceRequest, ParameterValue, Tensor

_LEAST_INT: Final = -(2**63)
_LARGEST_INT: Final = 2**63 - 1
_LARGEST_UINT: Final = 2**64 - 1


def request_to_wire(request: InferenceRequest) -> wire_pb2.ModelInferRequest:
    """With raw contents. Raises RequestMistake for a number that none of its fields can hold."""
    wire = wire_pb2.ModelInferRequest(
        model_name=request.model, model_version=request.version, id=request.request_id, raw_input_contents=[]
    )
    for name, value in request.parameters.items():
        _put(wire.parameters[name], name, value)
    for each in request.inputs:
        wire.inputs.add(name=each.name, datatype=each.datatype, shape=each.shape)
        wire.raw_input_contents.append(bytes(each.data))
    for name in request.outputs:
        wire.outputs.add(name=name)
    return wire


def answer_from_wire(wire: wire_pb2.ModelInferResponse) -> InferenceAnswer:
    """Of a request with raw contents, or with no inputs: its elements are raw, too."""
    outputs = [
        Tensor(each.name, each.datatype, tuple(each.shape), data)
        for each, data in zip(wire.outputs, wire.raw_output_contents, strict=True)
    ]
    return InferenceAnswer(model=wire.model_name, version=wire.model_version, request_id=wire.id, outputs=outputs)


def _put(into: wire_pb2.InferParameter, name: str, value: ParameterValue) -> None:
    if isinstance(value, bool):
        into.bool_param = value
    elif isinstance(value, str):
        into.string_param = value
    elif isinstance(value, float):
        into.double_param = value
    elif _LEAST_INT <= value <= _LARGEST_INT:
        into.int64_param = value
    elif 0 < value <= _LARGEST_UINT:
        into.uint64_param = value
    else:
        raise RequestMistake(f"parameters.{name[:64]}", "is a number of more than 64 bits")
