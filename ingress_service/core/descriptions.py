"""What is known of endpoints and their methods, as routers have told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedMethod:
    """What is known of one method."""

    name: str
    yields: bool = False
    schema: Mapping[str, Any] = field(default_factory=dict)
    """`arguments`, `result` and `$defs`; empty where nothing is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedEndpoint:
    """What is known of one endpoint."""

    name: str
    methods: tuple[DescribedMethod, ...]
