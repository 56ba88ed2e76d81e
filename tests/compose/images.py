"""The images that the compose file needs, from a registry, or made of the distribution's packages where there is none.

What needs the machine's network is fetched before the tests leave it (`fetch_parts`): a root file system of the
distribution, with Python and HAProxy, and the project's dependencies as wheels.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.compose.engine import NoEngine
from tests.support.mesh import ROOT

IMAGE: Final = "slotmesh:compose-test"
APP_IMAGE: Final = "compose-app:compose-test"
APP: Final = ROOT / "examples" / "compose-app"
BASE: Final = "python:3.11-slim"
PULL_S: Final = 120.0
_BASE: Final = "slotmesh-compose-base"
_BUILD_BACKEND: Final = "hatchling==1.33.0"
_DOCKERFILE: Final = f"""\
FROM {_BASE}:bare
RUN ln -sf /usr/bin/python3 /usr/local/bin/python
COPY wheels /wheels
RUN printf '[global]\\nno-index = true\\nfind-links = /wheels\\n' > /etc/pip.conf
"""
_PROMETHEUS: Final = "slotmesh-compose-prometheus"
_PROMETHEUS_DOCKERFILE: Final = f"""\
FROM {_BASE}:bare
RUN install -d -o nobody -g nogroup /prometheus
COPY prometheus /usr/local/bin/prometheus
USER nobody
"""
_BUILDER: Final = {"DOCKER_BUILDKIT": "0"}
"""The builder that every engine has."""


def fetch_parts(folder: Path) -> None:
    """Fetches what the images are made of, where it is not there from an earlier run.

    Raises:
        NoEngine: the distribution's packages cannot be had here.
    """
    root, wheels = folder / "base.tar", _wheels(folder)
    if not root.exists():
        if shutil.which("mmdebstrap") is None:
            raise NoEngine("a base image cannot be made: mmdebstrap is not installed")
        packages = "--include=python3,python3-venv,ca-certificates,haproxy"
        partial = folder / "base.partial.tar"
        _run("mmdebstrap", "--variant=minbase", packages, _codename(), str(partial), *map(str, _sources()))
        partial.rename(root)
    if not wheels.exists():
        partial = folder / "wheels.partial"
        shutil.rmtree(partial, ignore_errors=True)
        constraints = str(ROOT / "constraints.txt")
        wanted = (f".[{_extras()}]", _BUILD_BACKEND, "-r", f"{APP}/requirements.txt")
        _run(sys.executable, "-m", "pip", "download", "-q", "-d", str(partial), "-c", constraints, *wanted)
        for own in partial.glob("slotmesh-*"):
            own.unlink()
        partial.rename(wheels)


def build_images(folder: Path) -> Mapping[str, str]:
    """Builds the project's image, by its own Dockerfile, on a base made of the parts.

    Returns what the compose file's variables have to be.
    """
    _run(
        "docker",
        "import",
        "-c",
        "ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        f"{folder}/base.tar",
        f"{_BASE}:bare",
    )
    (folder / "Dockerfile").write_text(_DOCKERFILE, "utf-8")
    context = folder / "context"
    shutil.rmtree(context, ignore_errors=True)
    context.mkdir()
    shutil.copytree(_wheels(folder), context / "wheels")
    _run("docker", "build", "-q", "-t", _BASE, "-f", f"{folder}/Dockerfile", str(context), env=_BUILDER)
    _run("docker", "build", "-q", "-t", IMAGE, "--build-arg", f"BASE_IMAGE={_BASE}", ".", env=_BUILDER)
    return {"SLOTMESH_IMAGE": IMAGE, "HAPROXY_IMAGE": _BASE, **_app_image(), **_prometheus_image(folder)}


def can_pull() -> bool:
    """Whether the engine reaches a registry that has the base of the Dockerfile."""
    try:
        return (
            subprocess.run(["docker", "pull", "-q", BASE], capture_output=True, timeout=PULL_S, check=False).returncode
            == 0
        )
    except subprocess.TimeoutExpired:
        return False


def pull_images() -> Mapping[str, str]:
    """Builds the project's image on the base that its Dockerfile names. Returns as `build_images`."""
    _run("docker", "build", "-q", "-t", IMAGE, ".", env=_BUILDER)
    return {"SLOTMESH_IMAGE": IMAGE, **_app_image()}


def has_prometheus(variables: Mapping[str, str]) -> bool:
    """Whether the compose file's Prometheus can be started: made here, or pulled as the project's base was."""
    return "PROMETHEUS_IMAGE" in variables or "HAPROXY_IMAGE" not in variables


def _app_image() -> Mapping[str, str]:
    """The example of a user's own code, on the project's image."""
    _run("docker", "build", "-q", "-t", APP_IMAGE, "--build-arg", f"SLOTMESH_IMAGE={IMAGE}", str(APP), env=_BUILDER)
    return {"APP_IMAGE": APP_IMAGE}


def _prometheus_image(folder: Path) -> Mapping[str, str]:
    """The machine's own Prometheus, where it has one: it is of the same distribution as the base image."""
    if (binary := shutil.which("prometheus")) is None:
        return {}
    context = folder / "prometheus"
    context.mkdir(exist_ok=True)
    shutil.copy(binary, context / "prometheus")
    (context / "Dockerfile").write_text(_PROMETHEUS_DOCKERFILE, "utf-8")
    _run("docker", "build", "-q", "-t", _PROMETHEUS, str(context), env=_BUILDER)
    return {"PROMETHEUS_IMAGE": _PROMETHEUS}


def _wheels(folder: Path) -> Path:
    """Those of the present pins."""
    files = (ROOT / "constraints.txt", ROOT / "pyproject.toml", ROOT / "Dockerfile", APP / "requirements.txt")
    pins = b"".join(it.read_bytes() for it in files)
    return folder / f"wheels-{hashlib.sha256(pins).hexdigest()[:12]}"


def _extras() -> str:
    """What the Dockerfile installs where nobody says otherwise."""
    (extras,) = re.findall(r"^ARG EXTRAS=(.+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    return str(extras)


def _codename() -> str:
    for line in Path("/etc/os-release").read_text("utf-8").splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    raise NoEngine("a base image cannot be made: the distribution has no code name in /etc/os-release")


def _sources() -> Iterator[Path]:
    """Where the machine gets packages of its distribution from."""
    codename = _codename()
    for path in (Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))):
        if path.suffix in {".list", ".sources"} and path.is_file():
            text = path.read_text("utf-8")
            if codename in text and "main" in text:
                yield path


def _run(*command: str, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, check=False)
    if done.returncode:
        last = "\n  ".join((done.stdout + done.stderr).decode("utf-8", "replace").splitlines()[-15:])
        raise RuntimeError(f"{' '.join(command[:3])} … failed:\n  {last}")
