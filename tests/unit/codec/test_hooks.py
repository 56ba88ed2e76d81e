"""Types that msgspec does not know by itself."""

from __future__ import annotations

from typing import Any

import pydantic
import pytest

from slotmesh.codec import JSON, MSGPACK, ArgumentsDecoder, DecodeError, decode, encode

STRUCTURED = pytest.mark.parametrize("content_type", [JSON, MSGPACK])


class Model(pydantic.BaseModel):
    size: int = pydantic.Field(ge=0)


def takes_model(model: Model) -> None: ...


@STRUCTURED
def test_pydantic_models_go_both_ways(content_type: str) -> None:
    assert decode(content_type, encode(content_type, Model(size=1))) == {"size": 1}
    decoder = ArgumentsDecoder.for_handler(takes_model)
    assert decoder.decode(content_type, encode(content_type, [{"size": 1}])) == ((Model(size=1),), {})
    with pytest.raises(DecodeError, match=r"^args\[0\]: size: Input should be greater than or equal to 0; it takes"):
        decoder.decode(content_type, encode(content_type, [{"size": -1}]))


@STRUCTURED
def test_numpy_arrays_and_scalars_go_both_ways(content_type: str) -> None:
    numpy = pytest.importorskip("numpy")

    def takes_array(array: Any, scalar: Any) -> None: ...

    takes_array.__annotations__ = {"array": numpy.ndarray, "scalar": numpy.float32}
    payload = encode(content_type, [numpy.arange(4).reshape(2, 2), numpy.float32(0.5)])
    assert decode(JSON, encode(JSON, numpy.arange(4).reshape(2, 2))) == [[0, 1], [2, 3]]
    assert decode(content_type, payload)[1] == 0.5
    args, _ = ArgumentsDecoder.for_handler(takes_array).decode(content_type, payload)
    assert isinstance(args[0], numpy.ndarray)
    assert isinstance(args[1], numpy.float32)
    assert args[0].tolist() == [[0, 1], [2, 3]]
    with pytest.raises(DecodeError, match=r"args\[0\]: expected ndarray, got int"):
        ArgumentsDecoder.for_handler(takes_array).decode(content_type, encode(content_type, [1, 0.5]))
    with pytest.raises(DecodeError, match=r"args\[1\]: expected float32, got str"):
        ArgumentsDecoder.for_handler(takes_array).decode(content_type, encode(content_type, [[], "1"]))


@STRUCTURED
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int8", 5, 5),
        ("int8", 300, None),
        ("int8", 1.5, None),
        ("bool_", True, True),
        ("float32", 2, 2.0),
        ("datetime64", "2020-01-01", "2020-01-01"),
        ("datetime64", 10**12, None),
        ("void", 10**12, None),
    ],
)
def test_scalars_are_the_same_number_or_refused(content_type: str, kind: str, value: Any, expected: Any) -> None:
    numpy = pytest.importorskip("numpy")
    wanted = getattr(numpy, kind)

    def takes_scalar(scalar: Any) -> None: ...

    takes_scalar.__annotations__ = {"scalar": wanted}
    decoder = ArgumentsDecoder.for_handler(takes_scalar)
    if expected is None:
        with pytest.raises(DecodeError, match=r"^args\[0\]: "):
            decoder.decode(content_type, encode(content_type, [value]))
    else:
        args, _ = decoder.decode(content_type, encode(content_type, [value]))
        assert args == (wanted(expected),)
        assert type(args[0]) is wanted
