"""What a pod's processes find: volumes as directories, environment, and commands that point to both.

A path at which a volume is mounted is replaced by its directory wherever a command, a variable or a ConfigMap names
it, as processes share the file system of the machine. For the same reason an address of all interfaces becomes the
pod's own, which lets pods use the same ports.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.kube.rig.api import Api, Document
from tests.support.mesh import ROOT

_VARIABLE: Final = re.compile(r"\$\(([A-Za-z_][\w.-]*)\)")
_ALL_INTERFACES: Final = re.compile(r"(?<![\d.])0\.0\.0\.0(?![\d.])|\[::\]")


class NotYet(Exception):
    """Something that the pod refers to does not exist. The kubelet tries again."""


class Contents:
    """Of one pod."""

    def __init__(self, api: Api, pod: Document, directory: Path, address: str) -> None:
        self._api = api
        self._pod = pod
        self._directory = directory
        self._address = address
        self._namespace: str = pod["metadata"]["namespace"]
        self.kubeconfig_token = ""
        """Of the pod's service account. Empty if it has none."""

    async def write_volumes(self) -> None:
        """Raises NotYet, ApiRefused."""
        for volume in self._pod["spec"].get("volumes", ()):
            target = self.volume(volume["name"])
            target.parent.mkdir(parents=True, exist_ok=True)
            if "persistentVolumeClaim" in volume and not target.exists():
                target.symlink_to(await self._claimed(volume["persistentVolumeClaim"]["claimName"]))
            target.mkdir(exist_ok=True)
            for source in [volume, *volume.get("projected", {}).get("sources", ())]:
                await self._write_source(source, target)

    def volume(self, name: str) -> Path:
        return self._directory / "volumes" / name

    def paths(self, container: Document) -> dict[str, Path]:
        """Directories, or files where one of a volume is mounted, by the path at which the container sees them."""
        return {
            mount["mountPath"].rstrip("/"): self.volume(mount["name"]) / mount.get("subPath", "")
            for mount in container.get("volumeMounts", ())
        }

    async def environment(self, container: Document) -> dict[str, str]:
        """Raises NotYet, ApiRefused."""
        found = await self._service_links() if self._pod["spec"].get("enableServiceLinks", True) else {}
        for source in container.get("envFrom", ()):
            prefix = source.get("prefix", "")
            for kind in ("configMap", "secret"):
                if reference := source.get(f"{kind}Ref"):
                    content = await self._content(kind, reference["name"], optional=reference.get("optional", False))
                    found.update({f"{prefix}{key}": value.decode() for key, value in content.items()})
        for each in container.get("env", ()):
            if "value" in each:
                found[each["name"]] = expanded(each["value"], found)
            elif "valueFrom" in each:
                value = await self._value(each["valueFrom"])
                if value is not None:
                    found[each["name"]] = value
        return {name: self.local(value, container) for name, value in found.items()}

    def command(self, container: Document, entrypoint: list[str], environment: Mapping[str, str]) -> list[str]:
        parts = [*container.get("command", entrypoint), *container.get("args", ())]
        return [self.local(expanded(part, environment), container) for part in parts]

    def local(self, text: str, container: Document) -> str:
        """The text with paths and addresses of this machine."""
        text = _ALL_INTERFACES.sub(self._address, text)
        paths = self.paths(container)
        if not paths:
            return text
        # In one pass, the longest first: directories of volumes have parts of such paths themselves.
        # What is in this repository is no volume's, be the repository in /tmp.
        paths[str(ROOT)] = ROOT
        any_path = "|".join(map(re.escape, sorted(paths, key=len, reverse=True)))
        return re.sub(rf"(?<![\w./-])(?:{any_path})(?![\w.-])", lambda it: str(paths[it[0]]), text)

    async def _write_source(self, source: Document, target: Path) -> None:
        if "configMap" in source:
            await self._write_map("configMap", source["configMap"]["name"], source["configMap"], target)
        elif "secret" in source:
            secret = source["secret"]
            await self._write_map("secret", secret.get("secretName") or secret["name"], secret, target)
        elif "serviceAccountToken" in source:
            token = source["serviceAccountToken"]
            self.kubeconfig_token = await self._token(token.get("expirationSeconds", 3600))
            (target / token["path"]).write_text(self.kubeconfig_token)
        elif "downwardAPI" in source:
            for item in source["downwardAPI"].get("items", ()):
                (target / item["path"]).write_text(self._field(item["fieldRef"]["fieldPath"]))

    async def _write_map(self, kind: str, name: str, source: Document, target: Path) -> None:
        content = await self._content(kind, name, optional=source.get("optional", False))
        items = source.get("items") or [{"key": key, "path": key} for key in content]
        containers = [*self._pod["spec"].get("initContainers", ()), *self._pod["spec"]["containers"]]
        for item in items:
            value = content[item["key"]]
            if kind == "configMap":
                for container in containers:
                    value = self.local(value.decode(), container).encode()
            path = target / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(value)
            path.chmod(source.get("defaultMode", 0o644))

    async def _content(self, kind: str, name: str, *, optional: bool) -> dict[str, bytes]:
        path = f"/api/v1/namespaces/{self._namespace}/{kind.lower()}s"
        listed = await self._api.get(path, fieldSelector=f"metadata.name={name}")
        if not listed["items"]:
            if optional:
                return {}
            raise NotYet(f"{kind} {name} does not exist")
        found = listed["items"][0]
        if kind == "secret":
            return {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}
        binary = {key: base64.b64decode(value) for key, value in found.get("binaryData", {}).items()}
        return {**{key: value.encode() for key, value in found.get("data", {}).items()}, **binary}

    async def _claimed(self, claim: str) -> str:
        found = await self._api.get(f"/api/v1/namespaces/{self._namespace}/persistentvolumeclaims/{claim}")
        if not (name := found["spec"].get("volumeName")):
            raise NotYet(f"claim {claim} is not bound")
        volume = await self._api.get(f"/api/v1/persistentvolumes/{name}")
        return str(volume["spec"]["hostPath"]["path"])

    async def _token(self, expiration_s: int) -> str:
        account, meta = self._pod["spec"].get("serviceAccountName", "default"), self._pod["metadata"]
        bound = {"kind": "Pod", "apiVersion": "v1", "name": meta["name"], "uid": meta["uid"]}
        request = {"spec": {"audiences": [], "expirationSeconds": expiration_s, "boundObjectRef": bound}}
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        return str((await self._api.create(path, request))["status"]["token"])

    async def _value(self, source: Document) -> str | None:
        if "fieldRef" in source:
            return self._field(source["fieldRef"]["fieldPath"])
        for kind in ("configMap", "secret"):
            if reference := source.get(f"{kind}KeyRef"):
                optional = reference.get("optional", False)
                content = await self._content(kind, reference["name"], optional=optional)
                if reference["key"] in content:
                    return content[reference["key"]].decode()
                if not optional:
                    raise NotYet(f"{kind} {reference['name']} has no key {reference['key']}")
                return None
        raise NotYet(f"the process kubelet has no source of a variable like {sorted(source)}")

    def _field(self, path: str) -> str:
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        if match := re.fullmatch(r"metadata\.(labels|annotations)(?:\['(.+)'\])?", path):
            values: dict[str, str] = metadata.get(match[1], {})
            return str(values.get(match[2], "") if match[2] else "\n".join(f'{k}="{v}"' for k, v in values.items()))
        fields: dict[str, str] = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata["uid"],
            "spec.nodeName": spec["nodeName"],
            "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
            "status.podIP": self._address,
            "status.podIPs": self._address,
            "status.hostIP": "127.0.0.1",
        }
        return fields[path]

    async def _service_links(self) -> dict[str, str]:
        """Variables of the namespace's Services, as containers have them by default."""
        found: dict[str, str] = {}
        for service in (await self._api.get(f"/api/v1/namespaces/{self._namespace}/services"))["items"]:
            address = service["spec"].get("clusterIP", "None")
            if address not in ("", "None"):
                name = service["metadata"]["name"].upper().replace("-", "_")
                port = service["spec"]["ports"][0]
                url = f"{port.get('protocol', 'TCP').lower()}://{address}:{port['port']}"
                found |= {f"{name}_SERVICE_HOST": address, f"{name}_SERVICE_PORT": str(port["port"])}
                found |= {f"{name}_PORT": url, f"{name}_PORT_{port['port']}_TCP": url}
        return found


def expanded(text: str, environment: Mapping[str, str]) -> str:
    """`$(NAME)` replaced by the variable, where there is one."""
    return _VARIABLE.sub(lambda match: environment.get(match[1], match[0]), text)
