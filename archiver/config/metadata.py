"""The metadata store's settings: where the logs are.

Plain values only. The text under a key is its entry in docs/configuration.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, StrictBool, model_validator

from archiver.config.types import Duration, FilePath, Group, Listen, Located, Secret, host_of, is_loopback
from archiver.runtime.text import counted

_MEMBERS_MAX = 16


class SqliteSettings(Group):
    """The embedded metadata store: one SQLite file for both logs, for one machine."""

    path: FilePath
    """The database file, on a local disk (never a network file system: its locks cannot be trusted). Created
    if missing."""
    busy_timeout: Annotated[Duration, Field(gt=0, le=600)] = 30.0
    """How long an append waits for another process's transaction before it counts as *nothing happened*.
    Transactions take milliseconds, so half a minute means a stuck disk."""


class EtcdTlsSettings(Group):
    """How etcd is known, and how we are known to it. Its certificate is always verified, and must name the
    address that is asked.
    """

    ca_file: FilePath
    """PEM file of the authorities that may vouch for the members' certificates. For a public authority, the
    system's bundle."""
    cert_file: FilePath | None = None
    """PEM file of our own certificate, where etcd asks for one (`--client-cert-auth`). With `key_file`, or
    neither."""
    key_file: FilePath | None = None
    """PEM file of its key, which nobody else should be able to read."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: list[tuple[tuple[str | int, ...], str]] = [
            ((name,), f"there is no file {path}")
            for name in ("ca_file", "cert_file", "key_file")
            if (path := getattr(self, name)) is not None and not path.is_file()
        ]
        if (self.cert_file is None) != (self.key_file is None):
            missing = "cert_file" if self.cert_file is None else "key_file"
            problems.append(((missing,), "cert_file and key_file belong together; state both, or neither"))
        if problems:
            raise Located(problems)
        return self


class EtcdSettings(Group):
    """A metadata store for several machines: both logs, and who leads, in an etcd cluster ([its
    page](operations/etcd.md)).
    """

    addresses: tuple[Listen, ...]
    """`host:port` of each member, 1 to 16. One is asked until it does not answer, then the next; name them
    all, so that any of them may be away."""
    prefix: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._-]+)+$", max_length=200)] = "/archiver"
    """Everything is kept in keys below it: a slash and A-Z a-z 0-9 . _ -, once or more. Each deployment needs
    one of its own."""
    state: FilePath = Path("/var/lib/stream-archiver")
    """Folder for what a machine keeps for itself: the token that its daemon made (`etcd.admin-token`), and
    how far it has seen the logs reach (`etcd.intake.tail`, `etcd.control.tail`), which tells an older copy of
    etcd's data from the newest. Files that the holder of a lease keeps locked (`etcd.leader.lease`) let a
    daemon that is started again lead at once. Made if its parent exists; it may be lost."""
    tls: EtcdTlsSettings | None = None
    """Encrypted connections. Needed for members on other machines, unless `insecure` says otherwise."""
    insecure: StrictBool = False
    """Whether members on other machines may be asked in the clear: who listens then learns the password and
    the schemas, and who is in between can change the logs. On this machine (127.0.0.1, ::1, localhost) it
    needs no leave."""
    user: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """The name that etcd knows us by, where its authentication is on. With `password`. It needs readwrite on
    the keys below `prefix`."""
    password: Secret | None = None
    """`{env: NAME}` or `{file: PATH}`."""
    request_timeout: Annotated[Duration, Field(ge=0.1, le=60)] = 5.0
    """How long one member may take for one answer before the next is asked. An append whose answer did not
    come in time is of unknown outcome and is repeated until it is settled. An answer takes milliseconds, so
    seconds mean that the member hangs or has no leader."""
    lease_ttl: Annotated[Duration, Field(ge=2, le=600)] = 30.0
    """How long a leader that died, or was cut off, keeps daemons of other machines from leading, in whole
    seconds. A daemon that is started again on the same machine, with the same `state` folder, does not wait.
    The holder refreshes the lease after each third of this time, and a member has as long to answer. Shorten
    it, for example to 5 s, where a second machine must take over soon. A pause of some seconds is then taken
    for a death more easily, which costs time and never records."""

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
            if address in self.addresses[:place]:
                problems.append((("addresses", place), f"{address} stands there twice"))
            elif int(address.rpartition(":")[2]) == 0:
                problems.append(
                    (
                        ("addresses", place),
                        f"{address} has no port; etcd's clients' port is 2379 unless it was changed",
                    )
                )
            elif self.tls is None and not self.insecure and not is_loopback(host_of(address)):
                why = (
                    "is another machine, and without tls others can read and change the logs on the way; "
                    "give tls: {ca_file: FILE}, or say"
                )
                problems.append((("addresses", place), f"{address} {why} insecure: true"))
        if (self.user is None) != (self.password is None):
            missing = "user" if self.user is None else "password"
            problems.append(((missing,), "user and password belong together; state both, or neither"))
        if problems:
            raise Located(problems)
        return self


class MetadataSettings(Group):
    """The metadata store: where the logs are. Exactly one of the keys."""

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
        if self.etcd is not None and self.sqlite is not None:
            raise Located([((), "names two metadata stores, sqlite and etcd; keep one")])
        return self

    @property
    def beside(self) -> Path:
        """What this machine keeps for itself lies in this path's folder, under this path's name and more."""
        if self.sqlite is not None:
            return self.sqlite.path
        assert self.etcd is not None, "one of them is there"
        return self.etcd.state / "etcd"
