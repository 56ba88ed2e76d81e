"""What the processes of a backend's replicas are started with, as `mesh.yaml` declares it. Pure.

Invariants: the content of a file is no part of a value: only its path is; messages name a variable and never its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final

from slotmesh.names import is_utf8
from slotmesh.units import format_size

MAX_VARIABLES: Final = 256
MAX_VALUE_CHARS: Final = 32_768
MAX_PATH_CHARS: Final = 4_096
MAX_NAME_CHARS: Final = 128
MAX_ENVIRONMENT_BYTES: Final = 128 * 1024
"""Of all names, values and paths of one backend."""
RESERVED: Final = frozenset({"POD_IP", "PYTHONUNBUFFERED"})
"""Names that slotmesh sets itself, besides those that begin with `SLOTMESH_`."""
THREAD_VARIABLES: Final = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
"""By which numeric libraries limit their threads; torch reads the first."""
FORMS: Final = "text, {inherit: true} or {file: PATH}"
_NAME: Final = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{MAX_NAME_CHARS - 1}}}")
_SECRET: Final = re.compile(r"(^|_)(TOKEN|PASSWORD|PASSWD|SECRET|CREDENTIALS?|API_?KEY|KEY)(_|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentValue:
    """Where the value of a variable comes from: one of these."""

    value: str | None = None
    """The value itself, which is shown with the configuration."""
    inherit: bool = False
    """The variable of that name of the process that starts replicas."""
    file: str = ""
    """The path of a file with the value, which is read at each start."""

    @property
    def written(self) -> str | dict[str, Any]:
        """As documents have it."""
        if self.file:
            return {"file": self.file}
        return {"inherit": True} if self.inherit else self.value or ""


Environment = Mapping[str, EnvironmentValue]
"""By name."""
NO_ENVIRONMENT: Final[Environment] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """The settings of a backend that its replicas' processes are started with, as `slotmesh.spec.model` has them."""

    env: Environment = field(default_factory=lambda: NO_ENVIRONMENT)
    python: str = ""
    cwd: str = ""
    cpus: float | None = None
    memory: int | None = None

    def __bool__(self) -> bool:
        """Whether any is set."""
        return bool(self.env or self.python or self.cwd or self.cpus or self.memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessFacts:
    """How a process runs, as it reports it."""

    python: str = ""
    prefix: str = ""
    """The folder of its virtual environment, or installation."""
    cwd: str = ""
    cpus: float = 0.0
    """0: unknown."""
    memory: int | None = None
    """The bound of its memory, bytes; 0: there is none; None: unknown."""
    variables: frozenset[str] = frozenset()
    """The names that are set, as far as they are reported."""


MAX_FACTS: Final = 1_024
"""Names of variables that are reported."""
PROCESS_DIFFERS: Final = "its process differs from what its backend wants: "
"""So begins the warning of a replica that another system has started in another way."""
_PAGES_BYTES: Final = 64 * 1024
"""Bounds of memory are rounded to pages, which are of this size at most."""


def process_difference(wanted: ProcessSettings, facts: ProcessFacts) -> str:
    """How a process differs from settings, for a person; empty if it does not, as far as that is known."""
    found = [*_differences(wanted, facts)]
    return f"{PROCESS_DIFFERS}{'; '.join(found)}" if found else ""


def _differences(wanted: ProcessSettings, facts: ProcessFacts) -> Iterator[str]:
    python, cwd = PurePosixPath(wanted.python), PurePosixPath(wanted.cwd)
    # Where a relative path begins is known to the system that starts the replica alone.
    if python.is_absolute() and facts.python and str(python) not in {facts.python, facts.prefix}:
        yield f"its python is {facts.python}, not {python}"
    if cwd.is_absolute() and facts.cwd and str(cwd) != facts.cwd:
        yield f"its cwd is {facts.cwd}, not {cwd}"
    if wanted.cpus is not None and facts.cpus and not wanted.cpus <= facts.cpus <= ceil(wanted.cpus):
        yield f"it may use {facts.cpus:g} cpus, not {wanted.cpus:g}"
    memory, bound = wanted.memory, facts.memory
    if memory is not None and bound is not None and abs(memory - bound) > _PAGES_BYTES:
        yield f"its memory is {format_size(bound) if bound else 'not bounded'}, not {format_size(memory)}"
    if missing := sorted(wanted.env.keys() - facts.variables) if facts.variables else []:
        yield f"it lacks the variables {', '.join(missing[:5])}{' and others' if len(missing) > 5 else ''}"


def value_of(content: object) -> EnvironmentValue:
    """A value of a document. Raises ValueError, whose message does not repeat it."""
    match content:
        case EnvironmentValue():
            return content
        case str():
            return EnvironmentValue(value=content)
        case {"inherit": True, **rest} if not rest:
            return EnvironmentValue(inherit=True)
        case {"file": str(path), **rest} if not rest and path:
            return EnvironmentValue(file=path)
        case bool() | int() | float():
            raise ValueError(f"must be {FORMS}: quote it")
        case _:
            raise ValueError(f"must be {FORMS}")


def written_environment(environment: Environment) -> dict[str, Any]:
    """The variables, as documents have them."""
    return {name: environment[name].written for name in sorted(environment)}


def problems_of(environment: Environment) -> Iterator[tuple[str, str]]:
    """All violations: the name of the variable, empty if it is of all of them, and the problem."""
    if len(environment) > MAX_VARIABLES:
        yield "", f"has {len(environment):,} variables, at most {MAX_VARIABLES}"
        return
    for name, value in environment.items():
        if not _NAME.fullmatch(name):
            yield name, "a variable has a name of 1 to 128 of `A-Z a-z 0-9 _` that does not start with a digit"
        elif name.startswith("SLOTMESH_") or name in RESERVED:
            yield name, "is set by slotmesh itself: leave it out"
        yield from ((name, problem) for problem in _problems(value))
    size = sum(len(f"{name}{it.value or ''}{it.file}".encode(errors="replace")) for name, it in environment.items())
    if size > MAX_ENVIRONMENT_BYTES:
        yield "", f"has {size:,} bytes of names and values, at most {MAX_ENVIRONMENT_BYTES:,}: put some into files"


def _problems(it: EnvironmentValue) -> Iterator[str]:
    if (it.value is not None) + it.inherit + bool(it.file) != 1:
        yield f"must be {FORMS}"
    if it.value is not None and (len(it.value) > MAX_VALUE_CHARS or "\0" in it.value):
        yield f"must be at most {MAX_VALUE_CHARS:,} characters without NUL: put it into a file"
    if not is_utf8(it.value or ""):
        yield "is no text that UTF-8 can carry: put it into a file"
    if len(it.file) > MAX_PATH_CHARS or not it.file.isprintable():
        yield f"file: must be a line of at most {MAX_PATH_CHARS:,} printable characters"


def looks_secret(name: str, value: EnvironmentValue) -> bool:
    """Whether this may be a secret, by the name, that is shown with the configuration."""
    return bool(value.value) and _SECRET.search(name) is not None
