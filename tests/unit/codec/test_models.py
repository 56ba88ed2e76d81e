"""Constraints on parameters, and models of pydantic: what is checked, and what they are written as."""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import annotated_types
import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict

from slotmesh.codec import (
    JSON,
    MSGPACK,
    ArgumentsDecoder,
    DecodeError,
    EncodeError,
    decode,
    decoder,
    encode,
    encode_arguments,
)
from tests.unit.codec.taking import method_taking

STRUCTURED = pytest.mark.parametrize("content_type", [JSON, MSGPACK])


class Limited(TypedDict):
    x: Annotated[int, pydantic.Field(gt=10)]


@dataclasses.dataclass
class LimitedClass:
    x: pydantic.PositiveInt
    y: bytes = b""


CONSTRAINED: list[tuple[Any, Any, Any]] = [
    (Annotated[int, pydantic.Field(gt=10)], 11, 10),
    (Annotated[int, msgspec.Meta(gt=10)], 11, 10),
    (Annotated[int, annotated_types.Gt(10)], 11, 10),
    (Annotated[int, annotated_types.Interval(gt=10, le=12)], 12, 13),
    (Annotated[int, annotated_types.MultipleOf(3)], 9, 10),
    (Annotated[float, pydantic.Field(ge=0, lt=1)], 0.5, 1.0),
    (Annotated[str, pydantic.Field(min_length=2, max_length=3)], "ab", "a"),
    (Annotated[str, pydantic.Field(pattern="^a+$")], "aa", "ab"),
    (Annotated[list[int], annotated_types.Len(1, 2)], [1], []),
    (Annotated[str, pydantic.StringConstraints(min_length=2)], "ab", "a"),
    (Annotated[str, annotated_types.Predicate(str.islower)], "a", "A"),
    (Annotated[int, pydantic.Field(gt=10, description="text")] | None, None, 10),
    (pydantic.PositiveInt, 1, 0),
    (pydantic.conint(gt=3), 4, 3),
    (pydantic.constr(min_length=1), "a", ""),
    (pydantic.conlist(int, min_length=1), [1], []),
    (list[pydantic.PositiveInt], [1], [0]),
    (dict[str, pydantic.NonNegativeFloat], {"a": 0.0}, {"a": -1.0}),
    (tuple[pydantic.PositiveInt, ...], (1,), (0,)),
    (Limited, {"x": 11}, {"x": 10}),
    (LimitedClass, LimitedClass(1, b"\xff"), LimitedClass(0)),
    (list[LimitedClass], [LimitedClass(1)], [LimitedClass(0)]),
]


@STRUCTURED
@pytest.mark.parametrize(("wanted", "right", "wrong"), CONSTRAINED, ids=str)
def test_constraints_on_parameters_are_checked(wanted: Any, right: Any, wrong: Any, content_type: str) -> None:
    takes = ArgumentsDecoder.for_handler(method_taking(wanted))
    assert takes.decode(content_type, encode_arguments(content_type, (right,), {})) == ((right,), {})
    with pytest.raises(DecodeError, match=r"args\[0\]"):
        takes.decode(content_type, encode_arguments(content_type, (wrong,), {}))


def test_constraints_of_pydantic_in_a_struct_are_refused_at_start() -> None:
    limited = msgspec.defstruct("Limited", [("x", pydantic.PositiveInt)])
    with pytest.raises(TypeError, match=r"use msgspec\.Meta"):
        ArgumentsDecoder.for_handler(method_taking(limited))


def test_constraints_keep_a_parameter_strict() -> None:
    takes = ArgumentsDecoder.for_handler(method_taking(Annotated[int, pydantic.Field(gt=10, description="a size")]))
    with pytest.raises(DecodeError, match="expected int, got str"):
        takes.decode(JSON, b'["11"]')


@STRUCTURED
def test_a_model_with_a_secret_is_read_and_never_written(content_type: str) -> None:
    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

    takes = ArgumentsDecoder.for_handler(method_taking(Login))
    ((login,), _) = takes.decode(content_type, encode_arguments(content_type, ({"password": "x"},), {}))
    assert login.password.get_secret_value() == "x"
    with pytest.raises(EncodeError, match="Login has a secret, which pydantic writes as asterisks"):
        encode(content_type, login)


def test_models_are_written_by_their_aliases_and_read_by_both() -> None:
    class Aliased(pydantic.BaseModel):
        size: int = pydantic.Field(validation_alias="Size", serialization_alias="SIZE")

    assert encode(JSON, Aliased(Size=1)) == b'{"SIZE":1}'
    for text in (b'{"SIZE":1}', b'{"Size":1}'):
        assert decoder(JSON, Aliased)(text) == Aliased(Size=1)


def test_bytes_of_a_model_are_base64_in_json() -> None:
    class Blob(pydantic.BaseModel):
        data: bytes

    assert encode(JSON, Blob(data=b"\xff\xfe")) == b'{"data":"//4="}'
    takes = ArgumentsDecoder.for_handler(method_taking(Blob))
    assert takes.decode(JSON, b'[{"data": "//4="}]') == ((Blob(data=b"\xff\xfe"),), {})
    with pytest.raises(DecodeError, match=r"args\[0\]: data: .*base64"):
        takes.decode(JSON, b'[{"data": "no base64"}]')


def test_computed_fields_are_written_where_they_can_be_read() -> None:
    class Square(pydantic.BaseModel):
        width: int

        @pydantic.computed_field  # type: ignore[prop-decorator]  # as pydantic's documentation has it
        @property
        def area(self) -> int:
            return self.width**2

    class Closed(Square, extra="forbid"):
        pass

    assert decode(JSON, encode(JSON, Square(width=2))) == {"width": 2, "area": 4}
    assert decode(JSON, encode(JSON, Closed(width=2))) == {"width": 2}
