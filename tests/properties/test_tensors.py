"""Tensors from any sender: requests, payloads and results are what numpy says, and unsound ones are refused."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from router_service.convert.inference import answer_to_wire, request_of
from slotmesh.calls.method_outlines import FIXED, OF_DTYPE
from slotmesh.codec import TENSORS, ArgumentsDecoder, DecodeError, decode, encode
from slotmesh.codec.arrays import BrokenArray
from slotmesh.codec.byte_strings import cut_strings, joined_strings
from slotmesh.codec.tensors import split_rows
from slotmesh.errors import Failure
from slotmesh.oip.calls import BrokenPayload, payload_of, tensors_of
from slotmesh.oip.model import InferenceAnswer, Tensor
from tests.contract.inference.inference_client import arrays, request
from tests.support.examples import examples

DTYPES = st.sampled_from(sorted(OF_DTYPE)).map(np.dtype)
SHAPES = arrays_of.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
NUMBERS = arrays_of.arrays(DTYPES, SHAPES)
TEXTS = st.lists(st.binary(max_size=6), max_size=6)


def whole(x: Any) -> Any:
    return x


def of_objects(values: list[bytes]) -> Any:
    array = np.empty(len(values), object)
    array[:] = values
    return array


@settings(max_examples=examples(200))
@given(st.dictionaries(st.sampled_from(["a", "b", "ü"]), NUMBERS | TEXTS.map(of_objects), max_size=3), st.booleans())
def test_a_request_reaches_a_method_as_it_was(inputs: dict[str, Any], typed: bool) -> None:
    """And what it returns comes back so, bit by bit."""
    typed = typed and not any(each.dtype.str == "<f2" for each in inputs.values())
    sent = request("m", inputs, typed=typed)
    read = request_of(type(sent).FromString(sent.SerializeToString()))
    payload = payload_of(read.inputs, len(read.inputs))
    received = decode(TENSORS, payload)
    assert received.keys() == inputs.keys()
    answer = InferenceAnswer(model="m", version="v", outputs=tensors_of(encode(TENSORS, received)))
    wire = answer_to_wire(answer, typed=read.is_typed)
    assert not isinstance(wire, Failure)
    back = arrays(wire)
    for name, array in inputs.items():
        assert received[name].shape == back[name].shape == array.shape
        if array.dtype == object:
            assert received[name].tolist() == back[name].tolist() == array.tolist()
        else:
            assert received[name].dtype == array.dtype
            assert received[name].tobytes() == array.tobytes()
            np.testing.assert_array_equal(back[name], array)


@settings(max_examples=examples(200))
@given(st.binary(max_size=40), st.integers(0, 5))
def test_strings_are_cut_where_they_were_joined_or_not_at_all(raw: bytes, count: int) -> None:
    try:
        strings = cut_strings(raw, count)
    except BrokenArray:
        return
    assert len(strings) == count
    assert joined_strings(strings) == raw


@settings(max_examples=examples(200))
@given(st.binary(max_size=60))
def test_any_bytes_are_tensors_or_refused(raw: bytes) -> None:
    """At the router, and at the replica."""
    try:
        for each in tensors_of(raw):
            assert isinstance(each, Tensor)
    except BrokenPayload:
        pass
    with suppress(DecodeError):
        ArgumentsDecoder.for_handler(whole).decode(TENSORS, raw)


@settings(max_examples=examples(100))
@given(NUMBERS, st.data())
def test_a_payload_that_was_changed_is_refused_or_is_another_one(array: Any, data: st.DataObject) -> None:
    payload = bytearray(payload_of([Tensor("x", OF_DTYPE[array.dtype.str], array.shape, array.tobytes())], 1))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] ^= data.draw(st.integers(1, 255))
    try:
        for each in tensors_of(bytes(payload)):
            if each.datatype != "BYTES":
                assert len(each.data) == np.prod(each.shape, dtype=object) * FIXED[each.datatype].size
    except BrokenPayload:
        pass


@settings(max_examples=examples(200))
@given(st.lists(st.integers(0, 4), min_size=1, max_size=6), st.booleans())
def test_rows_are_split_as_they_were_put_together(rows: list[int], as_list: bool) -> None:
    table = np.arange(2 * sum(rows)).reshape(-1, 2)
    parts = split_rows(list(table) if as_list else table, rows)
    assert parts is not None
    assert [len(part) for part in parts] == rows
    assert np.concatenate([np.asarray(part).reshape(-1, 2) for part in parts]).tolist() == table.tolist()
    assert split_rows(table, [*rows, 1]) is None
