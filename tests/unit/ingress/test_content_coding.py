"""Compressed bodies and the headers that say so."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress_service.core.inference import InferenceHeaders, inference_headers
from ingress_service.core.media import (
    PIECE_BYTES,
    STEP_BYTES,
    Coding,
    Inflater,
    coding_of_answer,
    coding_of_request,
    deflated,
)
from ingress_service.core.problems import RequestRefusal


def inflated(coding: Coding, body: bytes) -> bytes:
    inflater, parts = Inflater(coding, body), []
    read = 0
    while not inflater.is_done:
        parts.append(inflater.next())
        assert len(parts[-1]) <= PIECE_BYTES
        assert 0 <= inflater.read_bytes - read <= STEP_BYTES
        read = inflater.read_bytes
    return b"".join(parts)


@given(
    coding=st.sampled_from(Coding),
    body=st.binary(max_size=300) | st.integers(0, 3 * PIECE_BYTES).map(bytes),
    data=st.data(),
)
def test_what_was_compressed_comes_back_and_what_was_cut_off_does_not(
    coding: Coding, body: bytes, data: st.DataObject
) -> None:
    packed = deflated(coding, body)
    assert (gzip.decompress if coding is Coding.GZIP else zlib.decompress)(packed) == body
    assert inflated(coding, packed) == body
    cut = data.draw(st.integers(0, len(packed) - 1))
    with pytest.raises(RequestRefusal):
        inflated(coding, packed[:cut])
    with pytest.raises(RequestRefusal):
        inflated(coding, packed + b"x")


@pytest.mark.parametrize("coding", Coding)
def test_a_bomb_comes_in_pieces(coding: Coding) -> None:
    size = 5 * PIECE_BYTES + 1
    assert inflated(coding, deflated(coding, bytes(size))) == bytes(size)


def empty_blocks(size: int) -> bytes:
    """A deflate stream of blocks with codes of their own and nothing in them: 11 bits each, and no byte comes out."""
    bits = ""
    fields = [(0, 1), (2, 2), (0, 5), (0, 5), (14, 4)]  # not the last; own codes; 257 literals, 1 distance, 18 lengths
    lengths = {18: 1, 1: 1}
    order = (16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1)
    fields += [(lengths.get(symbol, 0), 3) for symbol in order]
    for value, width in fields:
        bits += f"{value:0{width}b}"[::-1]
    for zeros in (138, 118):
        bits += "1" + f"{zeros - 11:07b}"[::-1]
    bits += "0" + "0" + "0"  # a code for the end, one for a distance; the end
    unit = int((bits * 8)[::-1], 2).to_bytes(len(bits), "little")
    return b"\x78\x01" + unit * (size // len(unit))


def test_a_step_reads_little_even_where_nothing_comes_out() -> None:
    body = empty_blocks(20 * STEP_BYTES)
    inflater, steps = Inflater(Coding.DEFLATE, body), 0
    while inflater.read_bytes < len(body) - STEP_BYTES:
        before = inflater.read_bytes
        assert inflater.next() == b""
        assert inflater.read_bytes - before <= STEP_BYTES
        steps += 1
    assert steps >= len(body) // STEP_BYTES - 1
    with pytest.raises(RequestRefusal, match="was cut off"):
        inflater.next()


def test_what_a_step_has_left_is_not_copied_with_the_rest_of_the_body() -> None:
    body = deflated(Coding.GZIP, bytes(200 * PIECE_BYTES)) + bytes(50 * STEP_BYTES)
    inflater = Inflater(Coding.GZIP, body)
    inflater.next()
    assert inflater.read_bytes <= STEP_BYTES
    assert len(inflater._zlib.unconsumed_tail) < STEP_BYTES


def test_what_is_behind_an_end_that_is_the_end_of_a_step_is_refused() -> None:
    body = zlib.compress(bytes(STEP_BYTES - 11), 0)
    assert len(body) == STEP_BYTES
    assert inflated(Coding.DEFLATE, body) == bytes(STEP_BYTES - 11)
    with pytest.raises(RequestRefusal, match="something is left behind the end"):
        inflated(Coding.DEFLATE, body + b"x")


@given(body=st.binary(max_size=64), coding=st.sampled_from(Coding))
def test_noise_is_refused_and_nothing_else_happens(body: bytes, coding: Coding) -> None:
    with suppress(RequestRefusal):
        inflated(coding, body)


@pytest.mark.parametrize(
    ("header", "coding"),
    [
        (b"", None),
        (b"identity", None),
        (b"gzip", Coding.GZIP),
        (b"br, gzip;q=0.5", Coding.GZIP),
        (b"DEFLATE", Coding.DEFLATE),
        (b"gzip;q=0, deflate", Coding.DEFLATE),
        (b"gzip; q = 0.000", None),
        (b"gzip;q=0.001", Coding.GZIP),
        (b"br, *", None),
        (b"x," * 100 + b"gzip", None),
    ],
)
def test_what_the_answer_may_be(header: bytes, coding: Coding | None) -> None:
    assert coding_of_answer(header) is coding


def test_what_the_request_is() -> None:
    assert coding_of_request(b" GZIP ") is Coding.GZIP
    with pytest.raises(RequestRefusal, match="Content-Encoding must be one of"):
        coding_of_request(b"zstd")


def test_headers_of_an_inference() -> None:
    lines = [
        (b"inference-header-content-length", b"007"),
        (b"accept-encoding", b"br"),
        (b"accept-encoding", b"deflate"),
    ]
    assert inference_headers(lines) == InferenceHeaders(7, Coding.DEFLATE)
    assert inference_headers([]) == InferenceHeaders()
    for value in (b"", b"-1", b"+1", b"1e3", b"1_0", "\u0661".encode(), b"1" * 13):
        with pytest.raises(RequestRefusal, match="must be a number of bytes"):
            inference_headers([(b"inference-header-content-length", value)])
    with pytest.raises(RequestRefusal, match="is given twice"):
        inference_headers([(b"inference-header-content-length", b"1"), (b"inference-header-content-length", b"2")])
