"""`slotmesh run`: a whole mesh on this machine, with one command."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Annotated

import typer

from slotmesh.cli.local.mesh import LocalMesh, run_until_stopped
from slotmesh.cli.local.order import Order
from slotmesh.cli.outcome import complete
from slotmesh.cli.parameters import read_duration
from slotmesh.cli.user_config import BadConfig, read_config
from slotmesh.config import LogLevel
from slotmesh.spec.model import JsonValue
from slotmesh.spec.rules import mesh_mistakes

UserConfig = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="An argument of the handler's constructor (`user_config`), by name; VALUE is JSON where it is JSON, else"
        " text. May be given again.",
        show_default=False,
    ),
]


def run(
    handler: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="The handler. The working directory is importable.")
    ],
    config: UserConfig = None,
    *,
    replicas: Annotated[int, typer.Option(min=1, max=1_000, help="Processes that run the handler.")] = 1,
    routers: Annotated[int, typer.Option(min=1, max=100, help="Processes that take calls.")] = 1,
    router_port: Annotated[
        int,
        typer.Option(min=0, max=65_535, help="Port of the first router; the others take free ones. 0: any free one."),
    ] = 7071,
    controller_port: Annotated[
        int, typer.Option(min=0, max=65_535, help="Port of the controller. 0: any free one.")
    ] = 7070,
    start_timeout: Annotated[
        timedelta,
        typer.Option(
            parser=read_duration, metavar="DURATION", show_default="2m", help="How long the mesh may take to get ready."
        ),
    ] = timedelta(minutes=2),
    log_level: Annotated[
        LogLevel, typer.Option(help="The least severe messages that the processes log, to stderr.")
    ] = "warning",
) -> None:
    """Start a mesh on this machine, and keep it up until Ctrl-C.

    Controller, routers and replicas are processes of their own; they inherit environment and working directory.
    Endpoint and backend are named NAME. Once every router reaches every replica, one line goes to stdout, and nothing
    else ever does:

        ready router=HOST:PORT[,HOST:PORT...] controller=HOST:PORT

    Progress, logs and what handlers print go to stderr. Replicas that die are replaced. Ctrl-C or SIGTERM takes
    everything down in order, with exit status 0; calls that run get up to 10 s. When a router or the controller dies,
    or the handler cannot start, everything is taken down with exit status 1. No process is left behind, not even when
    this command is killed.

    Like this:

        slotmesh run examples.digits.app:Digits --replicas 4
        slotmesh run app:Model --config name=svc --config sizes='[1, 2]'
    """
    order = Order(
        handler=handler,
        user_config=_read_config(config or []),
        replicas=replicas,
        routers=routers,
        router_port=router_port,
        controller_port=controller_port,
        start_timeout=start_timeout,
        log_level=log_level,
    )
    _check(order)
    complete(run_until_stopped(order, _tell, _announce))


def _check(order: Order) -> None:
    if ":" not in order.handler:
        told = f"must be MODULE:NAME, is {order.handler!r} (a mesh.yaml is for `slotmesh apply`)"
        raise typer.BadParameter(told, param_hint="MODULE:NAME")
    if mistakes := mesh_mistakes(order.mesh):
        of_config = [mistake for mistake in mistakes if ".user_config" in mistake.path]
        told = "; ".join(dict.fromkeys(mistake.message for mistake in of_config or mistakes))
        raise typer.BadParameter(told, param_hint="--config" if of_config else "MODULE:NAME")
    if order.router_port == order.controller_port != 0:
        raise typer.BadParameter(f"is {order.router_port} as well", param_hint="--router-port and --controller-port")


def _read_config(settings: list[str]) -> dict[str, JsonValue]:
    try:
        return read_config(settings)
    except BadConfig as mistake:
        raise typer.BadParameter(str(mistake), param_hint="--config") from None


def _tell(progress: str) -> None:
    typer.echo(f"slotmesh: {progress}", err=True)


def _announce(mesh: LocalMesh) -> None:
    routers, controller = ",".join(mesh.router_addresses), mesh.controller_address
    sys.stdout.write(f"ready router={routers} controller={controller}\n")
    sys.stdout.flush()
    first = mesh.router_addresses[0]
    _tell(f"ready; call it:  slotmesh call {mesh.name} METHOD '[ARGUMENTS]' --address {first}")
    _tell(f"look at it:  slotmesh status --address {controller}; Ctrl-C stops it")
