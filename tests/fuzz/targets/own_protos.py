"""What users' own protos bring: descriptor sets of operators, metadata of clients, frames of replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from router_service.convert.options import (
    AFFINITY_KEY,
    ENDPOINT,
    ORDERING_KEY,
    SHARD_KEY,
    SLO,
    own_rpc_options,
    stated_options,
)
from slotmesh.calls.result_envelopes import BadFrames, frames_in, message_alone, metadata_from_bytes
from slotmesh.errors import Failure
from slotmesh.server.reflection import Descriptors
from slotmesh.spec.descriptor_sets import BadDescriptors, OwnRpc, files_of, read_services, rpcs_of
from tests.fuzz.source import Source


@contextmanager
def descriptor_sets() -> Iterator[Callable[[bytes], object]]:
    def run(data: bytes) -> None:
        with suppress(BadDescriptors):
            services = read_services(data)
            rpcs_of(services)
            descriptors = Descriptors(files_of(services))
            if not all(map(descriptors.of_symbol, services.names)):
                raise AssertionError("reflection does not find a service that was accepted")

    yield run


@contextmanager
def options() -> Iterator[Callable[[bytes], object]]:
    names = (ORDERING_KEY, SHARD_KEY, AFFINITY_KEY, SLO, ENDPOINT, "slotmesh-other", "slotmesh-x-bin", "user-agent")

    def run(data: bytes) -> None:
        source = Source(data)
        said: list[tuple[str, str | bytes]] = []
        while source.left and len(said) < 6:
            name = source.choice(names)
            said.append((name, source.payload() if name.endswith("-bin") else source.text()))
        found = stated_options(said)
        if not isinstance(found, Failure):
            own_rpc_options("a.B/C", OwnRpc(takes_several=False, gives_several=False), found.options)

    yield run


@contextmanager
def frames() -> Iterator[Callable[[bytes], object]]:
    def run(data: bytes) -> None:
        message_alone(data)
        with suppress(BadFrames):
            for _, content in frames_in(data):
                metadata_from_bytes(content)

    yield run


TARGETS: Final = {
    "own-protos-descriptor-sets": descriptor_sets,
    "own-protos-options": options,
    "own-protos-frames": frames,
}
