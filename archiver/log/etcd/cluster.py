"""The members of an etcd cluster, and what an answer, or none, of theirs means.

Owns connections, tokens, deadlines and the way from one member to the next. Requests that may be repeated go
from member to member until one answers; a change that must not be repeated blindly is sent once, and only
over a connection that was seen to work a moment ago. So "certainly not applied" and "perhaps applied" are
told apart, and nothing is sent to an older copy of the data. Each request has a deadline. Reads are
linearizable: a member that is behind or cut off answers late or not at all, never with an old state. Errors
of the SDK end here.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import grpc

from archiver.log.etcd.stubs import import_etcd3
from archiver.proto import etcd_rpc_pb2 as rpc
from archiver.runtime.clock import Clock
from archiver.runtime.errors import ArchiverError, Corrupted, Halt, OutcomeUnknown, RetryLater

MESSAGE_BYTES_MAX: Final = 16 * 2**20
"""Of an answer; whoever reads asks for less (`archiver.log.etcd.log_store`)."""
PROOF_S: Final = 0.1
"""So long an answer shows that the connection works, and that the data behind it are still the same: to end a
member, restore the smallest backup and start it took 0.3 s. Whoever appends less often asks for one key
before."""
_RECONNECT_MS: Final = 100
_HAS_LEADER: Final = ("hasleader", "true")
"""A member that has lost its leader says so at once, instead of letting us wait."""

_logger = logging.getLogger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True)
class Access:
    """How a cluster is reached."""

    addresses: Sequence[str]
    """host:port of each member."""
    timeout_s: float
    """Of one request to one member."""
    ca_file: Path | None = None
    """Who has signed the members' certificates; None for connections in the clear."""
    cert_file: Path | None = None
    key_file: Path | None = None
    user: str | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"Access({', '.join(self.addresses)})"


class NoSpace(Exception):
    """The quota is used up. The very request that was answered so may have been applied, none that comes
    after it is.
    """


class AnswerTooLarge(Exception):
    """The answer does not fit into a message: ask for less."""


class LeaseGone(Exception):
    """There is no such lease (any more)."""


