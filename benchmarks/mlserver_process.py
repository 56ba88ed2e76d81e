"""MLServer with a model that does what `benchmarks.oip_handler` does, in a process of an environment of its own.

It is looked for in `.venv-mlserver`; there, `pip install 'mlserver==1.7.*'` puts it.
Invariant: the process ends with the block.
"""

from __future__ import annotations

import asyncio
import json
import socket
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import grpc

from benchmarks.processes import end_of
from slotmesh.inference import grpc_inference_service_pb2 as pb
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceStub
from slotmesh.runtime.channels import open_channel
from slotmesh.runtime.exits import CannotStart

PROGRAM: Final = Path(__file__).resolve().parent.parent / ".venv-mlserver" / "bin" / "mlserver"
READY_TIMEOUT_S: Final = 60.0
_STOP_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 0.2
_MODEL: Final = """
from mlserver import MLModel
from mlserver.codecs import NumpyCodec
from mlserver.types import InferenceResponse


class Model(MLModel):
    async def load(self):
        return True

    async def predict(self, payload):
        x = NumpyCodec.decode_input(payload.inputs[0])
        return InferenceResponse(model_name=self.name, outputs=[NumpyCodec.encode_output("output", x)])
"""


@asynccontextmanager
async def mlserver() -> AsyncIterator[Any]:
    """A stub for one that is ready, without workers beside it: the fastest way for a model that does nothing.

    Raises:
        CannotStart: it did not get ready.
    """
    with TemporaryDirectory() as folder:
        ports = _free_ports(3)
        _write(Path(folder), dict(zip(("grpc_port", "http_port", "metrics_port"), ports, strict=True)))
        process = await asyncio.create_subprocess_exec(
            PROGRAM, "start", ".", cwd=folder, stdout=DEVNULL, stderr=DEVNULL
        )
        try:
            async with open_channel(f"127.0.0.1:{ports[0]}") as channel:
                stub: Any = GRPCInferenceServiceStub(channel)
                await _wait_ready(stub, process)
                yield stub
        finally:
            with suppress(ProcessLookupError):
                process.terminate()
            await end_of(process, _STOP_TIMEOUT_S)


def _write(folder: Path, ports: dict[str, int]) -> None:
    """The model, and its settings."""
    settings = {"host": "127.0.0.1", "parallel_workers": 0, "debug": False, **ports}
    (folder / "settings.json").write_text(json.dumps(settings), "utf-8")
    model = {"name": "EchoModel", "implementation": "echo_model.Model"}
    (folder / "model-settings.json").write_text(json.dumps(model), "utf-8")
    (folder / "echo_model.py").write_text(_MODEL, "utf-8")


async def _wait_ready(stub: Any, process: asyncio.subprocess.Process) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(READY_TIMEOUT_S):
            while process.returncode is None:
                with suppress(grpc.aio.AioRpcError):
                    if (await stub.ModelReady(pb.ModelReadyRequest(name="EchoModel"))).ready:
                        return
                await asyncio.sleep(_POLL_S)
    raise CannotStart("MLServer did not get ready")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
