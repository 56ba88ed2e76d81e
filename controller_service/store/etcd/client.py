"""Speaks etcd's v3 API: transactions, ranges, leases, watches and authentication, as values of this module.

Purpose: the one file that knows etcd's messages and statuses. It uses one member at a time and goes on to the next when
an rpc fails there: a balancer over all of them would send every third rpc to a member that is dead or slow, and a
channel over several host names verifies no certificate by name.
Invariants: each rpc has a deadline. A failure states whether the request may have been carried out, or will be: unknown
is not no. A member without a leader refuses immediately. Tokens and passwords are in no message and no log.
Owner: the store, or a program that exports or imports.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final, TypeVar

import grpc

from controller_service.store.etcd.operations import Changes, Delete, Get, Is, KeyOperation, Kv, Put, TxnResult, end_of
from slotmesh.config.etcd import EtcdAccess
from slotmesh.internal.etcd.v1 import etcd_pb2 as pb
from slotmesh.runtime.channels import CHANNEL_OPTIONS
from slotmesh.security.secret_files import FileGuard, UnusableFile, authorities_in, read_guarded

RPC_S: Final = 2.0
"""Deadline of an rpc. A healthy cluster answers within milliseconds, and elects a leader within two seconds."""
LOOK_S: Final = 1.0
"""Deadline of a read that is repeated anyway: after it, the next one goes to another member."""
PAGE_KEYS: Final = 100
"""Keys of one response, whose values together fit into the largest message that gRPC accepts here."""
_READS: Final = 10
"""Attempts to read all keys as of one revision while etcd is compacted."""
_NO_LEADER: Final = "etcdserver: no leader"
_NOT_SENT: Final = ("failed to connect to all addresses", _NO_LEADER)
"""Beginnings of details after which a request was certainly not carried out, whatever the status."""
_REFUSED: Final = frozenset(
    {"FAILED_PRECONDITION", "INVALID_ARGUMENT", "NOT_FOUND", "OUT_OF_RANGE", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"}
    | {"UNAUTHENTICATED", "UNIMPLEMENTED"}
)
"""Statuses with which etcd refuses a request without carrying it out."""
_NO_SPACE: Final = "etcdserver: mvcc: database space exceeded"
"""The details with which etcd refuses writes while it is full; the one by which it became full is carried out."""
_NO_LEASE: Final = "etcdserver: requested lease not found"
_PASSING: Final = (_NO_LEASE, "etcdserver: too many requests")
"""Beginnings of details with such a status after which another attempt may be accepted."""
_CLOSING_S: Final = 2 * RPC_S
"""How long a channel that is used no longer waits for its rpcs: all of them have ended before."""
_OLD_TOKEN: Final = ("etcdserver: invalid auth token", "etcdserver: revision of auth store is old")
_WAYS_OUT: Final = {
    _NO_SPACE: "compact and defragment etcd, or raise its --quota-backend-bytes, then `etcdctl alarm disarm`",
    "etcdserver: permission denied": "grant the user readwrite on the prefix of the mesh",
    "etcdserver: user name is empty": "this etcd has authentication: give --etcd-user and --etcd-password-file, or"
    " --etcd-cert",
    "etcdserver: authentication failed": "check --etcd-user and the file of --etcd-password-file",
    "etcdserver: request is too large": "leave --max-request-bytes of etcd at 1.5 MiB or more",
    _NO_LEADER: "etcd has no quorum: start its members",
}
_OF_STRANGER: Final = (
    "the certificate of this member is not signed by an authority of --etcd-ca, or not valid now: give the authority of"
    " etcd's members"
)
_OF_CERTIFICATES: Final = {
    "ostname Verification": "the certificate of this member does not name that host: give one that it names in --state,"
    " or issue it anew",
    "CERTIFICATE_VERIFY_FAILED": _OF_STRANGER,
    "certificate signature failure": _OF_STRANGER,
    "WRONG_VERSION_NUMBER": "this member uses plain text: leave --etcd-ca out, or start etcd with certificates",
}
"""Parts of the details of a connection that was not made, and the way out. The first one counts."""


class EtcdFailed(Exception):
    """An rpc failed; the message names the member, the reason, and the way out where there is one."""

    def __init__(self, message: str, *, is_unwritten: bool, is_refused: bool) -> None:
        super().__init__(message)
        self.is_unwritten = is_unwritten
        """It was not carried out, and will not be."""
        self.is_refused = is_refused
        """etcd has refused it, nothing of it is under way, and to repeat it does not help."""

    @property
    def is_of_lease(self) -> bool:
        """The lease that a key was to be bound to has lapsed."""
        return _NO_LEASE in str(self)

    @property
    def is_lease_missing(self) -> bool:
        """It names a lease that has lapsed."""
        return "requested lease not found" in str(self)


class Compacted(Exception):
    """Revisions that were to be read are not there any more: read anew."""


ResultT = TypeVar("ResultT")
_LEADER_REQUIRED: Final = ("hasleader", "true")


class EtcdClient:
    """A connection to a cluster."""

    def __init__(self, members: Sequence[str], access: EtcdAccess) -> None:
        self._members = members
        self._access = access
        self._at = 0
        """Of the member that is used."""
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._token = ""
        self.election = 0
        """The greatest term of a leader of etcd that a transaction has reported."""

    @property
    def name(self) -> str:
        """Of the member that is used, for messages."""
        return f"etcd at {self._members[self._at]}"

    async def close(self) -> None:
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def txn(
        self,
        conditions: Sequence[Is],
        then: Sequence[KeyOperation],
        otherwise: Sequence[Get] = (),
        *,
        within_s: float = RPC_S,
    ) -> TxnResult:
        """Carries out `then` if all conditions are met, else `otherwise`; either as a whole. Raises EtcdFailed."""
        request = pb.TxnRequest(
            compare=map(_compare, conditions), success=map(_operation, then), failure=map(_operation, otherwise)
        )
        response = await self._unary("/etcdserverpb.KV/Txn", request, pb.TxnResponse, within_s)
        self.election = max(self.election, response.header.raft_term)
        ranges = (it.response_range for it in response.responses if it.HasField("response_range"))
        found = [[*map(_kv, it.kvs)] for it in ranges]
        return TxnResult(response.succeeded, response.header.revision, found)

    async def read(self, prefix: bytes) -> tuple[int, list[Kv]]:
        """All keys with this prefix as of one revision, and that revision. Raises EtcdFailed."""
        for _ in range(_READS):
            with suppress(Compacted):
                return await self._read_at_once(prefix)
        raise EtcdFailed(
            f"{self.name}: revisions are compacted faster than they are read: compact less often",
            is_unwritten=True,
            is_refused=False,
        )

    async def _read_at_once(self, prefix: bytes) -> tuple[int, list[Kv]]:
        found: list[Kv] = []
        request = pb.RangeRequest(key=prefix, range_end=end_of(prefix), limit=PAGE_KEYS)
        while True:
            try:
                page = await self._unary("/etcdserverpb.KV/Range", request, pb.RangeResponse)
            except EtcdFailed as failed:
                if "has been compacted" in str(failed):
                    raise Compacted from failed
                raise
            request.revision = request.revision or page.header.revision
            found += map(_kv, page.kvs)
            if not page.more:
                return request.revision, found
            request.key = page.kvs[-1].key + b"\0"

    async def watch(self, prefix: bytes, after: int) -> AsyncGenerator[Changes, None]:
        """What has changed since a revision, for as long as the member answers. Raises Compacted, EtcdFailed."""
        request = pb.WatchRequest(
            create_request=pb.WatchCreateRequest(key=prefix, range_end=end_of(prefix), start_revision=after + 1)
        )
        at = self._at
        async with aclosing(self._responses("/etcdserverpb.Watch/Watch", request, pb.WatchResponse)) as responses:
            async for response in responses:
                if response.compact_revision:
                    raise Compacted
                if response.canceled:
                    self._leave(at)
                    raise EtcdFailed(f"{self.name}: {response.cancel_reason}", is_unwritten=True, is_refused=False)
                put = [_kv(it.kv) for it in response.events if it.type != pb.EVENT_TYPE_DELETE]
                deleted = [it.kv.key for it in response.events if it.type == pb.EVENT_TYPE_DELETE]
                if put or deleted:
                    yield Changes(response.header.revision, put, deleted)
        raise EtcdFailed(f"{self.name}: has ended a watch", is_unwritten=True, is_refused=False)

    async def grant(self, ttl_s: int) -> int:
        """A new lease. Raises EtcdFailed."""
        request = pb.LeaseGrantRequest(ttl=ttl_s)
        response: pb.LeaseGrantResponse = await self._unary(
            "/etcdserverpb.Lease/LeaseGrant", request, pb.LeaseGrantResponse
        )
        return response.id

    async def keep_alive(self, lease: int, within_s: float) -> bool:
        """Prolongs a lease; False if there is no such lease any more. Raises EtcdFailed."""
        request = pb.LeaseKeepAliveRequest(id=lease)
        path = "/etcdserverpb.Lease/LeaseKeepAlive"
        async with aclosing(self._responses(path, request, pb.LeaseKeepAliveResponse, within_s)) as responses:
            async for response in responses:
                return bool(response.ttl > 0)
        raise EtcdFailed(f"{self.name}: ended without an answer", is_unwritten=True, is_refused=False)

    async def revoke(self, lease: int) -> None:
        """Deletes what is bound to a lease. Raises EtcdFailed."""
        await self._unary("/etcdserverpb.Lease/LeaseRevoke", pb.LeaseRevokeRequest(id=lease), pb.ResponseHeader)

    async def _unary(self, path: str, request: Any, kind: Callable[..., ResultT], within_s: float = RPC_S) -> Any:
        async def call(channel: grpc.aio.Channel, metadata: Any) -> Any:
            rpc = channel.unary_unary(path, type(request).SerializeToString, kind.FromString)  # type: ignore[attr-defined]
            return await rpc(request, timeout=within_s, metadata=metadata)

        return await self._called(call)

    async def _responses(
        self, path: str, request: Any, kind: Callable[..., ResultT], timeout_s: float | None = None
    ) -> AsyncGenerator[Any, None]:
        """Of a stream whose one request this is, until it is closed."""

        async def call(channel: grpc.aio.Channel, metadata: Any) -> Any:
            rpc = channel.stream_stream(path, type(request).SerializeToString, kind.FromString)  # type: ignore[attr-defined]
            stream = rpc(timeout=timeout_s, metadata=metadata)
            try:
                async with asyncio.timeout(RPC_S):
                    with suppress(asyncio.InvalidStateError):  # it has ended already: reading raises the reason
                        await stream.write(request)
                    return stream, await stream.read()
            except BaseException:
                stream.cancel()
                raise

        stream, response = await self._called(call)
        at = self._at
        try:
            while response is not grpc.aio.EOF:
                yield response
                response = await stream.read()
        except grpc.aio.AioRpcError as error:
            raise self._failure(error, at) from None
        except asyncio.CancelledError:
            raise self._cut_off(at) from None
        finally:
            stream.cancel()

    async def _called(self, call: Callable[[grpc.aio.Channel, Any], Any]) -> Any:
        """One attempt, and another one with a new token if the present one counts no longer. Raises EtcdFailed."""
        for is_last in (False, True):
            at = self._at
            try:
                if self._access.user and not self._token:
                    await self._authenticate()
                token = [("token", self._token)] if self._token else []
                return await call(self._channel(at), [_LEADER_REQUIRED, *token])
            except TimeoutError:
                self._leave(at)
                text = f"etcd at {self._members[at]}: does not answer"
                raise EtcdFailed(text, is_unwritten=False, is_refused=False) from None
            except asyncio.CancelledError:
                raise self._cut_off(at) from None
            except grpc.aio.AioRpcError as error:
                if is_last or not self._token or not (error.details() or "").startswith(_OLD_TOKEN):
                    raise self._failure(error, at) from None
                self._token = ""
        raise AssertionError("unreachable")

    async def _authenticate(self) -> None:
        path = self._access.password_file
        try:
            password = b"" if path is None else read_guarded(path, "password for etcd", FileGuard.SECRET)
        except (OSError, UnusableFile) as error:
            raise EtcdFailed(f"--etcd-password-file: {error}", is_unwritten=True, is_refused=True) from None
        request = pb.AuthenticateRequest(
            name=self._access.user, password=password.decode("utf-8", "replace").rstrip("\r\n")
        )
        rpc = self._channel(self._at).unary_unary(
            "/etcdserverpb.Auth/Authenticate",
            pb.AuthenticateRequest.SerializeToString,
            pb.AuthenticateResponse.FromString,
        )
        self._token = (await rpc(request, timeout=RPC_S)).token

    def _channel(self, at: int) -> grpc.aio.Channel:
        if (channel := self._channels.get(at)) is None:
            if self._access.ca is None:
                channel = grpc.aio.insecure_channel(self._members[at], options=CHANNEL_OPTIONS)
            else:
                channel = grpc.aio.secure_channel(self._members[at], _credentials(self._access), CHANNEL_OPTIONS)
            self._channels[at] = channel
        return channel

    def _failure(self, error: grpc.aio.AioRpcError, at: int) -> EtcdFailed:
        """Has the next rpc use another member, unless the cluster has decided."""
        status, details = error.code().name, error.details() or ""
        is_decided = status in _REFUSED
        if not is_decided:
            self._leave(at)
        way_out = next((f": {text}" for begin, text in _WAYS_OUT.items() if details.startswith(begin)), "")
        if not way_out and details.startswith(_NOT_SENT):
            way_out = next((f": {text}" for part, text in _OF_CERTIFICATES.items() if part in details), "")
        return EtcdFailed(
            f"etcd at {self._members[at]}: {details or status}{way_out}",
            is_unwritten=(is_decided and not details.startswith(_NO_SPACE)) or details.startswith(_NOT_SENT),
            is_refused=is_decided and not details.startswith(_PASSING),
        )

    def _cut_off(self, at: int) -> BaseException:
        """What a CancelledError is: this task's own, or that of an rpc which was cut off with its channel."""
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            return asyncio.CancelledError()
        text = f"etcd at {self._members[at]}: the connection was closed"
        return EtcdFailed(text, is_unwritten=False, is_refused=False)

    def _leave(self, at: int) -> None:
        """The next rpc uses another member. A later one here connects anew, with the certificates of that time."""
        if self._at == at:
            self._at = (at + 1) % len(self._members)
        if (channel := self._channels.pop(at, None)) is not None:
            closing = asyncio.ensure_future(channel.close(_CLOSING_S))
            _CLOSING.add(closing)
            closing.add_done_callback(_CLOSING.discard)


