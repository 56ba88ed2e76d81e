"""The collector of telemetry, and the share of traced calls: settings of a process, then OpenTelemetry's variables.

Variables of OpenTelemetry that the SDK reads itself (`OTEL_RESOURCE_ATTRIBUTES`, `OTEL_EXPORTER_OTLP_HEADERS`, those of
certificates and compression) apply as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

DEFAULT_RATIO: Final = 0.01
"""The default share of calls without a trace context."""


class OtlpTarget(NamedTuple):
    """A collector."""

    url: str
    """Begins with http:// or https://."""
    insecure: bool
    """Without TLS."""


def otlp_target(endpoint: str | None, env: Mapping[str, str], signal: str) -> OtlpTarget | None:
    """The collector of this signal; None: there is none.

    Raises:
        ValueError: an invalid endpoint, or an unsupported protocol.
    """
    variables = (f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    name, url = next(((each, env[each]) for each in variables if env.get(each)), ("", ""))
    if endpoint:
        name, url = "--otlp-endpoint", endpoint
    if not url or env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    protocol = env.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_PROTOCOL") or env.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if protocol not in (None, "", "grpc"):
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL: only grpc is supported, got {protocol}")
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{name}: expected http://HOST:PORT or https://HOST:PORT, got {url!r}")
    return OtlpTarget(url, insecure=parts.scheme == "http")


def tracing_ratio(ratio: float | None, env: Mapping[str, str]) -> float | None:
    """The share of calls without a trace context that is sampled; None: tracing is off.

    Raises:
        ValueError: an unknown sampler, or an argument out of range.
    """
    if ratio is not None:
        return ratio
    sampler = env.get("OTEL_TRACES_SAMPLER", "")
    match sampler.removeprefix("parentbased_"):
        case "":
            return DEFAULT_RATIO
        case "always_on":
            return 1.0
        case "always_off":
            return 0.0 if sampler.startswith("parentbased_") else None
        case "traceidratio":
            text = env.get("OTEL_TRACES_SAMPLER_ARG", "") or "1"
            try:
                share = float(text)
            except ValueError:
                share = -1.0
            if not 0 <= share <= 1:
                raise ValueError(f"OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1, got {text!r}")
            return share
        case _:
            pass
    raise ValueError(
        "OTEL_TRACES_SAMPLER: expected always_on, always_off, traceidratio, or one of these behind parentbased_, "
        f"got {sampler!r}"
    )
