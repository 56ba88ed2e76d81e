"""Clients that hold slots and are killed at any moment, as many and as long as one likes: what do they leave behind?

python -m tests.slots_soak --clients 200 --seconds 30

A mesh of 2 routers and 3 replicas; clients that reserve, hold, renew, dispatch, release and forget, in processes that
are killed with SIGKILL at random and started again. Exit status 1 where anything is left when the last lease is over.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import traceback

from tests.slots_soak.clients import Load
from tests.slots_soak.soak import soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.slots_soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--clients", type=int, default=200, help="at any time (default: 200)")
    parser.add_argument("--processes", type=int, default=20, help="that they live in (default: 20)")
    parser.add_argument("--life", type=float, default=2.0, help="of a process on average, in seconds (default: 2)")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long they are killed (default: 30)")
    parser.add_argument("--seed", type=int, default=11, help="of all chance (default: 11)")
    arguments = parser.parse_args()
    processes = min(arguments.processes, arguments.clients)
    load = Load(processes, -(-arguments.clients // processes), arguments.life)
    try:
        survived = asyncio.run(soak(load, arguments.seconds, seed=arguments.seed))
    except AssertionError:
        sys.stdout.write(f"FAILED\n{traceback.format_exc()}")
        return 1
    sys.stdout.write(survived.told())
    return 0


if __name__ == "__main__":
    sys.exit(main())
