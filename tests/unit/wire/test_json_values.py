"""JSON arguments and results of calls: the same values either way, in steps, and bounded."""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import Any, TypeVar

import msgspec
import pytest
from google.protobuf import json_format, struct_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.convert import json_values
from slotmesh.convert.json_values import (
    MAX_LEVELS,
    NO_JSON_RESULT,
    STEP_BYTES,
    STEP_VALUES,
    TOO_DEEP_RESULT,
    TOO_MANY_VALUES,
    json_arguments,
    put_json_result,
    values_in,
)
from slotmesh.errors import Executed, Failure, Reason
from slotmesh.streams.limits import MAX_ELEMENTS
from slotmesh.v1 import router_service_pb2
from tests.support.examples import examples

T = TypeVar("T")

TEXTS = st.text(alphabet='a,[]{}"\\: \n0', max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def done(steps: Generator[None, None, T]) -> tuple[T, int]:
    """What comes of it, and in how many steps after the first."""
    taken = 0
    while True:
        try:
            next(steps)
            taken += 1
        except StopIteration as end:
            return end.value, taken


def result_of(payload: bytes) -> Generator[None, None, struct_pb2.Value | Failure]:
    """The value, or why it does not fit."""
    result = struct_pb2.Value()
    failure = yield from put_json_result(payload, result)
    return result if failure is None else failure


def number_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(number_of, value.values()))
    return 1 + sum(map(number_of, value)) if isinstance(value, list) else 1


@settings(max_examples=examples(300))
@given(VALUES, st.integers(1, 9), st.sampled_from([None, 1]))
def test_values_are_counted_wherever_the_text_is_cut(value: Any, step: int, indent: int | None) -> None:
    text = json.dumps(value, indent=indent).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_values, "STEP_BYTES", step)
        assert done(values_in(text, 10_000))[0] == number_of(value)


@settings(max_examples=examples(100))
@given(VALUES)
def test_results_are_what_protobuf_makes_of_them_and_arguments_the_way_back(value: Any) -> None:
    text = json.dumps(value).encode()
    result, _ = done(result_of(text))
    assert result == json_format.Parse(text, struct_pb2.Value())
    if isinstance(value, (list, dict)):
        assert isinstance(result, struct_pb2.Value)
        payload, _ = done(json_arguments(result))
        assert isinstance(payload, bytes)
        assert msgspec.json.decode(payload) == value


def test_the_most_values_are_converted_in_steps_either_way() -> None:
    values = [1] * (MAX_ELEMENTS - 1)  # the list is one, too
    result, taken = done(result_of(msgspec.json.encode(values)))
    assert isinstance(result, struct_pb2.Value)
    assert len(result.list_value.values) == len(values)
    assert taken >= MAX_ELEMENTS // STEP_VALUES - 1
    payload, taken = done(json_arguments(result))
    assert payload == msgspec.json.encode(values)
    assert taken >= MAX_ELEMENTS // STEP_VALUES - 1


def test_more_values_are_refused_unseen_and_counted_no_further() -> None:
    text = msgspec.json.encode([0] * MAX_ELEMENTS)
    assert done(result_of(text))[0] is TOO_MANY_VALUES
    no_json = b"[" + b"0," * (16 * STEP_BYTES)
    told, taken = done(result_of(no_json))
    assert told is TOO_MANY_VALUES
    assert taken < 16
    assert TOO_MANY_VALUES.executed is Executed.YES
    assert "as `payload`" in TOO_MANY_VALUES.message


def test_a_long_text_is_one_value_and_counted_in_steps() -> None:
    long = ',["' * (STEP_BYTES // 2)
    result, taken = done(result_of(msgspec.json.encode(long)))
    assert result == struct_pb2.Value(string_value=long)
    assert taken == len(msgspec.json.encode(long)) // STEP_BYTES


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"nul", b"[secret]", b'{"secret": NaN}', b'["secret\\ud800"]', b"1e999"),
        *(b"9" * 400, b"9" * 5_000, b"[" * 40_000),
    ],
)
def test_what_is_no_json_fails_in_constant_words(text: bytes) -> None:
    assert done(result_of(text))[0] is NO_JSON_RESULT


def test_the_last_of_two_values_of_a_key_is_the_value() -> None:
    assert done(result_of(b'{"a":1,"a":2}'))[0] == json_format.ParseDict({"a": 2}, struct_pb2.Value())


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_lacks_is_refused_with_its_path(number: float) -> None:
    value: Any = [0, {"a": [1], "b": [2, {"c": 3}]}, 4]
    arguments = json_format.ParseDict(value, struct_pb2.Value())
    arguments.list_value.values[1].struct_value.fields["b"].list_value.values[1].struct_value.fields[
        "c"
    ].number_value = number
    failure, _ = done(json_arguments(arguments))
    assert isinstance(failure, Failure)
    assert (failure.reason, failure.executed) == (Reason.BAD_ARGUMENTS, Executed.NO)
    assert failure.message.startswith(f"arguments[1].b[1].c: must be finite, is {number}: JSON has no such number")
    assert failure.metadata == {"field": "arguments"}
    scalar, _ = done(json_arguments(struct_pb2.Value(number_value=number)))
    assert isinstance(scalar, Failure)
    assert scalar.message.startswith("arguments: expected a list")


@pytest.mark.parametrize(("opens", "closes", "levels"), [(b"[", b"]", 2), (b'{"a":', b"}", 3)])
def test_the_deepest_result_can_be_read_and_a_deeper_one_is_refused(opens: bytes, closes: bytes, levels: int) -> None:
    deepest = (MAX_LEVELS - 2) // levels
    result, _ = done(result_of(opens * deepest + b"1" + closes * deepest))
    assert isinstance(result, struct_pb2.Value)
    response = router_service_pb2.CallResponse(result=result)
    assert router_service_pb2.CallResponse.FromString(response.SerializeToString()) == response
    deeper = opens * (deepest + 1) + b"1" + closes * (deepest + 1)
    assert done(result_of(deeper))[0] is TOO_DEEP_RESULT
