"""The code that a backend runs, and digests of what its replicas are started with.

`version` is the name of the code, for people; `code` is its identity: the digest of a snapshot, or an installed
distribution. A backend that names no version is named after its code.
Invariants: pure; under a version that an operator has written, the code is what was found when that version was applied
first, as far as the history goes back; `code` in a request is ignored.
Owner: `core.desired.planning`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from controller_service.core.desired.state import Desired, RolloutRecord
from slotmesh.spec.environment import EnvironmentValue, looks_secret
from slotmesh.spec.model import SETTINGS, Backend, JsonValue, Mesh, SpecViolation, is_named_by_code
from slotmesh.spec.rules import show
from slotmesh.spec.setting import Change


def template_of(backend: Backend) -> str:
    """A digest of all that a process is started with: where it changes, replicas are replaced."""
    return _digest(backend, {Change.REPLACES, Change.GIVEN_TO_HANDLERS})


def is_rolled_back(record: RolloutRecord | None, backend: Backend) -> bool:
    """Whether what replicas are started with now replaced, automatically, settings that had failed."""
    return record is not None and bool(record.why) and record.template == template_of(backend)


def fixed_of(backend: Backend) -> str:
    """The part of it that no replica takes on without a restart."""
    return _digest(backend, {Change.REPLACES})


def _digest(backend: Backend, changes: Collection[Change]) -> str:
    """A digest of the backend's settings whose changes have this effect on replicas."""
    settings = {name: getattr(backend, it.attribute) for name, it in SETTINGS.items() if it.change in changes}
    if "devices" in settings:
        settings["devices"] = {pool: float(amount) for pool, amount in settings["devices"].items()}  # 1 is 1.0
    for name, it in SETTINGS.items():
        if (it.is_newer or name in {"code", "pod"}) and name in settings and settings[name] == it.default:
            del settings[name]  # as the digests were before there was such a setting
    return blake2b(json.dumps(settings, sort_keys=True, default=_plain).encode(), digest_size=16).hexdigest()


def _plain(value: JsonValue | EnvironmentValue) -> JsonValue:
    """Read-only mappings and tuples as JSON knows them; sections as text."""
    if isinstance(value, EnvironmentValue):
        return value.written
    return dict(value) if isinstance(value, Mapping) else [*value] if isinstance(value, tuple) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerCode:
    """What the code of a handler is now."""

    code: str = ""
    """Its identity; empty where there is none: replicas run the files that they find."""
    version: str = ""
    """The version name that is used if the backend sets none."""
    problem: str = ""
    """Why there is none, for a person: it must not be applied."""
    is_absent: bool = False
    """The module does not exist, or need not be read: a backend that runs a snapshot of it already keeps that."""
    doubt: str = ""
    """Why replicas will not find or cannot use the handler in its module, for a person; empty if they may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChange:
    """A snapshot that a change brings, and how it differs from the one that ran before. Paths are relative."""

    backends: tuple[str, ...]
    folder: str
    """Where the code was read."""
    files: int
    size_bytes: int
    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    unlisted_files: int = 0
    """Files that differ and are not named."""


class HandlerPlace(NamedTuple):
    """A handler that replicas import from elsewhere than this process would: by `MODULE:NAME` they may find another."""

    handler: str
    cwd: str
    """The folder that they run in; empty: that of this process."""
    python: str
    """Their interpreter; empty: that of this process."""
    path: str | None
    """Their PYTHONPATH; None: that of this process."""


HandlerKey: TypeAlias = str | HandlerPlace
"""A handler, `MODULE:NAME`, as this process would import it, or one that is elsewhere."""


def key_of(backend: Backend) -> HandlerKey:
    """Where the replicas of a backend import its handler from."""
    own_path = backend.env.get("PYTHONPATH")
    path = None if own_path is None else own_path.value
    if not backend.cwd and not backend.python and path is None:
        return backend.handler
    return HandlerPlace(backend.handler, backend.cwd, backend.python, path)


Code = Mapping[HandlerKey, HandlerCode]
"""As far as it is found."""
NO_CODE: Final[Code] = MappingProxyType({})


def absent_if_unread(code: Code) -> Code:
    """Code that cannot be read counts as absent: a backend that runs keeps its snapshot."""
    return {key: HandlerCode(problem=it.problem, is_absent=True) if it.problem else it for key, it in code.items()}


def with_code(desired: Desired, mesh: Mesh, code: Code) -> tuple[Mesh, list[SpecViolation]]:
    """The backends of a mesh with the code that they run, and why they cannot run it."""
    violations: list[SpecViolation] = []
    filled = tuple(_filled(desired, it, code.get(key_of(it)), violations) for it in mesh.backends)
    return replace(mesh, backends=filled), violations


def warnings_of(desired: Desired, mesh: Mesh, code: Code) -> tuple[str, ...]:
    """Warnings to the operator who applies a mesh, a line each."""
    return (*kept_code_warnings(desired, mesh, code), *handler_doubts(desired, mesh, code), *secret_warnings(mesh))


def kept_code_warnings(desired: Desired, mesh: Mesh, code: Code) -> tuple[str, ...]:
    """Backends with a version of their own that keeps other code than the handler's files have now, a line each."""
    filled, _ = with_code(desired, mesh, code)
    return tuple(
        f"backend/{it.name} runs the code that was stored for version {it.version!r}; the files of {it.handler} have"
        " changed since. Set another version, or none, to run them"
        for it in filled.backends
        if it.version and it.code and (now := code.get(key_of(it), HandlerCode()).code) and now != it.code
    )


