"""Requests of the Open Inference Protocol over HTTP, made and read with numpy: naive, and on its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slotmesh.calls.method_outlines import FIXED, OF_DTYPE
from tests.contract.inference.inference_client import raw_strings, strings
from tests.support.http_client import HttpAnswer
from tests.support.ingresses import ServedMesh

LENGTH = "inference-header-content-length"


def datatype_of(array: Any) -> str:
    return "BYTES" if array.dtype == object else OF_DTYPE[array.dtype.str]


def raw_of(array: Any) -> bytes:
    flat = array.reshape(-1)
    return raw_strings(flat) if array.dtype == object else bytes(flat.tobytes())


def body_of(
    inputs: Mapping[str, Any], *, binary: Sequence[str] | bool = False, **more: Any
) -> tuple[bytes, dict[str, str]]:
    """Body and headers. `binary`: which inputs are, or whether all are; `more` stands beside the inputs."""
    said: list[dict[str, Any]] = []
    behind = b""
    for name, value in inputs.items():
        array = np.asarray(value)
        tensor: dict[str, Any] = {"name": name, "datatype": datatype_of(array), "shape": list(array.shape)}
        if binary is True or (binary and name in binary):
            raw = raw_of(array)
            tensor["parameters"] = {"binary_data_size": len(raw)}
            behind += raw
        elif array.dtype == object:
            tensor["data"] = [each.decode() for each in array.reshape(-1).tolist()]
        else:
            tensor["data"] = array.reshape(-1).tolist()
        said.append(tensor)
    text = json.dumps({"inputs": said, **more}).encode()
    return text + behind, ({LENGTH: str(len(text))} if binary else {})


async def infer(
    served: ServedMesh, model: str, inputs: Mapping[str, Any] | None = None, *, version: str = "", **more: Any
) -> HttpAnswer:
    """`more`: of `body_of`; `headers` are sent, too."""
    sent = more.pop("headers", {})
    body, headers = body_of(inputs or {}, **more)
    path = f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"
    return await served.ask("POST", path, body, {**headers, **sent})


def said_by(answer: HttpAnswer) -> Any:
    """The JSON of an answer."""
    length = answer.headers.get(LENGTH)
    return json.loads(answer.body[: int(length)] if length is not None else answer.body)


def arrays(answer: HttpAnswer) -> dict[str, Any]:
    """The outputs as arrays, however they came."""
    assert answer.status == 200, answer.body
    found: dict[str, Any] = {}
    at = int(answer.headers.get(LENGTH, len(answer.body)))
    for each in said_by(answer)["outputs"]:
        size = each.get("parameters", {}).get("binary_data_size")
        if size is None and each["datatype"] == "BYTES":
            array = np.empty(len(each["data"]), object)
            array[:] = [text.encode() for text in each["data"]]
        elif size is None:
            array = np.asarray(each["data"], FIXED[each["datatype"]].dtype)
        else:
            raw, at = answer.body[at : at + size], at + size
            if each["datatype"] == "BYTES":
                flat = strings(raw)
                array = np.empty(len(flat), object)
                array[:] = flat
            else:
                array = np.frombuffer(raw, FIXED[each["datatype"]].dtype)
        found[each["name"]] = array.reshape(each["shape"])
    assert at == len(answer.body)
    return found
