"""`slotmesh tap`: calls as they end."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import timedelta
from typing import Annotated

import typer

from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import CommandFailed, complete, ended_by_sigterm
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress, read_address, read_duration
from slotmesh.cli.saying import say
from slotmesh.cli.subjects import ENDPOINT, name_of
from slotmesh.cli.tap_drops import TapDrops
from slotmesh.cli.tapping import ListRouters, TappedRouters, call_document
from slotmesh.errors import SlotmeshError
from slotmesh.tenant_names import tenant_problem
from slotmesh.v1 import tap_service_pb2 as pb


def _tenant(text: str) -> str:
    if problem := tenant_problem(text):
        raise typer.BadParameter(f"is the name of no tenant: {problem}")
    return text


Duration = Annotated[
    timedelta | None,
    typer.Option(parser=read_duration, metavar="DURATION", help="End after so long, as 30s. Not given: at Ctrl-C."),
]

ShowsPayloads = Annotated[
    bool,
    typer.Option(
        "--payloads",
        help="Show payloads and results, too. Routers refuse it unless they were started with --tap-payloads.",
    ),
]
ShownBytes = Annotated[
    int, typer.Option("--payload-bytes", min=1, max=65_536, help="Of each payload and result, shown at most.")
]
OneRouter = Annotated[
    str,
    typer.Option(
        parser=lambda text: text and read_address(text),
        metavar="HOST:PORT",
        help="Only this router. Not given: all that the controller knows, also those that come later.",
        show_default=False,
    ),
]


def tap(
    endpoint: Annotated[str, typer.Argument(parser=name_of(ENDPOINT), metavar="ENDPOINT", help="The endpoint's name.")],
    *,
    method: Annotated[
        str,
        typer.Option(help="Only calls of this method; `__call__` for that of the handler itself.", show_default=False),
    ] = "",
    tenant: Annotated[
        str | None,
        typer.Option(
            parser=_tenant, metavar="NAME", help="Only calls of this tenant; empty: only those that name none."
        ),
    ] = None,
    rate: Annotated[
        float, typer.Option(min=0.000001, max=1.0, help="Which share of the calls is shown, drawn call by call.")
    ] = 1.0,
    most: Annotated[
        int, typer.Option("--max-per-second", min=1, max=10_000, help="Calls a second that each router shows at most.")
    ] = 1_000,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", min=0, help="End after this number of calls, or after --duration; 0: no limit."),
    ] = 0,
    duration: Duration = None,
    payloads: ShowsPayloads = False,
    payload_bytes: ShownBytes = 4_096,
    router: OneRouter = "",
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show calls of an endpoint as they end, one line of JSON each, until Ctrl-C.

    A line has the method, sizes in bytes, the replica, the time in the router's queue, the time from there to the
    outcome, and the outcome with its reason. Which routers are tapped, and how many calls they have dropped because
    there were too many a second, goes to stderr, and the sum of both at the end, after SIGTERM, too. Not seen are
    reservations, copies for shadows and calls that go straight to replicas. While nobody taps, routers do nothing for
    it.

    Like this:

        slotmesh tap digits
        slotmesh tap digits --rate 0.01 --method classify | jq 'select(.outcome == "failed")'
        slotmesh tap digits --limit 100 --duration 30s --router 127.0.0.1:7071
    """
    request = pb.TapCallsRequest(
        endpoint=endpoint,
        method=method,
        tenant=tenant,
        sample_rate=rate,
        max_calls_per_second=most,
        payloads=payloads,
        max_payload_bytes=payload_bytes if payloads else 0,
    )
    try:
        complete(_tap(request, router, address, limit, None if duration is None else duration.total_seconds()))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


async def _tap(request: pb.TapCallsRequest, router: str, controller: str, limit: int, duration_s: float | None) -> None:
    async def routers() -> list[str]:
        return [router] if router else await _listed(controller)

    if not await routers():
        raise CommandFailed(f"the controller at {controller} knows no router")
    taps = TappedRouters(request, _forgiving(routers), lambda text: say(f"slotmesh: {text}", err=True))
    shown, drops, loop = 0, TapDrops(), asyncio.get_running_loop()
    try:
        async with asyncio.timeout(duration_s), ended_by_sigterm(), aclosing(taps.responses()) as responses:
            async for tapped in responses:
                if text := drops.add(tapped.address, tapped.response.dropped, loop.time()):
                    say(f"slotmesh: {text}", err=True)
                for call in tapped.response.calls:
                    typer.echo(json.dumps(call_document(tapped.address, call)))
                    shown += 1
                    if shown == limit:
                        return
    except TimeoutError:
        pass
    finally:
        typer.echo(f"slotmesh: {shown} calls shown, {drops.total} dropped", err=True)


async def _listed(controller: str) -> list[str]:
    async with Operator.at(controller) as operator:
        return [it.address for it in (await operator.members()).routers]


def _forgiving(routers: ListRouters) -> ListRouters:
    """While the controller is away, the routers that are tapped are."""

    async def ask() -> list[str]:
        try:
            return await routers()
        except (CommandFailed, SlotmeshError):
            return []

    return ask
