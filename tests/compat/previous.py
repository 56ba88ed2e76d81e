"""The previous release: the wheel of the commit in `previous.toml`, installed in an environment of its own.

Invariants: it is built once for a commit and an environment, whichever process needs it first; it has the dependencies
of this environment, so no registry is needed; all that it imports of slotmesh is its own. Tests and their handlers are
those of this repository.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Final

from tests.support.faults import Installation
from tests.support.mesh import ROOT

FOLDER: Final = ROOT / ".compat"
"""Not of the repository, nor of its wheels; `make clean` removes it."""
PACKAGES: Final = ("slotmesh", "router_service", "replica_service", "controller_service", "ingress_service")
_TIMEOUT_S: Final = 100.0
_FILES: Final = "import importlib.util, sys; print(*(importlib.util.find_spec(it).origin for it in sys.argv[1:]))"


class NoPreviousRelease(Exception):
    """The repository is not here as a whole; the message is the reason why tests are skipped."""


def previous_commit() -> str:
    return str(tomllib.loads(Path(__file__).with_name("previous.toml").read_text("utf-8"))["commit"])


def previous_release() -> Installation:
    """The previous release, built if it is not there. Raises NoPreviousRelease."""
    commit, libraries = previous_commit(), sysconfig.get_path("purelib")
    folder = FOLDER / f"{commit[:12]}-{sys.implementation.cache_tag}"
    ready = folder / "ready"
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text("utf-8") != libraries:
            _require(commit)
            shutil.rmtree(folder, ignore_errors=True)
            _build(commit, folder, libraries)
            ready.write_text(libraries, "utf-8")
    installed = Installation(str(folder / "venv" / "bin" / "python"), folder / "project")
    files = _run(installed.python, "-c", _FILES, *PACKAGES, cwd=installed.folder).split()
    assert all(Path(it).is_relative_to(folder / "venv") for it in files), f"not of the previous release: {files}"
    return installed


def _require(commit: str) -> None:
    git = ("git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}")
    if (
        shutil.which("git") is None
        or subprocess.run(git, capture_output=True, timeout=_TIMEOUT_S, check=False).returncode
    ):
        raise NoPreviousRelease(
            f"NO MESH OF TWO VERSIONS IS TESTED: no git clone here has {commit}, the commit of the previous release"
            " (tests/compat/previous.toml); a shallow one gets it by `git fetch --unshallow`"
        )


def _build(commit: str, folder: Path, libraries: str) -> None:
    source, wheels, environment, project = (folder / it for it in ("source", "wheels", "venv", "project"))
    source.mkdir(parents=True)
    _run("git", "-C", str(ROOT), "archive", f"--output={folder / 'source.tar'}", commit)
    _run("tar", "-xf", str(folder / "source.tar"), "-C", str(source))
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    _run(*pip, "wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={wheels}", str(source))
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    (wheel,) = wheels.glob("slotmesh-*.whl")
    own = environment / "bin" / "python"
    _run(sys.executable, "-m", "pip", f"--python={own}", *pip[3:], "install", "--no-deps", "--no-index", str(wheel))
    # Paths of its own come first, and `.pth` files of the other environment, one of which leads here, are not read.
    purelib = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    (purelib / "dependencies.pth").write_text(f"{libraries}\n", "utf-8")
    project.mkdir()
    (project / "tests").symlink_to(ROOT / "tests")


def _run(*command: str, cwd: Path | None = None) -> str:
    """What it writes. Raises AssertionError, with that, if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout
