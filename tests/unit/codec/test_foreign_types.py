"""Types of users that raise as they are made or read: the one value fails, with an error of the codec."""

from __future__ import annotations

from typing import Any

import pytest

from slotmesh.codec import (
    JSON,
    MSGPACK,
    TENSORS,
    ArgumentsDecoder,
    Columns,
    ColumnsDecoder,
    DecodeError,
    EncodeError,
    Flaw,
    decoder,
    decoder_of_each,
    encode,
    encode_arguments,
    encode_each,
)
from slotmesh.errors import Executed
from tests.support.foreign_code import KINDS, Picky, Sealed, Trap, raised_by

STRUCTURED = pytest.mark.parametrize("content_type", [JSON, MSGPACK])
EACH_KIND = pytest.mark.parametrize("kind", KINDS)


class Methods:
    def one(self, trap: Trap) -> None: ...

    def default(self, trap: Trap, more: int = 0) -> None: ...

    def several(self, *traps: Trap) -> None: ...

    def named(self, **traps: Trap) -> None: ...

    def batch(self, traps: list[Trap]) -> None: ...


def trap(kind: str) -> dict[str, str]:
    return {"kind": kind, "at": "decode"}


@STRUCTURED
@EACH_KIND
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("method", ["one", "default", "several", "named"])
def test_arguments_that_raise_as_they_are_made_are_bad_arguments(
    content_type: str, kind: str, by_name: bool, method: str
) -> None:
    if method == ("several" if by_name else "named"):
        return
    given: tuple[tuple[Any, ...], dict[str, Any]] = ((), {"trap": trap(kind)}) if by_name else ((trap(kind),), {})
    decode = ArgumentsDecoder.for_handler(getattr(Methods(), method))
    with pytest.raises(DecodeError, match=kind if kind != "RecursionError" else "recursion") as caught:
        decode.decode(content_type, encode_arguments(content_type, *given))
    assert caught.value.executed is Executed.NO


@STRUCTURED
@EACH_KIND
@pytest.mark.parametrize("count", [3, 50])
def test_of_the_calls_of_a_batch_one_is_bad_and_none_is_lost(content_type: str, kind: str, count: int) -> None:
    columns = ColumnsDecoder(ArgumentsDecoder.for_handler(Methods().batch, batched=True), takes_bytes=False)
    given = [trap(kind) if at == 1 else {"kind": str(at)} for at in range(count)]
    found = [*columns.split(content_type, [encode_arguments(content_type, (each,), {}) for each in given])]
    assert sum(each.size if isinstance(each, Columns) else 1 for each in found) == count
    (flaw,) = (each for each in found if isinstance(each, Flaw))
    assert flaw.failure.executed is Executed.NO
    assert found.index(flaw) == 1
    sound = [item for each in found if isinstance(each, Columns) for item in each.args[0]]
    assert sound == [Trap(str(at)) for at in range(count) if at != 1]


@pytest.mark.parametrize("content_type", [JSON, MSGPACK, TENSORS])
@EACH_KIND
def test_results_that_raise_as_they_are_made_are_undecodable(content_type: str, kind: str) -> None:
    payloads = [encode(MSGPACK if content_type == TENSORS else content_type, {"kind": each}) for each in ("a", kind)]
    one, many = decoder(content_type, Picky), decoder_of_each(content_type, Picky)
    assert many(payloads[:1] * 3) == [Picky("a")] * 3
    with pytest.raises(DecodeError, match=kind if kind != "RecursionError" else "recursion"):
        one(payloads[1])
    with pytest.raises(DecodeError):
        many([payloads[0], payloads[1], payloads[0]])


@pytest.mark.parametrize("content_type", [JSON, MSGPACK, TENSORS])
@EACH_KIND
def test_values_that_raise_as_they_are_read_are_no_shorter_list(content_type: str, kind: str) -> None:
    """What is no Exception passes: it is the program's own, or the guard of an executor catches it."""
    wanted = EncodeError if isinstance(raised_by(kind), Exception) else type(raised_by(kind))
    with pytest.raises(wanted):
        encode(content_type, Sealed(kind))
    for values in ([1.5, Sealed(kind), 2.5], (1.5, Sealed(kind)), iter([Sealed(kind), 2.5])):
        with pytest.raises(wanted):
            encode_each(content_type, values)
