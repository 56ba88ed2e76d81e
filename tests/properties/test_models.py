"""Models of pydantic: what is dumped is what validates, in every content type, alone and within other types."""

from __future__ import annotations

import dataclasses
import ipaddress
from collections import deque
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import (
    AliasChoices,
    AliasPath,
    Base64Bytes,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    HttpUrl,
    Json,
    PositiveInt,
    RootModel,
    computed_field,
    field_serializer,
    field_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from slotmesh.codec import JSON, MSGPACK, ArgumentsDecoder, decoder, encode, encode_arguments
from tests.support.examples import examples

CONTENT_TYPES = [JSON, MSGPACK]


class Colour(Enum):
    RED = "red"
    BLUE = 2


class Aliased(BaseModel):
    one: int = Field(alias="One")
    two: int = Field(validation_alias="Two")
    three: int = Field(serialization_alias="Three")
    four: int = Field(validation_alias=AliasChoices("Four", AliasPath("Fours", 0)), serialization_alias="IV")


class Populated(BaseModel):
    model_config = ConfigDict(populate_by_name=True, extra="forbid")
    one: int = Field(alias="One")


class Forbidding(BaseModel):
    model_config = ConfigDict(extra="forbid")
    width: int

    @computed_field  # type: ignore[prop-decorator]  # as pydantic's documentation has it
    @property
    def area(self) -> int:
        return self.width**2


class Keeping(BaseModel):
    model_config = ConfigDict(extra="allow")
    width: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.width**2


class Blob(BaseModel):
    data: bytes
    maybe: bytes | None = None
    many: list[bytes] = []
    named: dict[str, bytes] = {}
    encoded: Base64Bytes = Field(default=b"")


class UrlSafeBlob(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


class Rich(BaseModel):
    url: HttpUrl
    when: datetime
    day: date
    lasts: timedelta
    price: Decimal
    key: UUID
    colour: Colour
    path: Path
    address: ipaddress.IPv4Address
    numbers: set[int]
    queue: deque[int]
    pair: tuple[int, str]
    size: ByteSize
    parsed: Json[list[int]]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    key: UUID
    pair: tuple[int, int]
    when: datetime
    numbers: set[int]


class Custom(BaseModel):
    data: bytes
    number: int

    @field_serializer("number")
    def shown(self, number: int) -> str:
        return f"#{number}"

    @field_validator("number", mode="before")
    @classmethod
    def read(cls, number: Any) -> Any:
        return int(number.removeprefix("#")) if isinstance(number, str) else number


class Names(RootModel[list[str]]):
    pass


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: PositiveInt


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    data: bytes


class Owner(BaseModel):
    pet: Cat | Dog = Field(discriminator="kind")
    blob: Blob
    forbidding: list[Forbidding]


@pydantic_dataclass
class Checked:
    data: bytes
    number: Annotated[int, Field(gt=0)] = 1


@dataclasses.dataclass
class Plain:
    owner: Owner
    names: dict[str, Names]
    data: bytes


class Struct(msgspec.Struct):
    aliased: Aliased
    blob: Blob | None = None


blobs = st.builds(
    Blob,
    data=st.binary(),
    maybe=st.none() | st.binary(),
    many=st.lists(st.binary(), max_size=3),
    named=st.dictionaries(st.text(), st.binary(), max_size=2),
)
riches = st.builds(
    Rich,
    url=st.sampled_from(["http://a.example/", "https://b.example/?q=1#f"]).map(HttpUrl),
    when=st.datetimes(),
    day=st.dates(),
    lasts=st.timedeltas(timedelta(-10_000), timedelta(10_000)),
    price=st.decimals(allow_nan=False, allow_infinity=False),
    key=st.uuids(),
    colour=st.sampled_from(Colour),
    path=st.just(Path("/a/b")),
    address=st.ip_addresses(v=4),
    numbers=st.sets(st.integers(-9, 9)),
    queue=st.lists(st.integers(-9, 9)).map(deque),
    pair=st.tuples(st.integers(-9, 9), st.text()),
    size=st.integers(0, 2**40).map(ByteSize),
    parsed=st.just("[1, 2]"),
)
ALIASED = {"One": 1, "Two": 2, "three": 3, "Four": 4}
aliaseds = st.builds(lambda n: Aliased.model_validate({**ALIASED, "One": n}), st.integers(-9, 9))
forbiddings = st.builds(Forbidding, width=st.integers(0, 9))
owners = st.builds(
    Owner,
    pet=st.builds(Cat, lives=st.integers(1, 9)) | st.builds(Dog, data=st.binary()),
    blob=blobs,
    forbidding=st.lists(forbiddings, max_size=2),
)
names = st.lists(st.text()).map(Names)
MODELS: dict[Any, st.SearchStrategy[Any]] = {
    Aliased: aliaseds,
    Populated: st.builds(lambda n: Populated.model_validate({"One": n}), st.integers(-9, 9)),
    Forbidding: forbiddings,
    Keeping: st.builds(lambda n: Keeping.model_validate({"width": n, "more": n}), st.integers(0, 9)),
    Blob: blobs,
    UrlSafeBlob: st.builds(UrlSafeBlob, data=st.binary()),
    Rich: riches,
    Strict: st.builds(
        Strict,
        key=st.uuids(),
        pair=st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
        when=st.datetimes(),
        numbers=st.sets(st.integers(-9, 9)),
    ),
    Custom: st.builds(Custom, data=st.binary(), number=st.integers(-9, 9)),
    Names: names,
    Owner: owners,
    Checked: st.builds(Checked, data=st.binary(), number=st.integers(1, 9)),
    Plain: st.builds(Plain, owner=owners, names=st.dictionaries(st.text(), names, max_size=2), data=st.binary()),
    Struct: st.builds(Struct, aliased=aliaseds, blob=st.none() | blobs),
    Cat | Dog: st.builds(Cat, lives=st.integers(1, 9)) | st.builds(Dog, data=st.binary()),
    Annotated[Cat | Dog, Field(discriminator="kind")]: st.builds(Dog, data=st.binary()),
    list[Blob]: st.lists(blobs, max_size=2),
    dict[str, Rich]: st.dictionaries(st.text(), riches, max_size=1),
    tuple[Names, bytes]: st.tuples(names, st.binary()),
}


def method_taking(wanted: Any) -> Any:
    def method(it: Any) -> None: ...

    method.__annotations__ = {"it": wanted}
    return method


@pytest.mark.parametrize("content_type", CONTENT_TYPES)
@pytest.mark.parametrize("wanted", list(MODELS), ids=str)
@settings(max_examples=examples(25))
@given(data=st.data())
def test_what_is_dumped_validates_to_the_same(wanted: Any, content_type: str, data: st.DataObject) -> None:
    value = data.draw(MODELS[wanted])
    assert decoder(content_type, wanted)(encode(content_type, value)) == value
    takes = ArgumentsDecoder.for_handler(method_taking(wanted))
    assert takes.decode(content_type, encode_arguments(content_type, (value,), {})) == ((value,), {})
    assert takes.decode(content_type, encode_arguments(content_type, (), {"it": value})) == ((value,), {})


@given(data=st.binary())
def test_bytes_of_a_plain_map_are_those_of_the_model(data: bytes) -> None:
    for content_type in CONTENT_TYPES:
        for wanted in (Blob, UrlSafeBlob):
            if wanted is UrlSafeBlob and content_type == JSON:
                continue
            assert decoder(content_type, wanted)(encode(content_type, {"data": data})).data == data


@given(data=st.binary())
def test_bytes_of_a_model_are_those_of_a_dataclass(data: bytes) -> None:
    @dataclasses.dataclass
    class OnlyData:
        data: bytes

    for content_type in CONTENT_TYPES:
        assert decoder(content_type, OnlyData)(encode(content_type, Dog(data=data))) == OnlyData(data)
