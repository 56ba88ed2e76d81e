"""`slotmesh run`: a whole mesh on this machine, with one command. `--config KEY=VALUE` is checked before any start."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Final

import typer

from slotmesh.cli.console import complete, say
from slotmesh.cli.credentials import credentials
from slotmesh.cli.local.child import check_import_path
from slotmesh.cli.local.mesh import LocalMesh, Tell, run_until_stopped
from slotmesh.cli.local.order import Order, mesh_of_handler
from slotmesh.cli.local.reloading import load_runnable
from slotmesh.cli.parameters import read_duration, refuse_constant
from slotmesh.config import LogLevel
from slotmesh.runtime.init_process import stay_as_init
from slotmesh.spec.descriptor_sets import BadProtoFile, services_of_paths
from slotmesh.spec.devices import read_pools
from slotmesh.spec.model import GrpcServices, InvalidSpec, JsonValue, Mesh
from slotmesh.spec.rules import mesh_violations, show

_JSON_BEGINS: Final = ("{", "[", '"')
"""A text that begins so is not meant as text, and its error would show far away."""


def read_config(settings: Iterable[str]) -> dict[str, JsonValue]:
    """From `KEY=VALUE`, each key once. A value is JSON where it is JSON, else text. Raises typer.BadParameter."""
    config: dict[str, JsonValue] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or not key.strip():
            raise _bad_config(f"must be KEY=VALUE, as model=svc, is {setting!r}")
        if key in config:
            raise _bad_config(f"{key} is given twice: all values of one argument are a list, as '{key}=[1, 2]'")
        config[key] = _value(key, text)
    return config


def _bad_config(message: str) -> typer.BadParameter:
    return typer.BadParameter(message, param_hint="--config")


def _value(key: str, text: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        if not text.lstrip().startswith(_JSON_BEGINS):
            return text
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise _bad_config(
            f"{key}: {show(text)} begins as JSON and is none ({why}); keep the shell from changing it, as in"
            f" '{key}=[1, 2]', or make it a string: '{key}={json.dumps(show(text))}'"
        ) from None
    return value


_FILE_ENDS: Final = (".yaml", ".yml")

UserConfig = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="An argument of the handler's constructor (`user_config`), by name; VALUE is JSON where it is JSON, else"
        " text. May be given again.",
    ),
]


StatePath = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="A file that keeps the mesh's state, on a local disk: traffic and other changes are in force again when it"
        " is started again. `memory`: they end with it.",
    ),
]


Devices = Annotated[
    str,
    typer.Option(
        metavar="POOL=DEVICE,...",
        envvar="SLOTMESH_DEVICES",
        help="Devices of this machine that replicas hold, as cuda=0-3 or cuda=auto; backends say how many with"
        " `devices`.",
        show_default="none",
    ),
]


HandlerOrFile = Annotated[
    str,
    typer.Argument(
        metavar="MODULE:NAME|FILE",
        help="A handler, or a mesh as YAML, as for `slotmesh apply`. The working directory is importable.",
    ),
]
Replicas = Annotated[
    int | None,
    typer.Option(min=1, max=1_000, help="Processes that run the handler; a file says it itself.", show_default="1"),
]
ProtoFiles = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="A .proto file whose services the handler implements, compiled by grpcio-tools; or a descriptor set, as"
        " protoc writes it. Clients call them at the router. May be given again; a mesh as YAML says it itself.",
    ),
]
StartTimeout = Annotated[
    timedelta,
    typer.Option(
        parser=read_duration, metavar="DURATION", show_default="2m", help="How long the mesh may take to get ready."
    ),
]
Reload = Annotated[
    bool, typer.Option("--reload", help="Replace replicas whose module has changed, and apply a FILE that has changed.")
]
ControllerPort = Annotated[int, typer.Option(min=0, max=65_535, help="Port of the controller. 0: any free one.")]
HttpPort = Annotated[
    int | None,
    typer.Option(
        metavar="PORT",
        min=0,
        max=65_535,
        help="Port of an ingress, which takes calls by HTTP: POST /ENDPOINT/METHOD. 0: any free one.",
        show_default="none",
    ),
]
LogSeverity = Annotated[
    LogLevel,
    typer.Option(
        help="The least severe messages that the processes log, to stderr; `slotmesh.audit` is always logged."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing of progress, nor how to call it.")]


def run(
    what: HandlerOrFile,
    config: UserConfig = None,
    *,
    proto: ProtoFiles = None,
    replicas: Replicas = None,
    routers: Annotated[int, typer.Option(min=1, max=100, help="Processes that take calls.")] = 1,
    router_port: Annotated[
        int,
        typer.Option(min=0, max=65_535, help="Port of the first router; the others take free ones. 0: any free one."),
    ] = 7071,
    controller_port: ControllerPort = 7070,
    http: HttpPort = None,
    state: StatePath = "memory",
    devices: Devices = "",
    start_timeout: StartTimeout = timedelta(minutes=2),
    reload: Reload = False,
    log_level: LogSeverity = "warning",
    quiet: Quiet = False,
) -> None:
    """Start a mesh on this machine, and keep it up until Ctrl-C.

    Controller, routers and replicas are processes of their own; they inherit environment and working directory.
    A MODULE:NAME is endpoint and backend NAME; a FILE is as `slotmesh apply` takes it. Once every router reaches every
    replica, one line goes to stdout, and nothing else ever does:

        ready router=HOST:PORT[,HOST:PORT...] controller=HOST:PORT [http=HOST:PORT]

    Progress, logs and what handlers print go to stderr. Replicas that die are replaced. Ctrl-C or SIGTERM takes all
    down in order, with exit status 0; running calls get 10 s in all, of a FILE the longest `graceful_timeout`; Ctrl-C
    again kills them: exit status 130. When a router or the controller dies, or a handler cannot start, all is taken
    down with exit status 1; a handler that is missing or cannot be imported: exit status 2, nothing was started.

    `--reload`, for development, watches FILE, modules of handlers, and protos with what is generated beside them, but
    not what these import: if one has changed and can be used, replicas of its backends are replaced.

    Like this:

        slotmesh run examples.digits.app:Digits --replicas 4
        slotmesh run app:Model --config name=svc --config sizes='[1, 2]' --state mesh.state
        slotmesh run greeter:Greeter --proto greeter.proto
        slotmesh run mesh.yaml --reload --tls-dir certs
    """
    file = Path(what) if what.endswith(_FILE_ENDS) else None
    order = Order(
        mesh=_of_file(file, config, replicas, proto) if file else _of_handler(what, config, replicas, proto),
        file=file,
        protos=tuple(proto or ()),
        reloads=reload,
        routers=routers,
        router_port=router_port,
        controller_port=controller_port,
        http_port=http,
        state=state,
        devices=devices,
        start_timeout=start_timeout,
        log_level=log_level,
    )
    _prepare(order)
    complete(run_until_stopped(order, tell := _keep_quiet if quiet else _tell, partial(_announce, tell)))


def _of_handler(handler: str, config: list[str] | None, replicas: int | None, proto: list[Path] | None) -> Mesh:
    user_config = read_config(config or [])
    if ":" not in handler:
        message = f"must be MODULE:NAME, or a file whose name ends with .yaml, is {handler!r}: {_meant(handler)}"
        raise typer.BadParameter(message, param_hint="MODULE:NAME")
    mesh = mesh_of_handler(handler, user_config, replicas or 1, _read_protos(proto) if proto else None)
    if violations := mesh_violations(mesh):
        of_config = [it for it in violations if ".user_config" in it.path]
        message = "; ".join(dict.fromkeys(it.message for it in of_config or violations))
        raise typer.BadParameter(message, param_hint="--config" if of_config else "MODULE:NAME")
    return mesh


def _meant(handler: str) -> str:
    """What to write in place of a module or a path without a name."""
    here = Path.cwd()
    if not handler.endswith(".py"):
        return f"write {handler.replace('/', '.').strip('.') or 'app'}:NAME"
    file = Path(os.path.normpath(here / handler))
    if file.is_relative_to(here):
        return f"write {'.'.join(file.relative_to(here).with_suffix('').parts)}:NAME"
    return f"write {file.stem}:NAME, in the folder {file.parent}"


def _of_file(file: Path, config: list[str] | None, replicas: int | None, proto: list[Path] | None) -> Mesh:
    if proto:
        message = f"is for MODULE:NAME: write `grpc_services` of the endpoint into {file}"
        raise typer.BadParameter(message, param_hint="--proto")
    for option, setting, given in (("--config", "user_config", config), ("--replicas", "num_replicas", replicas)):
        if given is not None:
            message = f"is for MODULE:NAME: write `{setting}` of the backend into {file}"
            raise typer.BadParameter(message, param_hint=option)
    try:
        return load_runnable(file)
    except InvalidSpec as invalid:
        lines = [f"{file}: nothing was started", *str(invalid).splitlines()]
        raise typer.BadParameter("\n  ".join(lines), param_hint="FILE") from None


def _read_protos(files: list[Path]) -> GrpcServices:
    try:
        return services_of_paths(files)
    except BadProtoFile as bad:
        raise typer.BadParameter(str(bad), param_hint="--proto") from None


def _prepare(order: Order) -> None:
    if order.router_port == order.controller_port != 0:
        raise typer.BadParameter(f"is {order.router_port} as well", param_hint="--router-port and --controller-port")
    try:
        read_pools(order.devices)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--devices") from None
    if order.http_port is not None and find_spec("starlette") is None:
        raise typer.BadParameter("needs the extra http: pip install 'slotmesh[http]'", param_hint="--http")
    check_import_path(order.handlers)
    if order.reloads:  # Python compares compiled modules by size and second: it would miss a quick change
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    stay_as_init()


def _tell(progress: str) -> None:
    say(f"slotmesh: {progress}", err=True)


def _keep_quiet(progress: str) -> None:
    """Discards a text."""


def _announce(tell: Tell, mesh: LocalMesh) -> None:
    routers, controller = ",".join(mesh.router_addresses), mesh.controller_address
    http = f" http={mesh.http_address}" if mesh.http_address else ""
    sys.stdout.write(f"ready router={routers} controller={controller}{http}\n")
    sys.stdout.flush()
    first = mesh.router_addresses[0]
    endpoint = mesh.endpoint_name or "ENDPOINT"
    directory = credentials().tls_dir
    by = "" if directory is None else f" --tls-dir {directory}"
    tell(f"ready; call it:  slotmesh call {endpoint} METHOD '[ARGUMENTS]' --address {first}{by}")
    if mesh.http_address:
        shown = "" if directory is None else " -H 'authorization: Bearer TOKEN'"
        tell(f"by HTTP:  curl http://{mesh.http_address}/{endpoint}/METHOD --json '[]'{shown}")
        if directory is not None and not os.environ.keys() & {
            "SLOTMESH_TOKENS",
            "SLOTMESH_JWT_JWKS",
            "SLOTMESH_ANONYMOUS",
        }:
            tell("no client is admitted by HTTP: set SLOTMESH_TOKENS=FILE for routers, or SLOTMESH_ANONYMOUS=true")
    tell(f"look at it:  slotmesh status --address {controller}{by}; Ctrl-C stops it")
