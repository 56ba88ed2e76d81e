"""Durations, sizes and addresses are read as they are written."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.units import (
    format_duration,
    format_size,
    is_loopback,
    join_host_port,
    parse_duration,
    parse_host_port,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("1.5s", 1.5), ("2m", 120), ("1h", 3600), ("1d", 86_400), ("0", 0), ("0s", 0), (" 3 s ", 3)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text).total_seconds() == seconds


@pytest.mark.parametrize(
    "text", ["", "5", "5 parsecs", "-1s", "1s2", "s", "1e3s", "1,5s", "nan", "inf s", "9" * 30 + "d", "٣s"]
)
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a duration such as 250ms, 30s or 2m, got|is too long"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "size"), [("64KiB", 65_536), ("4MiB", 4 * 2**20), ("1.5KiB", 1536), ("1KB", 1000), ("7B", 7), ("0", 0)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "64", "64K", "-1B", "1kib", "MiB"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as 64KiB or 4MiB, got"):
        parse_size(text)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=10_000)))
def test_a_duration_reads_back(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@given(st.integers(0, 2**50))
def test_a_size_reads_back(size: int) -> None:
    assert parse_size(format_size(size)) == size


def test_the_largest_unit_that_keeps_it_whole() -> None:
    assert [format_duration(timedelta(seconds=s)) for s in (0, 0.25, 30, 90, 120)] == [
        "0s",
        "250ms",
        "30s",
        "90s",
        "2m",
    ]
    assert [format_size(n) for n in (0, 1000, 1024, 4 * 2**20)] == ["0B", "1000B", "1KiB", "4MiB"]


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("localhost:7071", "localhost", 7071), ("[::1]:80", "::1", 80), ("10.0.0.1:1", "10.0.0.1", 1)],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert parse_host_port(text) == (host, port)
    assert join_host_port(host, port) == text


@pytest.mark.parametrize(
    "text", ["", "localhost", ":7071", "h:0", "h:65536", "h:-1", "h:x", "::1:80", "[h]:1", "a b:1", "h:¹"]
)
def test_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="expected HOST:PORT, got"):
        parse_host_port(text)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
