"""`mesh.yaml`: from text to the model, with all mistakes at once.

Purpose: one reader for `slotmesh apply` and for the controller's `--spec`.
Invariants: a file with any mistake yields no mesh; each mistake has the path at which it was made; unknown and repeated
keys are mistakes, not silence. Whether the backends that a policy names exist is the controller's to say.

    backends:
      digits-v1: {handler: "examples.digits.app:Digits", num_replicas: 2, max_queue_time: 30s, max_queued_bytes: 256MiB}
    endpoints:
      digits: {traffic: {digits-v1: 1.0}}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, overload

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from slotmesh.spec.model import Backend, Balancer, Endpoint, InvalidSpec, Mesh, Mistake, TrafficPolicy
from slotmesh.spec.rules import mesh_mistakes, number, show
from slotmesh.units import parse_duration, parse_size

MAX_SPEC_BYTES = 4 * 2**20
"""A larger file is refused before it is parsed."""


def _written(parse: Callable[[str], Any], example: str) -> BeforeValidator:
    def read(value: object) -> Any:
        if not isinstance(value, str):
            raise ValueError(f"write it with its unit, as {example}")  # noqa: TRY004 - pydantic collects ValueErrors
        return parse(value)

    return BeforeValidator(read)


_Duration = Annotated[timedelta, _written(parse_duration, "250ms, 30s or 2m")]
_Size = Annotated[int, _written(parse_size, "64KiB or 256MiB")]
_BALANCERS: Mapping[str, Balancer] = {balancer.name.lower(): balancer for balancer in Balancer}
if TYPE_CHECKING:
    _BalancerName = str
else:
    _BalancerName = Literal[tuple(_BALANCERS)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _BackendDocument(_Strict):
    handler: str = ""
    num_replicas: int | None = None
    max_ongoing: int | None = None
    prefetch: int | None = None
    user_config: dict[str, Any] = {}  # the rules say what is JSON
    max_batch_size: int | None = None
    max_queued_calls: int | None = None
    max_queued_bytes: _Size | None = None
    max_queue_time: _Duration | None = None
    balancer: _BalancerName | None = None
    graceful_timeout: _Duration | None = None
    health_check_period: _Duration | None = None
    health_check_timeout: _Duration | None = None
    own_loop: bool | None = None

    def to_model(self, name: str) -> Backend:
        unset = Backend(name=name)
        return Backend(
            name=name,
            handler=self.handler,
            num_replicas=self.num_replicas,
            max_ongoing=self.max_ongoing,
            prefetch=self.prefetch,
            user_config=self.user_config,
            max_batch_size=_or(self.max_batch_size, unset.max_batch_size),
            max_queued_calls=_or(self.max_queued_calls, unset.max_queued_calls),
            max_queued_bytes=_or(self.max_queued_bytes, unset.max_queued_bytes),
            max_queue_time_s=_seconds(self.max_queue_time, unset.max_queue_time_s),
            balancer=unset.balancer if self.balancer is None else _BALANCERS[self.balancer],
            graceful_timeout_s=_seconds(self.graceful_timeout, unset.graceful_timeout_s),
            health_check_period_s=_seconds(self.health_check_period, None),
            health_check_timeout_s=_seconds(self.health_check_timeout, None),
            own_loop=self.own_loop,
        )


class _EndpointDocument(_Strict):
    traffic: dict[str, float] | None = None
    shadows: dict[str, float] = {}

    def to_model(self, name: str) -> Endpoint:
        if self.traffic is None and not self.shadows:
            return Endpoint(name=name)
        return Endpoint(name=name, traffic=TrafficPolicy(weights=self.traffic or {}, shadows=self.shadows))


DocumentT = TypeVar("DocumentT", _BackendDocument, _EndpointDocument)
ValueT = TypeVar("ValueT")


def load_mesh(path: Path) -> Mesh:
    """Reads a file. Raises InvalidSpec with every mistake."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_SPEC_BYTES + 1)
    except OSError as error:
        raise InvalidSpec([Mistake(str(path), f"cannot be read: {error.strerror or error}")]) from error
    if len(text) > MAX_SPEC_BYTES:
        raise InvalidSpec([Mistake(str(path), f"is larger than {MAX_SPEC_BYTES:,} bytes")])
    return parse_mesh(text)


