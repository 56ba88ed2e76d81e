"""Starts a mesh with both backends, has conversations with it in each way, checks every word, and reports.

`python -m examples.llm.run` takes free ports and ends after the report.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

import slotmesh
from examples.llm.chats import Chats, ChatTally, PrefillWay, free_slots
from examples.local_mesh import apply, local_mesh, until_stopped
from slotmesh.runtime.main import run
from slotmesh.spec.document import load_mesh

MESH = Path(__file__).with_name("mesh.yaml")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.llm.run", description="Conversations with a language model in miniature."
    )
    parser.add_argument("--conversations", type=int, default=40, help="in each way (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=8, help="of each conversation (default: %(default)s)")
    parser.add_argument("--together", type=int, default=20, help="at the same time (default: %(default)s)")
    parser.add_argument("--words", type=int, default=20, help="of each answer (default: %(default)s)")
    parser.add_argument(
        "--think", type=float, default=0.5, help="seconds before the next question, on average (default: %(default)s)"
    )
    parser.add_argument(
        "--cache", type=int, default=200, help="blocks that a prefill replica's cache holds (default: %(default)s)"
    )
    return parser.parse_args(arguments)


async def main(settings: argparse.Namespace) -> int:
    """Returns the exit status: 0 all words were right and all slots are free, 1 not."""
    tallies: dict[PrefillWay, ChatTally] = {}
    async with local_mesh("examples.llm.app:ChatDecode", replicas=2, is_quiet=True) as local:
        await _apply(local.controller, settings.cache)
        async with slotmesh.connect(local.router) as mesh:
            for way in PrefillWay:
                tallies[way] = await _converse(mesh, way, settings)
            cancelled = await _converse(mesh, PrefillWay.PREFIX, settings, is_cancelling=True)
            are_free = await free_slots(mesh, cancelled.replicas)
    _report(tallies, settings)
    print(
        f"cancelled after the first word: {cancelled.cancelled}, and {'all' if are_free else 'NOT all'} slots are free"
    )
    return 1 if any(tally.wrong for tally in tallies.values()) or not are_free else 0


async def _converse(
    mesh: slotmesh.Mesh, way: PrefillWay, settings: argparse.Namespace, *, is_cancelling: bool = False
) -> ChatTally:
    chats = Chats(mesh, way, ChatTally(), settings.turns, settings.words, settings.think, is_cancelling)
    numbers = iter(range(settings.conversations))

    async def client() -> None:
        for number in numbers:
            await chats.converse(number)

    async with asyncio.TaskGroup() as clients:
        for _ in range(settings.together):
            clients.create_task(client())
    return chats.tally


async def _apply(controller: str, cache_blocks: int) -> None:
    """Adds the second backend, and waits until all replicas are ready."""
    mesh = load_mesh(MESH)
    backends = [
        replace(each, user_config={"cache_blocks": cache_blocks}) if each.user_config else each
        for each in mesh.backends
    ]
    await apply(controller, replace(mesh, backends=tuple(backends)))


def _report(tallies: Mapping[PrefillWay, ChatTally], settings: argparse.Namespace) -> None:
    print(f"{settings.conversations} conversations of {settings.turns} turns, {settings.together} at a time")
    print("prefill replica by   requests  hit rate  first word: p50      p95")
    for way, tally in tallies.items():
        times = [each * 1e3 for each in tally.first_word_s]
        slow = quantiles(times, n=20)[-1]
        print(f"{way:<19}  {len(times):8}  {tally.hit_rate:8.0%}  {median(times):12.1f} ms  {slow:5.1f} ms")
    if wrong := sum(tally.wrong for tally in tallies.values()):
        sys.stderr.write(f"{wrong} requests got other words than their prompt has\n")


if __name__ == "__main__":
    given = parse()
    run(lambda: until_stopped(main(given)), log_level="warning")
