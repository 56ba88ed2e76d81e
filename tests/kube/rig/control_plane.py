"""etcd, kube-apiserver, kube-controller-manager and kube-scheduler as processes on a loopback address of their own.

Invariants: their ports are the usual ones, on an address that no other control plane of this machine uses; all of them
end with the process that started them, also where that is killed. Owner: a fixture (tests/kube/conftest.py).
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.support.certificates import Authority
from tools.kubetest.build import folder

API_PORT: Final = 6443
ETCD_PORT: Final = 2379
ADMIN_TOKEN: Final = "admin"
START_TIMEOUT_S: Final = 60.0
"""A busy machine takes ten times as long as a quiet one, which takes four seconds."""
NODE_GRACE_S: Final = 40
"""After this long without a heartbeat a node is lost. A busy machine delays heartbeats by more than ten seconds."""
OTHERS: Final = ("kube-scheduler", "kube-controller-manager")
EVICTION_S: Final = 2
"""The pods of a lost node are deleted after this long."""
EVICTED_SOON: Final = [
    {"key": f"node.kubernetes.io/{it}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": EVICTION_S}
    for it in ("not-ready", "unreachable")
]
"""Of pods of the launcher, which sets others."""
OFF: Final = (
    "node-ipam",
    "cloud-node-lifecycle",
    "service-lb",
    "endpoints",
    "endpointslice",
    "endpointslice-mirroring",
)
"""Controllers that do not run: an endpoint must not be a loopback address, and pods have no others here."""

_AUDITED: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {
            "level": "Metadata",
            "userGroups": ["system:serviceaccounts"],
            "verbs": ["list", "delete"],
            "resources": [{"group": "", "resources": ["pods"]}],
        },
        {"level": "None"},
    ],
}
"""What the API server writes down: what accounts of pods list and delete."""


class ControlPlane:
    """One cluster without nodes. Its admin's kubeconfig is `kubeconfig`."""

    def __init__(self, directory: Path, address: str = "") -> None:
        self.directory = directory
        self.address = address or f"127.{random.randint(10, 99)}.{random.randint(0, 255)}.{random.randint(1, 254)}"
        self.server = f"https://{self.address}:{API_PORT}"
        self.kubeconfig = directory / "admin.conf"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._started: dict[str, Sequence[str]] = {}
        self._was_away = False
        directory.mkdir(parents=True, exist_ok=True)
        authority = Authority(directory)
        self.ca = authority.ca
        names = [self.address, "127.0.0.1", "localhost", "kubernetes.default.svc"]
        self.tls = authority.issue("kubernetes", dns=names, uri="")
        """Of its server, and of the log servers of nodes, whose names the API server does not check."""

    def start(self) -> None:
        """Returns when the API server answers; the others may still be starting."""
        self._write_files()
        self._spawn("etcd", *self._etcd())
        self._spawn("kube-apiserver", *self._api_server())
        self.wait_ready()
        conf = (f"--kubeconfig={self.kubeconfig}", "--leader-elect=false", f"--bind-address={self.address}")
        fast = ("--kube-api-qps=1000", "--kube-api-burst=1000")
        self._spawn("kube-scheduler", *conf, *fast, f"--cert-dir={self.directory}/certs")
        self._spawn(
            "kube-controller-manager",
            *(*conf, *fast, f"--cert-dir={self.directory}/certs"),
            f"--service-account-private-key-file={self.directory}/sa.key",
            f"--root-ca-file={self.ca}",
            f"--node-monitor-grace-period={NODE_GRACE_S}s",
            "--node-monitor-period=1s",
            "--controllers=*," + ",".join(f"-{name}-controller" for name in OFF),
        )

    def wait_ready(self) -> None:
        """Waits until the API server answers. Raises AssertionError with its log where it does not."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self.is_ready():
            has_ended = self.processes["kube-apiserver"].poll() is not None
            if has_ended or time.monotonic() > deadline:
                raise AssertionError(f"no API server:\n{self.log('kube-apiserver')[-3000:]}")
            time.sleep(0.05)

    def is_ready(self) -> bool:
        headers = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
        request = urllib.request.Request(f"{self.server}/readyz", headers=headers)  # noqa: S310 - https
        try:
            context = ssl.create_default_context(cafile=str(self.ca))
            with urllib.request.urlopen(request, timeout=2, context=context) as response:  # noqa: S310 - https
                return bool(response.status == 200)
        except OSError:
            return False

    def kill(self, program: str = "kube-apiserver", number: signal.Signals = signal.SIGKILL) -> None:
        """Ends a program at once; `restart` starts it anew."""
        self._was_away |= program == "kube-apiserver"
        process = self.processes.pop(program)
        process.send_signal(number)
        process.wait(30)

    def restart(self, program: str = "kube-apiserver") -> None:
        """Starts a program that was killed, with what it had. Does not wait until it works."""
        self._spawn(program, *self._started[program])

    def recover(self) -> None:
        """Starts the others anew where the API server was away: they might wait for half a minute to look again."""
        if self._was_away:
            self._was_away = False
            for program in OTHERS:
                self.kill(program)
                self.restart(program)

    def compact(self) -> None:
        """Forgets all earlier revisions: a watch that resumes at one of them after a restart is answered 410."""
        revision = self._etcd_call("/v3/kv/range", key="AA==")["header"]["revision"]
        self._etcd_call("/v3/kv/compaction", revision=revision, physical=True)

    def kubectl(self, *arguments: str, stdin: str = "", timeout: float = 60.0) -> str:
        """What kubectl prints to stdout. Raises AssertionError with its stderr where it fails."""
        command: list[str] = [str(folder() / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def log(self, program: str) -> str:
        return (self.directory / f"{program}.log").read_text("utf-8", errors="replace")

    def requests_of(self, namespace: str, account: str) -> list[tuple[str, str]]:
        """All lists and deletions of pods by a service account that were answered, in order: the verb and the name."""
        user = f"system:serviceaccount:{namespace}:{account}"
        lines = (self.directory / "audit.log").read_text("utf-8").splitlines()
        events = [event for line in lines if (event := json.loads(line))["user"]["username"] == user]
        return [(it["verb"], it["objectRef"].get("name", "")) for it in events]

    def stop(self) -> None:
        """Ends everything. Nothing of it is kept, so nothing has to end in order."""
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(30)
        self.processes.clear()

    def write_kubeconfig(self, path: Path, token: str, *, server: str = "", namespace: str = "default") -> None:
        """For a user with this token; `server`: another address, such as that of a proxy."""
        cluster = {"server": server or self.server, "certificate-authority": str(self.ca)}
        context = {"cluster": "kubetest", "user": "user", "namespace": namespace}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "kubetest", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "kubetest", "context": context}],
            "current-context": "kubetest",
        }
        path.write_text(json.dumps(document))

    def _write_files(self) -> None:
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        formats = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        (self.directory / "sa.key").write_bytes(key.private_bytes(*formats))
        (self.directory / "tokens.csv").write_text(f"{ADMIN_TOKEN},admin,admin,system:masters\n")
        self.write_kubeconfig(self.kubeconfig, ADMIN_TOKEN)
        (self.directory / "audit.json").write_text(json.dumps(_AUDITED))

    def _etcd(self) -> list[str]:
        client, peer = f"http://{self.address}:{ETCD_PORT}", f"http://{self.address}:{ETCD_PORT + 1}"
        return [
            f"--data-dir={self.directory}/etcd",
            "--unsafe-no-fsync",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        ]

    def _api_server(self) -> list[str]:
        return [
            f"--etcd-servers=http://{self.address}:{ETCD_PORT}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={API_PORT}",
            f"--tls-cert-file={self.tls.cert}",
            f"--tls-private-key-file={self.tls.key}",
            f"--service-account-key-file={self.directory}/sa.key",
            f"--service-account-signing-key-file={self.directory}/sa.key",
            f"--service-account-issuer={self.server}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={self.directory}/tokens.csv",
            "--service-cluster-ip-range=10.96.0.0/20",
            "--endpoint-reconciler-type=none",
            "--allow-privileged=true",
            f"--default-not-ready-toleration-seconds={EVICTION_S}",
            f"--default-unreachable-toleration-seconds={EVICTION_S}",
            f"--audit-policy-file={self.directory}/audit.json",
            f"--audit-log-path={self.directory}/audit.log",
        ]

    def _spawn(self, program: str, *arguments: str) -> None:
        self._started[program] = arguments
        with (self.directory / f"{program}.log").open("ab") as log:
            self.processes[program] = subprocess.Popen(
                [*ends_with_us(), str(folder() / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )

    def _etcd_call(self, path: str, **body: object) -> Any:
        url = f"http://{self.address}:{ETCD_PORT}{path}"
        request = urllib.request.Request(url, json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as response:  # noqa: S310 - http
            return json.load(response)


def ends_with_us() -> list[str]:
    """What is put before a command, so that its process ends when the one that starts it does, however that ends."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig=KILL", "--"] if setpriv else []
