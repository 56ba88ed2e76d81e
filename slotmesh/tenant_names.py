"""What the name of a tenant may be. Pure.

Logs, metrics and terminals show names of tenants, which callers state.
"""

from __future__ import annotations

from typing import Final

MAX_TENANT_BYTES: Final = 256
"""Longest name of a tenant, in UTF-8."""
_SHOWN: Final = 80


def tenant_problem(tenant: str) -> str | None:
    """The problem with a name; None if there is none."""
    if not tenant.isprintable():
        return f"printable characters only, got {tenant[:_SHOWN]!a}"
    size = len(tenant.encode())
    return f"at most {MAX_TENANT_BYTES} bytes, got {size}" if size > MAX_TENANT_BYTES else None
