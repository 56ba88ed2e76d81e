"""What is fuzzed: a name each, and a block in which bytes can be given to it.

A target raises for a defect, and returns for bytes that are refused as documented.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, TypeAlias

from tests.fuzz.targets import credentials, documents, frames, http_connections, own_protos, payloads, rpcs, texts

Run: TypeAlias = Callable[[bytes], object]
Target: TypeAlias = Callable[[], AbstractContextManager[Run]]

TARGETS: Final[Mapping[str, Target]] = {
    **payloads.TARGETS,
    **frames.TARGETS,
    **texts.TARGETS,
    **documents.TARGETS,
    **credentials.TARGETS,
    **http_connections.TARGETS,
    **own_protos.TARGETS,
    **rpcs.TARGETS,
}
