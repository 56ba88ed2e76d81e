"""One target for some seconds, in a process of its own: with atheris, or with hypothesis where there is none.

    python -m tests.fuzz.hunt TARGET --seconds 20 --engine atheris --found FOLDER

An input that finds something is written to the folder. The last line of the output is a JSON object with the figures.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import logging
import os
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

CORPUS: Final = Path(__file__).parent / "corpus"
MAX_BYTES: Final = 4096
"""Of one input."""
MAX_INPUT_S: Final = 2.0
"""Of processor time for one input: more is a finding."""
MAX_GROWTH_MIB: Final = 1024
"""Of the process, from its first input on."""
_PRODUCT: Final = ["slotmesh", "router_service", "replica_service", "controller_service", "ingress_service"]


class Hunt:
    """Counts, and keeps what was found: one input for each place in the code."""

    def __init__(self, run: Callable[[bytes], object], found: Path) -> None:
        self._run = run
        self.folder = found
        """Where inputs go that find something."""
        self._began_mib = _mib()
        self.executions = 0
        self.findings: dict[str, str] = {}
        """Where and what -> name of the file with the input."""

    def try_one(self, data: bytes) -> None:
        """One input."""
        self.executions += 1
        began = time.process_time()
        try:
            self._run(data)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the hunt is for
            self._keep(f"{_place_of(error)}: {type(error).__name__}", data, traceback.format_exc())
        took = time.process_time() - began
        if took > MAX_INPUT_S:
            self._keep("slow", data, f"{took:.1f} s for {len(data)} bytes")
        if self.executions % 1024 == 0 and _mib() - self._began_mib > MAX_GROWTH_MIB:
            self._keep("memory", data, f"{_mib() - self._began_mib} MiB more than at first")

    def _keep(self, key: str, data: bytes, text: str) -> None:
        if key not in self.findings:
            name = hashlib.sha256(data).hexdigest()[:12]
            self.findings[key] = name
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(data)
            (self.folder / f"{name}.txt").write_text(f"{key}\n{text}", "utf-8", errors="replace")


def with_hypothesis(hunt: Hunt, corpus: list[bytes], until: float) -> None:
    """Hypothesis makes bytes, and changes of the corpus."""
    from hypothesis import HealthCheck, Phase, given, seed, settings
    from hypothesis import strategies as st

    from tests.support.examples import examples

    changes = st.lists(st.tuples(st.integers(0, MAX_BYTES), st.binary(max_size=4), st.integers(0, 4)), max_size=6)
    known = st.builds(_changed, st.sampled_from(corpus or [b""]), changes)
    quietly = settings(
        max_examples=examples(500),
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    while time.monotonic() < until:

        @seed(random.getrandbits(32))
        @quietly
        @given(st.binary(max_size=512) | known)
        def attempt(data: bytes) -> None:
            if time.monotonic() < until:
                hunt.try_one(data)

        attempt()


def _changed(data: bytes, changes: list[tuple[int, bytes, int]]) -> bytes:
    changed = bytearray(data)
    for at, new, length in changes:
        begin = at % (len(changed) + 1)
        changed[begin : begin + length] = new
    return bytes(changed[:MAX_BYTES])


def with_atheris(hunt: Hunt, corpus: Path, seconds: int, end: Callable[[], None]) -> None:
    """LibFuzzer makes bytes by what they cover. It ends the process, after `end`."""
    import atheris

    until = time.monotonic() + seconds

    def attempt(data: bytes) -> None:
        hunt.try_one(data)
        if time.monotonic() > until:
            end()

    options = [f"-max_len={MAX_BYTES}", "-timeout=30", "-rss_limit_mb=4096", "-len_control=0"]
    # An empty folder before the corpus: what libFuzzer finds worth keeping stays out of the repository.
    own = hunt.folder / "corpus"
    own.mkdir(parents=True, exist_ok=True)
    atheris.Setup([sys.argv[0], *options, str(own), *([str(corpus)] if corpus.is_dir() else [])], attempt)
    atheris.Fuzz()


def has_atheris() -> bool:
    """Whether it is installed for this interpreter."""
    return importlib.util.find_spec("atheris") is not None


def _mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _place_of(error: BaseException) -> str:
    """The innermost line of the product, or of whatever there is."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if any(f"/{name}/" in frame.filename for name in _PRODUCT)] or frames
    return f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "nowhere"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--engine", choices=["atheris", "hypothesis"], default="hypothesis")
    parser.add_argument("--found", type=Path, required=True)
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - logs of services, until the end
    if given.engine == "atheris":
        import atheris

        with atheris.instrument_imports(include=_PRODUCT, enable_loader_override=False):
            from tests.fuzz.targets import TARGETS
    else:
        from tests.fuzz.targets import TARGETS
    folder = CORPUS / given.target
    with TARGETS[given.target]() as run:
        hunt = Hunt(run, given.found)
        corpus = [path.read_bytes() for path in sorted(folder.iterdir())] if folder.is_dir() else []
        for data in corpus:
            hunt.try_one(data)

        def tell() -> None:
            figures: dict[str, Any] = {"executions": hunt.executions, "found": hunt.findings, "mib": _mib()}
            print(json.dumps(figures), flush=True)

        if given.engine == "atheris":

            def end() -> None:
                tell()
                os._exit(0)

            with_atheris(hunt, folder, given.seconds, end)
        else:
            with_hypothesis(hunt, corpus, time.monotonic() + given.seconds)
            tell()


if __name__ == "__main__":
    main()
