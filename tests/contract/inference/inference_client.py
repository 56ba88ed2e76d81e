"""Requests of the Open Inference Protocol, made and read with numpy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from slotmesh.calls.method_outlines import FIXED, OF_DTYPE
from slotmesh.inference import grpc_inference_service_pb2 as pb

TYPED: Mapping[str, str] = {each.name: each.typed for each in FIXED.values() if each.typed} | {
    "BYTES": "bytes_contents"
}


def raw_strings(values: Any) -> bytes:
    return b"".join(len(each).to_bytes(4, "little") + each for each in values)


def request(
    model: str,
    inputs: Mapping[str, Any] | None = None,
    *,
    typed: bool = False,
    outputs: tuple[str, ...] = (),
    version: str = "",
    request_id: str = "",
    **parameters: Any,
) -> pb.ModelInferRequest:
    """A request with arrays; those of objects are BYTES."""
    made = pb.ModelInferRequest(model_name=model, model_version=version, id=request_id)
    for name, value in (inputs or {}).items():
        array = np.asarray(value)
        datatype = "BYTES" if array.dtype == object else OF_DTYPE[array.dtype.str]
        tensor = made.inputs.add(name=name, datatype=datatype, shape=array.shape)
        if typed:
            getattr(tensor.contents, TYPED[datatype]).extend(array.reshape(-1).tolist())
        else:
            flat = array.reshape(-1)
            made.raw_input_contents.append(raw_strings(flat) if datatype == "BYTES" else array.tobytes())
    for name in outputs:
        made.outputs.add(name=name)
    for name, value in parameters.items():
        kind = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}[type(value)]
        setattr(made.parameters[name], kind, value)
    return made


def arrays(answer: pb.ModelInferResponse) -> dict[str, Any]:
    """The outputs as arrays, however they came."""
    found: dict[str, Any] = {}
    for index, each in enumerate(answer.outputs):
        shape = tuple(each.shape)
        if each.datatype == "BYTES":
            flat = (
                strings(answer.raw_output_contents[index])
                if answer.raw_output_contents
                else list(each.contents.bytes_contents)
            )
            array = np.empty(len(flat), object)
            array[:] = flat
        elif answer.raw_output_contents:
            array = np.frombuffer(answer.raw_output_contents[index], FIXED[each.datatype].dtype)
        else:
            array = np.asarray(getattr(each.contents, TYPED[each.datatype]), FIXED[each.datatype].dtype)
        found[each.name] = array.reshape(shape)
    return found


def strings(raw: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "little")
        found.append(raw[at + 4 : at + 4 + size])
        at += 4 + size
    return found


def told(error: grpc.aio.AioRpcError) -> tuple[str, str, str]:
    """Status, reason and what is said of execution."""
    status: Any = rpc_status.from_call(error)  # type: ignore[arg-type]  # an aio error quacks as a call
    info = error_details_pb2.ErrorInfo()
    assert any(detail.Unpack(info) for detail in status.details)
    return error.code().name, info.reason, info.metadata["executed"]
