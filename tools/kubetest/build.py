"""Builds what tests of Kubernetes run: its control plane with kubectl as one binary, etcd and KWOK.

`python tools/kubetest/build.py` builds what is missing; `--print` prints the folder, `--check` fails where
it is not built.

Invariants: the result is kept outside the repository, in a folder named after the Go modules and programs here, so
that a change of a version builds anew; a folder with the file `ready` is complete; two builds wait for each other.
Registries are those of the Go installation (GOPROXY).
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
KUBERNETES: Final = "v1.36.3"
PROGRAMS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
"""Links to one binary, which acts as the name by which it is called."""
BUILDS: Final = {
    "kubetest": ("kubernetes", ".", f"-X k8s.io/component-base/version.gitVersion={KUBERNETES}"),
    "etcd": ("etcd", "go.etcd.io/etcd/server/v3", ""),
    "kwok": ("kwok", "sigs.k8s.io/kwok/cmd/kwok", ""),
}
"""Binary: folder of its module, package, flags of the linker."""


def folder() -> Path:
    """Where the programs of these versions are, built or not."""
    sources = sorted([*HERE.glob("*/go.mod"), *HERE.glob("*/*.go")])
    key = hashlib.sha256(KUBERNETES.encode() + b"".join(it.read_bytes() for it in sources)).hexdigest()[:12]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "slotmesh-kubetest" / f"{KUBERNETES}-{key}"


def is_built() -> bool:
    return (folder() / "ready").exists()


def build() -> None:
    """Builds what is missing. Raises SystemExit with the reason where it cannot."""
    if is_built():
        return
    if shutil.which("go") is None:
        raise SystemExit("kubetest: Go 1.26 or newer builds the Kubernetes test tools, and no `go` is in PATH")
    target = folder()
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("another process is building them: waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_built():
            build_all(target)


def build_all(target: Path) -> None:
    begin = time.monotonic()
    report(f"building Kubernetes {KUBERNETES}, etcd and KWOK into {target} (once; ten minutes of processor time)")
    for name, (module, package, flags) in BUILDS.items():
        if not (target / name).exists():
            build_one(target / name, module, package, flags)
    for name in PROGRAMS:
        link = target / name
        link.unlink(missing_ok=True)
        link.symlink_to("kubetest")
    (target / "ready").touch()
    report(f"built in {time.monotonic() - begin:.0f} s")


def build_one(binary: Path, module: str, package: str, flags: str) -> None:
    """Builds a binary, which appears when it is complete. Prints progress twice a minute."""
    part = binary.with_name(f"{binary.name}.part")
    command = [
        "go",
        "build",
        "-v",
        "-trimpath",
        "-mod=readonly",
        "-ldflags",
        f"-s -w {flags}",
        "-o",
        str(part),
        package,
    ]
    begin = last = time.monotonic()
    compiled: list[str] = []
    with subprocess.Popen(command, cwd=HERE / module, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr or ():
            compiled.append(line.rstrip())
            if (now := time.monotonic()) - last >= 30:
                last = now
                report(f"{binary.name}: {len(compiled)} packages compiled after {now - begin:.0f} s")
    if process.returncode:
        raise SystemExit("\n".join([*compiled[-20:], f"kubetest: {binary.name} cannot be built"]))
    part.rename(binary)
    report(f"{binary.name}: {time.monotonic() - begin:.0f} s, {binary.stat().st_size >> 20} MiB")


def report(line: str) -> None:
    print(f"kubetest: {line}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Builds the Kubernetes test tools, where they are missing.")
    parser.add_argument("--print", action="store_true", help="print the folder, and build nothing")
    parser.add_argument("--check", action="store_true", help="fail if they are not built, and build nothing")
    arguments = parser.parse_args()
    if arguments.print:
        print(folder())
    elif not arguments.check:
        build()
    elif not is_built():
        raise SystemExit("kubetest: not built: make kubetest-tools")


if __name__ == "__main__":
    main()
