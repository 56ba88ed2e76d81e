"""A mesh that is written as a document is read as the same mesh."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.spec.document import parse_mesh
from slotmesh.spec.model import Backend, Mesh
from slotmesh.spec.writing import mesh_document
from tests.support.examples import examples
from tests.support.state_changes import NAMES, random_backend, random_endpoint


@settings(max_examples=examples(200), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_written_is_read(seed: int) -> None:
    random = Random(seed)
    drawn = (random_backend(random, name) for name in sorted(random.sample(NAMES, 3)))
    backends = tuple(replace(it, max_queue_time_s=round(it.max_queue_time_s, 6)) for it in drawn)
    endpoints = tuple(random_endpoint(random, name, [it.name for it in backends]) for name in NAMES[:2])
    mesh = Mesh(backends=backends, endpoints=endpoints)
    assert parse_mesh(yaml.safe_dump(mesh_document(mesh), sort_keys=False)) == mesh


def test_defaults_are_left_out() -> None:
    assert mesh_document(Mesh(backends=(Backend(name="v1"),))) == {"backends": {"v1": {}}, "endpoints": {}}
