"""What of grpc.aio is written in Cython. It has no types."""

from __future__ import annotations

from typing import Any

from grpc._cython import cygrpc as _cygrpc  # type: ignore[attr-defined]

cygrpc: Any = _cygrpc
