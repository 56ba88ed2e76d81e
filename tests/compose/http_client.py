"""A client of HTTP that makes a connection for each request, and tries again where it was refused or cut off.

Its requests are idempotent: of one that was cut off nothing is known. When that happened is written down.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from tests.history.log import HistoryLog
from tests.history.model import Call, Outcome

CLIENT: Final = "http"
REQUEST_S: Final = 60.0
PAUSE_S: Final = 0.05
IDEMPOTENT: Final = "X-Slotmesh-Idempotent: true"
IDEMPOTENT_IN_0_2: Final = "Idempotency-Key: any"
"""How version 0.2.0 marked a request as idempotent."""


@dataclass(slots=True)
class HttpLoad:
    """What became of the requests."""

    answered: int = 0
    cut_off: list[float] = field(default_factory=list[float])
    """When a connection was refused, or ended without a response: monotonic seconds."""
    failed: list[str] = field(default_factory=list[str])
    """For a person."""


async def call_by_http(address: str, log: HistoryLog, stop: asyncio.Event, *, mark: str = IDEMPOTENT) -> HttpLoad:
    """Calls one after the other until it is stopped. `mark`: the header of idempotent requests."""
    load = HttpLoad()
    for number in count():
        if stop.is_set():
            return load
        tag, now = f"{CLIENT}//{number}", time.monotonic()
        log.add(Call(tag=tag, client=CLIENT, endpoint="Ledger", idempotent=True, sent_at=now, deadline=now + REQUEST_S))
        try:
            reply = await asyncio.to_thread(_answer, address, tag, load, mark)
        except (OSError, http.client.HTTPException, AssertionError) as error:
            load.failed.append(f"{tag}: {error!r}")
            log.add(Outcome(tag=tag, at=time.monotonic(), reason=repr(error), executed="UNKNOWN"))
        else:
            load.answered += 1
            log.add(Outcome(tag=tag, at=time.monotonic(), reply=reply))
        await asyncio.sleep(PAUSE_S)
    raise AssertionError("unreachable")


def _answer(address: str, tag: str, load: HttpLoad, mark: str) -> str:
    deadline = time.monotonic() + REQUEST_S
    while True:
        try:
            return _once(address, tag, mark)
        except ConnectionError:  # http.client has a kind of it for a connection that ends without a response
            load.cut_off.append(time.monotonic())
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


def _once(address: str, tag: str, mark: str) -> str:
    connection = http.client.HTTPConnection(address, timeout=REQUEST_S)
    try:
        headers = dict(it.split(": ") for it in ("Content-Type: application/json", mark))
        connection.request("POST", "/Ledger/append", json.dumps(["", tag]), headers)
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, f"{response.status} {body[:500]!r}"
        return str(json.loads(body))
    finally:
        connection.close()
