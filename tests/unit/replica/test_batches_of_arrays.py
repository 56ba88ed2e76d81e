"""Batch methods that take and return arrays, in every kind of executor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from slotmesh.codec import JSON, MSGPACK, OCTET_STREAM, decode, encode_arguments, encode_arguments_of_each
from slotmesh.errors import Executed, Reason
from slotmesh.handlers import batch, deployment
from tests.unit.replica.hosting import hosting

pytestmark = pytest.mark.asyncio

together = batch(max_batch_size=4, batch_wait_timeout_s=0.02)


class Shared:
    def __init__(self) -> None:
        self.given: list[Any] = []

    def double(self, rows: NDArray[np.float32]) -> Any:
        self.given.append(rows.copy())
        if rows.size and rows[0].flat[0] < 0:
            return rows[1:]
        rows *= 2  # its own
        return rows


@deployment
class OnLoop(Shared):
    @together
    async def rows(self, rows: NDArray[np.float32]) -> Any:
        return self.double(rows)

    @together
    async def sums(self, rows: np.ndarray) -> Any:
        self.given.append(rows)
        return rows.sum(axis=1)

    @together
    async def grow(self, rows: NDArray[np.float32]) -> AsyncIterator[Any]:
        for factor in (1, 2):
            yield rows * factor


@deployment(max_ongoing=64)
class InThreads(Shared):
    @together
    def rows(self, rows: NDArray[np.float32]) -> Any:
        return self.double(rows)

    @together
    def sums(self, rows: np.ndarray) -> Any:
        self.given.append(rows)
        return rows.sum(axis=1)

    @together
    def grow(self, rows: NDArray[np.float32]) -> Iterator[Any]:
        for factor in (1, 2):
            yield rows * factor


def arrays_in(results: list[bytes | None]) -> list[Any]:
    """Results in msgpack, decoded: there must be some for all."""
    return [decode(MSGPACK, result or b"") for result in results]


both = pytest.mark.parametrize("handler", [OnLoop, InThreads])
ROWS = np.arange(16, dtype=np.float32).reshape(8, 2)


@both
async def test_frames_become_arrays_and_arrays_results(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("rows", encode_arguments_of_each(MSGPACK, [ROWS]), content_type=MSGPACK)
        await host.execute(run)
        assert [given.shape for given in host.handler.given] == [(4, 2), (4, 2)]
        assert np.array_equal(np.concatenate(host.handler.given), ROWS)
        results = arrays_in(host.results(run))
        assert all(np.array_equal(result, 2 * row) for result, row in zip(results, ROWS, strict=True))
        assert {result.dtype for result in results} == {np.dtype(np.float32)}
        assert sorted(host.outbox.deliveries) == [4, 4]


@both
async def test_octets_in_octets_out(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("rows", [row.tobytes() for row in ROWS], content_type=OCTET_STREAM)
        await host.execute(run)
        assert host.results(run) == [(2 * row).tobytes() for row in ROWS]


@both
async def test_numbers_are_results_of_rows(handler: type) -> None:
    async with hosting(handler) as host:
        runs = [
            host.run("sums", encode_arguments_of_each(MSGPACK, [ROWS[:2]]), content_type=MSGPACK),
            host.run("sums", [b"[[1.5, 2]]", b"[[1, 2.0]]"], content_type=JSON),
        ]
        await host.execute(*runs)
        assert [arrays_in(host.results(runs[0])), host.results(runs[1])] == [
            [1.0, 5.0],
            [b"3.5", b"3.0"],
        ]
        assert sorted(given.shape for given in host.handler.given) == [(2, 2), (2, 2)]


@both
async def test_calls_of_several_runs_and_lanes_are_rows_of_one_array(handler: type) -> None:
    payloads = encode_arguments_of_each(MSGPACK, [ROWS])
    async with hosting(handler) as host:
        runs = [
            host.run("rows", payloads[:1], content_type=MSGPACK),
            host.run("rows", payloads[1:3], content_type=MSGPACK, key="k"),
            host.run("rows", [ROWS[3].tobytes()], content_type=OCTET_STREAM),
        ]
        await host.execute(*runs)
        assert len(host.handler.given) == 1
        for run, rows in zip(runs, (ROWS[:1], ROWS[1:3], ROWS[3:4]), strict=True):
            if run.options.content_type == MSGPACK:
                assert np.array_equal(arrays_in(host.results(run)), 2 * rows)
            else:
                assert host.results(run) == [(2 * row).tobytes() for row in rows]


@both
async def test_rows_that_differ_and_unsound_ones_leave_the_others_unharmed(handler: type) -> None:
    payloads = [encode_arguments(MSGPACK, (it,), {}) for it in (ROWS[0], np.ones(3), "x", ROWS[1])]
    async with hosting(handler) as host:
        run = host.run("rows", payloads, content_type=MSGPACK)
        outbox = await host.execute(run)
        assert [given.shape for given in host.handler.given] == [(1, 2), (1, 3), (1, 2)]
        results = host.results(run)
        assert np.array_equal(arrays_in(results[1:2])[0], [2.0, 2.0, 2.0])
        assert results[2] is None
        failure = outbox.failures_of[run.first + 2]
        assert (failure.reason, failure.executed) == (Reason.BAD_ARGUMENTS, Executed.NO)


@both
async def test_an_array_of_another_length_fails_the_whole_batch(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("rows", encode_arguments_of_each(MSGPACK, [-1 - ROWS[:3]]), content_type=MSGPACK)
        outbox = await host.execute(run)
        assert host.results(run) == [None] * 3
        assert {outbox.failures_of[run.first + index].reason for index in range(3)} == {Reason.BATCH_SIZE_MISMATCH}


@both
async def test_arrays_that_are_yielded_have_a_row_for_each(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("grow", encode_arguments_of_each(MSGPACK, [ROWS[:2]]), content_type=MSGPACK)
        await host.execute(run)
        for result, row in zip(arrays_in(host.results(run)), ROWS[:2], strict=True):
            assert np.array_equal(result, [row, 2 * row])


@both
async def test_rows_that_cannot_be_sent_fail_each_by_itself(handler: type) -> None:
    async with hosting(handler) as host:
        run = host.run("sums", encode_arguments_of_each(MSGPACK, [ROWS[:2] * 1j]), content_type=MSGPACK)
        outbox = await host.execute(run)
        assert host.results(run) == [None, None]
        assert all("the result cannot be sent" in outbox.failures_of[run.first + index].message for index in range(2))
