"""`slotmesh forget`: replicas that have ended, where nothing proves it."""

from __future__ import annotations

import sys
from typing import Annotated, Final

import typer

from slotmesh.cli.console import CommandFailed, Output, OutputForm, complete, say, write_subjects
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, REPLICA, ControllerAddress, Yes, name_of, unknown
from slotmesh.errors import ReplicaNotFound, SlotmeshError

RISK: Final = (
    "This declares that the process has ended. If it still runs, a call that it executes may run beside the next call"
    " of its ordering key, and a call that it has executed may be reported as not executed."
)


def forget(
    replicas: Annotated[
        list[str],
        typer.Argument(
            parser=name_of(REPLICA),
            metavar="REPLICA",
            help="The id of a replica, as `replica/ID`; more than one, too.",
            show_default=False,
        ),
    ],
    *,
    yes: Yes = False,
    output: Output = OutputForm.TABLE,
    address: ControllerAddress = CONTROLLER,
) -> None:
    """Declare that replicas have ended: their ordering keys get other owners.

    A replica that is only silent keeps its keys, since it may still run. Make sure that its process has ended, and
    forget it where no process comes back under its id. If it still runs, a call that it executes may run beside the
    next call of its key. A replica that reports to the controller, or to which a router has a link, is not forgotten.

    Like this:

        slotmesh forget replica/digits-v1-7n9nzx
    """
    asks = sys.stdin.isatty() and sys.stderr.isatty() and not yes
    complete(_forget(list(dict.fromkeys(replicas)), asks, output, address))


async def _forget(replica_ids: list[str], asks: bool, output: OutputForm, address: str) -> None:
    subjects = [f"{REPLICA}/{it}" for it in replica_ids]
    async with Operator.at(address) as operator:
        if asks:
            say(RISK, err=True)
            typer.confirm(f"forget {', '.join(subjects)}?", abort=True, err=True)
        for number, replica_id in enumerate(replica_ids):
            try:
                if not await operator.forget(replica_id):
                    say(f"slotmesh: {REPLICA}/{replica_id} counted as ended before", err=True)
            except ReplicaNotFound as error:
                known = [f"{REPLICA}/{it.replica_id}" for it in (await operator.members()).replicas]
                raise unknown(f"{REPLICA}/{replica_id}", known) from error
            except SlotmeshError as error:
                before = ", ".join(subjects[:number]) or "nothing"
                raise CommandFailed(
                    f"{error}\n{subjects[number]} was not forgotten; forgotten before: {before}"
                ) from error
    write_subjects(output, "forgotten", subjects)
