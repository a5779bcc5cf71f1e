"""The settings of the metadata store, which holds the logs.

Plain values only. The docstring under a key is its entry in docs/configuration.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StrictBool, model_validator

from archiver.config.types import Duration, FilePath, Group, Listen, Located, Secret, host_of, is_loopback
from archiver.runtime.text import counted

# Clusters of etcd normally have at most seven members; the rest is room for a move.
_MEMBERS_MAX = 16


class SqliteSettings(Group):
    """The embedded metadata store: one SQLite file for both logs, for one machine."""

    path: FilePath
    """The database file; created if missing. It must be on a local disk: file locks of network file systems
    are unreliable."""
    busy_timeout: Annotated[Duration, Field(gt=0, le=600)] = 30.0
    """Longest wait of an append for another process's transaction; then the append fails without effect.
    Default 30 s: a transaction takes milliseconds, so longer waits mean a stuck disk."""


class EtcdTlsSettings(Group):
    """Certificates for etcd. Its certificate is always verified and must name the address in use."""

    ca_file: FilePath
    """PEM file of the authorities that may sign the members' certificates. For a public authority, use the
    system's bundle."""
    cert_file: FilePath | None = None
    """PEM file of the client certificate, together with `key_file`. Default: none. Set it if etcd requires
    one (`--client-cert-auth`)."""
    key_file: FilePath | None = None
    """PEM file of the client certificate's key. Only the archiver's user should be able to read it."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[tuple[tuple[str | int, ...], str]] = [
            ((name,), f"there is no file {path}")
            for name in ("ca_file", "cert_file", "key_file")
            if (path := getattr(self, name)) is not None and not path.is_file()
        ]
        # A certificate without its key cannot be presented, and grpc reports that only at the first
        # request.
        if (self.cert_file is None) != (self.key_file is None):
            missing = "cert_file" if self.cert_file is None else "key_file"
            problems.append(((missing,), "cert_file and key_file belong together; state both, or neither"))
        if problems:
            raise Located(problems)
        return self


class EtcdSettings(Group):
    """An etcd cluster as the metadata store for several machines: both logs and the leader lease ([its
    page](operations/etcd.md)).
    """

    addresses: tuple[Listen, ...]
    """`host:port` of each member, 1 to 16. One member is used until it does not answer, then the next. Name
    all of them, so that any one may fail."""
    prefix: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", max_length=200)] = "/archiver"
    """Prefix of all etcd keys: a slash and A-Z a-z 0-9 . _ -, once or more. Default `/archiver`. Set a
    different one for each deployment in the same etcd."""
    state: FilePath = Path("/var/lib/stream-archiver")
    """Folder for the local state of a machine; created if its parent exists. It holds the token that the
    daemon made (`etcd.admin-token`). It holds the last known ends of the logs (`etcd.intake.tail`,
    `etcd.control.tail`), which detect an older copy of etcd's data. It also holds the locked file of a lease
    holder (`etcd.leader.lease`), with which a restarted daemon leads at once. It holds the charts of the
    status page (`etcd.charts`) and results of commands (`etcd.audit-result`). It may be lost."""
    tls: EtcdTlsSettings | None = None
    """Encrypted connections. Default: none. Required for members on other machines unless `insecure` is
    set."""
    insecure: StrictBool = False
    """Whether members on other machines may be used without encryption. Others can then read the password and
    the schemas, and change the logs. Default `false`. Set it only on a trusted network; addresses of this
    machine (127.0.0.1, ::1, localhost) are always allowed."""
    user: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The etcd user, together with `password`. Default: none. Set it if etcd's authentication is on. The user
    needs readwrite permission on the keys below `prefix`."""
    password: Secret | None = None
    """The password of `user`, as `{env: NAME}` or `{file: PATH}`."""
    request_timeout: Annotated[Duration, Field(ge=0.1, le=60)] = 5.0
    """Longest time for one answer of one member before the next member is tried. An append without an answer
    has an unknown outcome and is repeated until the outcome is known. Default 5 s: an answer takes
    milliseconds, so seconds mean that the member hangs or has no leader."""
    lease_ttl: Annotated[Duration, Field(ge=2, le=600)] = 30.0
    """How long the lease of a dead or disconnected leader keeps daemons on other machines from leading, in
    whole seconds. Default 30 s. A daemon restarted on the same machine with the same `state` folder does not
    wait. The holder refreshes the lease after each third of this time, and a member has as long to answer.
    Lower it, for example to 5 s, if a second machine must take over soon. A pause of some seconds may then
    end the lease, which costs time but no records."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[tuple[tuple[str | int, ...], str]] = []
        if not 1 <= len(self.addresses) <= _MEMBERS_MAX:
            problems.append(
                (
                    ("addresses",),
                    f"names {counted(len(self.addresses), 'member')}; 1 to {_MEMBERS_MAX} are possible",
                )
            )
        for place, address in enumerate(self.addresses):
            # A member listed twice would be tried twice in an outage.
            if address in self.addresses[:place]:
                problems.append((("addresses", place), f"{address} is listed twice"))
            # `HOST:0` is valid for an address to listen on, which this type is made for.
            elif int(address.rpartition(":")[2]) == 0:
                problems.append(
                    (
                        ("addresses", place),
                        f"{address} has no port; etcd's default client port is 2379",
                    )
                )
            elif self.tls is None and not self.insecure and not is_loopback(host_of(address)):
                why = (
                    "is another machine, and without tls others can read and change the logs on the way; "
                    "give tls: {ca_file: FILE}, or set"
                )
                problems.append((("addresses", place), f"{address} {why} insecure: true"))
        if (self.user is None) != (self.password is None):
            missing = "user" if self.user is None else "password"
            problems.append(((missing,), "user and password belong together; state both, or neither"))
        if problems:
            raise Located(problems)
        return self


class MetadataSettings(Group):
    """The metadata store, which holds the logs. Exactly one of the keys."""

    sqlite: SqliteSettings | None = None
    """The embedded store, for one machine."""
    etcd: EtcdSettings | None = None
    """An etcd cluster, for several machines."""

    @model_validator(mode="after")
    def _one_store(self) -> Self:
        if self.etcd is None and self.sqlite is None:
            raise Located(
                [
                    (
                        (),
                        (
                            "names no metadata store; add sqlite: {path: FILE}, or etcd: {addresses: "
                            "[HOST:PORT, …]}"
                        ),
                    )
                ]
            )
        # Logs cannot be split: offsets follow from one log.
        if self.etcd is not None and self.sqlite is not None:
            raise Located([((), "names two metadata stores, sqlite and etcd; keep one")])
        return self

    @property
    def local_path(self) -> Path:
        """The path prefix of this machine's local state files: each is this path with a suffix."""
        if self.sqlite is not None:
            return self.sqlite.path
        assert self.etcd is not None, "one of them is there"
        return self.etcd.state / "etcd"
