"""Starts a mesh with the three backends, searches, checks every answer, and reports.

`python -m examples.search.run` takes free ports and ends after the report.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import slotmesh
from examples.local_mesh import local_mesh
from examples.search import corpus
from examples.search.app import Found
from slotmesh.cli.operator import Operator
from slotmesh.runtime.main import run
from slotmesh.spec.document import load_mesh

MESH = Path(__file__).with_name("mesh.yaml")
_READY_S = 30.0


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.search.run", description="A search in three handlers, of which one calls the others."
    )
    parser.add_argument("--queries", type=int, default=200, help="queries that are sent (default: %(default)s)")
    parser.add_argument("--together", type=int, default=8, help="at the same time (default: %(default)s)")
    return parser.parse_args(arguments)


async def main(settings: argparse.Namespace) -> int:
    """Returns the exit status: 0 all answers were right, 1 not."""
    wrong, times_s = 0, []
    async with local_mesh("examples.search.app:Embed", is_quiet=True) as local:
        await _apply(local.controller)
        async with slotmesh.connect(local.router) as mesh:
            find = mesh.endpoint("Finder").find.options(timeout=30).returning(list[Found])
            numbers = iter(range(settings.queries))

            async def client() -> None:
                nonlocal wrong
                for number in numbers:
                    document = corpus.DOCUMENTS[number % len(corpus.DOCUMENTS)]
                    began = time.perf_counter()
                    found = await find(document, 3)
                    times_s.append(time.perf_counter() - began)
                    wrong += found[0] != Found(document, 1.0)

            async with asyncio.TaskGroup() as clients:
                for _ in range(settings.together):
                    clients.create_task(client())
    print(f"queries: {settings.queries}, {settings.queries - wrong} right, {settings.together} at a time")
    print(f"a query, with 7 calls of other handlers: p50 {median(times_s) * 1e3:.1f} ms")
    return 1 if wrong else 0


async def _apply(controller: str) -> None:
    """Adds the other backends, and waits until all replicas are ready."""
    mesh = load_mesh(MESH)
    wanted = sum(backend.num_replicas or 1 for backend in mesh.backends)
    async with Operator.at(controller) as operator, asyncio.timeout(_READY_S):
        await operator.apply(mesh)
        while len((await operator.members()).ready()) < wanted:  # noqa: ASYNC110 - nobody tells it
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    given = parse()
    run(lambda: main(given), log_level="warning")
