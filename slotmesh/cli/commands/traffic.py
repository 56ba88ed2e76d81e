"""`slotmesh traffic`: how the calls of an endpoint are divided, and how they should be."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta
from typing import Annotated, Final

import typer

from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import WRONG_INPUT, CommandFailed, complete
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress, read_duration
from slotmesh.cli.shares import said_policy
from slotmesh.cli.snapshot import Snapshot
from slotmesh.cli.view.traffic_report import as_json, print_traffic
from slotmesh.spec.model import InvalidSpec
from slotmesh.units import format_duration

POLL_S: Final = 0.05
"""How soon it is seen that a router has the change."""


def traffic(
    endpoint: Annotated[str, typer.Argument(metavar="ENDPOINT", help="The endpoint's name.")],
    weights: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BACKEND=WEIGHT", help="All weights of the endpoint, which sum to 1.", show_default=False
        ),
    ] = None,
    *,
    shadow: Annotated[
        list[str] | None,
        typer.Option(
            metavar="BACKEND=SHARE",
            help="A backend that gets a copy of that share of the calls; replaces all shadows. Repeat it for more.",
            show_default=False,
        ),
    ] = None,
    no_shadows: Annotated[bool, typer.Option("--no-shadows", help="Take all shadows away.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return when the change is in force at every router, or at once.")
    ] = True,
    timeout: Annotated[
        timedelta,
        typer.Option(parser=read_duration, metavar="DURATION", show_default="10s", help="How long --wait may take."),
    ] = timedelta(seconds=10),
    as_document: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")] = False,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show or change how the calls of an endpoint are divided.

    The weights that are given become all weights of the endpoint, at once: a backend that is not named gets no new
    calls. They sum to 1, or nothing is changed. Shadows stay as they are unless `--shadow` or `--no-shadows` says
    otherwise. Each router changes over between two calls; none is lost.

    Like this:

        slotmesh traffic digits
        slotmesh traffic digits v1=0.9 v2=0.1
        slotmesh traffic digits v1=1 --shadow v2=0.2
    """
    shadows = shadow or []
    changes = bool(weights or shadows or no_shadows)
    if changes:
        revision, snapshot = complete(
            _change(endpoint, weights or [], shadows, no_shadows, timeout if wait else None, address)
        )
    else:
        snapshot = complete(_look(endpoint, address))
        revision = snapshot.members.revision
    if as_document:
        typer.echo(json.dumps(as_json(endpoint, revision, snapshot), indent=2))
    else:
        print_traffic(endpoint, revision, snapshot, sys.stdout)


async def _look(endpoint: str, address: str) -> Snapshot:
    async with Operator.at(address) as operator:
        await operator.endpoint(endpoint)
        return await operator.snapshot()


async def _change(
    endpoint: str, weights: list[str], shadows: list[str], no_shadows: bool, patience: timedelta | None, address: str
) -> tuple[int, Snapshot]:
    """The revision of the change, and the mesh after it. `patience`: how long to wait for routers, None: not at all."""
    async with Operator.at(address) as operator:
        current = (await operator.endpoint(endpoint)).traffic
        try:
            said = said_policy(endpoint, current, weights, shadows, no_shadows=no_shadows)
        except InvalidSpec as invalid:
            lines = [f"{endpoint}: nothing was changed", *str(invalid).splitlines()]
            raise CommandFailed("\n  ".join(lines), WRONG_INPUT) from invalid
        revision = await operator.set_traffic(endpoint, said.policy, clear_shadows=said.clear_shadows)
        if patience is not None:
            await _wait_for_routers(operator, endpoint, revision, patience)
        return revision, await operator.snapshot()


async def _wait_for_routers(operator: Operator, endpoint: str, revision: int, patience: timedelta) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience.total_seconds()
    while behind := (await operator.members()).behind(revision):
        if loop.time() >= deadline:
            routers = ", ".join(f"{router.router_id} ({router.address})" for router in behind)
            raise CommandFailed(
                f"{endpoint}: stored as revision {revision}, but after {format_duration(patience)} not yet in force at"
                f" {routers}; a router takes it as soon as the controller reaches it"
            )
        await asyncio.sleep(POLL_S)
