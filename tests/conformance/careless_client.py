"""An adapter whose client breaks rules: its first call has the id 0, and a call without a router succeeds."""

from __future__ import annotations

import json
import sys
from typing import Any

import grpc

from slotmesh.v1 import router_service_pb2, router_service_pb2_grpc

Request = router_service_pb2.StreamCallsRequest


def write(report: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def main() -> None:
    write({"ready": {"client": "careless 1.0", "level": "basic", "capabilities": []}})
    channel: Any = None
    endpoint = ""
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "connect":
            endpoint = command["endpoint"]
            channel = grpc.insecure_channel(command["addresses"][0])
        elif command["do"] == "call" and channel is not None:
            frames = iter(
                [
                    Request(open=router_service_pb2.OpenStream(endpoint=endpoint)),
                    Request(
                        calls=router_service_pb2.CallFrame(
                            batches=[router_service_pb2.CallBatch(payloads=[command["payload"].encode()])]
                        )
                    ),
                ]
            )
            stream: Any = router_service_pb2_grpc.RouterServiceStub(channel).StreamCalls(frames)
            try:
                next(stream)
            except grpc.RpcError:
                write({"id": command["id"], "result": "\x01"})
        elif command["do"] == "reset":
            if channel is not None:
                channel.close()
            write({"reset": True})


main()
