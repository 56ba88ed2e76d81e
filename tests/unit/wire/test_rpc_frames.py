"""Responses and metadata of users' own rpcs, as they are framed between replica and router."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.calls.result_envelopes import (
    INITIAL,
    MESSAGE,
    TRAILERS,
    BadFrames,
    framed,
    frames_in,
    message_alone,
    metadata_from_bytes,
    metadata_to_bytes,
)

KINDS = st.sampled_from([MESSAGE, INITIAL, TRAILERS])
TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126))
PAIRS = st.lists(st.tuples(st.sampled_from(["a", "x-y"]), TEXT) | st.tuples(st.just("b-bin"), st.binary()))


@given(st.lists(st.tuples(KINDS, st.binary())))
def test_what_is_framed_is_found(frames: list[tuple[int, bytes]]) -> None:
    payload = b"".join(framed(kind, content) for kind, content in frames)
    assert list(frames_in(payload)) == frames
    alone = frames[0][1] if len(frames) == 1 and frames[0][0] == MESSAGE else None
    assert message_alone(payload) == alone


@given(PAIRS)
def test_metadata_is_read_as_it_was_written(pairs: list[tuple[str, str | bytes]]) -> None:
    assert metadata_from_bytes(metadata_to_bytes(pairs)) == tuple(pairs)


@given(st.binary())
def test_other_bytes_are_refused_or_read(raw: bytes) -> None:
    for read in (lambda: list(frames_in(raw)), lambda: metadata_from_bytes(raw)):
        try:
            read()
        except BadFrames:
            continue


def test_what_is_cut_off_is_refused() -> None:
    for raw in (b"\x00", b"\x00\x00\x00\x00\x05abc"):
        with pytest.raises(BadFrames):
            list(frames_in(raw))
        assert message_alone(raw) is None
