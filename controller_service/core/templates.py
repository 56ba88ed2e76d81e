"""What replicas of a backend are started with, as digests that can be compared and kept.

Owner: pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from hashlib import blake2b

from slotmesh.spec.model import SETTINGS, Backend, JsonValue
from slotmesh.spec.setting import Change


def template_of(backend: Backend) -> str:
    """A digest of all that a process is started with: where it changes, replicas are replaced."""
    return _said(backend, {Change.REPLACES, Change.GIVEN_TO_HANDLERS})


def fixed_of(backend: Backend) -> str:
    """The part of it that no replica takes on without a restart."""
    return _said(backend, {Change.REPLACES})


def _said(backend: Backend, changes: Collection[Change]) -> str:
    """A digest of the backend's settings whose changes have this effect on replicas."""
    said = {name: getattr(backend, it.attribute) for name, it in SETTINGS.items() if it.change in changes}
    if not backend.code:
        del said["code"]  # as the digests were before there were snapshots
    return blake2b(json.dumps(said, sort_keys=True, default=_plain).encode(), digest_size=16).hexdigest()


def _plain(value: JsonValue) -> JsonValue:
    """Read-only mappings and tuples as JSON knows them."""
    return dict(value) if isinstance(value, Mapping) else [*value] if isinstance(value, tuple) else str(value)
