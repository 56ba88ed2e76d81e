"""What a client sends, cut in all places, beside h11: no request is run that h11 does not see, and each has its answer.

The bytes are those of tests/fuzz/http_requests.py. The quick run takes every fifteenth of them.
"""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Final

import pytest

from ingress_service.core.http1.heads import parse_head
from ingress_service.core.http1.states import ANSWER_STEPS, READ_STEPS, AnswerState, ReadState
from tests.fuzz.http_requests import CHUNKED, GET, HTTP_BYTES, POST, HttpBytes, chunked, request
from tests.support.examples import examples
from tests.support.http_bytes import RecordedConnection, check_answers, plain, seen_by_h11

SAMPLE: Final = HTTP_BYTES if examples(100) >= 100 else HTTP_BYTES[::15]
GROUPS: Final = [SAMPLE[first::8] for first in range(8)]


def check_runs(connection: RecordedConnection, data: bytes) -> None:
    """What has run is what h11 sees first, and nothing else was given to the application."""
    whole, heads = seen_by_h11(data)
    if not connection.is_early:
        assert plain(connection.ran) == plain(whole)[: len(connection.ran)], data
    assert connection.started == heads[: len(connection.started)], data


async def outcome(*parts: bytes, early: bool = False) -> tuple[list[object], list[int]]:
    """What has run, and the statuses of all answers."""
    connection = RecordedConnection(early=early)
    await connection.feed(*parts)
    check_runs(connection, b"".join(parts))
    if not early:
        check_answers(connection)
    found = outcome_of(connection)
    await connection.end()
    return found


def outcome_of(connection: RecordedConnection) -> tuple[list[object], list[int]]:
    return [*connection.ran, *connection.messages], [status for status, _ in connection.answers]


@pytest.mark.asyncio
async def test_there_are_two_hundred_of_each_kind() -> None:
    assert len(HTTP_BYTES) >= 200
    assert len({it.name for it in HTTP_BYTES}) == len(HTTP_BYTES)


@pytest.mark.parametrize("each", HTTP_BYTES, ids=lambda it: it.name)
@pytest.mark.asyncio
async def test_what_is_sent_runs_so_often_and_is_answered_so(each: HttpBytes) -> None:
    connection = RecordedConnection()
    await connection.feed(each.data)
    check_runs(connection, each.data)
    check_answers(connection)
    assert (len(connection.ran), connection.answers[-1][0]) == (each.runs, each.status)
    await connection.end()


@pytest.mark.parametrize("group", GROUPS, ids=range(len(GROUPS)))
@pytest.mark.asyncio
async def test_every_split_is_understood_as_the_whole(group: tuple[HttpBytes, ...]) -> None:
    for each in group:
        expected = await outcome(each.data)
        places = range(1, len(each.data)) if len(each.data) < 2_000 else range(1, len(each.data), 97)
        for at in places:
            assert await outcome(each.data[:at], each.data[at:]) == expected, (each.name, at)
        single = [bytes([it]) for it in each.data]
        assert await outcome(*single) == expected, each.name


@pytest.mark.parametrize("group", GROUPS, ids=range(len(GROUPS)))
@pytest.mark.asyncio
async def test_every_prefix_runs_what_is_whole_in_it_and_nothing_after_the_end(group: tuple[HttpBytes, ...]) -> None:
    for each in group:
        places = range(len(each.data)) if len(each.data) < 2_000 else range(0, len(each.data), 97)
        for at in places:
            connection = RecordedConnection()
            await connection.feed(each.data[:at])
            check_runs(connection, each.data[:at])
            check_answers(connection)
            if each.status in {200, 101}:
                assert len(connection.ran) == min(each.runs, len(seen_by_h11(each.data[:at])[0])), (each.name, at)
            started = [*connection.started]
            await connection.leave()
            assert connection.started == started
            await connection.end()