class _Failed(Exception):
    """One member did not do it. `sent` says whether it may have been applied all the same."""

    def __init__(self, why: str, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class _TokenOld(Exception):
    """The member does not take the token: it was applied by nobody; get a new one."""


class _Member:
    """One member: a connection, a token, and when a request over it came back last."""

    def __init__(self, access: Access, address: str, clock: Clock) -> None:
        self.address = address
        self._clock = clock
        self._answered_s: float | None = None
        self._access = access
        self._lock = threading.Lock()
        self._client: Any = None
        self._auth: Any = None
        self._token: str | None = None

    def call(self, service: str, method: str, request: Any, timeout_s: float, renewed: bool = False) -> Any:
        """The answer to one request. Raises `_Failed`, `NoSpace`, `AnswerTooLarge`, `LeaseGone`, or what no
        other member would change.
        """
        try:
            client, metadata = self._ready(timeout_s)
            ask = getattr(getattr(client, service), method)
            if method == "LeaseKeepAlive":
                stream = ask(iter((request,)), timeout=timeout_s, metadata=metadata)
                answer = next(stream)
                stream.cancel()
            else:
                answer = ask(request, timeout=timeout_s, metadata=metadata)
        except grpc.RpcError as error:
            problem = self._judged(error)
        except (
            ValueError,
            StopIteration,
        ) as error:  # the connection was closed by another thread, or the stream by the member
            problem = _Failed(f"etcd at {self.address} ended the answer: {error!r}", sent=True)
        else:
            self._answered_s = self._clock.monotonic_s()
            return answer
        if isinstance(problem, _TokenOld):
            if renewed or self._access.user is None:
                raise Halt(
                    f"etcd at {self.address} does not take the token of user {self._access.user}: {problem}"
                ) from problem
            self._token = None
            return self.call(service, method, request, timeout_s, renewed=True)
        if isinstance(problem, _Failed):
            self._answered_s = None
        raise problem

    @property
    def proven(self) -> bool:
        """It answered a moment ago, and nothing failed since."""
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
            # A request is repeated by us or not at all.
            "grpc.enable_retries": 0,
            "grpc.use_local_subchannel_pool": 1,
            "grpc.initial_reconnect_backoff_ms": _RECONNECT_MS,
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
        # The package would send the token only over TLS, and never asks for a new one when it has expired.
        self._auth = etcd3.etcdrpc.AuthStub(client.channel)
        return client

    def _judged(self, error: Any) -> Exception:
        """What an error of the protocol means."""
        code, details = error.code().name, str(error.details() or "no reason given")
        where = f"etcd at {self.address}"
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
        # The SDK's error is chained by whoever raises what is returned here.
        problem: Exception = self._refused(code, details) or _Failed(
            f"{where}: {code.lower().replace('_', ' ')}: {details}", sent="too many requests" not in details
        )
        problem.__cause__ = error
        return problem

    def _refused(self, code: str, details: str) -> ArchiverError | None:
        """The error for good, if the members were asked for what none of them will do; it was not applied."""
        where, user = f"etcd at {self.address}", self._access.user
        if "user name is empty" in details:
            return Halt(f"{where} wants to know who asks: give metadata.etcd.user and password")
        if "authentication failed" in details:
            return Halt(f"{where} refuses user {user}: {details}; correct metadata.etcd.user or password")
        if "authentication is not enabled" in details:
            return Halt(
                f"{where} knows no users, so whoever reaches it may do anything; switch its "
                "authentication on, or take "
                "metadata.etcd.user and password out"
            )
        if code == "PERMISSION_DENIED":
            return Halt(
                f"{where}: user {user} may not do that; grant it readwrite for everything below "
                "metadata.etcd.prefix"
            )
        if "request is too large" in details:
            return Halt(
                f"{where} refuses an entry for its size: set its --max-request-bytes to at least 1.5 "
                "MiB, or lower log.entry_bytes_max"
            )
        if code == "DATA_LOSS" or "corrupt cluster" in details:
            return Corrupted(f"{where} says that its data are damaged: {details}; see `etcdctl alarm list`")
        return None


class EtcdCluster:
    """The members as one. Safe for several threads; not across a fork."""

    def __init__(self, access: Access, probe: bytes, clock: Clock) -> None:
        """`probe` is a key that may be read, there or not: reading it shows that a connection works."""
        self.access = access
        self._probe = rpc.TxnRequest(
            success=[rpc.RequestOp(request_range=rpc.RangeRequest(key=probe, keys_only=True))]
        )
        self._members = [_Member(access, address, clock) for address in access.addresses]
        self._current = 0
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._identity: int | None = None
        self._revision = 0

    @property
    def name(self) -> str:
        """For messages."""
        return f"etcd at {', '.join(self.access.addresses)}"

    def close(self) -> None:
        """Close every connection; nothing can be asked any more."""
        self._closed = True
        for member in self._members:
            member.close()

    def ask(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        """The answer to a transaction that only reads, or that is harmless when it is applied twice or late.

        Each member is tried, the first of them twice; `RetryLater` if none answered (of a change that may
        mean that it was applied). Raises `NoSpace` and `AnswerTooLarge`.
        """
        seen = self._revision
        answer: rpc.TxnResponse = self._anywhere(
            lambda member: member.call("kvstub", "Txn", request, self.access.timeout_s)
        )
        self._notice(answer.header, seen)
        return answer

    def change(self, request: rpc.TxnRequest) -> rpc.TxnResponse:
        """The answer to a transaction, sent at most once.

        `OutcomeUnknown` if it was sent and may or may not be applied, now or later; `RetryLater` if it was
        certainly not applied. Raises `NoSpace`.
        """
        seen = self._revision

        def once(member: _Member) -> Any:
            if not member.proven:
                self._prove(member)
            try:
                return member.call("kvstub", "Txn", request, self.access.timeout_s)
            except _Failed as error:
                if not error.sent:
                    raise
                self._leave(member)
                raise OutcomeUnknown(f"it may have been applied: {error}") from error

        answer: rpc.TxnResponse = self._anywhere(once)
        try:
            self._notice(answer.header, seen)
        except Halt as error:
            raise OutcomeUnknown(f"it was sent, but {error}") from error
        return answer

    def lease(self, method: str, request: Any, once: bool = False, timeout_s: float = math.inf) -> Any:
        """The answer to a request about a lease, from any member, or with `once` from the one that is asked
        first; as `ask`, and `LeaseGone`. A member may take `timeout_s`, and never longer than for other
        requests.
        """
        limit_s = min(timeout_s, self.access.timeout_s)
        return self._anywhere(lambda member: member.call("leasestub", method, request, limit_s), once)

    def _prove(self, member: _Member) -> None:
        """Make sure that the connection works, and who is behind it, before anything is sent that must not be
        sent twice.
        """
        seen = self._revision
        try:
            answer = member.call("kvstub", "Txn", self._probe, self.access.timeout_s)
        except _Failed as error:
            raise _Failed(str(error), sent=False) from error
        self._notice(answer.header, seen)

    def _anywhere(self, call: Callable[[_Member], _T], once: bool = False) -> _T:
        """From member to member, the first again at the end: its connection may only have been old."""
        if self._pid != os.getpid():
            raise Halt(
                f"process {os.getpid()} was forked from {self._pid} while {self.name} was connected, "
                "which its connections do not survive; "
                "start a new process instead of forking"
            )
        said: dict[str, str] = {}
        for _ in range(1 if once else len(self._members) + 1):
            if self._closed:
                raise Halt(f"{self.name}: it was closed by this process")
            with self._lock:
                member = self._members[self._current]
            try:
                return call(member)
            except _Failed as error:
                said[member.address] = str(error)
                self._leave(member)
        raise RetryLater(f"no member of the metadata store answers: {'; '.join(said.values())}")

    def _leave(self, member: _Member) -> None:
        with self._lock:
            if self._members[self._current] is member:
                self._current = (self._current + 1) % len(self._members)

    def _notice(self, header: rpc.ResponseHeader, seen: int) -> None:
        """Refuse an answer of another cluster, or of an older state than this process has seen: nothing may
        be sequenced on it.
        """
        with self._lock:
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
        if header.revision < seen:
            raise Halt(
                f"{self.name} went back from revision {seen} to {header.revision}: an older copy was "
                "put in place; put the newest one in "
                "place. Nothing is sequenced until then, because offsets would be given twice"
            )


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
