"""`python -m replica_service`: runs a replica, or describes a handler.

Exit status: 0 drained: each call that had come has an answer, be it that it was cancelled at the end of the grace ·
1 the handler cannot start, or its health checks failed, or calls ran on although they were cancelled, or slots were out
· 2 wrong settings.
"""

from __future__ import annotations

import sys

from replica_service.config import HeldName, ReplicaSettings
from slotmesh.runtime.environment import set_grpc_environment
from slotmesh.runtime.exits import CannotStart
from slotmesh.runtime.inherited_state import undo_inherited_state
from slotmesh.runtime.init_process import stay_as_init
from slotmesh.runtime.main import run


def main() -> None:
    """Runs until SIGTERM or SIGINT, or prints the description of the handler."""
    undo_inherited_state()
    stay_as_init()
    settings = ReplicaSettings.load(prog="python -m replica_service")
    set_grpc_environment()
    if settings.describe is not None:
        from replica_service.shell.handler.binding import print_description  # noqa: PLC0415 - what it imports loads gRPC

        raise SystemExit(print_description(settings.describe))
    from replica_service import app  # noqa: PLC0415 - it loads gRPC
    from replica_service.shell.telemetry import facts_of_call  # noqa: PLC0415 - likewise

    held = _held_name(settings)
    replica_id = settings.make_replica_id() if held is None else held.name
    named = settings.model_copy(update={"replica_id": replica_id})
    fields = {"replica": replica_id}
    run(
        lambda: app.main(named, held),
        log_format=settings.log_format,
        log_level=settings.log_level,
        log_fields=fields,
        log_facts=facts_of_call,
    )


def _held_name(settings: ReplicaSettings) -> HeldName | None:
    """The name that the process has until it ends. Exits where there can be none."""
    if settings.replica_names is None:
        return None
    try:
        return HeldName.take(settings.replica_names, settings.backend_name)
    except CannotStart as refusal:
        sys.stderr.write(f"{refusal}\n")
        raise SystemExit(CannotStart.exit_code) from refusal


if __name__ == "__main__":
    main()
