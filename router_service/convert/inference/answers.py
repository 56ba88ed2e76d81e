"""Answers of the Open Inference Protocol as they leave over gRPC.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from slotmesh.codec.arrays import BrokenArray
from slotmesh.codec.byte_strings import cut_strings
from slotmesh.errors import Failure
from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.oip.checks import typed_elements
from slotmesh.oip.datatypes import BYTES, FIXED, TYPED_BYTES
from slotmesh.oip.elements import unpacked
from slotmesh.oip.model import MAX_TYPED_ELEMENTS, InferenceAnswer, Tensor
from slotmesh.oip.results import unreadable


def answer_to_wire(answer: InferenceAnswer, *, typed: bool) -> wire_pb2.ModelInferResponse | Failure:
    """The answer. `typed`: with elements one by one, where its tensors can be said so.

    A failure where a tensor of BYTES is none.
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
    """Why an inference of a stream has failed."""
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
