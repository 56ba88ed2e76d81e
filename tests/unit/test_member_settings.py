"""Where routers and replicas say that they are reached."""

from __future__ import annotations

import socket

import pytest

from controller_service.config import ControllerSettings
from ingress_service.config import IngressSettings
from replica_service.config import ReplicaSettings
from router_service.config import RouterSettings
from slotmesh.config import SettingsError


def router(*flags: str) -> RouterSettings:
    return RouterSettings.parse(["--insecure", *flags], {}, prog="router_service")


def replica(*flags: str) -> ReplicaSettings:
    return ReplicaSettings.parse(["--insecure", "--handler=app:App", *flags], {}, prog="replica_service")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_member_on_a_wildcard_has_to_say_where_it_is_reached(host: str) -> None:
    for read in (router, lambda *flags: replica("--controller=c:1", *flags)):
        with pytest.raises(SettingsError, match=r"--advertise HOST\[:PORT\] .* is required with --host"):
            read(f"--host={host}")
        assert read(f"--host={host}", "--advertise=me").advertised("0.0.0.0:7") == "me:7"


def test_a_replica_that_nobody_is_told_of_needs_no_address() -> None:
    assert replica("--host=0.0.0.0").advertised("0.0.0.0:7") == "0.0.0.0:7"


@pytest.mark.parametrize(
    ("flag", "reached"),
    [
        (None, "127.0.0.1:7"),
        ("router.example", "router.example:7"),
        ("router.example:80", "router.example:80"),
        ("10.1.2.3", "10.1.2.3:7"),
        ("[fd00::1]:80", "[fd00::1]:80"),
        ("fd00::1", "[fd00::1]:7"),
        ("@hostname", f"{socket.gethostname()}:7"),
        ("@hostname:80", f"{socket.gethostname()}:80"),
    ],
)
def test_an_address_may_leave_the_port_to_the_process(flag: str | None, reached: str) -> None:
    settings = router(*([f"--advertise={flag}"] if flag else []))
    assert settings.advertised("127.0.0.1:7") == reached


@pytest.mark.parametrize("flag", ["", "a b", "host:", "host:0", "host:port", ":80", "a/b"])
def test_what_is_no_address_is_refused(flag: str) -> None:
    with pytest.raises(SettingsError, match=r"--advertise.*HOST or HOST:PORT such as 10\.0\.0\.7"):
        router(f"--advertise={flag}")


def test_metrics_on_a_wildcard_are_reached_where_the_process_is() -> None:
    settings = router("--host=0.0.0.0", "--advertise=me:80")
    assert settings.advertised_metrics("0.0.0.0:9465") == "me:9465"
    assert settings.advertised_metrics("127.0.0.1:9465") == "127.0.0.1:9465"
    assert router().advertised_metrics("0.0.0.0:9465") == "0.0.0.0:9465"


def test_the_machines_name_is_an_identity() -> None:
    assert router("--router-id=@hostname").router_id == socket.gethostname()
    assert replica("--replica-id=@hostname").make_replica_id() == socket.gethostname()
    assert router("--router-id=a@hostname").router_id == "a@hostname"


@pytest.mark.parametrize("service", ["slotmesh", "slotmesh-metrics", "slotmesh-token"])
@pytest.mark.parametrize("ip", ["10.0.0.1", "[fd00::1]", "fd00::1"])
@pytest.mark.parametrize("protocol", ["tcp", "udp", "sctp"])
def test_variables_of_kubernetes_services_are_no_settings(service: str, ip: str, protocol: str) -> None:
    """All that Kubernetes sets in pods for a Service, unless `enableServiceLinks` is false."""
    name, url = service.upper().replace("-", "_"), f"{protocol}://{ip}:7071"
    link = f"{name}_PORT_7071_{protocol.upper()}"
    env = {
        f"{name}_SERVICE_HOST": ip,
        f"{name}_SERVICE_PORT": "7071",
        f"{name}_SERVICE_PORT_GRPC": "7071",
        f"{name}_PORT": url,
        link: url,
        f"{link}_PROTO": protocol,
        f"{link}_PORT": "7071",
        f"{link}_ADDR": ip,
    }
    for read in (RouterSettings, ControllerSettings, ReplicaSettings, IngressSettings):
        own = {"SLOTMESH_ROUTER_ID": "r", "SLOTMESH_HANDLER": "a:A"}
        assert read.parse([], {**env, **own}, prog="p") == read.parse([], own, prog="p")