def parse_mesh(text: str | bytes) -> Mesh:
    """Reads YAML. Raises InvalidSpec with every mistake."""
    content = _yaml(text)
    mistakes: list[Mistake] = []
    sections = _map("", {} if content is None else content, mistakes)
    mistakes += [
        Mistake(show(name), "there are `backends` and `endpoints` only")
        for name in sections.keys() - {"backends", "endpoints"}
    ]
    backends = _resources(_BackendDocument, "backends", sections.get("backends"), mistakes)
    endpoints = _resources(_EndpointDocument, "endpoints", sections.get("endpoints"), mistakes)
    mesh = Mesh(
        backends=tuple(document.to_model(name) for name, document in backends.items()),
        endpoints=tuple(document.to_model(name) for name, document in endpoints.items()),
    )
    told = {mistake.path for mistake in mistakes}
    mistakes += [mistake for mistake in mesh_mistakes(mesh) if mistake.path not in told]
    if mistakes:
        raise InvalidSpec(mistakes)
    return mesh


def _resources(model: type[DocumentT], section: str, content: object, mistakes: list[Mistake]) -> dict[str, DocumentT]:
    """Each resource, as far as it can be read: what cannot is a mistake, and left out."""
    documents: dict[str, DocumentT] = {}
    for name, fields in _map(section, {} if content is None else content, mistakes).items():
        path = f"{section}.{show(name)}"
        given = dict(_map(path, {} if fields is None else fields, mistakes))
        try:
            documents[name] = model.model_validate(given)
        except ValidationError as error:
            details = error.errors(include_url=False)
            mistakes += [_mistake(path, detail) for detail in details]
            for detail in details:
                given.pop(str(detail["loc"][0]), None)
            documents[name] = model.model_validate(given)
    return documents


def _map(path: str, content: object, mistakes: list[Mistake]) -> dict[str, object]:
    """A map with names as keys; anything else is a mistake."""
    if not isinstance(content, dict):
        mistakes.append(Mistake(path, f"must be a map, is {_kind(content)}"))
        return {}
    mistakes += [
        Mistake(path, f"{show(str(key))} is {_kind(key)}, not a name: quote it")
        for key in content
        if not isinstance(key, str)
    ]
    return {key: value for key, value in content.items() if isinstance(key, str)}


def _mistake(path: str, detail: ErrorDetails) -> Mistake:
    where = ".".join([path, *(show(str(step)) for step in detail["loc"] if step != "[key]")])
    match detail["type"]:
        case "extra_forbidden":
            return Mistake(where, "there is no such setting")
        case "value_error":
            return Mistake(where, str(detail["ctx"]["error"]))
        case "literal_error":
            return Mistake(where, f"must be {detail['ctx']['expected']}")
        case _:
            message = detail["msg"].removeprefix("Input should be ")
            return Mistake(where, f"must be {message}, is {_kind(detail['input'])}")


def _yaml(text: str | bytes) -> object:
    try:
        loader = _UniqueKeyLoader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        where = "" if error.problem_mark is None else f"line {error.problem_mark.line + 1}: "
        raise InvalidSpec([Mistake("", f"{where}{error.problem or error}")]) from error
    except (yaml.YAMLError, UnicodeError, RecursionError, ValueError) as error:
        raise InvalidSpec([Mistake("", f"is no YAML: {str(error).splitlines()[0]}")]) from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML lets a repeated key win silently over the earlier one; here it is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"{show(key.value)} is given twice", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def _kind(value: object) -> str:
    match value:
        case None:
            return "empty"
        case bool():
            return "a boolean"
        case int() | float():
            return f"the number {number(value)}"
        case str():
            return f"{show(value)!r}"
        case dict():
            return "a map"
        case list():
            return "a list"
        case _:
            return f"a {type(value).__name__}"


def _or(value: ValueT | None, otherwise: ValueT) -> ValueT:
    return otherwise if value is None else value


@overload
def _seconds(value: timedelta | None, otherwise: float) -> float: ...


@overload
def _seconds(value: timedelta | None, otherwise: None) -> float | None: ...


def _seconds(value: timedelta | None, otherwise: float | None) -> float | None:
    return otherwise if value is None else value.total_seconds()
