"""Settings of a process: defaults < file < `SLOTMESH_*` environment < flags. Frozen, with units and bounds.

Purpose: a service declares its fields once, each with a description; flags, variables, file keys, help and checks
follow from the declaration.
Invariants: nothing is read at import; a process never starts with invalid settings, and all errors are reported
together, each with its source and the expected form; an empty variable counts as unset.
Owner: the service's `__main__`, which loads its settings once and passes them on.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from slotmesh.config.declaring import Field, ReadBefore, SettingsModel
from slotmesh.config.listening import start_problem
from slotmesh.config.otlp import DEFAULT_RATIO, otlp_target
from slotmesh.config.reading import FieldKind, FlagOnly, Reading, SettingsError
from slotmesh.discovery.targets import DNS_EXAMPLE, FORMS, parse_targets
from slotmesh.spec.rules import is_path
from slotmesh.units import (
    format_duration,
    format_size,
    join_host_port,
    parse_duration,
    parse_host_port,
    parse_names,
    parse_size,
)

__all__ = [
    "Duration",
    "FieldKind",
    "HostPort",
    "LogFormat",
    "LogLevel",
    "ServerTargets",
    "ServiceSettings",
    "Settings",
    "SettingsError",
    "Size",
    "read_with",
]

LogFormat = Literal["console", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]


def read_with(parse: Callable[[str], Any]) -> ReadBefore:
    """Parses a setting that is text. `parse` raises ValueError if the form is invalid."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except ValueError:
            raise ValueError from None  # the reader of settings states the expected form

    return ReadBefore(read)


def _normal_host_port(text: str) -> str:
    return join_host_port(*parse_host_port(text))


def _normal_targets(text: str) -> str:
    return ",".join(map(str, parse_targets(text)))


Duration = Annotated[
    timedelta, read_with(parse_duration), FieldKind("a duration", "DURATION", format_duration, "250ms, 30s or 2m")
]
"""A time span with its unit."""

Size = Annotated[int, read_with(parse_size), FieldKind("a size", "SIZE", format_size, "64KiB or 4MiB")]
"""Bytes with their unit."""

HostPort = Annotated[str, read_with(_normal_host_port), FieldKind("HOST:PORT", "HOST:PORT")]
"""An address to connect to."""


ServerTargets = Annotated[
    str,
    read_with(_normal_targets),
    FieldKind(
        f"{FORMS}, or several with commas between them", "TARGET[,TARGET]", such_as=f"10.0.0.7:7070 or {DNS_EXAMPLE}"
    ),
]
"""Servers, separated by commas, of which one is connected to: addresses, or names that are resolved."""


def check_functions(text: str) -> None:
    """Raises ValueError if one of these names is not that of a function or class."""
    for name in parse_names(text):
        if not is_path(name):
            raise ValueError(f"{name!r} is not MODULE:NAME")


class Settings(SettingsModel):
    """Base of a program's settings. Subclass it, and declare each field as `Field(default, description=...)`."""

    @classmethod
    def load(cls, argv: Sequence[str] | None = None, env: Mapping[str, str] | None = None, *, prog: str) -> Self:
        """The settings of the process; `argv` and `env` default to its own.

        Prints errors to stderr and exits with status 2; prints the help and exits with 0 if requested.
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
            SettingsError: with every error.
        """
        return Reading(cls, prog).read(argv, env)


def _check_host(host: str, preceding: Mapping[str, Any]) -> None:
    # Absent fields are invalid themselves, which is reported already.
    has_tls = any(preceding.get(name) is not None for name in ("tls_dir", "tls_ca", "tls_cert"))
    if problem := start_problem(host, tls=has_tls, tokens=False, insecure=preceding.get("insecure", True)):
        raise ValueError(problem)


class ServiceSettings(Settings):
    """The settings of every service. A service subclasses it and sets its default ports."""

    insecure: bool = Field(
        False, description="Listen off loopback even without TLS, with neither encryption nor authentication."
    )
    host: str = Field(
        "127.0.0.1",
        check_beside=_check_host,
        description="Host to listen on. Hosts other than loopback need TLS (--tls-dir), or --insecure.",
    )
    port: int = Field(0, ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    metrics_host: str = Field("127.0.0.1", check_beside=_check_host, description="Host of the Prometheus endpoint.")
    metrics_port: int = Field(
        0, ge=-1, le=65_535, description="Port of the Prometheus endpoint; 0: a free one, -1: none."
    )
    otlp_endpoint: str | None = Field(
        None,
        min_length=1,
        check=lambda url: otlp_target(url, {}, "traces"),
        description="Collector that gets traces and metrics by OTLP over gRPC, http://HOST:PORT or https://HOST:PORT; "
        "default: OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
    tracing_ratio: float | None = Field(
        None,
        ge=0,
        le=1,
        description="Share of the calls without a trace that get one, if there is a collector; default: "
        f"OTEL_TRACES_SAMPLER, else {DEFAULT_RATIO}. Calls with a trace follow their parent.",
    )
    tracing_rate: int = Field(
        10, ge=1, description="The limit of traces that a router begins by that share, in calls per second."
    )
    channelz: bool = Field(
        False, description="Answer grpc.channelz.v1 as well: sockets, channels and their counters, for grpcdebug."
    )
    parent_fd: Annotated[int | None, FlagOnly()] = Field(
        None, ge=0, description="Inherited descriptor of a pipe: when its other end closes, the process stops."
    )
    announce_fd: Annotated[int | None, FlagOnly()] = Field(
        None, ge=0, description="Inherited descriptor that gets one line HOST:PORT once the process serves."
    )
    log_format: LogFormat = Field("console", description="Form of the log, which goes to stderr.")
    log_level: LogLevel = Field("info", description="The lowest severity that is logged.")
