"""Checks of stored documents, and the forms of two of their parts: owners of partitions, and services of endpoints."""

from __future__ import annotations

import base64
import binascii
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias

from slotmesh.calls.partitions import PARTITIONS
from slotmesh.spec.model import GrpcServices
from slotmesh.spec.tenants import TenantLimits, limits_of


class BadDocument(ValueError):
    """A document that this version cannot read; the message names the place and the problem."""


Partitions: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Of each partition the index of its owner, and its epoch above the base; the partitions that leave; the inherited."""
_BYTES: Final = PARTITIONS * (2 + 8 + 1 + 1)
"""An index, an epoch, and a byte for each of the two sets."""


def pack_partitions(
    owners: Sequence[int], epochs: Sequence[int], leaving: Collection[int], inherited: Collection[int]
) -> str:
    """Little-endian numbers, compressed, in base64."""
    numbers = array("h", owners), array("q", epochs)
    if sys.byteorder != "little":
        for each in numbers:
            each.byteswap()
    sets = (bytes(number in members for number in range(PARTITIONS)) for members in (frozenset(leaving), inherited))
    return b64encode(zlib.compress(b"".join([*(each.tobytes() for each in numbers), *sets]), 1)).decode()


def unpack_partitions(where: str, text: object) -> Partitions:
    """Raises BadDocument."""
    try:
        unpacking = zlib.decompressobj()
        raw = unpacking.decompress(b64decode(str(text), validate=True), _BYTES + 1)
    except (binascii.Error, zlib.error) as error:
        raise BadDocument(f"{where}: `packed` cannot be read: {error}") from error
    if len(raw) != _BYTES:
        raise BadDocument(f"{where}: `packed` must have {_BYTES} bytes, has {len(raw)} or more")
    owners, epochs = array("h", raw[: 2 * PARTITIONS]), array("q", raw[2 * PARTITIONS : 10 * PARTITIONS])
    if sys.byteorder != "little":
        owners.byteswap()
        epochs.byteswap()
    sets = (raw[10 * PARTITIONS : 11 * PARTITIONS], raw[11 * PARTITIONS :])
    leaving, inherited = (tuple(number for number, is_in in enumerate(each) if is_in) for each in sets)
    return tuple(owners), tuple(epochs), leaving, inherited


_KEY: Final = "grpc_services"
_PARTS: Final = {"services", "descriptor_set"}


def services_document(services: GrpcServices | None) -> dict[str, Any]:
    """The part of the endpoint's document that has them: names, and the descriptors as base64; empty: none."""
    if services is None:
        return {}
    descriptors = base64.b64encode(services.descriptor_set).decode()
    return {_KEY: {"services": list(services.names), "descriptor_set": descriptors}}


def services_from(where: str, endpoint: Mapping[str, Any]) -> GrpcServices | None:
    """Those that an endpoint's document has; None: it has none. `where` is the document. Raises BadDocument."""
    if _KEY not in endpoint:
        return None
    where, document = f"{where}: {_KEY}", endpoint[_KEY]
    if not isinstance(document, dict) or document.keys() != _PARTS:
        raise BadDocument(f"{where}: must be a JSON object with {' and '.join(sorted(_PARTS))}")
    names, descriptors = document["services"], document["descriptor_set"]
    if not isinstance(names, list) or not all(isinstance(it, str) for it in names) or not isinstance(descriptors, str):
        raise BadDocument(f"{where}: `services` must be a list of names, `descriptor_set` a text")
    try:
        return GrpcServices(names=tuple(names), descriptor_set=base64.b64decode(descriptors, validate=True))
    except ValueError as error:
        raise BadDocument(f"{where}: `descriptor_set` is no base64: {error}") from None


def limits_from(where: str, endpoint: Mapping[str, Any]) -> TenantLimits | None:
    """The limits by tenant of an endpoint's document; None if it has none. Raises BadDocument."""
    try:
        return limits_of(endpoint["tenants"]) if "tenants" in endpoint else None
    except ValueError as error:
        raise BadDocument(f"{where}: tenants: {error}") from None
