"""Numbers and names that peers of other versions, in any language, rely on: written here, as no constant says them.

A change of a line breaks somebody: it goes with the protos' comments, and with a feature that both ends name.
"""

from __future__ import annotations

import pytest

from slotmesh.calls.key_hash import PARTITIONS, partition_of
from slotmesh.streams import features, limits
from slotmesh.streams.arriving_payloads import BadChunk, JoinedAssembly, PartsAssembly
from slotmesh.streams.chunks import cut

KIB, MIB = 1024, 1024 * 1024


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_CALL_ID", 9_007_199_254_740_991),
        ("MAX_MESSAGE_BYTES", 32 * MIB),
        ("MAX_ROUTER_REQUEST_BYTES", 16 * MIB),
        ("MAX_FRAME_CALLS", 16_384),
        ("MAX_FRAME_BYTES", MIB),
        ("MAX_FRAME_RANGES", 4_096),
        ("MAX_ELEMENTS", 50_000),
        ("CHUNK_BYTES", 256 * KIB),
        ("LARGE_CHUNK_BYTES", MIB),
        ("MIN_CHUNK_BYTES", 16 * KIB),
        ("MAX_INLINE_BYTES", 4 * MIB),
        ("MAX_PAYLOAD_BYTES", 64 * MIB),
        ("START_WINDOW_CALLS", 1_024),
        ("START_WINDOW_BYTES", 4 * MIB),
        ("MAX_VALUES_AHEAD", 256),
        ("MAX_BYTES_AHEAD", MIB),
    ],
)
def test_a_bound_of_streams_is_what_older_peers_keep_to(name: str, value: int) -> None:
    assert getattr(limits, name) == value


def test_clients_name_their_features() -> None:
    assert {*features.OF_CLIENTS, features.EXECUTORS} == {"chunks", "take_items", "blocks", "executors"}


@pytest.mark.parametrize(("key", "partition"), [("red", 2211), ("green", 744), ("blue", 2011), ("", 0), ("Ünï", None)])
def test_a_key_is_in_the_same_partition_in_every_version(key: str, partition: int | None) -> None:
    assert PARTITIONS == 4096
    if partition is not None and key:
        assert partition_of(key) == partition
    assert 0 <= partition_of(key) < 4096


# -- chunks ----------------------------------------------------------------------------------------------------------


both = pytest.mark.parametrize("assembly", [JoinedAssembly, PartsAssembly], ids=lambda it: it.__name__)


def put_together(assembly: type[JoinedAssembly] | type[PartsAssembly], sizes: list[int]) -> int:
    """The bytes of a payload that arrives in chunks of these sizes."""
    under_way, at, complete = assembly(sum(sizes)), 0, False
    for size in sizes:
        complete = under_way.add(at, sum(sizes), b"x" * size)
        at += size
    assert complete
    return len(under_way.payload())


@both
@pytest.mark.parametrize("sizes", [[1], [16 * KIB, 16 * KIB, 1], [256 * KIB, MIB, 256 * KIB]], ids=str)
def test_a_chunk_has_from_16_kib_to_1_mib_and_the_last_one_may_be_smaller(
    assembly: type[JoinedAssembly] | type[PartsAssembly], sizes: list[int]
) -> None:
    assert put_together(assembly, sizes) == sum(sizes)


@both
@pytest.mark.parametrize(
    "sizes", [[16 * KIB - 1, 16 * KIB], [16 * KIB, 16 * KIB - 1, 1], [MIB + 1], [0, 1], [300, 1]], ids=str
)
def test_a_chunk_beyond_either_bound_is_refused(
    assembly: type[JoinedAssembly] | type[PartsAssembly], sizes: list[int]
) -> None:
    with pytest.raises(BadChunk, match="data: "):
        put_together(assembly, sizes)


@pytest.mark.parametrize(
    ("size", "chunks"),
    [
        (1, [1]),
        (256 * KIB - 1, [256 * KIB - 1]),
        (256 * KIB, [256 * KIB]),
        (256 * KIB + 1, [256 * KIB, 1]),
        (768 * KIB, [256 * KIB] * 3),
        (768 * KIB + 5, [*[256 * KIB] * 3, 5]),
    ],
)
def test_a_payload_is_cut_into_full_chunks_and_a_rest(size: int, chunks: list[int]) -> None:
    parts = list(cut(b"x" * size))
    assert [len(part) for _, part in parts] == chunks
    assert [at for at, _ in parts] == [sum(chunks[:number]) for number in range(len(chunks))]
