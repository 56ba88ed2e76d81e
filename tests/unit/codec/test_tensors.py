"""Tensors as arguments of batch methods, and what annotations say of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypedDict

import numpy as np
import pytest
from numpy.typing import NDArray

from slotmesh.calls.method_outlines import MethodTensors
from slotmesh.codec import TENSORS, ArgumentsDecoder, Columns, ColumnsDecoder, EncodeError, decode, encode, encode_each
from slotmesh.codec.tensor_arguments import method_tensors
from slotmesh.codec.types.signature import read_signature


class Pair(TypedDict):
    a: NDArray[np.float32]
    b: list[str]


def rows(x: NDArray[np.float32]) -> NDArray[np.float64]:
    return x.astype(np.float64)


def pairs(x: Pair) -> tuple[np.ndarray, list[str]]:
    return x["a"], x["b"]


async def labels(texts: list[str], limit: float = 0.5) -> AsyncIterator[list[int]]:
    yield [len(texts)]


def columns_of(function: Any, *tensors: dict[str, Any]) -> list[Any]:
    decoder = ColumnsDecoder(ArgumentsDecoder.for_handler(function, batched=True), takes_bytes=False)
    return list(decoder.split(TENSORS, [encode(TENSORS, each) for each in tensors]))


def test_tensors_of_one_shape_become_one_array_at_once() -> None:
    (columns,) = columns_of(rows, *({"x": np.full((2, 3), index, np.float32)} for index in range(50)))
    assert isinstance(columns, Columns)
    assert (columns.size, list(columns.rows)) == (50, [2] * 50)
    (block,) = columns.args[0]
    assert block.shape == (100, 3)
    assert block[:, 0].tolist() == [index for index in range(50) for _ in range(2)]


def test_those_of_other_shapes_are_taken_one_by_one_and_may_still_meet() -> None:
    found = columns_of(rows, {"x": np.ones((1, 3))}, {"x": np.ones((2, 3), np.float32)}, {"x": np.ones((1, 4))})
    assert [list(each.rows) for each in found] == [[1], [2], [1]]
    assert found[0].shape == found[1].shape != found[2].shape


def test_rows_of_an_array_are_encoded_as_the_arrays_that_they_are() -> None:
    table = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    together = encode_each(TENSORS, table)
    assert together == [encode(TENSORS, each) for each in table]
    assert decode(TENSORS, together[1])["output"].tolist() == table[1].tolist()


def test_what_annotations_say() -> None:
    def told(function: Any, **fields: Any) -> MethodTensors:
        return method_tensors(function, read_signature(function, batched=bool(fields.get("batch_size"))), **fields)

    def brief(tensors: Any) -> list[tuple[str, str, tuple[int, ...]]]:
        return [(each.name, each.datatype, each.shape) for each in tensors]

    batched = told(rows, batch_size=8)
    assert (brief(batched.inputs), brief(batched.outputs)) == ([("x", "FP32", (-1,))], [("output", "FP64", (-1,))])
    whole = told(pairs)
    assert brief(whole.inputs) == [("a", "FP32", (-1,)), ("b", "BYTES", (-1,))]
    assert brief(whole.outputs) == [("output0", "FP32", (-1,)), ("output1", "BYTES", (-1,))]
    yielding = told(labels, yields=True)
    assert brief(yielding.inputs) == [("texts", "BYTES", (-1,)), ("limit", "FP64", (1,))]
    assert [each.optional for each in yielding.inputs] == [False, True]
    assert brief(yielding.outputs) == [("output", "INT64", (-1,))]


@pytest.mark.parametrize("value", [[1, [2]], [[1], [2, 3]], {1: 2}, [None], np.ones(1, np.complex64), [2**64]])
def test_what_no_tensor_can_say(value: Any) -> None:
    with pytest.raises(EncodeError):
        encode(TENSORS, value)
