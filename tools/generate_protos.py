"""Generates slotmesh/v1, slotmesh/internal/v1 and slotmesh/inference from protos/, or checks that they are current.

Identical bytes need identical tools, so the versions pinned in constraints.txt are required. Both modes generate into
an empty temporary folder first: a proto that was removed leaves nothing behind, and a failed run changes nothing.
`__init__.py` of these packages is written by hand and never touched.

Generated Python code lacks the comments of its proto. They are in a `.comments` file beside it: a
`google.protobuf.SourceCodeInfo` of the elements that have comments, which server reflection adds.

The package of a proto is its folder, for buf and on the wire. `inference`, which others have named, would be a Python
package of the same name at the top level: its protos are generated from a copy below `slotmesh/`, so that the imports
in what is generated are those of `slotmesh.inference`.
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

from google.protobuf.descriptor_pb2 import FileDescriptorSet, SourceCodeInfo

ROOT = Path(__file__).resolve().parent.parent
PROTOS = ROOT / "protos"
FOLDERS = {
    "slotmesh/v1": Path("slotmesh/v1"),
    "slotmesh/internal/v1": Path("slotmesh/internal/v1"),
    "slotmesh/internal/etcd/v1": Path("slotmesh/internal/etcd/v1"),
    "inference": Path("slotmesh/inference"),
}
"""Folders of protos, and the Python packages generated from them."""
KINDS = ("*.py", "*.pyi", "*.comments")
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


def generate(into: Path) -> dict[Path, bytes]:
    """Generates everything below `into` and returns the bytes by file, relative to the repository."""
    protos, out = into / "protos", into / "out"
    out.mkdir()
    for folder, package in FOLDERS.items():
        shutil.copytree(PROTOS / folder, protos / package)
    named = sorted(path.relative_to(protos).as_posix() for path in protos.rglob("*.proto"))
    shutil.copytree(PROTOS / "google", protos / "google")
    scripts = Path(sysconfig.get_path("scripts"))
    command = [
        sys.executable,
        *("-m", "grpc_tools.protoc"),
        *(f"--plugin={plugin}={scripts / plugin}" for plugin in PLUGINS),
        *("-I", str(protos)),
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet,only_async:{out}",
        *("--include_source_info", f"--descriptor_set_out={into / 'described'}"),
        *named,
    ]
    subprocess.run(command, check=True, cwd=protos)
    for file in FileDescriptorSet.FromString((into / "described").read_bytes()).file:
        comments = SourceCodeInfo(location=filter(_is_comment, file.source_code_info.location))
        (out / file.name).with_suffix(".comments").write_bytes(comments.SerializeToString())
    return contents(out)


def _is_comment(location: SourceCodeInfo.Location) -> bool:
    return bool(location.leading_comments or location.trailing_comments)


def contents(root: Path) -> dict[Path, bytes]:
    """Returns the bytes of the generated files below `root`, by their paths relative to it."""
    files = (path for each in FOLDERS.values() for kind in KINDS for path in (root / each).glob(kind))
    return {path.relative_to(root): path.read_bytes() for path in files if path.name != "__init__.py"}


def check(fresh: dict[Path, bytes], committed: dict[Path, bytes]) -> int:
    """Names every file that is not what would be generated; returns the exit status."""
    stale = [path for path in sorted(fresh | committed) if fresh.get(path) != committed.get(path)]
    for path in stale:
        state = "missing" if path not in committed else "of no proto" if path not in fresh else "stale"
        print(f"{path}: {state}", file=sys.stderr)
    if stale:
        print("Generated code is not what protos/ says: run `make protos` and commit the result.", file=sys.stderr)
        return 1
    print(f"{' and '.join(map(str, FOLDERS.values()))} are up to date ({len(fresh)} files)")
    return 0


def write(fresh: dict[Path, bytes], root: Path) -> None:
    """Makes the generated files below `root` exactly `fresh`, touching only those that change."""
    committed = contents(root)
    for path in sorted(committed.keys() - fresh.keys()):
        (root / path).unlink()
        print(f"{path}: removed")
    for path, data in sorted(fresh.items()):
        if committed.get(path) != data:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(data)
            print(f"{path}: written")


def main() -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if something is stale")
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
        return check(fresh, contents(ROOT))
    write(fresh, ROOT)
    return 0


def _beside_python(program: str) -> bool:
    return shutil.which(program, path=sysconfig.get_path("scripts")) is not None


if __name__ == "__main__":
    sys.exit(main())
