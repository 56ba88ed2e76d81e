"""`grpc.channelz.v1`: sockets, channels and servers of the process, with their counters, for `grpcdebug` and `grpcurl`.

Purpose: replaces the published servicer, which fails if a newer gRPC core reports a field that it does not know, and
which ends some rpcs without a valid response.
Invariants: off unless enabled by a setting, since it reveals the addresses of all peers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import grpc
from google.protobuf import json_format
from google.rpc import code_pb2, status_pb2
from grpc_status import rpc_status

Context = grpc.aio.ServicerContext[Any, Any]

_QUESTIONS: Final = {
    "GetTopChannels": ("channelz_get_top_channels", ("start_channel_id",)),
    "GetServers": ("channelz_get_servers", ("start_server_id",)),
    "GetServer": ("channelz_get_server", ("server_id",)),
    "GetServerSockets": ("channelz_get_server_sockets", ("server_id", "start_socket_id", "max_results")),
    "GetChannel": ("channelz_get_channel", ("channel_id",)),
    "GetSubchannel": ("channelz_get_subchannel", ("subchannel_id",)),
    "GetSocket": ("channelz_get_socket", ("socket_id",)),
}
"""Rpc -> the function of gRPC's core that answers it in JSON, and the fields of the request that are its arguments."""


def register(server: Any) -> None:
    """Adds the service to a server."""
    from grpc._cython import cygrpc  # type: ignore[attr-defined]  # noqa: PLC0415 - as the published servicer, which is the only other way
    from grpc_channelz.v1 import channelz_pb2  # noqa: PLC0415 - only where it was asked for

    service = channelz_pb2.DESCRIPTOR.services_by_name["Channelz"]
    handlers = {}
    for name, (function, arguments) in _QUESTIONS.items():
        request, response = (getattr(channelz_pb2, f"{name}{suffix}") for suffix in ("Request", "Response"))
        rpc = _rpc(getattr(cygrpc, function), arguments, response)
        handlers[name] = grpc.unary_unary_rpc_method_handler(rpc, request.FromString, response.SerializeToString)
    server.add_registered_method_handlers(service.full_name, handlers)


def _rpc(
    ask: Callable[..., bytes], arguments: tuple[str, ...], response: Callable[[], Any]
) -> Callable[[Any, Context], Any]:
    async def rpc(request: Any, context: Context) -> Any:
        try:
            answer = ask(*(getattr(request, each) for each in arguments))
        except ValueError:
            # What channelz asks for; it is no failure of a call, so it has no reason of ours.
            said = ", ".join(f"{each}={getattr(request, each)}" for each in arguments)
            unknown = status_pb2.Status(code=code_pb2.NOT_FOUND, message=f"nothing here has {said}")
            await context.abort_with_status(rpc_status.to_status(unknown))
            raise AssertionError("abort_with_status returned") from None
        return json_format.Parse(answer, response(), ignore_unknown_fields=True)

    return rpc
