"""Paths of the Open Inference Protocol over HTTP, with Triton's extensions: which operation a request is. Pure.

Invariants: labels are of a closed set, one for each operation; what is not here belongs to the routes of the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ingress_service.core.route_table import segments_of_request

PREFIX: Final = b"/v2"
_GET: Final = ("GET",)
_POST: Final = ("POST",)
_MODEL: Final = "/v2/models/{model}"


class InferenceOperation(Enum):
    """What can be asked: the label of its requests, and their HTTP methods."""

    SERVER = "/v2", _GET
    LIVE = "/v2/health/live", _GET
    READY = "/v2/health/ready", _GET
    MODEL = _MODEL, _GET
    MODEL_READY = f"{_MODEL}/ready", _GET
    CONFIG = f"{_MODEL}/config", _GET
    STATISTICS = f"{_MODEL}/stats", _GET
    ALL_STATISTICS = "/v2/models/stats", _GET
    INFER = f"{_MODEL}/infer", _POST
    INDEX = "/v2/repository/index", _POST
    UNSUPPORTED = "/v2/_unsupported", ("GET", "POST")
    """Of Triton's extensions those that there are not."""

    @property
    def label(self) -> str:
        """Under which its requests are counted."""
        label: str = self.value[0]
        return label

    @property
    def methods(self) -> tuple[str, ...]:
        """Of HTTP."""
        methods: tuple[str, ...] = self.value[1]
        return methods


_OF_SERVER: Final[Mapping[tuple[str, ...], InferenceOperation]] = {
    (): InferenceOperation.SERVER,
    ("health", "live"): InferenceOperation.LIVE,
    ("health", "ready"): InferenceOperation.READY,
    ("models", "stats"): InferenceOperation.ALL_STATISTICS,
    ("repository", "index"): InferenceOperation.INDEX,
    ("trace", "setting"): InferenceOperation.UNSUPPORTED,
    ("logging",): InferenceOperation.UNSUPPORTED,
}
_OF_MODEL: Final[Mapping[tuple[str, ...], InferenceOperation]] = {
    (): InferenceOperation.MODEL,
    ("ready",): InferenceOperation.MODEL_READY,
    ("config",): InferenceOperation.CONFIG,
    ("stats",): InferenceOperation.STATISTICS,
    ("infer",): InferenceOperation.INFER,
    ("generate",): InferenceOperation.UNSUPPORTED,
    ("generate_stream",): InferenceOperation.UNSUPPORTED,
    ("trace", "setting"): InferenceOperation.UNSUPPORTED,
}
_SHARED_MEMORY: Final = frozenset({"systemsharedmemory", "cudasharedmemory"})


@dataclass(frozen=True, slots=True)
class InferencePath:
    """What a path asks for."""

    operation: InferenceOperation
    model: str = ""
    version: str = ""

    @property
    def label(self) -> str:
        """Under which the request is counted."""
        return self.operation.label


def is_below(raw_path: bytes) -> bool:
    """Whether it is a path of the protocol, or could be one."""
    return raw_path == PREFIX or raw_path.startswith(b"/v2/")


def inference_path(raw_path: bytes) -> InferencePath | None:
    """`raw_path` is percent-encoded. None: no such operation."""
    segments = segments_of_request(raw_path)
    if not segments or segments[0] != "v2":
        return None
    rest = tuple(segments[1:])
    if (operation := _OF_SERVER.get(rest)) is not None:
        return InferencePath(operation)
    match rest:
        case ("models", model, "versions", version, *more) if model and version:
            found = _OF_MODEL.get(tuple(more))
            return None if found is None else InferencePath(found, model, version)
        case ("models", model, *more) if model:
            found = _OF_MODEL.get(tuple(more))
            return None if found is None else InferencePath(found, model)
        case ("repository", "models", _, "load" | "unload"):
            return InferencePath(InferenceOperation.UNSUPPORTED)
        case (kind, *_) if kind in _SHARED_MEMORY:
            return InferencePath(InferenceOperation.UNSUPPORTED)
    return None
