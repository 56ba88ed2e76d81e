"""Open Inference Protocol over HTTP, with Triton's extensions: which operation a request is, and its options. Pure.

Invariants: labels are of a closed set, one for each operation; other paths belong to the routes of the mesh. An option
that is given both by an inference's parameters and by the headers of all requests is refused, except times, of which
the shorter one counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from ingress_service.core.call_options import PLAIN, RequestTerms
from ingress_service.core.media import Coding, coding_of_answer
from ingress_service.core.problems import refusal
from ingress_service.core.routes import segments_of_request
from slotmesh.oip.calls import ParameterMeaning
from slotmesh.oip.http import LENGTH_HEADER
from slotmesh.oip.model import InferenceRequest
from slotmesh.spec.option_rules import key_problem, metadata_problem

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


_LENGTH: Final = LENGTH_HEADER.lower().encode()
_MOST_DIGITS: Final = 12


@dataclass(frozen=True, slots=True)
class InferenceHeaders:
    """Headers of one request that have a meaning for inferences only."""

    json_size: int | None = None
    """Bytes of JSON that the body begins with; None: all of it is JSON."""
    wanted: Coding | None = None
    """How the answer may be."""


def inference_headers(lines: Iterable[tuple[bytes, bytes]]) -> InferenceHeaders:
    """Names are in lower case. Raises RequestRefusal."""
    length: bytes | None = None
    accept = b""
    for name, value in lines:
        if name == _LENGTH:
            if length is not None and length != value:
                raise refusal(400, f"{LENGTH_HEADER}: is given twice")
            length = value
        elif name == b"accept-encoding":
            accept = b"%b, %b" % (accept, value) if accept else value
    if length is not None and not (length.isdigit() and len(length) <= _MOST_DIGITS):
        raise refusal(400, f"{LENGTH_HEADER}: must be a number of bytes")
    return InferenceHeaders(None if length is None else int(length), coding_of_answer(accept))


def with_model(terms: RequestTerms, model_id: str) -> RequestTerms:
    """The terms, with the model id of the path. Raises RequestRefusal: a header names another one."""
    if terms.model_id not in ("", model_id):
        raise refusal(400, "X-Slotmesh-Model-Id: names another model than the path")
    if problem := key_problem(model_id):
        raise refusal(400, f"the model id of the path: {problem}")
    return replace(terms, model_id=model_id)


def terms_with(terms: RequestTerms, meaning: ParameterMeaning) -> RequestTerms:
    """How the call is wanted. `terms`: by the headers. Raises RequestRefusal."""
    if meaning.ordering_key:
        _check(not terms.ordering_key, "X-Slotmesh-Ordering-Key and the parameter sequence_id")
        terms = replace(terms, ordering_key=meaning.ordering_key)
    if meaning.slo_s is not None:
        _check(terms.slo_s is None and terms.slo_at is None, "an SLO and the parameter priority")
        terms = replace(terms, slo_s=meaning.slo_s)
    if meaning.timeout_s is not None:
        shorter = meaning.timeout_s if terms.timeout_s is None else min(terms.timeout_s, meaning.timeout_s)
        terms = replace(terms, timeout_s=shorter)
    if meaning.metadata:
        metadata = dict(terms.metadata)
        for name, text in meaning.metadata.items():
            _check(name not in metadata, f"X-Slotmesh-Meta-{name[:64].title()} and the parameter {name[:64]}")
            metadata[name] = text
        if problem := metadata_problem(metadata):
            raise refusal(400, f"parameters, with headers X-Slotmesh-Meta-NAME: {problem}")
        terms = replace(terms, metadata=tuple(sorted(metadata.items())))
    return terms


def of_version(request: InferenceRequest, meaning: ParameterMeaning, terms: RequestTerms) -> InferenceRequest:
    """The request for one version, with all its options as parameters. Raises RequestRefusal."""
    if replace(terms, timeout_s=None) != PLAIN:
        raise refusal(
            400, "with a version, the only X-Slotmesh- header that is read is X-Slotmesh-Timeout: use parameters"
        )
    if terms.timeout_s is None:
        return request
    timeout_s = terms.timeout_s if meaning.timeout_s is None else min(terms.timeout_s, meaning.timeout_s)
    return replace(request, parameters={**request.parameters, "timeout": max(1, round(timeout_s * 1e6))})


def _check(is_given_once: bool, what: str) -> None:
    if not is_given_once:
        raise refusal(400, f"{what} are both given: give one of them")
