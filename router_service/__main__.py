"""`python -m router_service`: runs a router."""

from __future__ import annotations

from router_service.config import RouterSettings
from slotmesh.runtime.environment import set_grpc_environment
from slotmesh.runtime.inherited_state import undo_inherited_state
from slotmesh.runtime.init_process import stay_as_init
from slotmesh.runtime.main import run


def main() -> None:
    """Runs until SIGTERM or SIGINT."""
    undo_inherited_state()
    stay_as_init()
    settings = RouterSettings.load(prog="python -m router_service")
    set_grpc_environment()
    from router_service import app  # noqa: PLC0415 - it loads gRPC

    run(lambda: app.main(settings), log_format=settings.log_format, log_level=settings.log_level)


if __name__ == "__main__":
    main()
