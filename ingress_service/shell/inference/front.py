"""Requests of the Open Inference Protocol, one operation after the other.

Invariants: probes ask nobody who they are, and say nothing of the mesh but whether it takes calls; all else is asked of
routers, or called, as the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from ingress_service.core.inference_paths import InferenceOperation, InferencePath
from ingress_service.core.problems import refusal
from ingress_service.core.requests import RequestHeaders
from ingress_service.shell.answers import RequestAnswer
from ingress_service.shell.bodies import HeldBody, Receive
from ingress_service.shell.callers import HttpCaller
from ingress_service.shell.inference.infer import Inferences
from ingress_service.shell.inference.models import NOT_READY, told_of
from ingress_service.shell.inference.readiness import RouterReadiness
from ingress_service.shell.mesh_view import MeshView
from slotmesh.endpoint_names import overlong_endpoint
from slotmesh.errors import Reason
from slotmesh.oip.json_answers import JSON_TYPE
from slotmesh.status import to_exception

_MAX_INDEX_BYTES: Final = 4096
PROBES: Final = frozenset({InferenceOperation.LIVE, InferenceOperation.READY})


class _IndexRequest(msgspec.Struct):
    ready: bool = False


class InferenceFront:
    """Answers them."""

    def __init__(self, mesh: MeshView, why_not_ready: Callable[[], str]) -> None:
        """`why_not_ready`: empty while the ingress itself is ready."""
        self._why_not_ready = why_not_ready
        self._inferences = Inferences(mesh)
        self._readiness = RouterReadiness()

    def close(self) -> None:
        """Asks routers no more."""
        self._readiness.close()

    async def probe(self, path: InferencePath, own: HttpCaller, answer: RequestAnswer) -> None:
        """Health, which has no body. `own`: the ingress itself."""
        is_well = path.operation is InferenceOperation.LIVE or await self._is_ready(own)
        await answer.whole(200 if is_well else NOT_READY, _json_lines(), b"")

    async def answer(
        self,
        path: InferencePath,
        caller: HttpCaller,
        held: HeldBody,
        scope: Any,
        headers: RequestHeaders,
        receive: Receive,
        answer: RequestAnswer,
    ) -> None:
        """All else. Raises RequestRefusal, SlotmeshError, ClientLeft."""
        if path.operation is InferenceOperation.UNSUPPORTED:
            raise refusal(501, "this extension of the protocol is not supported", Reason.NOT_IMPLEMENTED)
        if path.operation is InferenceOperation.INFER:
            await self._inferences.answer(path, caller, held, headers, scope["headers"], receive, answer)
            return
        if failure := overlong_endpoint(path.model, "name"):
            raise to_exception(failure)
        is_index = path.operation is InferenceOperation.INDEX
        ready_only = is_index and await self._ready_only(held, receive, headers)
        status, body = await told_of(caller, path, ready_only=ready_only)
        await answer.whole(status, _json_lines(), body)

    async def _is_ready(self, own: HttpCaller) -> bool:
        return not self._why_not_ready() and await self._readiness.is_one_ready(own)

    async def _ready_only(self, held: HeldBody, receive: Receive, headers: RequestHeaders) -> bool:
        body = await held.read(receive, headers)
        try:
            if len(body) > _MAX_INDEX_BYTES:
                text = f"the body has at most {_MAX_INDEX_BYTES:,} bytes: a JSON object with the flag ready"
                raise refusal(413, text, Reason.PAYLOAD_TOO_LARGE)
            return bool(body) and msgspec.json.decode(body, type=_IndexRequest).ready
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise refusal(400, "the body must be a JSON object, with the flag ready at most") from None


def _json_lines() -> list[tuple[bytes, bytes]]:
    return [(b"content-type", JSON_TYPE.encode())]
