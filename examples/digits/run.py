"""Starts a mesh with the digits handler, sends it the images it has never seen, and reports.

`python -m examples.digits.run` then stays up and says how to call it; with `--once` it takes free ports and ends after
the report.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import slotmesh
from examples.digits import report
from examples.digits.data import Image, split
from examples.digits.replicas import calls_executed
from examples.digits.traffic import TrafficLoad, TrafficTally, send
from examples.local_mesh import ExampleMesh, local_mesh
from slotmesh.cli.parameters import CONTROLLER, ROUTER_ADDRESS
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.main import run
from slotmesh.runtime.signals import stop_signals
from slotmesh.units import parse_host_port

HANDLER = "examples.digits.app:Digits"
_WARM_UP = TrafficLoad(keys=16, window=16, seconds=0.3)
_REFRESH_S = 0.1


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m examples.digits.run", description="Classifies handwritten digits over a mesh on this machine."
    )
    parser.add_argument("--once", action="store_true", help="use free ports and end after the report")
    parser.add_argument("--replicas", type=_positive, default=2, help="replicas of the handler (default: %(default)s)")
    parser.add_argument("--keys", type=_positive, default=16, help="ordering keys (default: %(default)s)")
    parser.add_argument(
        "--window", type=_positive, default=128, help="calls in flight for each key (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="how long images are sent (default: %(default)s)")
    parser.add_argument("--router-port", type=int, help="default: 7071; with --once a free one")
    parser.add_argument("--controller-port", type=int, help="default: 7070; with --once a free one")
    return parser.parse_args(arguments)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


async def main(settings: argparse.Namespace) -> int:
    """Returns the exit status: 0 done, 1 failed, 130 interrupted before the report."""
    with stop_signals() as stop:
        reported = asyncio.Event()
        session = asyncio.ensure_future(_session(settings, stop, reported))
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait({session, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not reported.is_set():
            session.cancel()
        try:
            return await session
        except asyncio.CancelledError:
            return 130


async def _session(settings: argparse.Namespace, stop: asyncio.Event, reported: asyncio.Event) -> int:
    console = Console(stderr=True)
    loading = asyncio.create_task(asyncio.to_thread(split))
    async with local_mesh(
        HANDLER,
        replicas=settings.replicas,
        router_port=_port(settings.router_port, ROUTER_ADDRESS, free=settings.once),
        controller_port=_port(settings.controller_port, CONTROLLER, free=settings.once),
        is_quiet=settings.once,
    ) as mesh:
        _learn, held_out = await loading
        images, labels = held_out.images(), held_out.labels.tolist()
        load = TrafficLoad(keys=settings.keys, window=settings.window, seconds=settings.seconds)
        status = await _measure(mesh, images, labels, load, console)
        reported.set()
        if not settings.once:
            print("", *report.how_to_call(mesh, images[0], labels[0]), sep="\n", flush=True)
            await _stay_up(mesh, stop)
        return status


def _port(chosen: int | None, usual: str, *, free: bool) -> int:
    if chosen is not None:
        return chosen
    return 0 if free else parse_host_port(usual)[1]


async def _stay_up(mesh: ExampleMesh, stop: asyncio.Event) -> None:
    """Until it is asked to end, or the mesh ends by itself."""
    stopping, ending = asyncio.ensure_future(stop.wait()), asyncio.ensure_future(mesh.wait_for_end())
    try:
        await asyncio.wait({stopping, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            raise CannotStart("the mesh is gone")
    finally:
        stopping.cancel()
        ending.cancel()


async def _measure(
    mesh: ExampleMesh, images: list[Image], labels: list[int], load: TrafficLoad, console: Console
) -> int:
    tally = TrafficTally.of(len(images))
    async with slotmesh.connect(mesh.router) as client:
        endpoint = client.endpoint(mesh.name)
        await send(endpoint, images, labels, _WARM_UP, TrafficTally.of(len(images)))
        before = await calls_executed(mesh.controller)
        async with asyncio.TaskGroup() as tasks:
            display = tasks.create_task(_display(tally, load, console))
            await send(endpoint, images, labels, load, tally)
            display.cancel()
        after = await calls_executed(mesh.controller)
    executed = {replica: calls - before.get(replica, 0) for replica, calls in after.items()}
    print(*report.lines(tally, load, executed), sep="\n", flush=True)
    if tally.unsteady:
        sys.stderr.write(f"{tally.unsteady} images got different replies: a reply went to the wrong call\n")
        return 1
    return 0


async def _display(tally: TrafficTally, load: TrafficLoad, console: Console) -> None:
    columns = ("[progress.description]{task.description}", "{task.fields[calls]:,} calls", "{task.fields[right]} right")
    with Progress(
        TextColumn(columns[0]),
        BarColumn(),
        *(TextColumn(column) for column in columns[1:]),
        TimeElapsedColumn(),
        console=console,
        auto_refresh=False,
    ) as progress:
        bar = progress.add_task("sending images", total=load.seconds, calls=0, right="-")
        started = asyncio.get_running_loop().time()
        try:
            while True:
                await asyncio.sleep(_REFRESH_S)
                elapsed = asyncio.get_running_loop().time() - started
                _show(progress, bar, tally, elapsed)
        finally:
            _show(progress, bar, tally, load.seconds)


def _show(progress: Progress, bar: object, tally: TrafficTally, elapsed: float) -> None:
    progress.update(bar, completed=elapsed, calls=tally.calls, right=f"{tally.accuracy:.1%}")  # type: ignore[arg-type]
    progress.refresh()


if __name__ == "__main__":
    given = parse()
    run(lambda: main(given), log_level="warning")
