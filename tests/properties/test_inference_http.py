"""JSON and binary of the Open Inference Protocol against a naive model that is numpy's, through payloads of calls."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from slotmesh.calls.method_outlines import FIXED
from slotmesh.errors import Failure
from slotmesh.oip.calls import answer_of, payload_of
from slotmesh.oip.http import HttpAnswer, answer_to_http, inference_from_http
from slotmesh.oip.model import InferenceAnswer, InvalidRequest, Tensor
from tests.contract.inference_http.bodies import LENGTH, arrays, body_of
from tests.support.http_client import HttpAnswer as Answered

SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
DTYPES = [each.dtype for name, each in FIXED.items() if name != "BF16"]
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)


@st.composite
def tensors(draw: st.DrawFn) -> Any:
    """An array of any datatype, with all of its values; NaN and infinities are for binary."""
    if draw(st.booleans()):
        shape = draw(SHAPES)
        texts = draw(st.lists(st.text(max_size=6), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))))
        array = np.empty(len(texts), object)
        array[:] = [each.encode() for each in texts]
        return array.reshape(shape)
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    finite: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    return draw(arrays_of.arrays(dtype, SHAPES, elements=arrays_of.from_dtype(dtype, **finite)))


INPUTS = st.dictionaries(NAMES, tensors(), max_size=4)


def read_or_refused(body: bytes, size: int | None) -> Sequence[Tensor]:
    """The inputs; none where the request was refused."""
    try:
        return inference_from_http("m", "", body, size).request.inputs
    except InvalidRequest:
        return ()


def answered(http: HttpAnswer | Failure) -> Any:
    assert isinstance(http, HttpAnswer)
    length = {} if http.json_size is None else {LENGTH: str(http.json_size)}
    return arrays(Answered(200, length, http.body))


@given(inputs=INPUTS, binary=st.sets(st.integers(0, 3)), out=st.booleans(), data=st.data())
def test_tensors_come_back_whichever_way_they_travel(
    inputs: dict[str, Any], binary: set[int], out: bool, data: st.DataObject
) -> None:
    names = list(inputs)
    in_binary = [name for at, name in enumerate(names) if at in binary or inputs[name].dtype == np.float16]
    wanted = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    told = data.draw(st.fixed_dictionaries({name: st.none() | st.booleans() for name in wanted}))
    outputs = [{"name": n, "parameters": {} if told[n] is None else {"binary_data": told[n]}} for n in wanted]
    body, headers = body_of(inputs, binary=in_binary, outputs=outputs, parameters={"binary_data_output": out})
    inference = inference_from_http("m", "", body, int(headers[LENGTH]) if in_binary else None)

    payload = payload_of(inference.request.inputs, len(inference.request.inputs)) if inputs else b"\x80"
    answer = answer_of(inference.request, payload, "v")
    assert isinstance(answer, InferenceAnswer)
    back = answered(answer_to_http(answer, inference))
    assert list(back) == (wanted or names)
    for name, found in back.items():
        sent = inputs[name]
        assert (found.dtype, found.shape) == (sent.dtype, sent.shape)
        assert found.tolist() == sent.tolist()


@given(inputs=INPUTS, data=st.data())
def test_a_body_that_was_changed_is_read_or_refused_with_a_field(inputs: dict[str, Any], data: st.DataObject) -> None:
    body, headers = body_of(inputs, binary=True)
    size = int(headers[LENGTH])
    size = data.draw(st.just(size) | st.integers(-2, len(body) + 2))
    at = data.draw(st.integers(0, len(body)))
    body = body[:at] + data.draw(st.binary(max_size=3)) + body[at + data.draw(st.integers(0, 3)) :]
    for each in read_or_refused(body, size):
        count = int(np.prod(each.shape, dtype=object))
        assert (
            len(each.data) == count * FIXED[each.datatype].size
            if each.datatype in FIXED
            else len(each.data) >= 4 * count
        )


@given(
    text=st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda it: (
            st.lists(it, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["name", "datatype", "shape", "data", "parameters", "inputs", "outputs", "id", "binary_data_size"]
                ),
                it,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused(text: Any) -> None:
    for said in (text, {"inputs": [text]}, {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": text}]}):
        read_or_refused(json.dumps(said).encode(), None)
