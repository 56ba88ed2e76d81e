"""Arrays over real gRPC: as arguments and results, a frame at once, and what is no array."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest
import pytest_asyncio

from slotmesh.codec import JSON, MSGPACK, OCTET_STREAM, decode, encode, encode_arguments, encode_arguments_of_each
from tests.contract.array_handlers import Arrays
from tests.support.replicas import RunningReplica, running_replica
from tests.support.wait import wait_until

pytestmark = pytest.mark.asyncio

HANDLER = f"{Arrays.__module__}:{Arrays.__qualname__}"
ROWS = np.arange(600, dtype=np.float32).reshape(200, 3)


@pytest_asyncio.fixture
async def replica() -> AsyncIterator[RunningReplica]:
    async with running_replica(HANDLER) as running:
        yield running


@pytest.mark.parametrize("content_type", [MSGPACK, OCTET_STREAM])
async def test_a_frame_of_rows_is_computed_in_batches(replica: RunningReplica, content_type: str) -> None:
    async with replica.router() as stream:
        payloads = encode_arguments_of_each(content_type, [ROWS])
        run = stream.run(payloads, method="scale", content_type=content_type)
        await stream.send(run)
        await wait_until(lambda: len(stream.results) == len(ROWS))
        results = [stream.results[run.first_run_id + index] for index in range(len(ROWS))]
        if content_type == MSGPACK:
            assert results == [encode(MSGPACK, 2 * row) for row in ROWS]
        else:
            assert results == [(2 * row).tobytes() for row in ROWS]
        assert sum(replica.handler.sizes) == len(ROWS)
        assert max(replica.handler.sizes) == 64


async def test_single_calls_and_what_is_wrong_with_them(replica: RunningReplica) -> None:
    async with replica.router() as stream:
        array = np.arange(6, dtype=np.int16).reshape(2, 3)
        cases: list[tuple[str, str, bytes, object]] = [
            ("echo", MSGPACK, encode_arguments(MSGPACK, ({"a": [array]},), {}), {"a": [array.tolist()]}),
            ("norm", MSGPACK, encode_arguments(MSGPACK, (np.array([3, 4]),), {}), 5.0),
            ("norm", JSON, b"[[3, 4]]", 5.0),
            ("total", MSGPACK, encode_arguments(MSGPACK, (np.array([1.5, 2]),), {}), 3.5),
            ("sums", JSON, b"[[1, 2]]", 3),
            ("shapes", MSGPACK, encode_arguments(MSGPACK, (array,), {}), [2, 3]),
            ("halves", MSGPACK, encode_arguments(MSGPACK, (np.arange(3),), {}), [[0], [1, 2]]),
        ]
        runs = [stream.run([payload], method=method, content_type=kind) for method, kind, payload, _ in cases]
        await stream.send(*runs)
        await wait_until(lambda: len(stream.results) == len(cases))
        for run, (_, content_type, _, expected) in zip(runs, cases, strict=True):
            result = decode(content_type, stream.results[run.first_run_id])
            assert repr(plain(result)) == repr(expected)


def plain(value: object) -> object:
    """Lists for arrays."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


async def test_hostile_payloads_fail_alone_and_are_not_executed(replica: RunningReplica) -> None:
    sound = encode_arguments(MSGPACK, (ROWS[0],), {})
    hostile = [
        sound[:-1],
        sound[:8],
        sound + b"\x00",
        sound.replace(b"<f4", b"|O4"),
        sound.replace((3).to_bytes(4, "big"), (2**32 - 1).to_bytes(4, "big")),
        b"\x91" * 50_000,
        b"\x91\xdd\xff\xff\xff\xff",
        encode_arguments(MSGPACK, (["a", 1],), {}),
        b"",
    ]
    async with replica.router() as stream:
        for method in ("scale", "sums", "shapes", "norm", "total"):
            run = stream.run([sound, *hostile, sound], method=method, content_type=MSGPACK)
            await stream.send(run)
            last = run.first_run_id + len(hostile) + 1
            await wait_until(lambda last=last: {last} <= stream.results.keys(), what=method)  # type: ignore[misc]
            ids = range(run.first_run_id + 1, last)
            await wait_until(lambda ids=ids: {*ids} <= stream.failures.keys(), what=method)  # type: ignore[misc]
            assert {(stream.failures[at].reason, stream.failures[at].executed) for at in ids} == {("BAD_ARGUMENTS", 1)}
            assert all(stream.failures[at].message for at in ids)
        assert replica.handler.sizes == [2]