def handler_doubts(desired: Desired, mesh: Mesh, code: Code) -> tuple[str, ...]:
    """Backends that run the code of now, whose module does not have their handler, a line each."""
    filled, _ = with_code(desired, mesh, code)
    return tuple(
        f"backend/{it.name} will not start: {found.doubt}"
        for it in filled.backends
        if (found := code.get(key_of(it))) is not None and found.doubt and it.code == found.code
    )


def secret_warnings(mesh: Mesh) -> tuple[str, ...]:
    """Backends that may have a secret in their configuration, a line each. No value is in it."""
    return tuple(
        f"backend/{it.name} has env.{name} as plain text, which `slotmesh get` and the history show: if it is a secret,"
        f" write it to a file, and {name}: {{file: PATH}}"
        for it in mesh.backends
        for name in sorted(it.env)
        if looks_secret(name, it.env[name])
    )


def without_code(desired: Desired) -> Desired:
    """As a person has written it: without versions that are named by the code."""
    written = {name: as_written(it) for name, it in desired.backends.items()}
    return replace(desired, backends=written)


def as_written(backend: Backend) -> Backend:
    """Without what the controller fills in."""
    return replace(backend, version="" if is_named_by_code(backend.version) else backend.version, code="")


def needed_code(desired: Desired) -> Iterator[str]:
    """The code of all that is configured, or may be again by a roll-back."""
    for it in _known(desired):
        if it.code:
            yield it.code


def _filled(desired: Desired, backend: Backend, found: HandlerCode | None, violations: list[SpecViolation]) -> Backend:
    live = desired.backends.get(backend.name)
    if backend.version and (known := _code_named(desired, backend)):
        return replace(backend, code=known)
    if found is None or found.is_absent:
        if live is not None and live.handler == backend.handler and backend.version in {"", live.version}:
            version = live.version if is_named_by_code(live.version) else backend.version
            return replace(backend, version=version, code=live.code)
        if found is None:
            return replace(backend, code="")
    if found.problem:
        violations.append(SpecViolation(f"backends.{show(backend.name)}.handler", found.problem))
    return replace(backend, version=backend.version or found.version, code=found.code)


def _code_named(desired: Desired, backend: Backend) -> str:
    """What ran under a version, newest first; empty where that is not known."""
    for it in _known(desired):
        if (it.name, it.handler, it.version) == (backend.name, backend.handler, backend.version) and it.code:
            return it.code
    return ""


def _known(desired: Desired) -> Iterator[Backend]:
    """Backends as they are and were, newest first."""
    yield from desired.backends.values()
    for rollout in desired.rollouts.values():
        yield from (it for it in (rollout.good, rollout.previous) if it is not None)
    for record in reversed(desired.history):
        for change in record.changes:
            yield from (it for it in (change.after, change.before) if isinstance(it, Backend))
