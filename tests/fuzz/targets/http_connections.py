"""Bytes of a connection of HTTP: cut in two places, and beside h11.

The first two bytes say where the bytes that follow are cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tests.support.http_bytes import RecordedConnection, check_answers, plain, seen_by_h11


@contextmanager
def _connections() -> Iterator[Any]:
    with asyncio.Runner() as runner:

        def run(data: bytes) -> None:
            runner.run(_try(data[2:], data[:2]))

        yield run


async def _try(data: bytes, places: bytes) -> None:
    whole, heads = seen_by_h11(data)
    outcomes = []
    cuts = sorted({at * len(data) // 256 for at in places})
    parts = [data[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    for given in ([data], parts):
        connection = RecordedConnection()
        await connection.feed(*given)
        assert plain(connection.ran) == plain(whole)[: len(connection.ran)], "h11 does not see it"
        assert connection.started == heads[: len(connection.started)], "h11 does not see its head"
        check_answers(connection)
        outcomes.append((connection.ran, [status for status, _ in connection.answers]))
        await connection.leave()
        await connection.end()
    assert outcomes[0] == outcomes[1], "it depends on how the bytes were cut"


TARGETS: Final[Mapping[str, Any]] = {"http-connections": _connections}
