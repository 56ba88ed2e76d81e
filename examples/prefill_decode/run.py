"""Starts a mesh with both backends, sends it prompts, checks every word, and reports.

`python -m examples.prefill_decode.run` takes free ports and ends after the report.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import slotmesh
from examples.local_mesh import apply, local_mesh, until_stopped
from examples.prefill_decode import model
from examples.prefill_decode.app import Partner
from slotmesh.runtime.main import run
from slotmesh.spec.document import load_mesh

MESH = Path(__file__).with_name("mesh.yaml")
PROMPT = "the river runs to the sea and the sea gives it back as rain upon the hills where"


@dataclass
class RequestTally:
    """What came of the requests."""

    right: int = 0
    wrong: int = 0
    reserve_s: list[float] = field(default_factory=list)
    """From asking for both slots to having them."""
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Replicas that met."""


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.prefill_decode.run", description="Prefill and decode on different replicas."
    )
    parser.add_argument("--requests", type=int, default=200, help="prompts that are sent (default: %(default)s)")
    parser.add_argument("--together", type=int, default=8, help="at the same time (default: %(default)s)")
    parser.add_argument("--words", type=int, default=16, help="words asked for (default: %(default)s)")
    return parser.parse_args(arguments)


async def main(settings: argparse.Namespace) -> int:
    """Returns the exit status: 0 all words were right, 1 not."""
    async with local_mesh("examples.prefill_decode.app:Prefill", replicas=2, is_quiet=True) as local:
        await apply(local.controller, load_mesh(MESH))
        tally = RequestTally()
        async with slotmesh.connect(local.router) as mesh:
            prompts = iter([f"{PROMPT} {number}" for number in range(settings.requests)])

            async def client() -> None:
                for prompt in prompts:
                    await complete(mesh, prompt, settings.words, tally)

            async with asyncio.TaskGroup() as clients:
                for _ in range(settings.together):
                    clients.create_task(client())
    _report(tally, settings)
    return 1 if tally.wrong else 0


async def complete(mesh: slotmesh.Mesh, prompt: str, count: int, tally: RequestTally) -> None:
    """One request: reserve both, tell each of the other, and iterate over what comes."""
    began = time.perf_counter()
    async with mesh.reserve_all("Prefill", "Decode") as (prefill, decode):
        tally.reserve_s.append(time.perf_counter() - began)
        tally.pairs[prefill.replica_id, decode.replica_id] += 1
        partner = Partner(decode.replica_address, decode.token)
        words = [word async for word in prefill.complete.stream(prompt, count, partner)]
    if words == list(model.decode(prompt, model.prefill(prompt), count)):
        tally.right += 1
    else:
        tally.wrong += 1


def _report(tally: RequestTally, settings: argparse.Namespace) -> None:
    moved = (tally.right + tally.wrong) * len(model.prefill(f"{PROMPT} 0")) / 2**20
    print(f"requests: {tally.right + tally.wrong}, {tally.right} right, {settings.together} at a time")
    print(f"reserving both: p50 {median(tally.reserve_s) * 1e3:.1f} ms")
    print(f"caches: {moved:,.0f} MiB from replica to replica, none of it through a router")
    print("replicas that met:")
    for (prefill, decode), count in sorted(tally.pairs.items()):
        print(f"  {prefill} -> {decode}  {count}")
    if tally.wrong:
        sys.stderr.write(f"{tally.wrong} requests got other words than their prompt has\n")


if __name__ == "__main__":
    given = parse()
    run(lambda: until_stopped(main(given)), log_level="warning")
