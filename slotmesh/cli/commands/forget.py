"""`slotmesh forget`: replicas that have ended, where nothing proves it."""

from __future__ import annotations

from typing import Final

from slotmesh.cli.console import CommandFailed, Output, OutputForm, confirm, is_interactive, say, write_subjects
from slotmesh.cli.operator import Operator
from slotmesh.cli.parameters import CONTROLLER, REPLICA, ControllerAddress, ReplicaIds, Yes, unknown
from slotmesh.errors import ReplicaNotFound, SlotmeshError
from slotmesh.v1.controller_service_pb2 import ForgetReplicaRequest

RISK: Final = (
    "This declares that the process has ended. If it still runs, a call that it executes may run beside the next call"
    " of its ordering key, and a call that it has executed may be reported as not executed."
)


async def forget(
    replicas: ReplicaIds,
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
    subjects = [f"{REPLICA}/{it}" for it in dict.fromkeys(replicas)]
    async with Operator.at(address) as operator:
        if is_interactive() and not yes:
            say(RISK, err=True)
        confirm(f"forget {', '.join(subjects)}?", yes=yes)
        for number, subject in enumerate(subjects):
            try:
                forgotten = await operator.send(ForgetReplicaRequest(replica_id=subject.partition("/")[2]))
                if not forgotten.incarnations:
                    say(f"slotmesh: {subject} counted as ended before", err=True)
            except ReplicaNotFound as error:
                raise unknown(
                    subject, [f"{REPLICA}/{it.replica_id}" for it in (await operator.members()).replicas]
                ) from error
            except SlotmeshError as error:
                before = ", ".join(subjects[:number]) or "nothing"
                raise CommandFailed(f"{error}\n{subject} was not forgotten; forgotten before: {before}") from error
    write_subjects(output, "forgotten", subjects)
