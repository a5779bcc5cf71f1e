"""Requests to the members of an etcd cluster over connections of the package etcd3.

Repeatable requests try member after member until one replies. A change that must not be repeated is sent
once, and only over a connection that worked a moment ago. This separates "certainly not applied" from
"perhaps applied", and nothing is sent to an older copy of the data. Each request has a deadline. Errors of
the SDK do not leave this module.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import math
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from archiver.proto import etcd_auth_pb2, etcd_kv_pb2, etcd_rpc_pb2
from archiver.proto import etcd_rpc_pb2 as rpc
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Corrupted, Halt, OutcomeUnknown, RetryLater

# --- The import of etcd3, with message modules that load.
PACKAGE: Final = "etcd3.etcdrpc"
_IMPORT_TIMEOUT_S: Final = 60.0


def import_etcd3() -> Any:
    """The package etcd3, imported with the archiver's message modules unless already imported."""
    # etcd3 0.12.0 has message modules that do not load with protobuf 4 or newer. Ours have the same
    # packages and field numbers, and must be registered before the first import.
    if "etcd3" not in sys.modules:
        services = types.ModuleType(f"{PACKAGE}.rpc_pb2_grpc")
        services.__dict__.update({f"{name}Stub": _stub(service) for name, service in _services().items()})
        ours = {
            "kv_pb2": etcd_kv_pb2,
            "auth_pb2": etcd_auth_pb2,
            "rpc_pb2": etcd_rpc_pb2,
            "rpc_pb2_grpc": services,
        }
        sys.modules.update({f"{PACKAGE}.{name}": module for name, module in ours.items()})
        # grpc logs every connection attempt; failures that matter arrive as errors.
        logging.getLogger("grpc").setLevel(logging.CRITICAL)
    return importlib.import_module("etcd3")


def stubs_of_etcd3_load() -> bool:
    """Whether etcd3 loads with its own message modules, tried in a new process. If so, this file is
    obsolete.
    """
    # A new process: in this one `sys.modules` already has our modules.
    tried = subprocess.run(
        [sys.executable, "-c", "import etcd3"], capture_output=True, timeout=_IMPORT_TIMEOUT_S, check=False
    )
    return tried.returncode == 0


def _services() -> dict[str, Any]:
    return dict(etcd_rpc_pb2.DESCRIPTOR.services_by_name)


def _stub(service: Any) -> type:
    """A stub class like those of grpcio's generator: constructed with a channel, it has one callable per
    method.

    It is built from the descriptor. Generated stub files would require a certain version of grpcio.
    """

    def connect(self: Any, channel: Any) -> None:
        for method in service.methods:
            kinds = (
                "stream" if method.client_streaming else "unary",
                "stream" if method.server_streaming else "unary",
            )
            # `unary_unary`, `unary_stream` and so on: the channel's factory for this kind of method.
            call = getattr(channel, "_".join(kinds))(
                f"/{service.full_name}/{method.name}",
                request_serializer=getattr(etcd_rpc_pb2, method.input_type.name).SerializeToString,
                response_deserializer=getattr(etcd_rpc_pb2, method.output_type.name).FromString,
            )
            setattr(self, method.name, call)

    return type(
        f"{service.name}Stub", (), {"__init__": connect, "__doc__": f"The service {service.full_name}."}
    )


# --- Members and their replies.
MESSAGE_BYTES_MAX: Final = 16 * 2**20
"""Largest reply; reads request less (`archiver.log.etcd.log_store`)."""
PROOF_S: Final = 0.1
"""Seconds for which a reply proves that the connection works and reaches the same data. Stopping a member,
restoring the smallest backup and starting it took 0.3 s. A less frequent append first reads one key."""
# First wait before grpc connects again; its default of 1 s delays every reconnect.
_RECONNECT_MS: Final = 100
_HAS_LEADER: Final = ("hasleader", "true")
"""With this metadata a member without a leader fails at once instead of after the timeout."""

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Access:
    """Addresses, TLS files and credentials of a cluster."""

    addresses: Sequence[str]
    """host:port of each member."""
    timeout_s: float
    """Timeout of one request to one member."""
    ca_file: Path | None = None
    """CA of the members' certificates; None for plaintext connections."""
    cert_file: Path | None = None
    key_file: Path | None = None
    user: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Access({', '.join(self.addresses)})"


class NoSpace(Exception):
    """The quota is exhausted. The request that got this reply may have been applied; later ones are not."""


