"""`python -m ingress_service`: runs an ingress."""

from __future__ import annotations

import sys

from ingress_service.config import IngressSettings
from slotmesh.runtime.environment import set_grpc_environment
from slotmesh.runtime.inherited_state import undo_inherited_state
from slotmesh.runtime.init_process import stay_as_init
from slotmesh.runtime.main import run


def main() -> None:
    """Runs until SIGTERM or SIGINT."""
    undo_inherited_state()
    stay_as_init()
    settings = IngressSettings.load(prog="python -m ingress_service")
    set_grpc_environment()
    try:
        from ingress_service import app  # noqa: PLC0415 - it loads gRPC
    except ModuleNotFoundError as error:
        sys.stderr.write(f"the ingress needs {error.name}: install slotmesh[http]\n")
        sys.exit(1)

    run(lambda: app.main(settings), log_format=settings.log_format, log_level=settings.log_level)


if __name__ == "__main__":
    main()
