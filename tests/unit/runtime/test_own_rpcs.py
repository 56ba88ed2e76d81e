"""Handlers of rpcs that come and go: one for each path and kind, made anew when the service has another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import grpc

from slotmesh.runtime.loop_slices import StepQueue
from slotmesh.server.reflection import Descriptors
from slotmesh.server.rpc_gate import Edge
from slotmesh.server.server import OwnRpcHandlers
from slotmesh.telemetry.process_times import RpcTimes


class Details(NamedTuple):
    method: str
    invocation_metadata: tuple[()] = ()


class Own:
    """Rpcs of which the test says the kind; each handler that it makes is counted."""

    def __init__(self) -> None:
        self.kinds: dict[str, object] = {}
        self.made: list[str] = []
        self.services: Sequence[str] = ()
        self.descriptors: Sequence[Descriptors] = ()

    def kind_of(self, path: str) -> Any:
        return self.kinds.get(path)

    def handler_of(self, path: str) -> Any:
        self.made.append(path)

        async def serve(request: bytes, _context: Any) -> bytes:
            return request

        return grpc.unary_unary_rpc_method_handler(serve)


def handlers_of(own: Own) -> OwnRpcHandlers:
    return OwnRpcHandlers(own, "router", StepQueue(), RpcTimes(), Edge(RpcTimes()))


def test_a_handler_is_kept_for_its_path_and_its_kind() -> None:
    own = Own()
    handlers = handlers_of(own)
    own.kinds = {"a.Greeter/Hello": "unary", "a.Greeter/Bye": "unary", "b.Greeter/Hello": "unary"}
    first = {path: handlers.service(Details(f"/{path}")) for path in own.kinds}  # type: ignore[arg-type]
    assert len({*map(id, first.values())}) == 3
    for path, handler in first.items():
        assert handlers.service(Details(f"/{path}")) is handler  # type: ignore[arg-type]
    own.kinds["a.Greeter/Hello"] = "streaming"
    changed = handlers.service(Details("/a.Greeter/Hello"))  # type: ignore[arg-type]
    assert changed is not first["a.Greeter/Hello"]
    assert handlers.service(Details("/a.Greeter/Hello")) is changed  # type: ignore[arg-type]
    assert handlers.service(Details("/a.Greeter/Bye")) is first["a.Greeter/Bye"]  # type: ignore[arg-type]
    assert own.made.count("a.Greeter/Hello") == 2


def test_a_path_that_is_not_known_is_kept_by_nobody() -> None:
    own = Own()
    handlers = handlers_of(own)
    first = handlers.service(Details("/x.Unknown/Rpc"))  # type: ignore[arg-type]
    own.kinds["x.Unknown/Rpc"] = "unary"
    assert handlers.service(Details("/x.Unknown/Rpc")) is not first  # type: ignore[arg-type]
    assert handlers.service(Details("/slotmesh.v1.RouterService/Call")) is None  # type: ignore[arg-type]
