"""The bare server of HTTP: uvicorn and Starlette with the same handler, as anybody would write it."""

from __future__ import annotations

import argparse
import os
import socket

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.handler import Echo
from slotmesh.runtime.parent import watch_parent

_HANDLER = Echo()


async def echo(request: Request) -> Response:
    return Response(await _HANDLER.echo(await request.body()), media_type="application/octet-stream")


async def serve(announce_fd: int, parent_fd: int) -> None:
    """Announces its port, and serves until its parent has ended."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    app = Starlette(routes=[Route("/Echo/echo", echo, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, http="httptools", access_log=False, log_level="error", lifespan="off"))
    watch_parent(parent_fd, lambda: setattr(server, "should_exit", True))
    os.write(announce_fd, f"127.0.0.1:{listening.getsockname()[1]}\n".encode())
    os.close(announce_fd)
    await server.serve([listening])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("port", "log-level", "parent-fd", "announce-fd"):
        parser.add_argument(f"--{name}")
    given = parser.parse_args()
    import uvloop

    uvloop.run(serve(int(given.announce_fd), int(given.parent_fd)))
