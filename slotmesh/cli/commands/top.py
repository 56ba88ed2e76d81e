"""`slotmesh top`: a live view of the mesh."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from typing import Annotated

import grpc
import typer

from slotmesh.cli.console import CommandFailed, Output, OutputForm, Printable
from slotmesh.cli.figures import MeshFigures, figures_of
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress, duration
from slotmesh.cli.top.screen import document_of, names_of, print_views
from slotmesh.cli.top.state import VIEWS, TopState, TopView
from slotmesh.errors import Reason, SlotmeshError

AskEvery = Annotated[timedelta, duration("How often the controller is asked, as 500ms or 2s.")]


async def top(
    *,
    view: Annotated[
        TopView | None,
        typer.Option(help="The view that is shown first, or printed alone. Not given: endpoints first, all printed."),
    ] = None,
    once: Annotated[
        bool, typer.Option("--once", help="Print the figures of this moment and exit, as without a terminal.")
    ] = False,
    interval: AskEvery = timedelta(seconds=1),
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show what the mesh does now: calls a second, times, queues, slots, batches, errors, restarts.

    Endpoints, backends, replicas, routers and tenants are a view each: `1` to `5` or Tab go from one to the next, Enter
    goes down to what a row is made of, Esc back. `s` sorts by the next column, `/` filters by name, `?` shows all keys,
    `q` quits. While the controller is away, the view says so and goes on.

    Rates are of the last 2 to 3 seconds, from the counters that Prometheus scrapes, summed over the routers that there
    are. p50 and p99 are upper bounds of the times of successful calls, from their arrival at the router to their last
    result.

    Like this:

        slotmesh top
        slotmesh top --view replicas --interval 500ms
        slotmesh top --once --view tenants
        slotmesh top --once --output json | jq '.endpoints[] | {name, calls_per_s, p99_s}'
    """
    if once or output is not OutputForm.TABLE or not (sys.stdin.isatty() and sys.stdout.isatty()):
        async with Operator.at(address) as operator:
            figures = figures_of(await operator.sample())
        views = VIEWS if view is None else (view,)
        Printable(
            table=partial(print_views, address, figures, views),
            document=partial(document_of, address, figures, views),
            names=partial(names_of, figures, views),
        ).write(output)
        return
    await _show(address, interval.total_seconds(), TopState(view=view or TopView.ENDPOINTS))


async def _show(address: str, interval_s: float, state: TopState) -> None:
    from slotmesh.cli.top.terminal import ControllerAway, show  # noqa: PLC0415 - Windows has no such terminals

    async with AsyncExitStack() as stack:
        kept: list[Operator] = []

        async def ask() -> MeshFigures:
            try:
                if not kept:
                    kept.append(await stack.enter_async_context(Operator.at(address)))
                return figures_of(await kept[0].sample(timeout_s=max(2.0, 2 * interval_s)))
            except (CommandFailed, SlotmeshError, grpc.RpcError) as error:
                # Another one may lead by now.
                kept.clear()
                await stack.aclose()
                if isinstance(error, SlotmeshError) and error.reason is Reason.DEADLINE_RUNNING:
                    raise ControllerAway(f"the controller at {address} does not answer in time") from error
                raise ControllerAway(str(error).partition(";")[0]) from error

        await show(f"controller {address}", ask, interval_s, state)
