"""Every bound of the controller's settings: exactly at it a value passes, one step beyond it is refused by its name.

The values are written down by hand; that none is missing follows from the declared fields.
"""

from __future__ import annotations

from typing import Final

import pytest

from controller_service.config import ControllerSettings
from slotmesh.config import SettingsError

PORT: Final = ("0", "-1", "65535", "65536")
POSITIVE: Final = ("1", "0", None, None)
ROWS: Final[dict[str, tuple[str | None, str | None, str | None, str | None]]] = {
    "port": PORT,
    "metrics_port": ("-1", "-2", "65535", "65536"),
    "token_port": PORT,
    "tracing_ratio": ("0", "-0.001", "1", "1.001"),
    "tracing_rate": POSITIVE,
    "parent_fd": ("0", "-1", None, None),
    "announce_fd": ("0", "-1", None, None),
    "lease": ("2s", "1999ms", "1h", "3600001ms"),
    "dead_after": ("3s", "2999ms", "24h", "86400001ms"),
    "orphan_timeout": ("1us", "0s", "30d", "2592000001ms"),
    "pod_fence_after": ("2s", "1999ms", "24h", "86400001ms"),
    "max_code_size": ("1KiB", "1023B", None, None),
    "max_code_files": ("1", "0", "1000000", "1000001"),
    "replica_log_size": ("64KiB", "65535B", None, None),
    "max_events": ("1", "0", "1000000", "1000001"),
    "max_events_size": ("64KiB", "65535B", None, None),
    "max_router_table_size": ("1MiB", "1048575B", None, None),
    "max_router_tables_size": ("1MiB", "1048575B", None, None),
    "max_router_table_parts": POSITIVE,
    "router_hello_timeout": ("1s", "999ms", "1h", "3600001ms"),
    "max_changes_per_caller": POSITIVE,
    "max_operation_waits": ("1", "0", "1000000", "1000001"),
    "max_connections": POSITIVE,
    "max_connection_streams": ("1", "0", "1000000", "1000001"),
    "handshake_timeout": ("100ms", "99ms", "10m", "600001ms"),
    "connection_idle_timeout": ("0s", None, "7d", "604800001ms"),
    "opening_timeout": ("100ms", "99ms", "1h", "3600001ms"),
    "stream_idle_timeout": ("0s", None, "7d", "604800001ms"),
    "max_streams_per_caller": POSITIVE,
    "jwt_leeway": ("0s", None, "5m", "300001ms"),
}
"""The least value, one below it, the largest value, one above it; None: there is none, or it cannot be written."""


def refusals(name: str, value: str) -> list[str]:
    flags = [f"--{name.replace('_', '-')}={value}"]
    if name == "lease":
        flags.append("--dead-after=24h")
    if name == "pod_fence_after":
        flags.append("--launcher=kubernetes")
    try:
        ControllerSettings.parse(flags, {}, prog="controller")
    except SettingsError as error:
        named = [it for it in error.errors if it.startswith(f"--{name.replace('_', '-')}")]
        return [it for it in named if "tokens need TLS" not in it]
    return []


def test_each_setting_with_bounds_is_in_the_table() -> None:
    fields = ControllerSettings.model_fields
    assert {name for name, field in fields.items() if field.bounds.are_some} - set(ROWS) == set()
    assert set(ROWS) - set(fields) == set()


@pytest.mark.parametrize("name", ROWS)
def test_a_setting_may_be_at_each_of_its_bounds_and_not_beyond(name: str) -> None:
    least, below, largest, above = ROWS[name]
    for value in filter(None, (least, largest)):
        assert not refusals(name, value), value
    for value in filter(None, (below, above)):
        assert len(refusals(name, value)) == 1, value
