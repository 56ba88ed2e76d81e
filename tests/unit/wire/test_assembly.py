"""Payloads that are cut, and put together again."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slotmesh.streams.arriving_payloads import Assembly, BadChunk, JoinedAssembly, PartsAssembly
from slotmesh.streams.chunks import SMALL_CHUNKS, ChunkTurns, Payload, PayloadParts, cut, joined
from slotmesh.streams.limits import CHUNK_BYTES, LARGE_CHUNK_BYTES, MIN_CHUNK_BYTES

SIZES = st.one_of(
    st.integers(1, 3),
    st.integers(-2, 2).map(lambda off: CHUNK_BYTES + off),
    st.integers(-1, 1).map(lambda off: 3 * CHUNK_BYTES + off),
    st.integers(-1, 1).map(lambda off: 2 * LARGE_CHUNK_BYTES + off),
)


def payload_of(size: int, seed: int = 0) -> bytes:
    """Bytes that say where they stand."""
    return array("I", range(seed, seed + size // 4 + 1)).tobytes()[:size]


def assembled(assembly: Assembly[Payload], payload: Payload) -> None:
    is_complete = False
    for offset, data in cut(payload):
        assert not is_complete
        is_complete = assembly.add(offset, len(payload), data)
    assert is_complete


@given(SIZES)
def test_what_was_cut_is_whole_again(size: int) -> None:
    payload = payload_of(size)
    here, there = JoinedAssembly(size), PartsAssembly(size)
    assembled(here, payload)
    assert here.payload() == payload
    assembled(there, payload)
    parts = there.payload()
    assert len(parts) == size
    assert joined(parts) == payload
    again = JoinedAssembly(size)
    assembled(again, parts)
    assert again.payload() == payload


@given(SIZES)
def test_chunks_are_as_large_as_they_may_be_but_for_the_last(size: int) -> None:
    chunks = list(cut(payload_of(size)))
    assert [len(data) for _, data in chunks[:-1]] == [CHUNK_BYTES] * (len(chunks) - 1)
    assert 0 < len(chunks[-1][1]) <= CHUNK_BYTES


@pytest.mark.parametrize("kind", [JoinedAssembly, PartsAssembly])
@given(
    offset=st.integers(-1, 30),
    total=st.integers(-1, 30),
    size=st.sampled_from((0, 1, 5, 10, 11, 20, 21, LARGE_CHUNK_BYTES, LARGE_CHUNK_BYTES + 1)),
)
@example(offset=0, total=20, size=10)
@example(offset=11, total=20, size=5)
def test_only_the_next_chunk_continues_a_payload(
    kind: type[JoinedAssembly | PartsAssembly], offset: int, total: int, size: int
) -> None:
    """20 bytes, of which 10 have come."""
    assembly = kind(20, least=1)
    assert not assembly.add(0, 20, b"0123456789")
    is_sound = offset == 10 and total == 20 and 1 <= size <= 10
    if is_sound:
        assert assembly.add(offset, total, bytes(size)) is (size == 10)
        assert assembly.received == 10 + size
        return
    with pytest.raises(BadChunk, match=r"^(offset|total|data): ") as mistake:
        assembly.add(offset, total, bytes(size))
    assert str(mistake.value).startswith(f"{mistake.value.field}: ")
    assert assembly.received == 10


@pytest.mark.parametrize("kind", [JoinedAssembly, PartsAssembly])
def test_a_payload_does_not_come_in_crumbs(kind: type[JoinedAssembly | PartsAssembly]) -> None:
    total = 2 * MIN_CHUNK_BYTES + 1
    assembly = kind(total)
    with pytest.raises(BadChunk, match=f"^data: {MIN_CHUNK_BYTES - 1} bytes: .* has at least {MIN_CHUNK_BYTES}$"):
        assembly.add(0, total, bytes(MIN_CHUNK_BYTES - 1))
    assert not assembly.add(0, total, bytes(MIN_CHUNK_BYTES))
    with pytest.raises(BadChunk):
        assembly.add(MIN_CHUNK_BYTES, total, b"x")
    assert not assembly.add(MIN_CHUNK_BYTES, total, bytes(MIN_CHUNK_BYTES))
    assert assembly.add(2 * MIN_CHUNK_BYTES, total, b"x"), "the last one may be short"


PARTS = (MIN_CHUNK_BYTES, CHUNK_BYTES, CHUNK_BYTES + 1, CHUNK_BYTES + MIN_CHUNK_BYTES, LARGE_CHUNK_BYTES - 1)


@settings(deadline=None)
@given(st.lists(st.sampled_from((*PARTS, LARGE_CHUNK_BYTES)), min_size=1, max_size=4))
def test_large_parts_are_cut_for_a_peer_that_reads_small_chunks(sizes: list[int]) -> None:
    """No chunk but the last is smaller than a receiver takes, wherever its part ends."""
    parts = PayloadParts([payload_of(size, seed) for seed, size in enumerate(sizes)])
    there = JoinedAssembly(len(parts))
    chunks = list(cut(parts))
    assert max(len(data) for _, data in chunks) <= CHUNK_BYTES
    assert [there.add(offset, len(parts), data) for offset, data in chunks][-1]
    assert there.payload() == joined(parts)


def sizes_of(turns: ChunkTurns[int], count: int) -> list[int]:
    return [len(turns.take().data) for _ in range(count)]


def test_chunks_are_large_while_nothing_small_leaves_between_them() -> None:
    turns: ChunkTurns[int] = ChunkTurns()
    turns.add(1, bytes(64 * LARGE_CHUNK_BYTES))
    assert sizes_of(turns, 2) == [LARGE_CHUNK_BYTES] * 2
    turns.passed(CHUNK_BYTES)
    assert sizes_of(turns, SMALL_CHUNKS + 2) == [CHUNK_BYTES] * SMALL_CHUNKS + [LARGE_CHUNK_BYTES] * 2
    turns.passed(CHUNK_BYTES + 1)
    assert sizes_of(turns, 1) == [LARGE_CHUNK_BYTES], "who sends much is not in a hurry"


def test_no_two_chunks_follow_each_other_while_other_frames_wait() -> None:
    turns: ChunkTurns[int] = ChunkTurns()
    turns.add(1, bytes(4 * LARGE_CHUNK_BYTES))
    others = ["a", "b"]
    frames: list[str] = []
    while frame := turns.next(
        lambda: f"chunk {turns.take().offset // LARGE_CHUNK_BYTES}", lambda: (others and others.pop(0)) or None
    ):
        frames.append(frame)
    assert frames == ["a", "chunk 0", "b", "chunk 1", "chunk 2", "chunk 3"]


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 4 * CHUNK_BYTES), max_size=4),
    st.sets(st.integers(0, 3), max_size=2),
)
def test_payloads_take_turns(sizes: list[int], unwanted: set[int]) -> None:
    rota: ChunkTurns[int] = ChunkTurns()
    payloads = {owner: payload_of(size, owner) for owner, size in enumerate(sizes)}
    for owner, payload in payloads.items():
        rota.add(owner, payload if owner % 2 else PayloadParts([data for _, data in cut(payload)]))
    rota.discard(unwanted)
    wanted = [owner for owner in payloads if owner not in unwanted]
    got = {owner: JoinedAssembly(len(payloads[owner])) for owner in wanted}
    turns: list[int] = []
    while rota:
        chunk = rota.take()
        turns.append(chunk.owner)
        assert got[chunk.owner].add(chunk.offset, chunk.total, chunk.data) is chunk.is_last
    assert {owner: assembly.payload() for owner, assembly in got.items()} == {
        owner: payloads[owner] for owner in wanted
    }
    for owner in wanted:
        first, last = turns.index(owner), len(turns) - 1 - turns[::-1].index(owner)
        between = turns[first : last + 1]
        assert all(between.count(other) <= between.count(owner) for other in wanted)
