"""Ray Serve with the same handler behind its HTTP proxy, one replica, in an environment of its own.

It is looked for in `.venv-ray`; there, `pip install 'ray[serve]==2.49.*' 'protobuf<7'` puts it.
Invariant: its processes end with the block.
"""

from __future__ import annotations

import asyncio
import socket
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, cast

from benchmarks.processes import end_of
from slotmesh.runtime.exits import CannotStart

PYTHON: Final = Path(__file__).resolve().parent.parent / ".venv-ray" / "bin" / "python"
READY_TIMEOUT_S: Final = 120.0
_STOP_TIMEOUT_S: Final = 30.0
_PROGRAM: Final = """
import sys

import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response


@serve.deployment(num_replicas=1, max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0.5})
class Echo:
    async def __call__(self, request: Request) -> Response:
        return Response(await request.body(), media_type="application/octet-stream")


ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
serve.run(Echo.bind(), route_prefix=sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
serve.shutdown()
ray.shutdown()
"""


@asynccontextmanager
async def ray_serve(path: str) -> AsyncIterator[str]:
    """Its address, once it answers at this path.

    Raises:
        CannotStart: it did not get ready.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with TemporaryDirectory() as folder:
        program = Path(folder) / "echo_app.py"
        program.write_text(_PROGRAM, "utf-8")
        process = await asyncio.create_subprocess_exec(
            PYTHON, str(program), str(port), path, cwd=folder, stdin=PIPE, stdout=PIPE, stderr=DEVNULL
        )
        stdin, stdout = cast("asyncio.StreamWriter", process.stdin), cast("asyncio.StreamReader", process.stdout)
        try:
            said = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(READY_TIMEOUT_S):
                    while said != b"ready\n" and (said := await stdout.readline()):
                        pass
            if said != b"ready\n":
                raise CannotStart("Ray Serve did not get ready")
            yield f"127.0.0.1:{port}"
        finally:
            stdin.close()
            await end_of(process, _STOP_TIMEOUT_S)
