"""Settings of a process: defaults < file < `SLOTMESH_*` environment < flags. Frozen, with units and bounds.

Purpose: a service declares its fields once, each with a description; flags, variables, file keys, help and checks
follow from the declaration.
Invariants: nothing is read at import; a mistake never starts a process, and all mistakes are reported at once, each
with where it was made and what was expected; an empty variable counts as unset.
Owner: the service's `__main__`, which loads its settings once and hands them down.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from slotmesh.config.fields import FieldKind, FlagOnly
from slotmesh.config.reading import Reading, SettingsError
from slotmesh.units import (
    format_duration,
    format_size,
    is_loopback,
    join_host_port,
    parse_duration,
    parse_host_port,
    parse_size,
)

__all__ = [
    "Duration",
    "HostPort",
    "LogFormat",
    "LogLevel",
    "ServiceSettings",
    "Settings",
    "SettingsError",
    "Size",
    "allowed_host",
]

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def _read(parse: Callable[[str], Any]) -> BeforeValidator:
    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ValueError:
            raise PydanticCustomError("unit", "not in the expected form") from None

    return BeforeValidator(read)


def _normal_host_port(text: str) -> str:
    return join_host_port(*parse_host_port(text))


Duration = Annotated[
    timedelta, _read(parse_duration), FieldKind("a duration", "DURATION", format_duration, "250ms, 30s or 2m")
]
"""A time span, written with its unit."""

Size = Annotated[int, _read(parse_size), FieldKind("a size", "SIZE", format_size, "64KiB or 4MiB")]
"""Bytes, written with their unit."""

HostPort = Annotated[str, _read(_normal_host_port), FieldKind("HOST:PORT", "HOST:PORT")]
"""An address to connect to."""


class Settings(BaseModel):
    """Base of the settings of a program. Subclass it, and give each field a `Field(default, description=...)`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def load(cls, argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None, *, prog: str) -> Self:
        """The settings of the process; `argv` and `env` are its own unless given.

        Prints mistakes to stderr and exits with status 2; prints the help and exits with 0 when asked for it.
        """
        try:
            return cls.parse(sys.argv[1:] if argv is None else argv, os.environ if env is None else env, prog=prog)
        except SettingsError as error:
            sys.stderr.write(f"{error}\n")
            sys.exit(SettingsError.exit_code)

    @classmethod
    def parse(cls, argv: Sequence[str], env: Mapping[str, str], *, prog: str) -> Self:
        """The settings of these flags and variables.

        Raises:
            SettingsError: with every mistake.
        """
        return Reading(cls, prog).read(argv, env)


class ServiceSettings(Settings):
    """The settings that every service of the mesh has. A service subclasses it and sets the defaults of its ports."""

    insecure: bool = Field(
        False, description="Listen off loopback although there is neither encryption nor authentication."
    )
    host: str = Field("127.0.0.1", description="Host to listen on. Others than loopback need --insecure.")
    port: int = Field(0, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    metrics_host: str = Field("127.0.0.1", description="Host of the Prometheus endpoint.")
    metrics_port: int = Field(
        0, ge=-1, le=65_535, description="Port of the Prometheus endpoint; 0: a free one, -1: none."
    )
    parent_fd: Annotated[int | None, FlagOnly()] = Field(
        None, ge=0, description="Inherited descriptor of a pipe: when its other end closes, the process stops."
    )
    announce_fd: Annotated[int | None, FlagOnly()] = Field(
        None, ge=0, description="Inherited descriptor: gets one line HOST:PORT once the process serves."
    )
    log_format: LogFormat = Field("console", description="Form of the log, which goes to stderr.")
    log_level: LogLevel = Field("info", description="The least severe messages that are logged.")

    @field_validator("host", "metrics_host")
    @classmethod
    def _is_allowed(cls, host: str, info: ValidationInfo) -> str:
        # Absent where it was a mistake itself, which is reported already.
        return allowed_host(host, insecure=info.data.get("insecure", True))


def allowed_host(host: str, *, insecure: bool) -> str:
    """The host, unless other machines can reach it and `insecure` is not set.

    Raises:
        ValueError: it is off loopback and `insecure` is not set.
    """
    if insecure or is_loopback(host):
        return host
    raise ValueError(
        f"{host} can be reached from other machines, and there is neither encryption nor authentication; use 127.0.0.1,"
        " or allow it with --insecure (SLOTMESH_INSECURE=true) on a network you trust"
    )
