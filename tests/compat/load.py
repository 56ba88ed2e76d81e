"""Clients at work in a process of their own, which may be of another version.

python -m tests.compat.load FOLDER ADDRESS...

Prints a line when the load is there, and one for each line of stdin, when each client has got more results, and no call
is left that was made before. The end of stdin ends it.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from tests.e2e.session_workload import PATIENCE_S, running_workload
from tests.history.log import HistoryLog

ENDPOINT: Final = "Ledger"
PACE_S: Final = 0.5
"""One replica is enough, also on a busy machine: no call waits for so long that its fate becomes doubtful."""


async def main(folder: Path, addresses: list[str]) -> None:
    with HistoryLog(folder) as log:
        patient = running_workload(ENDPOINT, addresses, log, is_mixed=True, pace_s=PACE_S, connect_timeout_s=PATIENCE_S)
        async with patient as workload:
            await workload.wait_loaded()
            _answer()
            while await asyncio.to_thread(sys.stdin.readline):
                await workload.wait_for_progress()
                await workload.wait_answered()
                _answer()


def _answer() -> None:
    sys.stdout.write("done\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))
