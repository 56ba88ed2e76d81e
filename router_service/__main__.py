"""`python -m router_service`: runs a router."""

from __future__ import annotations

from router_service.app import main
from router_service.config import RouterSettings
from slotmesh.runtime.main import run

if __name__ == "__main__":
    settings = RouterSettings.load(prog="python -m router_service")
    run(lambda: main(settings), log_format=settings.log_format, log_level=settings.log_level)
