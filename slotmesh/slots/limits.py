"""How long leases of slots are: the same for clients, routers and replicas. Pure."""

from __future__ import annotations

from typing import Final

DEFAULT_LEASE_S: Final = 10.0
"""Where nothing else is asked for."""
MAX_LEASE_S: Final = 300.0
"""Of one lease, and of a slot in all, renewed or not."""
