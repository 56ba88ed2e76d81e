"""`python -m controller_service`."""

from __future__ import annotations

from controller_service import app
from controller_service.config import ControllerSettings
from slotmesh.runtime.main import run


def main() -> None:
    settings = ControllerSettings.load(prog="python -m controller_service")
    run(lambda: app.serve(settings), log_format=settings.log_format, log_level=settings.log_level)


if __name__ == "__main__":
    main()
