"""Compressed bodies and the headers that say so."""

from __future__ import annotations

import gzip
import zlib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingress_service.core.content_coding import (
    PIECE_BYTES,
    Coding,
    Inflater,
    coding_of_answer,
    coding_of_request,
    deflated,
)
from ingress_service.core.inference_headers import InferenceHeaders, inference_headers
from ingress_service.core.problems import RequestRefusal


def inflated(coding: Coding, body: bytes) -> bytes:
    inflater, parts = Inflater(coding, body), []
    while not inflater.is_done:
        parts.append(inflater.next())
        assert len(parts[-1]) <= PIECE_BYTES
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
        (b"content-encoding", b"gzip"),
        (b"accept-encoding", b"br"),
        (b"accept-encoding", b"deflate"),
    ]
    assert inference_headers(lines) == InferenceHeaders(7, Coding.GZIP, Coding.DEFLATE)
    assert inference_headers([]) == InferenceHeaders()
    for value in (b"", b"-1", b"+1", b"1e3", b"1_0", "\u0661".encode(), b"1" * 13):
        with pytest.raises(RequestRefusal, match="must be a number of bytes"):
            inference_headers([(b"inference-header-content-length", value)])
    with pytest.raises(RequestRefusal, match="is given twice"):
        inference_headers([(b"inference-header-content-length", b"1"), (b"inference-header-content-length", b"2")])
