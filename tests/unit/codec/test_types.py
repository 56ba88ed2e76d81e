"""Python's own types and those of msgspec, both ways, and where what is wrong is found."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any, Literal, NotRequired, TypedDict

import msgspec
import pytest

from slotmesh.codec import JSON, MSGPACK, ArgumentsDecoder, DecodeError, decoder, encode, encode_arguments
from slotmesh.streams.limits import MAX_MESSAGE_CHARS

STRUCTURED = pytest.mark.parametrize("content_type", [JSON, MSGPACK])


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Options(TypedDict):
    level: Level
    note: NotRequired[str]


class Cat(msgspec.Struct, tag="cat"):
    lives: int = 9


class Dog(msgspec.Struct, tag="dog"):
    name: str


@dataclasses.dataclass
class Everything:
    pixels: list[float]
    when: dt.datetime
    day: dt.date
    taken: dt.timedelta
    data: bytes
    colour: Colour
    level: Level
    key: uuid.UUID
    price: Decimal
    maybe: int | None
    either: int | str
    options: Options
    animals: list[Cat | Dog]
    pair: tuple[int, str]
    names: set[str]
    by_name: dict[str, Cat]
    mode: Literal["a", "b"]


def everything(**changes: Any) -> Everything:
    return dataclasses.replace(
        Everything(
            pixels=[0.0, 1.5],
            when=dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC),
            day=dt.date(2026, 1, 2),
            taken=dt.timedelta(seconds=1.5),
            data=b"\x00\xff",
            colour=Colour.BLUE,
            level=Level.LOW,
            key=uuid.UUID(int=5),
            price=Decimal("12.30"),
            maybe=None,
            either="x",
            options={"level": Level.LOW},
            animals=[Cat(), Dog("Rex")],
            pair=(1, "x"),
            names={"a"},
            by_name={"Tom": Cat(3)},
            mode="a",
        ),
        **changes,
    )


class Handler:
    def all(self, thing: Everything, again: Everything | None = None) -> None: ...

    def batch(self, things: list[Everything]) -> None: ...

    def raising(self, picky: Picky) -> None: ...


@dataclasses.dataclass
class Picky:
    x: int

    def __post_init__(self) -> None:
        if self.x == 0:
            raise ValueError("x must not be 0")
        if self.x == -1:
            raise LookupError("no such x")
        if self.x < -1:
            raise SystemExit("no more")


@STRUCTURED
def test_everything_goes_both_ways(content_type: str) -> None:
    thing = everything()
    methods = ArgumentsDecoder.for_handler(Handler().all)
    args, named = methods.decode(content_type, encode_arguments(content_type, (thing, thing), {}))
    assert args == (thing, thing)
    args, named = methods.decode(content_type, encode_arguments(content_type, (), {"thing": thing}))
    assert (*args, *named.values()) == (thing,)
    batch = ArgumentsDecoder.for_handler(Handler().batch, batched=True)
    assert batch.decode(content_type, encode_arguments(content_type, (thing,), {}))[0] == (thing,)
    assert decoder(content_type, Everything)(encode(content_type, thing)) == thing


@STRUCTURED
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pixels": [0.0, 1.0, 2.0, "x"]}, "args[0].pixels[3]: expected float, got str"),
        ({"when": "yesterday"}, "args[0].when: invalid RFC3339 encoded datetime"),
        ({"data": 5}, "args[0].data: expected bytes, got int"),
        ({"colour": "green"}, "args[0].colour: invalid enum value 'green'"),
        ({"level": 9}, "args[0].level: invalid enum value 9"),
        ({"key": "x"}, "args[0].key: invalid UUID"),
        ({"price": "cheap"}, "args[0].price: invalid decimal string"),
        ({"maybe": "x"}, "args[0].maybe: expected int | null, got str"),
        ({"either": 1.5}, "args[0].either: expected int | str, got float"),
        ({"options": {}}, "args[0].options: object missing required field level"),
        ({"options": {"level": 1, "note": 1}}, "args[0].options.note: expected str, got int"),
        ({"animals": [{"type": "cow"}]}, "args[0].animals[0].type: invalid value 'cow'"),
        ({"animals": [{"type": "dog", "name": 1}]}, "args[0].animals[0].name: expected str, got int"),
        ({"pair": [1]}, "args[0].pair: expected array of length 2"),
        ({"by_name": {"Tom": {"type": "cat", "lives": "x"}}}, "args[0].by_name[...].lives: expected int, got str"),
        ({"mode": "c"}, "args[0].mode: invalid enum value 'c'"),
    ],
)
def test_what_is_wrong_is_named_by_its_path(content_type: str, changes: dict[str, Any], message: str) -> None:
    payload = encode_arguments(content_type, (everything(**changes),), {})
    with pytest.raises(DecodeError) as caught:
        ArgumentsDecoder.for_handler(Handler().all).decode(content_type, payload)
    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("; it takes all(thing, again=None)")
    payload = encode_arguments(content_type, (), {"thing": everything(**changes)})
    with pytest.raises(DecodeError) as caught:
        ArgumentsDecoder.for_handler(Handler().all).decode(content_type, payload)
    assert str(caught.value).startswith(message.replace("args[0]", "thing"))


@STRUCTURED
@pytest.mark.parametrize(
    ("x", "message"),
    [(0, "args[0]: x must not be 0"), (-1, "args: LookupError: no such x"), (-2, "args: SystemExit: no more")],
)
def test_a_class_that_refuses_its_values_makes_bad_arguments(content_type: str, x: int, message: str) -> None:
    with pytest.raises(DecodeError) as caught:
        ArgumentsDecoder.for_handler(Handler().raising).decode(content_type, encode(content_type, [{"x": x}]))
    assert str(caught.value).startswith(message)


@dataclasses.dataclass
class Wordy:
    x: int

    def __post_init__(self) -> None:
        raise (ValueError if self.x > 0 else LookupError)("no \ud800 text" * abs(self.x))


def wordy(it: Wordy) -> None: ...


@pytest.mark.parametrize("x", [1, -1, 1000, -1000])
def test_what_a_class_raises_can_be_told_whatever_it_is(x: int) -> None:
    with pytest.raises(DecodeError, match=r"no \? text") as caught:
        ArgumentsDecoder.for_handler(wordy).decode(JSON, encode(JSON, [{"x": x}]))
    assert caught.value.failure.message.isascii()
    assert len(caught.value.failure.message) <= MAX_MESSAGE_CHARS
