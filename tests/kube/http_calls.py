"""A client of HTTP: a connection for each request, to any ready pod, as a Service would pass it on."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Final

from tests.history.log import HistoryLog
from tests.history.model import Call, Outcome
from tests.kube.rig.cluster import Cluster

CLIENT: Final = "http"
REQUEST_S: Final = 60.0
PAUSE_S: Final = 0.05
PORT: Final = 8080


@asynccontextmanager
async def http_calls(cluster: Cluster, service: str, log: HistoryLog) -> AsyncIterator[None]:
    """Requests one after the other, as long as the block lasts. None is repeated."""
    stop = asyncio.Event()
    dns, name = cluster.dns, f"{service}.{cluster.namespace}.svc.cluster.local"
    assert dns is not None

    async def run() -> None:
        for number in count():
            if stop.is_set():
                return
            tag, now = f"{CLIENT}//{number}", time.monotonic()
            log.add(Call(tag=tag, client=CLIENT, endpoint="Ledger", sent_at=now, deadline=now + REQUEST_S))
            try:
                async with asyncio.timeout(REQUEST_S):
                    reply = await _call(random.choice(dns.addresses(name) or [""]), tag)
            except (OSError, TimeoutError, ValueError, IndexError) as error:
                log.add(Outcome(tag=tag, at=time.monotonic(), reason=repr(error), executed="UNKNOWN"))
            else:
                log.add(Outcome(tag=tag, at=time.monotonic(), reply=reply))
            await asyncio.sleep(PAUSE_S)

    task = asyncio.ensure_future(run())
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait([task])


async def _call(address: str, tag: str) -> str:
    """Raises OSError, ValueError and IndexError for what is no response with a result."""
    reader, writer = await asyncio.open_connection(address, PORT)
    try:
        body = json.dumps(["", tag])
        headers = (
            f"Host: {address}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        writer.write(f"POST /Ledger/append HTTP/1.1\r\n{headers}\r\n\r\n{body}".encode())
        head, _, reply = (await reader.read()).decode().partition("\r\n\r\n")
        if head.split()[1] != "200":
            raise ValueError(f"{address}: {head.splitlines()[0]}: {reply[:200]}")
        return str(json.loads(reply))
    finally:
        writer.close()
