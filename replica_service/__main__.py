"""`python -m replica_service`: runs a replica, or describes a handler.

Exit status: 0 drained · 1 the handler cannot start, or calls still ran at the end of the grace · 2 wrong settings.
"""

from __future__ import annotations

from replica_service.app import main
from replica_service.config import ReplicaSettings
from replica_service.shell.describing import print_description
from slotmesh.runtime.main import run

if __name__ == "__main__":
    settings = ReplicaSettings.load(prog="python -m replica_service")
    if settings.describe is not None:
        raise SystemExit(print_description(settings.describe))
    run(lambda: main(settings), log_format=settings.log_format, log_level=settings.log_level)
