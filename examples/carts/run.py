"""Fills carts while replicas scale from two to four and back, and one is killed; then counts what is in the carts.

`python -m examples.carts.run` takes free ports and ends after the report. No update may be lost or made twice.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sqlite3
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import slotmesh
from examples.carts.api import CartsApi
from examples.carts.app import DATABASE
from examples.local_mesh import local_mesh
from slotmesh.cli.operator import Operator
from slotmesh.runtime.main import run
from slotmesh.spec.document import parse_mesh

HANDLER = "examples.carts.app:Carts"
SCALES = (4, 2)
_READY_S = 60.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.carts.run", description="Carts that outlive replicas.")
    parser.add_argument("--users", type=int, default=100, help="carts (default: %(default)s)")
    return parser.parse_args(arguments)


async def main(settings: argparse.Namespace) -> int:
    """Returns the exit status: 0 each cart has each item once and in order, 1 not."""
    users = [f"user-{number}" for number in range(settings.users)]
    over = asyncio.Event()
    with tempfile.TemporaryDirectory(prefix="carts-") as folder:
        database = Path(folder) / "carts.db"
        async with (
            local_mesh(HANDLER, replicas=2, is_quiet=True, env={DATABASE: str(database)}) as local,
            slotmesh.connect(local.router) as mesh,
        ):
            carts = mesh.endpoint("Carts", CartsApi).options(timeout=_READY_S, idempotent=True)
            async with asyncio.TaskGroup() as tasks:
                filling = {user: tasks.create_task(_fill(carts.ordered(user), user, over)) for user in users}
                await _change(local.controller)
                over.set()
            added = {user: task.result() for user, task in filling.items()}
            wrong = [user for user in users if await carts.items(user) != [str(item) for item in range(added[user])]]
        epochs = _owner_epochs(database)
    print(f"carts: {len(users)}, {len(users) - len(wrong)} right")
    moved = sum(epoch > min(epochs) for epoch in epochs)
    print(f"items: {sum(added.values())}; carts whose key has changed its owner: {moved}")
    return 1 if wrong else 0


async def _fill(lane: CartsApi[slotmesh.Endpoint], user: str, over: asyncio.Event) -> int:
    """Adds items until it is over; returns how many."""
    item = 0
    while not over.is_set() or not item:
        count = await lane.add(user, str(item))
        item += 1
        if count != item:
            raise AssertionError(f"{user} has {count} items after {item} were added")
    return item


async def _change(controller: str) -> None:
    """Scales the replicas up and down, and kills one."""
    async with Operator.at(controller) as operator:
        for replicas in SCALES:
            spec = f"backends: {{Carts: {{handler: '{HANDLER}', num_replicas: {replicas}}}}}"
            await operator.apply(parse_mesh(spec))
            await _wait_ready(operator, replicas)
        members = await operator.members()
        victim = next(each for each in members.replicas if each.replica_id in members.ready())
        os.kill(victim.pid, signal.SIGKILL)
        await _wait_ready(operator, SCALES[-1], without=victim.pid)


async def _wait_ready(operator: Operator, replicas: int, without: int = 0) -> None:
    async with asyncio.timeout(_READY_S):
        while True:
            members = await operator.members()
            ready = [each for each in members.replicas if each.replica_id in members.ready()]
            if len(ready) == replicas == len(members.replicas) and without not in {each.pid for each in ready}:
                return
            await asyncio.sleep(0.1)


def _owner_epochs(database: Path) -> list[int]:
    """Under which each cart was changed last."""
    with closing(sqlite3.connect(database)) as connection:
        return [epoch for (epoch,) in connection.execute("SELECT owner_epoch FROM carts")]


if __name__ == "__main__":
    given = parse()
    run(lambda: main(given), log_level="warning")