_CLOSING: Final[set[asyncio.Future[None]]] = set()
"""Channels that end once their last rpc does."""


def _credentials(access: EtcdAccess) -> grpc.ChannelCredentials:
    """Raises EtcdFailed."""
    try:
        ca = authorities_in(access.ca).encode() if access.ca is not None else None
        key = None if access.key is None else read_guarded(access.key, "key for etcd", FileGuard.SECRET)
        return grpc.ssl_channel_credentials(ca, key, None if access.cert is None else access.cert.read_bytes())
    except (OSError, UnusableFile) as error:
        raise EtcdFailed(f"certificates for etcd: {error}", is_unwritten=True, is_refused=True) from None


def _kv(it: pb.KeyValue) -> Kv:
    return Kv(it.key, it.value, it.create_revision, it.mod_revision, it.lease)


def _compare(condition: Is) -> pb.Compare:
    if condition.lease is not None:
        return pb.Compare(target=pb.COMPARE_TARGET_LEASE, key=condition.key, lease=condition.lease)
    if condition.created is not None:
        return pb.Compare(target=pb.COMPARE_TARGET_CREATE, key=condition.key, create_revision=condition.created)
    return pb.Compare(target=pb.COMPARE_TARGET_MOD, key=condition.key, mod_revision=condition.modified or 0)


def _operation(it: KeyOperation) -> pb.RequestOp:
    if isinstance(it, Put):
        return pb.RequestOp(request_put=pb.PutRequest(key=it.key, value=it.value, lease=it.lease))
    if isinstance(it, Delete):
        return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=it.key, range_end=it.end))
    return pb.RequestOp(request_range=pb.RangeRequest(key=it.key, range_end=it.end, limit=it.limit))
