"""What replicas say of the tensors of their methods.

Owner: pure functions of the router's edge.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from router_service.convert.runs import MAX_METHODS
from slotmesh.oip.datatypes import DATATYPES
from slotmesh.oip.model import MAX_DIMENSIONS, MAX_INPUTS
from slotmesh.oip.signatures import MAX_DESCRIBED, MethodTensors, TensorType
from slotmesh.v1 import replica_service_pb2

_LARGEST_BATCH = 2**31 - 1


def tensors_of(wire: Iterable[replica_service_pb2.MethodTensors]) -> dict[str, MethodTensors]:
    """By method, as many as the bounds allow; tensors that there cannot be are left out."""
    found: dict[str, MethodTensors] = {}
    left = MAX_DESCRIBED
    for each in islice(wire, MAX_METHODS):
        left -= len(each.inputs) + len(each.outputs)
        if left < 0:
            break
        found[each.method] = MethodTensors(
            inputs=_types_of(each.inputs),
            outputs=_types_of(each.outputs),
            yields=each.yields,
            batch_size=min(max(0, each.batch_size), _LARGEST_BATCH),
        )
    return found


def _types_of(wire: Iterable[replica_service_pb2.TensorType]) -> tuple[TensorType, ...]:
    return tuple(
        TensorType(name=each.name, datatype=each.datatype, shape=tuple(each.shape), optional=each.optional)
        for each in islice(wire, MAX_INPUTS)
        if each.datatype in DATATYPES and len(each.shape) <= MAX_DIMENSIONS
    )
