"""`slotmesh calls`: calls that have not ended."""

from __future__ import annotations

from functools import partial
from typing import Annotated, TextIO

import typer

from slotmesh.cli.open_calls import ListedCall, ListedCalls, list_calls
from slotmesh.cli.operator import Operator
from slotmesh.cli.outcome import FAILED, CommandFailed, complete
from slotmesh.cli.output import Output, OutputForm, Printable
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress, read_address
from slotmesh.cli.saying import say
from slotmesh.cli.subjects import ENDPOINT, REPLICA, name_of
from slotmesh.cli.view.report import console_of, new_table
from slotmesh.spec.wire import seconds
from slotmesh.v1 import tap_service_pb2 as pb

Named = Annotated[
    str,
    typer.Argument(
        parser=name_of(ENDPOINT),
        metavar="ENDPOINT",
        help="Only calls of this endpoint. None: of all.",
        show_default=False,
    ),
]
OneRouter = Annotated[
    str,
    typer.Option(
        parser=lambda text: text and read_address(text),
        metavar="HOST:PORT",
        help="Only calls of this router. Not given: of all that the controller lists.",
        show_default=False,
    ),
]
Keys = Annotated[
    bool,
    typer.Option(
        "--keys",
        help="Show ordering keys in place of their tags. Routers refuse it unless they were started with"
        " --tap-payloads.",
    ),
]


def calls(
    endpoint: Named = "",
    *,
    waiting: Annotated[bool, typer.Option("--waiting", help="Only calls that wait in routers.")] = False,
    running: Annotated[bool, typer.Option("--running", help="Only calls at replicas.")] = False,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Only calls with this ordering key.", show_default=False)
    ] = None,
    tenant: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only calls of this tenant; empty: only those that name none."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1_000, help="The oldest ones, at most.")] = 100,
    keys: Keys = False,
    router: OneRouter = "",
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Show the calls that have not ended, oldest first: how old each is, where it is, and what it waits for.

    States: `waiting` in a router; `sending`: its replica is chosen; `running`: at its replica; `in lane`: there,
    behind an older call of its ordering key; `left`: its caller has gone, and the replica still works on it. Not
    listed are reservations, and calls that go straight to replicas.

    An ordering key is shown as its partition and a tag. The tag is the same for all calls of the key at one router, and
    does not give the key away. `--key` finds the calls of a key that you know.

    Like this:

        slotmesh calls --running
        slotmesh calls digits --waiting --limit 20
        slotmesh calls --key user-7 -o json
    """
    if waiting and running:
        raise typer.BadParameter("contradicts --running: give one of them, or none for all", param_hint="--waiting")
    if key == "":
        raise typer.BadParameter("is empty: leave it out for calls with any key or none", param_hint="--key")
    states = {
        (True, False): [pb.OPEN_CALL_STATE_WAITING, pb.OPEN_CALL_STATE_SENDING],
        (False, True): [pb.OPEN_CALL_STATE_AT_REPLICA, pb.OPEN_CALL_STATE_ABANDONED],
    }.get((waiting, running), [])
    request = pb.ListCallsRequest(
        endpoint=endpoint, states=states, tenant=tenant, ordering_key=key, limit=limit, show_keys=keys
    )
    listed = complete(_listed(request, router, address, limit))
    replicas = dict.fromkeys(f"{REPLICA}/{each.call.replica_id}" for each in listed.calls if each.call.replica_id)
    Printable(table=partial(_print, listed), document=listed.document, names=lambda: replicas).write(output)
    for silent, why in listed.silent.items():
        say(f"slotmesh: the calls of the router at {silent} are not known: {why}", err=True)
    if listed.silent:
        raise typer.Exit(FAILED)


async def _listed(request: pb.ListCallsRequest, router: str, controller: str, limit: int) -> ListedCalls:
    if router:
        return await list_calls(request, [router], limit=limit)
    async with Operator.at(controller) as operator:
        routers = [it.address for it in (await operator.members()).routers]
    if not routers:
        raise CommandFailed(f"the controller at {controller} knows no router")
    return await list_calls(request, routers, limit=limit)


def _print(listed: ListedCalls, out: TextIO) -> None:
    console = console_of(out)
    if listed.calls:
        columns = ("age", "state", "call", "key", "tenant", "at", "sent", "bytes", "waits for")
        with_router = len({each.router for each in listed.calls}) > 1
        table = new_table("Calls", *columns, *(("router",) if with_router else ()))
        for each in listed.calls:
            table.add_row(*_row(each), *((each.router,) if with_router else ()))
        console.print(table)
    more = f"; {listed.left_out} not shown, which are younger" if listed.left_out else ""
    console.print(f"{listed.waiting} waiting, {listed.at_replicas} at replicas{more}")
    for address in listed.partial:
        console.print(f"the router at {address} has more calls than it looks at: there may be older ones")


def _row(listed: ListedCall) -> list[str]:
    call = listed.call
    key = call.ordering_key or (f"{call.partition}/{call.key_tag}" if call.key_tag else "")
    marks = [f"attempt {call.attempt}"] if call.attempt > 1 else []
    marks += ["shadow"] if call.is_shadow else []
    return [
        age_text(seconds(call.age)),
        listed.state,
        f"{call.endpoint}.{call.method}" + (f" ({', '.join(marks)})" if marks else ""),
        key,
        call.tenant,
        call.replica_id or call.backend,
        age_text(seconds(call.sent_age)) if call.HasField("sent_age") else "",
        f"{call.request_bytes:,}",
        call.waits_for,
    ]


def age_text(age_s: float) -> str:
    """A duration, to three digits or so."""
    if age_s < 1:
        return f"{age_s * 1e3:.0f} ms"
    if age_s < 120:
        return f"{age_s:.1f} s"
    minutes, rest_s = divmod(round(age_s), 60)
    return f"{minutes} min {rest_s} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
