"""The Open Inference Protocol at the router: an endpoint is a model, a backend of its policy a version.

Owner: the app registers one instance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grpc

from router_service.convert.inference import (
    answer_to_wire,
    at_field_of,
    config_to_wire,
    index_to_wire,
    metadata_to_wire,
    statistics_to_wire,
)
from router_service.core.routing import catalog
from router_service.core.routing.endpoints import RoutedEndpoint
from router_service.shell.clients.inference import InferenceCalls, InferenceStream
from router_service.shell.clients.unary import HandedMetadata, UnaryCalls
from router_service.shell.dispatcher import Dispatcher
from slotmesh.calls.method_outlines import MethodTensors
from slotmesh.errors import Failure, bad_field
from slotmesh.inference import grpc_inference_service_pb2 as wire_pb2
from slotmesh.inference.grpc_inference_service_pb2_grpc import GRPCInferenceServiceServicer
from slotmesh.oip.model import EXTENSIONS, SERVER_NAME, endpoint_and_model
from slotmesh.security.rpc_roles import known_endpoints
from slotmesh.status import abort
from slotmesh.transport.duplex import read_request
from slotmesh.transport.open_streams import stream_of
from slotmesh.version import VERSION

Context = grpc.aio.ServicerContext[Any, Any]


class InferenceServicer(GRPCInferenceServiceServicer):
    """Inference, and the metadata, configuration and statistics of models."""

    def __init__(
        self, dispatcher: Dispatcher, unary: UnaryCalls, handed: HandedMetadata, is_serving: Callable[[], bool]
    ) -> None:
        """`handed`: which metadata of rpcs handlers get. `is_serving`: the router has a table, and does not leave."""
        self._dispatcher = dispatcher
        self._calls = InferenceCalls(dispatcher, unary, handed)
        self._is_serving = is_serving

    async def ServerLive(self, request: Any, context: Context) -> wire_pb2.ServerLiveResponse:
        """It answers."""
        return wire_pb2.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Context) -> wire_pb2.ServerReadyResponse:
        """Whether calls are taken."""
        return wire_pb2.ServerReadyResponse(ready=self._is_serving())

    async def ServerMetadata(self, request: Any, context: Context) -> wire_pb2.ServerMetadataResponse:
        """Who answers."""
        return wire_pb2.ServerMetadataResponse(name=SERVER_NAME, version=VERSION, extensions=EXTENSIONS)

    async def ModelReady(self, request: wire_pb2.ModelReadyRequest, context: Context) -> wire_pb2.ModelReadyResponse:
        """Whether a replica of the endpoint takes calls."""
        endpoint = await self._model(request.name, request.version, context)
        topology = self._dispatcher.scheduler.topology
        versions = [request.version] if request.version else catalog.versions_of(endpoint.route)
        ready = any(catalog.state_of(topology, endpoint.name, each).is_ready for each in versions)
        return wire_pb2.ModelReadyResponse(ready=ready)

    async def ModelMetadata(
        self, request: wire_pb2.ModelMetadataRequest, context: Context
    ) -> wire_pb2.ModelMetadataResponse:
        """What an inference takes and gives."""
        endpoint = await self._model(request.name, request.version, context)
        method, tensors = self._described(endpoint, request.version)
        return metadata_to_wire(request.name, catalog.versions_of(endpoint.route), method, tensors)

    async def ModelConfig(self, request: wire_pb2.ModelConfigRequest, context: Context) -> wire_pb2.ModelConfigResponse:
        """The same, in Triton's words."""
        endpoint = await self._model(request.name, request.version, context)
        return config_to_wire(request.name, *self._described(endpoint, request.version))

    async def ModelStatistics(
        self, request: wire_pb2.ModelStatisticsRequest, context: Context
    ) -> wire_pb2.ModelStatisticsResponse:
        """What this router has counted."""
        if request.version and not request.name:
            await abort(context, bad_field("version", "needs a name"))
        if request.name:
            await self._model(request.name, request.version, context)
        topology = self._dispatcher.scheduler.topology
        states = catalog.states_of(topology, known_endpoints(), endpoint_and_model(request.name)[0])
        figures = [catalog.figures_of(topology, each) for each in states if request.version in ("", each.backend)]
        return statistics_to_wire(each for each in figures if each is not None)

    async def RepositoryIndex(
        self, request: wire_pb2.RepositoryIndexRequest, context: Context
    ) -> wire_pb2.RepositoryIndexResponse:
        """All endpoints, with their backends."""
        if request.repository_name:
            await abort(context, bad_field("repository_name", "must be empty: the mesh is the one repository"))
        await self._dispatcher.first_table.wait_a_while()
        states = catalog.states_of(self._dispatcher.scheduler.topology, known_endpoints())
        return index_to_wire(each for each in states if each.is_ready or not request.ready)

    async def ModelInfer(self, request: wire_pb2.ModelInferRequest, context: Context) -> wire_pb2.ModelInferResponse:
        """One inference."""
        await self._dispatcher.first_table.wait_a_while()
        outcome = await self._inferred(request, context)
        if isinstance(outcome, Failure):
            await abort(context, at_field_of(request, self._calls.noted(outcome, request.model_name)))
        return outcome

    async def ModelStreamInfer(  # type: ignore[override]  # it writes to the context instead of yielding
        self, request_iterator: object, context: Context
    ) -> None:
        """Inferences by the stream."""
        await self._dispatcher.first_table.wait_a_while()
        stream = InferenceStream(self._calls, context)
        if (opened := stream_of(context)) is not None:
            opened.is_busy = lambda: stream.is_busy
        await stream.run(lambda: read_request(context))

    async def _inferred(
        self, request: wire_pb2.ModelInferRequest, context: Context
    ) -> wire_pb2.ModelInferResponse | Failure:
        prepared = self._calls.prepared(request, context)
        if isinstance(prepared, Failure):
            return prepared
        outcome = await self._calls.answer(prepared, context)
        if isinstance(outcome, Failure):
            return outcome
        return answer_to_wire(outcome, typed=prepared.request.is_typed)

    async def _model(self, name: str, version: str, context: Context) -> RoutedEndpoint:
        """The endpoint of that name, with that backend; or the rpc ends."""
        await self._dispatcher.first_table.wait_a_while()
        if not name:
            await abort(context, bad_field("name", "is required"))
        endpoint, _ = endpoint_and_model(name)
        found = catalog.model_of(self._dispatcher.scheduler.topology, endpoint, version, known_endpoints())
        if isinstance(found, Failure):
            await abort(context, found)
        return found

    def _described(self, endpoint: RoutedEndpoint, version: str) -> tuple[str, MethodTensors | None]:
        """The method of inferences, and its tensors; empty and None if that is not known."""
        topology = self._dispatcher.scheduler.topology
        method = catalog.inference_method(topology, endpoint, version)
        if isinstance(method, Failure):
            return "", None
        tensors = catalog.tensors_of_method(topology, endpoint, method, version)
        return (method, tensors) if tensors is not None else ("", None)
