"""`slotmesh state`: the state of a controller as JSON, from and to the file that it keeps it in."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated

import typer

from slotmesh.cli.console import confirm, say
from slotmesh.cli.credentials import connects
from slotmesh.cli.local.child import check_import_path, environment
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, ControllerAddress, Yes
from slotmesh.v1 import controller_service_pb2 as pb

state = typer.Typer(name="state", no_args_is_help=True, help="The state file of a controller.")

StateFilePath = Annotated[
    str,
    typer.Argument(metavar="PATH", help="What the controller has with --state: a file, or `etcd://HOST:PORT/MESH`."),
]


@state.command("export")
def export(path: StateFilePath) -> None:
    """Print all that a state file has, as JSON. A controller may have the file in use.

    Like this:

        slotmesh state export mesh.state > mesh.json
    """
    raise typer.Exit(_run(path, "--export-state"))


@state.command("import")
def import_(
    document: Annotated[str, typer.Argument(metavar="FILE", help="What `state export` printed; `-` reads stdin.")],
    path: StateFilePath,
) -> None:
    """Make a new state file of an export: the configuration, and its history.

    The file must not be there yet. Its controller begins a new generation: it learns from routers which replicas there
    are and who owns which keys, and nothing that runs is lost.

    Like this:

        slotmesh state import mesh.json mesh.state
    """
    raise typer.Exit(_run(path, f"--import-state={document}"))


@state.command("adopt")
@connects
async def adopt(
    *,
    from_members: Annotated[
        bool, typer.Option("--from-members", help="Traffic and endpoints are those of the newest routing table.")
    ] = False,
    discard_members: Annotated[
        bool, typer.Option("--discard-members", help="The configuration is that of the state file.")
    ] = False,
    yes: Yes = False,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Decide what counts where members know a newer state than the controller's state file.

    A controller whose state file is an older copy, or that of another mesh, reconciles nothing; `slotmesh status` and
    `slotmesh check` say so. Put the newest file back if there is one. Else one of the two options begins a new
    generation: which replicas there are, and who owns which keys, is learned from routers in any case. The controller
    ends then, and goes on when it is started again.

    With `--from-members`, endpoints, traffic and the backends as routers know them are those of the newest table that a
    router holds, and the rest is from the file: apply the newest mesh.yaml before, which takes no effect until then.
    With `--discard-members` changes that the file does not have are lost: replicas of backends that it lacks drain.

    Like this:

        slotmesh apply mesh.yaml && slotmesh state adopt --from-members
    """
    if from_members == discard_members:
        raise typer.BadParameter("give one of --from-members and --discard-members")
    async with Operator.at(address) as operator:
        newer = (await operator.standing()).role.newer_members
        for line in newer:
            say(line, err=True)
        if newer:
            what = "adopt what members know" if from_members else "discard what members know beyond the state file"
            confirm(f"{what}, and begin a new generation?", yes=yes)
        source = pb.STATE_SOURCE_MEMBERS if from_members else pb.STATE_SOURCE_STORE
        adopted = await operator.send(pb.AdoptStateRequest(source=source))
    for subject in adopted.changed:
        say(f"changed   {subject}")
    say(f"generation {adopted.generation} begins when the controller, which ends now, is started again")


def _run(path: str, flag: str) -> int:
    """The controller's own program knows its files."""
    check_import_path()
    command = [sys.executable, "-m", "controller_service", f"--state={path}", flag]
    return subprocess.run(command, env=environment(), check=False).returncode  # noqa: S603 - our own module, no shell
