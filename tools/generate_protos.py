"""Generates slotmesh/v1 from protos/, or checks that what is committed is what would be generated.

Identical bytes need identical tools, so the versions pinned in constraints.txt are required. Both modes generate into
an empty temporary folder first: a proto that was removed leaves nothing behind, and a failed run changes nothing.
`slotmesh/v1/__init__.py` is written by hand and never touched.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
PACKAGE = Path("slotmesh/v1")
GENERATORS = ("grpcio-tools", "mypy-protobuf", "protobuf")
PLUGINS = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")


def pins(constraints: Path) -> dict[str, str]:
    """Returns the exact version of each package that the constraints file names."""
    lines = (line.split("#")[0].strip() for line in constraints.read_text().splitlines())
    return dict(line.split("==", 1) for line in lines if "==" in line)


def wrong_tools(pinned: dict[str, str]) -> list[str]:
    """Returns one line for each generator whose version is not the pinned one."""
    wrong = []
    for name in GENERATORS:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = "not installed"
        if version != pinned[name]:
            wrong.append(f"{name}: {version}, but constraints.txt pins {pinned[name]}")
    return wrong


def generate(into: Path) -> dict[str, bytes]:
    """Generates everything below `into` and returns the bytes by file name."""
    scripts = Path(sysconfig.get_path("scripts"))
    command = [
        sys.executable,
        *("-m", "grpc_tools.protoc"),
        *(f"--plugin={plugin}={scripts / plugin}" for plugin in PLUGINS),
        *("-I", str(PROTOS)),
        f"--python_out={into}",
        f"--grpc_python_out={into}",
        f"--mypy_out=quiet:{into}",
        f"--mypy_grpc_out=quiet,only_async:{into}",
        *sorted(path.relative_to(PROTOS).as_posix() for path in PROTOS.rglob("*.proto")),
    ]
    subprocess.run(command, check=True, cwd=PROTOS)
    return contents(into / PACKAGE)


def contents(folder: Path) -> dict[str, bytes]:
    """Returns the bytes of the generated files in `folder`, by name."""
    files = (path for pattern in ("*.py", "*.pyi") for path in folder.glob(pattern))
    return {path.name: path.read_bytes() for path in files if path.name != "__init__.py"}


def check(fresh: dict[str, bytes], committed: dict[str, bytes]) -> int:
    """Names every file that is not what would be generated; returns the exit status."""
    stale = [name for name in sorted(fresh | committed) if fresh.get(name) != committed.get(name)]
    for name in stale:
        state = "missing" if name not in committed else "of no proto" if name not in fresh else "stale"
        print(f"{PACKAGE / name}: {state}", file=sys.stderr)
    if stale:
        print("Generated code is not what protos/ says: run `make protos` and commit the result.", file=sys.stderr)
        return 1
    print(f"{PACKAGE} is up to date ({len(fresh)} files)")
    return 0


def write(fresh: dict[str, bytes], folder: Path) -> None:
    """Makes the generated files of `folder` exactly `fresh`, touching only those that change."""
    committed = contents(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in sorted(committed.keys() - fresh.keys()):
        (folder / name).unlink()
        print(f"{PACKAGE / name}: removed")
    for name, data in sorted(fresh.items()):
        if committed.get(name) != data:
            (folder / name).write_bytes(data)
            print(f"{PACKAGE / name}: written")


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if slotmesh/v1 is stale")
    arguments = parser.parse_args()

    wrong = wrong_tools(pins(ROOT / "constraints.txt"))
    wrong += [f"{plugin}: not found beside {sys.executable}" for plugin in PLUGINS if not _beside_python(plugin)]
    if wrong:
        print("Identical bytes need identical tools:", *wrong, sep="\n  ", file=sys.stderr)
        print("`make protos` and `make check` use the right ones, in .venv.", file=sys.stderr)
        return 2

    with tempfile.TemporaryDirectory(prefix="slotmesh-protos-") as folder:
        try:
            fresh = generate(Path(folder))
        except subprocess.CalledProcessError as failure:
            print(f"protoc failed (exit status {failure.returncode}); nothing was changed", file=sys.stderr)
            return 1
    if arguments.check:
        return check(fresh, contents(ROOT / PACKAGE))
    write(fresh, ROOT / PACKAGE)
    return 0


def _beside_python(program: str) -> bool:
    return shutil.which(program, path=sysconfig.get_path("scripts")) is not None


if __name__ == "__main__":
    sys.exit(main())
