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
    assert decode(content_type, payload) == [[[0, 1], [2, 3]], 0.5]
    args, _ = ArgumentsDecoder.for_handler(takes_array).decode(content_type, payload)
    assert isinstance(args[0], numpy.ndarray)
    assert isinstance(args[1], numpy.float32)
    assert args[0].tolist() == [[0, 1], [2, 3]]
    with pytest.raises(DecodeError, match=r"args\[0\]: expected ndarray, got int"):
        ArgumentsDecoder.for_handler(takes_array).decode(content_type, encode(content_type, [1, 0.5]))
