"""Clients at work in a process of their own, which may be of another version.

python -m tests.compat.load FOLDER ADDRESS...

Prints a line when the load is there, and one for each line of stdin, when each client has got more results, and no call
is left that was made before. The end of stdin ends it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import count
from pathlib import Path
from typing import Final

import slotmesh
from tests.e2e.session_workload import PATIENCE_S, running_workload
from tests.history.log import HistoryLog
from tests.history.model import Call, Outcome

ENDPOINT: Final = "Ledger"
DIRECT_PACE_S: Final = 0.05
PACE_S: Final = 0.5
"""One replica is enough, also on a busy machine: no call waits for so long that its fate becomes doubtful."""


async def main(folder: Path, addresses: list[str]) -> None:
    with HistoryLog(folder) as log:
        patient = running_workload(ENDPOINT, addresses, log, is_mixed=True, pace_s=PACE_S, connect_timeout_s=PATIENCE_S)
        async with patient as workload:
            stop = asyncio.Event()
            direct = asyncio.create_task(_call_directly(addresses, log, stop))
            await workload.wait_loaded()
            _answer()
            while await asyncio.to_thread(sys.stdin.readline):
                await workload.wait_for_progress()
                await workload.wait_answered()
                _answer()
            stop.set()
            await direct


async def _call_directly(addresses: list[str], log: HistoryLog, stop: asyncio.Event) -> None:
    """Calls to replicas themselves, one after another."""
    async with (
        slotmesh.connect(addresses, connect_timeout=PATIENCE_S) as mesh,
        mesh.endpoint(ENDPOINT).options(timeout=PATIENCE_S).direct() as lanes,
    ):
        for number in count():
            if stop.is_set():
                return
            tag, now = f"direct//{number}", time.monotonic()
            log.add(Call(tag=tag, client="direct", endpoint=ENDPOINT, sent_at=now, deadline=now + PATIENCE_S))
            reply = await lanes.append("", tag)
            log.add(Outcome(tag=tag, at=time.monotonic(), reply=reply))
            await asyncio.sleep(DIRECT_PACE_S)


def _answer() -> None:
    sys.stdout.write("done\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
