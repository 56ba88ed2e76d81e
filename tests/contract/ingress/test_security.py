"""A mesh with certificates behind an ingress: HTTPS, tokens of callers, and who is told of what."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ingress_service.app import Ingress, serve
from ingress_service.config import IngressSettings
from slotmesh.config import SettingsError
from tests.support.certificates import Authority
from tests.support.controllers import eventually
from tests.support.http_client import HttpAnswer, http, http_connection
from tests.support.tls_mesh import TlsMesh, tls_mesh
from tests.support.token_files import created
from tests.support.wait import wait_until

OCTETS = {"content-type": "application/octet-stream"}


@asynccontextmanager
async def secured(folder: Path, **settings: Any) -> AsyncIterator[tuple[TlsMesh, Ingress]]:
    authority = Authority(folder / "certs")
    authority.issue("client", "ingress")
    tokens = folder / "tokens.json"
    created(tokens, "client/nobody")
    async with tls_mesh(authority, of_routers={"tokens": tokens}) as mesh:
        given = IngressSettings(
            port=0,
            metrics_port=-1,
            routers=",".join(mesh.routers),
            controller=mesh.controller.address,
            tls_dir=authority.directory,
            **settings,
        )
        async with serve(given) as ingress:
            await wait_until(ingress.routes.has_routes.is_set, timeout=20.0, what="the first routes")
            yield mesh, ingress


def bearer(token: str) -> dict[str, str]:
    return {**OCTETS, "authorization": f"Bearer {token}"}


async def echoed(ingress: Ingress, headers: dict[str, str], path: str = "/words/echo") -> HttpAnswer:
    return await http(ingress.address, "POST", path, b"x", headers)


@pytest.mark.asyncio
async def test_tokens_are_those_of_their_holders(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    async with secured(tmp_path) as (_, ingress):
        mine = created(tokens, "client/alice", endpoints={"words"})
        others = created(tokens, "client/bob", endpoints={"other"})
        viewer = created(tokens, "viewer/eve")

        async def known() -> bool:
            return (await echoed(ingress, bearer(mine))).status == 200

        # Routers look at the file once a second.
        await eventually(known, what="the routers know the new tokens")
        assert (await echoed(ingress, bearer(mine))).body == b"x"
        refused = await echoed(ingress, bearer(others))
        assert (refused.status, refused.json["reason"]) == (403, "PERMISSION_DENIED")
        assert (await echoed(ingress, bearer(viewer))).status == 403
        for headers in (OCTETS, bearer("smt_nonsense"), {**OCTETS, "authorization": "Basic eDp5"}, bearer("a b")):
            answer = await echoed(ingress, headers)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert "slotmesh.v1" not in answer.json["detail"], "the client has called no rpc"
        assert (await http(ingress.address, "GET", "/-/openapi.json")).status == 401
        told = await http(ingress.address, "GET", "/-/openapi.json", b"", bearer(mine))
        assert "/words/echo" in told.json["paths"]
        told = await http(ingress.address, "GET", "/-/openapi.json", b"", bearer(others))
        assert told.json["paths"] == {}
        assert (await http(ingress.address, "GET", "/-/healthz")).status == 200
        seen = [(await http(ingress.address, "GET", "/-/metrics", b"", it)) for it in (OCTETS, bearer(mine))]
        assert [it.status for it in seen] == [401, 403]
        assert b"slotmesh_ingress" in (await http(ingress.address, "GET", "/-/metrics", b"", bearer(viewer))).body
        other_methods = [
            await http(ingress.address, "GET", path, b"", bearer(mine)) for path in ("/words/echo", "/a/b")
        ]
        assert [it.status for it in other_methods] == [405, 404]
        nobody = [("OPTIONS", "/words/echo"), ("GET", "/a/b/c"), ("GET", "/words/echo")]
        assert [(await http(ingress.address, *it)).status for it in nobody] == [204, 404, 401]


@pytest.mark.asyncio
async def test_idempotency_keys_are_each_holders_own(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    async with secured(tmp_path) as (_, ingress):
        alice, eve = created(tokens, "client/alice"), created(tokens, "client/eve")

        async def ask(token: str, body: bytes) -> HttpAnswer:
            return await http(ingress.address, "POST", "/words/echo", body, {**bearer(token), "idempotency-key": "17"})

        async def known() -> bool:
            return all([(await echoed(ingress, bearer(it))).status == 200 for it in (alice, eve)])

        await eventually(known, what="the routers know the new tokens")
        answers = [await ask(alice, b"hers"), await ask(eve, b"mine"), await ask(alice, b"hers")]
        assert [(it.status, it.body) for it in answers] == [(200, b"hers"), (200, b"mine"), (200, b"hers")]
        assert (await ask(eve, b"hers")).status == 422


@pytest.mark.asyncio
async def test_the_ingress_itself_calls_only_where_it_is_told_so(tmp_path: Path) -> None:
    async with secured(tmp_path, anonymous=True) as (_, ingress):
        assert (await echoed(ingress, OCTETS)).body == b"x"


@pytest.mark.asyncio
async def test_https_shows_a_certificate_of_its_own(tmp_path: Path) -> None:
    web = Authority(tmp_path / "web")
    ends_at = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=7)
    files = web.issue("client", "web", dns=["localhost"], not_after=ends_at)
    settings = {"https_cert": files.cert, "https_key": files.key, "anonymous": True, "max_body_size": "1MiB"}
    async with secured(tmp_path, **settings) as (_, ingress):
        context = ssl.create_default_context(cafile=str(web.ca))
        async with http_connection(ingress.address, ssl=context, server_hostname="localhost") as connection:
            answer = await connection.request("POST", "/words/echo", b"x", headers=OCTETS)
            assert answer.body == b"x"
        async with http_connection(ingress.address, ssl=context, server_hostname="localhost") as connection:
            head = b"POST /words/echo HTTP/1.1\r\nhost: x\r\ncontent-length: 9000000\r\n\r\n"
            await connection.send(head + b"x" * 4_000_000)
            assert (await connection.answer()).status == 413
        assert ingress.server.certificate_ends_at == ends_at.timestamp()
        later = ends_at + timedelta(hours=1)
        web.issue("client", "web", dns=["localhost"], not_after=later)
        await wait_until(
            lambda: ingress.server.certificate_ends_at == later.timestamp(), timeout=20.0, what="the new certificate"
        )


async def shown(address: str, web: Authority, name: str | None = "localhost") -> bytes:
    """The certificate that who connects is shown. `name`: of the server, as the client asks for it."""
    context = ssl.create_default_context(cafile=str(web.ca))
    context.check_hostname = name is not None
    host, _, port = address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context, server_hostname=name or "")
    try:
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found
    finally:
        writer.close()
        await writer.wait_closed()


def issued_all_but(late: Path, web: Authority) -> Callable[[], None]:
    """A new pair, of which one file is the old one; what is returned puts it right, with the time of the old one."""
    old = late.read_bytes()
    web.issue("client", "web", dns=["localhost"])
    new = late.read_bytes()
    late.write_bytes(old)

    def give() -> None:
        times = late.stat()
        late.write_bytes(new)
        os.utime(late, ns=(times.st_atime_ns, times.st_mtime_ns))

    return give


@pytest.mark.asyncio
@pytest.mark.parametrize("kept_back", ["cert", "key"])
async def test_half_of_a_new_pair_is_not_shown_and_the_whole_is(tmp_path: Path, kept_back: str) -> None:
    """Files are replaced one by one, and may be made readable after that, which does not change when they changed."""
    web = Authority(tmp_path / "web")
    files = web.issue("client", "web", dns=["localhost"])
    async with secured(tmp_path, https_cert=files.cert, https_key=files.key, anonymous=True) as (_, ingress):
        before = await shown(ingress.address, web)
        give_late = issued_all_but(Path(getattr(files, kept_back)), web)
        certificate: Any = ingress.server._certificate
        await wait_until(lambda: certificate._problem, timeout=20.0, what="it was seen that they are no pair")
        assert await shown(ingress.address, web) == before
        give_late()
        await wait_until(lambda: not certificate._problem, timeout=20.0, what="the whole pair")
        after = await shown(ingress.address, web)
        assert after != before
        assert await shown(ingress.address, web, name=None) == after, "to who names no server as well"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host=0.0.0.0"], "neither encryption nor authentication"),
        (["--https-cert=a.pem"], "go together"),
        (["--cors-origins=pages.example"], "is no origin"),
    ],
)
def test_what_would_be_open_to_others_does_not_start(flags: list[str], said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        IngressSettings.parse(flags, {}, prog="ingress")


def test_certificates_of_the_mesh_are_no_https(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    authority.issue("client", "ingress")
    with pytest.raises(SettingsError, match="HTTP would be in plain text"):
        IngressSettings.parse(["--host=0.0.0.0", f"--tls-dir={tmp_path}"], {}, prog="ingress")


def test_an_insecure_one_starts_where_it_is_told_so() -> None:
    assert IngressSettings.parse(["--host=0.0.0.0", "--insecure=true"], {}, prog="ingress").insecure