class AnswerTooLarge(Exception):
    """The reply does not fit into a message: request less."""


class LeaseGone(Exception):
    """The lease does not exist or has expired."""


class _Failed(Exception):
    """A request to one member failed. `sent` tells whether it may still have been applied."""

    def __init__(self, why: str, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class _TokenOld(Exception):
    """The member rejects the token, so the request was not applied; get a new token."""


class _Member:
    """One member: a connection, a token, and the time of its last reply."""

    def __init__(self, access: Access, address: str, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        # Monotonic time of the last reply; None before the first one and after a failure.
        self._answered_s: float | None = None
        self._access = access
        self._lock = threading.Lock()
        self._client: Any = None
        self._auth: Any = None
        self._token: str | None = None

    def call(self, service: str, method: str, request: Any, timeout_s: float, renewed: bool = False) -> Any:
        """The reply to one request. Raises `_Failed`, `NoSpace`, `AnswerTooLarge`, `LeaseGone`, or an error
        that every member would give.
        """
        try:
            client, metadata = self._ready(timeout_s)
            ask = getattr(getattr(client, service), method)
            # etcd offers the refresh only as a stream. One request and one reply are enough, so the stream
            # is ended.
            if method == "LeaseKeepAlive":
                stream = ask(iter((request,)), timeout=timeout_s, metadata=metadata)
                answer = next(stream)
                stream.cancel()
            else:
                answer = ask(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            problem = self._classify(error)
        except (
            ValueError,
            StopIteration,
        ) as error:
            # Another thread closed the connection, or the member ended the stream. The request may have left
            # before, so it counts as sent.
            problem = _Failed(f"etcd at {self.address} ended the reply: {error!r}", sent=True)
        else:
            self._answered_s = self._clock.monotonic_s()
            return answer
        if isinstance(problem, _TokenOld):
            # One renewal per request: a new token that is rejected too will not become valid by repetition.
            if renewed or self._access.user is None:
                raise Halt(
                    f"etcd at {self.address} rejects the token of user {self._access.user}: {problem}"
                ) from problem
            # etcd rejects the token before it applies anything, so the request may be sent again.
            self._token = None
            return self.call(service, method, request, timeout_s, renewed=True)
        # After a failure the member may be another one, or an older copy; the next change probes first.
        if isinstance(problem, _Failed):
            self._answered_s = None
        raise problem

    @property
    def proven(self) -> bool:
        """Whether it replied within `PROOF_S` and no request failed since."""
        answered_s = self._answered_s
        return answered_s is not None and self._clock.monotonic_s() - answered_s < PROOF_S

    def close(self) -> None:
        with self._lock:
            client, self._client, self._token, self._answered_s = self._client, None, None, None
        if client is not None:
            client.close()

    def _ready(self, timeout_s: float) -> tuple[Any, tuple[tuple[str, str], ...]]:
        access = self._access
        with self._lock:
            if self._client is None:
                self._client = self._connect()
            client, auth = self._client, self._auth
        if access.user is None:
            return client, (_HAS_LEADER,)
        # Not under the lock, because it is a request. Two threads may both get a token; both tokens are
        # valid.
        token = self._token
        if token is None:
            request = rpc.AuthenticateRequest(name=access.user, password=access.password or "")
            self._token = token = str(
                auth.Authenticate(request, timeout=timeout_s, metadata=(_HAS_LEADER,)).token
            )
        return client, (_HAS_LEADER, ("token", token))

    def _connect(self) -> Any:
        access, etcd3 = self._access, import_etcd3()
        host, _, port = self.address.rpartition(":")
        options = {
            "grpc.max_receive_message_length": MESSAGE_BYTES_MAX,
            # grpc must not repeat a request: this module decides which ones may be sent twice.
            "grpc.enable_retries": 0,
            # Otherwise grpc shares one connection, with its backoff, between all channels to an address.
            "grpc.use_local_subchannel_pool": 1,
            "grpc.initial_reconnect_backoff_ms": _RECONNECT_MS,
            # At most half the timeout of a request between two connection attempts. The next line is the
            # time for one attempt, which grpc sets to 20 s by default.
            "grpc.max_reconnect_backoff_ms": max(_RECONNECT_MS, round(access.timeout_s * 500)),
            "grpc.min_reconnect_backoff_ms": max(_RECONNECT_MS, round(access.timeout_s * 1000)),
        }
        try:
            client = etcd3.client(
                host=host,
                port=int(port),
                ca_cert=_text(access.ca_file),
                cert_cert=_text(access.cert_file),
                cert_key=_text(access.key_file),
                timeout=access.timeout_s,
                grpc_options=list(options.items()),
            )
        except OSError as error:
            raise Halt(
                f"a file of metadata.etcd.tls cannot be read: {error.filename}: {error.strerror}"
            ) from error
        # Authentication is done here: etcd3 sends the token only over TLS and never renews an expired one.
        self._auth = etcd3.etcdrpc.AuthStub(client.channel)
        return client

    def _classify(self, error: Any) -> Exception:
        """Map a gRPC error to the errors of this module."""
        code, details = error.code().name, str(error.details() or "no reason given")
        where = f"etcd at {self.address}"
        # The text decides where etcd uses one gRPC code for several errors.
        if "database space exceeded" in details:
            return NoSpace(f"{where}: {details}")
        if code == "RESOURCE_EXHAUSTED" and "larger than max" in details:
            return AnswerTooLarge(details)
        if "lease not found" in details:
            return LeaseGone(details)
        if (
            code == "UNAUTHENTICATED"
            or "auth store is old" in details
            or ("user name is empty" in details and self._access.user is not None)
        ):
            return _TokenOld(details)
        # Chained by hand, because the caller raises the returned error.
        # "too many requests" is etcd's own throttle, which acts before the request is proposed to the
        # quorum.
        problem: Exception = self._permanent_error(code, details) or _Failed(
            f"{where}: {code.lower().replace('_', ' ')}: {details}", sent="too many requests" not in details
        )
        problem.__cause__ = error
        return problem

    def _permanent_error(self, code: str, details: str) -> ArchiverError | None:
        """The permanent error if every member would refuse the request; it was not applied. None
        otherwise.
        """
        where, user = f"etcd at {self.address}", self._access.user
        if "user name is empty" in details:
            return Halt(f"{where} requires authentication: set metadata.etcd.user and password")
        if "authentication failed" in details:
            return Halt(f"{where} refuses user {user}: {details}; correct metadata.etcd.user or password")
        if "authentication is not enabled" in details:
            return Halt(
                f"{where} has authentication disabled, so every client that reaches it has full access; "
                "enable its authentication, or remove metadata.etcd.user and password"
            )
        if code == "PERMISSION_DENIED":
            return Halt(
                f"{where}: user {user} has no permission for that; grant it readwrite for all keys below "
                "metadata.etcd.prefix"
            )
        if "request is too large" in details:
            return Halt(
                f"{where} refuses an entry because of its size: set its --max-request-bytes to at least 1.5 "
                "MiB, or lower log.entry_bytes_max"
            )
        if code == "DATA_LOSS" or "corrupt cluster" in details:
            return Corrupted(f"{where} reports damaged data: {details}; see `etcdctl alarm list`")
        return None


# --- All members as one client.
class EtcdCluster:
    """All members as one client. Safe for several threads; not across a fork."""

    def __init__(self, access: Access, probe: bytes, clock: Clock) -> None:
        """`probe` is a readable key that need not exist: reading it shows that a connection works."""
        self.access = access
        self._probe = rpc.TxnRequest(
            success=[rpc.RequestOp(request_range=rpc.RangeRequest(key=probe, keys_only=True))]
        )
        self._members = [_Member(access, address, clock) for address in access.addresses]
        self._current = 0
        self._lock = threading.Lock()
        # grpc's threads do not survive a fork, so a child process must not use these connections.
        self._pid = os.getpid()
        self._closed = False
        # The cluster id of the first reply.
        self._identity: int | None = None
        # The highest revision in any reply. An older copy of the data has a lower one.
        self._revision = 0

    @property
    def name(self) -> str:
        """The cluster's name in messages."""
        return f"etcd at {', '.join(self.access.addresses)}"

    def close(self) -> None:
        """Close every connection; no request is possible afterwards."""
        self._closed = True
        for member in self._members:
            member.close()

    def ask(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        """The reply to a transaction that only reads, or that is harmless when applied twice or late.

        Tries each member, the first of them twice. Raises `RetryLater` if none replied; a change may still
        have been applied then. Raises `NoSpace` and `AnswerTooLarge`.
        """
        # Read before the request: a concurrent request may raise it while this reply is on its way.
        seen = self._revision
        answer: rpc.TxnResponse = self._try_members(
            lambda member: member.call("kvstub", "Txn", request, self.access.timeout_s)
        )
        self._check_header(answer.header, seen)
        return answer

    def change(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        """The reply to a transaction that is sent at most once.

        Raises `OutcomeUnknown` if it was sent and may be applied now or later, and `RetryLater` if it was
        certainly not applied. Raises `NoSpace`.
        """
        seen = self._revision

        def once(member: _Member) -> Any:
            if not member.proven:
                self._prove(member)
            try:
                return member.call("kvstub", "Txn", request, self.access.timeout_s)
            except _Failed as error:
                # Certainly not applied, so the next member may be tried.
                if not error.sent:
                    raise
                # The caller sends the same entry again (rule L2). It should then reach a member that
                # replies.
                self._switch_from(member)
                raise OutcomeUnknown(f"it may have been applied: {error}") from error

        answer: rpc.TxnResponse = self._try_members(once)
        try:
            self._check_header(answer.header, seen)
        # The change was applied somewhere, perhaps to an older copy, so it did not certainly fail.
        except Halt as error:
            raise OutcomeUnknown(f"it was sent, but {error}") from error
        return answer

    def lease(self, method: str, request: Any, once: bool = False, timeout_s: float = math.inf) -> Any:
        """The reply to a lease request from any member; with `once` only the first member is tried.

        Errors as `ask`, and `LeaseGone`. The timeout per member is `timeout_s`, at most that of other
        requests.
        """
        limit_s = min(timeout_s, self.access.timeout_s)
        return self._try_members(lambda member: member.call("leasestub", method, request, limit_s), once)

    def revoke(self, lease_id: int, timeout_s: float) -> None:
        """End a lease; no effect if it has ended. Errors as `lease`, but for `LeaseGone`."""
        # Sent to one member only: a release must not delay a shutdown, and the TTL ends the lease anyway.
        with contextlib.suppress(LeaseGone):
            self.lease("LeaseRevoke", rpc.LeaseRevokeRequest(ID=lease_id), once=True, timeout_s=timeout_s)

    def _prove(self, member: _Member) -> None:
        """Check that the connection works and reaches the same cluster, before a request that must be sent
        only once.
        """
        seen = self._revision
        try:
            answer = member.call("kvstub", "Txn", self._probe, self.access.timeout_s)
        except _Failed as error:
            # The change itself was not sent, only the probe. So the next member may be tried.
            raise _Failed(str(error), sent=False) from error
        self._check_header(answer.header, seen)

    def _try_members(self, call: Callable[[_Member], _T], once: bool = False) -> _T:
        """Try each member, and the first one again at the end: only its connection may have been stale."""
        if self._pid != os.getpid():
            raise Halt(
                f"process {os.getpid()} was forked from {self._pid} while {self.name} was connected, "
                "which its connections do not survive; "
                "start a new process instead of forking"
            )
        failures: dict[str, str] = {}
        for _ in range(1 if once else len(self._members) + 1):
            if self._closed:
                raise Halt(f"{self.name}: this process closed the connection")
            with self._lock:
                # The lock is not held during the request: a slow member must not block other threads.
                member = self._members[self._current]
            try:
                return call(member)
            except _Failed as error:
                failures[member.address] = str(error)
                self._switch_from(member)
        raise RetryLater(f"no member of the metadata store answers: {'; '.join(failures.values())}")

    def _switch_from(self, member: _Member) -> None:
        with self._lock:
            # Another thread may have switched already. A second switch would skip a member that was not
            # tried.
            if self._members[self._current] is member:
                self._current = (self._current + 1) % len(self._members)

    def _check_header(self, header: rpc.ResponseHeader, seen: int) -> None:
        """Reject a reply from another cluster, or from an older state than this process has seen."""
        with self._lock:
            # The first reply decides which cluster is the right one for the life of this process.
            if self._identity is None:
                self._identity = header.cluster_id
            known = self._identity
            self._revision = max(self._revision, header.revision)
        if header.cluster_id != known:
            raise Halt(
                f"{self.name}: another cluster answers now ({header.cluster_id:x}, before {known:x}); "
                "stop every process of this "
                "deployment, find out which of them has the newest entries, and start again with that "
                "one only"
            )
        # The request saw this revision before it was sent, and linearizable reads never go back.
        if header.revision < seen:
            raise Halt(
                f"{self.name} went back from revision {seen} to {header.revision}: an older copy was "
                "restored; put the newest one in "
                "place. Nothing is sequenced until then, because offsets would be assigned twice"
            )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
