"""The owners and epochs of 4,096 partitions as one short text: a state has them for each of thousands of endpoints.

Invariants: what is unpacked equals what was packed; what cannot be unpacked is a `BadDocument`.
"""

from __future__ import annotations

import binascii
import sys
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Collection, Sequence
from typing import Final, TypeAlias

from controller_service.store.bad_document import BadDocument
from slotmesh.wire.partitions import PARTITIONS

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
