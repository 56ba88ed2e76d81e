"""`python -m controller_service`: runs the controller."""

from __future__ import annotations

from controller_service.config import ControllerSettings
from slotmesh.runtime.environment import set_grpc_environment
from slotmesh.runtime.main import run


def main() -> None:
    """Runs until SIGTERM or SIGINT."""
    settings = ControllerSettings.load(prog="python -m controller_service")
    set_grpc_environment()
    from controller_service import app  # noqa: PLC0415 - it loads gRPC

    run(lambda: app.serve(settings), log_format=settings.log_format, log_level=settings.log_level)


if __name__ == "__main__":
    main()