@pytest.mark.parametrize("group", GROUPS, ids=range(len(GROUPS)))
@pytest.mark.asyncio
async def test_what_is_wrong_behind_a_running_request_waits_for_its_answer(group: tuple[HttpBytes, ...]) -> None:
    for each in group:
        expected = await outcome(each.data)
        for at in (len(each.data), len(each.data) // 2, len(each.data) - 1):
            connection = RecordedConnection()
            connection.gate.clear()
            await connection.feed(each.data[:at], each.data[at:])
            assert len(connection.started) <= 1, "one after another"
            if connection.ran:
                assert not connection.answers or connection.answers[0][0] == 101, "it has not answered"
            connection.gate.set()
            await connection.settle()
            check_answers(connection)
            assert outcome_of(connection) == expected, (each.name, at)
            await connection.end()


@pytest.mark.parametrize("group", GROUPS, ids=range(len(GROUPS)))
@pytest.mark.asyncio
async def test_who_leaves_takes_back_what_runs_and_what_waits(group: tuple[HttpBytes, ...]) -> None:
    for each in group:
        connection = RecordedConnection()
        connection.gate.clear()
        await connection.feed(each.data)
        started = [*connection.started]
        was_running = bool(connection.shared.tasks)
        await connection.leave()
        assert not connection.shared.tasks
        assert connection.cancelled or not was_running, each.name
        connection.gate.set()
        await connection.settle()
        assert connection.started == started, each.name
        await connection.end()


@pytest.mark.parametrize("group", GROUPS, ids=range(len(GROUPS)))
@pytest.mark.asyncio
async def test_bodies_that_no_application_reads_are_never_requests(group: tuple[HttpBytes, ...]) -> None:
    for each in group:
        step = max(1, len(each.data) // 40)
        for at in range(step, len(each.data), step):
            await outcome(each.data[:at], each.data[at:], early=True)


@pytest.mark.asyncio
async def test_large_pieces_are_read_in_turns_of_the_loop_as_the_whole() -> None:
    many = request("POST /c HTTP/1.1", "Transfer-Encoding: chunked", body=chunked(*[b"x"] * 20_000))
    connection = RecordedConnection()
    await connection.feed(many + GET)
    await connection.until_ran(2)
    assert [len(it.body) for it in connection.ran] == [20_000, 0]
    assert [status for status, _ in connection.answers] == [200, 200]
    await connection.end()


@pytest.mark.parametrize("order", [*permutations(("close", "te", "x, y"))])
@pytest.mark.asyncio
async def test_close_counts_in_whichever_of_several_connection_headers_it_stands(order: tuple[str, ...]) -> None:
    connection = RecordedConnection()
    await connection.feed(request("GET /kinds/add HTTP/1.1", *(f"Connection: {each}" for each in order)) + GET)
    await connection.settle()
    assert [status for status, _ in connection.answers] == [200]
    assert len(connection.ran) == 1, "what is behind it is not run"
    await connection.end()


@pytest.mark.parametrize("order", [*permutations(("upgrade", "keep-alive", "x, y"))])
def test_so_does_upgrade(order: tuple[str, ...]) -> None:
    head = request("GET /kinds/drip HTTP/1.1", "Upgrade: websocket", *(f"Connection: {each}" for each in order))
    assert parse_head(head[:-2]).is_handshake


@pytest.mark.asyncio
async def test_requests_are_ahead_of_answers_by_a_bound() -> None:
    for ahead, count in ((GET * 65, 65), (GET * 66, 65), (CHUNKED * 100, 65)):
        connection = RecordedConnection()
        connection.gate.clear()
        await connection.feed(ahead)
        connection.gate.set()
        await connection.settle()
        assert len(connection.ran) == count
        check_answers(connection)
        assert [status for status, _ in connection.answers[count:]] == ([] if len(ahead) == len(GET) * 65 else [400])
        await connection.end()


@pytest.mark.asyncio
async def test_bytes_are_ahead_of_answers_by_a_bound() -> None:
    large = request("POST /c HTTP/1.1", "Content-Length: 70000", body=b"x" * 70_000)
    connection = RecordedConnection()
    connection.gate.clear()
    await connection.feed(POST, large)
    await connection.until_ran(2)
    connection.gate.set()
    await connection.settle()
    assert [(it.target) for it in connection.ran] == ["/kinds/add"]
    assert [status for status, _ in connection.answers] == [200, 400]
    await connection.end()
    connection = RecordedConnection()
    await connection.feed(large)
    await connection.until_ran(1)
    assert len(connection.ran[0].body) == 70_000, "the bound is for what waits"
    await connection.end()


def test_each_state_of_the_tables_can_be_reached_and_left() -> None:
    for steps, end in ((READ_STEPS, ReadState.ENDED), (ANSWER_STEPS, AnswerState.CLOSED)):
        states = {*type(end)}
        assert {state for state, _ in steps} == states
        assert {*steps.values()} == states
        assert all(then is end for (state, _), then in steps.items() if state is end)


@pytest.mark.parametrize("behind", [b"", GET[:-4], POST[:-1], b"P"], ids=["nothing", "head", "body", "byte"])
@pytest.mark.asyncio
async def test_a_time_that_is_over_behind_a_running_request(behind: bytes) -> None:
    connection = RecordedConnection()
    connection.gate.clear()
    await connection.feed(POST + behind)
    connection.protocol.overdue(asyncio.get_running_loop().time() + 60)
    await connection.settle()
    assert not connection.answers
    connection.gate.set()
    await connection.settle()
    assert [status for status, _ in connection.answers] == ([200, 408] if behind else [200])
    await connection.end()
