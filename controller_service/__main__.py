"""`python -m controller_service`: runs the controller, or exports or imports its state."""

from __future__ import annotations

from controller_service.config import ControllerSettings
from controller_service.store.state_document import import_into, print_export
from slotmesh.runtime.environment import set_grpc_environment
from slotmesh.runtime.inherited_state import undo_inherited_state
from slotmesh.runtime.init_process import stay_as_init
from slotmesh.runtime.main import run


def main() -> None:
    """Runs until SIGTERM or SIGINT, or is done with a state."""
    undo_inherited_state()
    stay_as_init()
    settings = ControllerSettings.load(prog="python -m controller_service")
    set_grpc_environment()
    if settings.state_place is not None and settings.export_state:
        raise SystemExit(print_export(settings.state_place, settings.etcd_access))
    if settings.state_place is not None and settings.import_state is not None:
        raise SystemExit(import_into(settings.state_place, settings.import_state, settings.etcd_access))
    from controller_service import process_life  # noqa: PLC0415 - it loads gRPC

    run(lambda: process_life.serve(settings), log_format=settings.log_format, log_level=settings.log_level)


if __name__ == "__main__":
    main()
