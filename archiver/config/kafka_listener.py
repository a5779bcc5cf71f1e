"""The settings of the Kafka listener: its address, its clients and its limits.

Plain values only. The docstring under a key is its entry in docs/configuration.md.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal, Self

from pydantic import Field, StrictBool, StrictInt, model_validator

from archiver.config.daemon import HttpTlsSettings
from archiver.config.types import (
    Duration,
    FilePath,
    Group,
    Listen,
    Located,
    Size,
    TopicPattern,
    host_of,
    is_loopback,
)

Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
Operation = Literal[
    "all",
    "read",
    "write",
    "create",
    "delete",
    "alter",
    "describe",
    "describe_configs",
    "alter_configs",
    "idempotent_write",
]

# Kafka allows any text as a group id or transactional id. Control characters would break log lines.
NamePattern = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,255}$")]
"""A group id or transactional id; or the beginning of them, followed by `*`."""


class KafkaTlsSettings(HttpTlsSettings):
    """Certificates of the Kafka listener. The files are read again when they change, so a renewed certificate
    needs no restart.
    """

    cert_file: FilePath
    """PEM file of the listener's certificate, followed by the intermediate certificates. It must name the
    host in `kafka.advertised`, because clients verify it."""
    key_file: FilePath
    """PEM file of the certificate's key, without a passphrase. Only the archiver's user should be able to
    read it."""
    client_ca_file: FilePath | None = None
    """PEM file of the authorities for client certificates. Default: none. If it is set, every client needs a
    certificate signed by them. Without `kafka.sasl` the principal is then the certificate's subject, for
    example `User:CN=orders,O=Shop`."""


class KafkaSaslSettings(Group):
    """Authentication of clients by name and password. The users are in `kafka.users_file`."""

    mechanisms: Annotated[tuple[Mechanism, ...], Field(min_length=1)] = ("SCRAM-SHA-256", "SCRAM-SHA-512")
    """SASL mechanisms that clients may use. Default: both SCRAM mechanisms, which prove a password without
    sending it. Add `PLAIN` for clients without SCRAM: it sends the password itself, so it needs TLS."""


class KafkaAclSettings(Group):
    """One rule of what a principal may do. Rules only allow; what no rule allows is denied. As in Kafka,
    `read`, `write`, `delete` and `alter` include `describe`, and `alter_configs` includes `describe_configs`.
    """

    principal: Annotated[str, Field(pattern=r"^User:[^\x00-\x1f\x7f]{1,1019}$")]
    """Whose rule it is: `User:NAME` of a SASL user, `User:SUBJECT` of a client certificate, `User:ANONYMOUS`
    for clients without authentication, or `User:*` for every client."""
    operations: Annotated[tuple[Operation, ...], Field(min_length=1)]
    """What the principal may do, in Kafka's terms, for example `read` and `write`; `all` for everything."""
    topics: Annotated[tuple[TopicPattern, ...], Field(max_length=1000)] = ()
    """Topics of the rule: names, beginnings of names such as `shop.*`, or `*` for every topic. Default:
    none."""
    groups: Annotated[tuple[NamePattern, ...], Field(max_length=1000)] = ()
    """Consumer groups of the rule, as in `topics`. A name that itself ends with `*` cannot be given. Default:
    none."""
    transactional_ids: Annotated[tuple[NamePattern, ...], Field(max_length=1000)] = ()
    """Transactional ids of the rule, as in `groups`. Default: none."""
    cluster: StrictBool = False
    """Whether the rule is also for the cluster, for example `create` for every topic. Default `false`."""

    @model_validator(mode="after")
    def _names_a_resource(self) -> Self:
        # Such a rule would allow nothing, which its author did not intend.
        if not (self.topics or self.groups or self.transactional_ids or self.cluster):
            raise Located(
                [((), "names no resource; add topics, groups, transactional_ids, or cluster: true")]
            )
        return self


class KafkaListenerSettings(Group):
    """The port for Kafka clients. Only a daemon with the role `intake` opens it; other daemons ignore this
    group. A change needs a restart, except in the files of `tls` and `users_file`.
    """

    listen: Listen
    """Address and port; port 0 selects a free one. Any address but this machine's own (127.0.0.1, ::1,
    localhost) needs `tls` and authentication, or `allow_plaintext`."""
    advertised: Listen | None = None
    """Host and port that clients are given to connect to; port 0 stands for the port of `listen`. Default:
    the address of `listen`. It is required if `listen` is for all addresses of the machine (0.0.0.0, ::). Set
    it if clients reach the port by another name. Each daemon of a deployment needs its own."""
    rack: Annotated[str, Field(pattern=r"^[A-Za-z0-9._/:-]{1,255}$")] | None = None
    """Rack or zone of this daemon; 1 to 255 of A-Z a-z 0-9 . _ / : -. Default: none. A client with
    `rack=NAME` in its `client.id`, for example `orders-1,rack=a`, is sent to a daemon of that rack. Set it to
    save traffic between zones."""
    tls: KafkaTlsSettings | None = None
    """Certificates. Default: none. With them the port accepts only TLS."""
    sasl: KafkaSaslSettings | None = None
    """Authentication by name and password, together with `users_file`. Default: none."""
    users_file: FilePath | None = None
    """File of the users and their SCRAM credentials, which `archiver users set NAME` writes. Default: none;
    required with `sasl`. It is read again when it changes, so a new user or password needs no restart. It is
    refused if others than the archiver's user can read it; a group may read it if root owns it."""
    acls: Annotated[tuple[KafkaAclSettings, ...], Field(max_length=10_000)] = ()
    """What clients may do. Default: no rules. Without rules, a client that had to authenticate may do
    nothing, and on a port without authentication every client may do everything."""
    allow_plaintext: StrictBool = False
    """Whether the port may be open to other machines without TLS, or without authentication. Others can then
    read records and passwords on the way, or send records. Default `false`. Set it on a trusted network
    only."""
    auto_create_topics: StrictBool = False
    """Whether a topic that does not exist is created when a client asks for it. Default `false`: a misspelled
    name would otherwise become a topic."""
    default_partitions: Annotated[StrictInt, Field(ge=1, le=100_000)] = 1
    """Number of partitions of a topic that a client creates without naming a number. Default 1, as in
    Kafka."""
    broker_timeout: Annotated[Duration, Field(ge=2, le=300)] = 10.0
    """Time after which a daemon that died is no longer given to clients, in whole seconds with etcd. Each
    daemon renews its registration after a third of this time. Default 10 s. Raise it if pauses of the machine
    or of the metadata store are longer."""
    request_bytes_max: Annotated[Size, Field(ge=2**16, le=2**30)] = 100 * 2**20
    """Largest request, in bytes. Default 100 MiB, as in Kafka. A larger one closes the connection before it
    is read."""
    uncompressed_bytes_max: Annotated[Size, Field(ge=2**16, le=2**30)] = 64 * 10**6
    """Largest record batch after decompression, in bytes. Default 64 MB, as `intake.queue_bytes_max`: a
    larger batch could not be queued. It limits the memory that a small compressed request can take."""
    requests_bytes_max: Annotated[Size, Field(ge=2**20, le=2**36)] = 256 * 2**20
    """Most memory of requests that are received or processed at the same time, over all connections. Default
    256 MiB. At the limit the daemon stops reading from connections until requests end. Answers of Fetch may
    take as much again, or four times `fetch_bytes_max` if that is more. One answer takes at most a quarter of
    what is left of that, and has one batch when nothing is left. Raise it for many concurrent clients, if
    there is memory."""
    requests_per_connection_max: Annotated[StrictInt, Field(ge=1, le=10_000)] = 32
    """Most requests of one connection that are processed at the same time; further ones wait unread. Default
    32: an acknowledgement waits for an upload, so producers send several requests ahead."""
    request_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 60.0
    """Longest time for the bytes of a request to arrive, and the most that a client may let the daemon wait
    (`timeout_ms` of a produce request, `max_wait_ms` of a fetch). Default 60 s."""
    authentication_timeout: Annotated[Duration, Field(gt=0, le=300)] = 10.0
    """Longest time for the TLS handshake and the authentication of a new connection. Default 10 s. It ends
    connections of clients that hold a place without proving who they are."""
    connections_max: Annotated[StrictInt, Field(ge=1, le=100_000)] = 1000
    """Most connections; further ones are closed at once. Default 1000. Each takes a file descriptor. A client
    usually opens two or three."""
    connections_idle: Annotated[Duration, Field(ge=1, le=86400)] = 600.0
    """Time after which a connection without a request is closed. Default 10 min, as in Kafka; clients connect
    again by themselves."""
    fetch_bytes_max: Annotated[Size, Field(ge=2**16, le=2**30)] = 55 * 2**20
    """Most bytes of records in one answer, also if a client asks for more. Default 55 MiB, as in Kafka. The
    first batch of an answer is always whole, even if it is larger."""
    fetch_cache_bytes: Annotated[Size, Field(ge=0, le=2**36)] = 64 * 2**20
    """Memory for record batches that were read and encoded, so that several consumers of a partition share
    the work; 0: none. Default 64 MiB. Raise it for many consumer groups on the same topics."""
    group_session_timeout_min: Annotated[Duration, Field(gt=0, le=86400)] = 6.0
    """Shortest `session.timeout.ms` of a member of a consumer group. Default 6 s, as in Kafka. A member that
    sends no heartbeat for its session timeout is removed. Lower it for tests only."""
    group_session_timeout_max: Annotated[Duration, Field(gt=0, le=86400)] = 1800.0
    """Longest `session.timeout.ms` of a member. Default 30 min, as in Kafka. Partitions of a member that died
    stay unread for so long."""
    group_rebalance_timeout_max: Annotated[Duration, Field(ge=1, le=86400)] = 1800.0
    """Longest time for the members of a group to join again, and to ask for their partitions. Default 30 min.
    A longer `max.poll.interval.ms` counts as this. The longest of a group's members counts."""
    group_initial_rebalance_delay: Annotated[Duration, Field(ge=0, le=300)] = 3.0
    """Time that a group without members waits for further ones before it assigns partitions. Default 3 s, as
    in Kafka. Raise it if many consumers start at the same time; lower it for tests."""
    group_consumer_session_timeout: Annotated[Duration, Field(ge=1, le=86400)] = 45.0
    """Time without a heartbeat after which a member with `group.protocol=consumer` is removed. Default 45 s,
    as in Kafka. With that protocol, clients do not choose it. After another daemon took over, partitions of
    members that do not come back are unread for 5 s longer than this. Lower it to have such partitions read
    earlier, and raise it if consumers pause longer."""
    group_consumer_heartbeat_interval: Annotated[Duration, Field(ge=0.1, le=3600)] = 5.0
    """Interval at which members with `group.protocol=consumer` send heartbeats; at most a third of
    `group_consumer_session_timeout`. Default 5 s, as in Kafka. A member learns of a changed assignment by a
    heartbeat, so a lower value makes rebalances faster and costs requests."""
    group_members_max: Annotated[StrictInt, Field(ge=1, le=10_000)] = 1000
    """Most members of one consumer group. Default 1000. A further one gets `GROUP_MAX_SIZE_REACHED`."""
    groups_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 20_000
    """Most consumer groups with members that one daemon coordinates. Default 20,000. Members of further
    groups wait. Groups that only have committed offsets do not count."""
    group_metadata_bytes_max: Annotated[Size, Field(ge=1024, le=2**27)] = 2**20
    """Largest metadata that a member of a group joins with, and largest assignment of one member, in bytes.
    Default 1 MiB. Raise it if a member gets `MESSAGE_TOO_LARGE`, for example in a large Streams
    application."""
    groups_bytes_max: Annotated[Size, Field(ge=2**20, le=2**36)] = 128 * 2**20
    """Memory for the members of all groups of a daemon, with their metadata and assignments. Default 128 MiB.
    At the limit, further members wait. Raise it for very many or very large groups."""
    offsets_retention: Annotated[Duration, Field(ge=60, le=3650 * 86400)] = 7 * 86400.0
    """How long committed offsets of a consumer group without members are kept. Default 7 d, as in Kafka. A
    consumer that returns later starts where its `auto.offset.reset` says. Raise it for consumers that pause
    longer, for example jobs that run once a month."""
    offset_metadata_bytes_max: Annotated[Size, Field(ge=0, le=32_767)] = 4096
    """Longest text that a consumer may store with a committed offset, in bytes. Default 4096, as in Kafka."""
    group_offsets_bytes_max: Annotated[Size, Field(ge=2**20, le=2**36)] = 256 * 2**20
    """Estimated memory for the committed offsets of all consumer groups, in each process that reads the log.
    Default 256 MiB: up to 11 million offsets, or 270,000 groups with one offset each. At the limit, commits
    of new groups and new partitions, and commits in transactions, are refused; other commits are accepted."""
    access_log: StrictBool = False
    """Whether each request is a line in the log. Default `false`: a busy port has thousands of requests a
    second. Set it to find out what a client does."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        problems: dict[str, str] = {}
        remedy = "give the host and port by which clients reach this daemon"
        # Clients cannot connect to "all addresses".
        if self.advertised is None and _is_wildcard(self.listen):
            problems["advertised"] = f"is missing, and nothing can connect to {self.listen}; {remedy}"
        elif self.advertised is not None and _is_wildcard(self.advertised):
            problems["advertised"] = f"{self.advertised} is no address to connect to; {remedy}"
        if (self.sasl is None) != (self.users_file is None):
            missing = "sasl" if self.sasl is None else "users_file"
            problems[missing] = "sasl and users_file belong together; state both, or neither"
        elif self.users_file is not None and not self.users_file.is_file():
            problems["users_file"] = (
                f"there is no file {self.users_file}; create it with: archiver users set NAME --file "
                f"{self.users_file}"
            )
        if (unprotected := self._unprotected()) is not None:
            problems["listen"] = unprotected
        if self.group_session_timeout_min > self.group_session_timeout_max:
            problems["group_session_timeout_min"] = (
                f"{self.group_session_timeout_min} s is longer than kafka.group_session_timeout_max "
                f"({self.group_session_timeout_max} s); no member could join"
            )
        if 3 * self.group_consumer_heartbeat_interval > self.group_consumer_session_timeout:
            problems["group_consumer_heartbeat_interval"] = (
                f"{self.group_consumer_heartbeat_interval} s is more than a third of "
                f"kafka.group_consumer_session_timeout ({self.group_consumer_session_timeout} s); one lost "
                "heartbeat would end a session"
            )
        # A request over the whole memory could never be received.
        if self.request_bytes_max > self.requests_bytes_max:
            problems["request_bytes_max"] = (
                f"{self.request_bytes_max} bytes are more than kafka.requests_bytes_max "
                f"({self.requests_bytes_max}); raise that or lower this"
            )
        if problems:
            raise Located([((name,), why) for name, why in problems.items()])
        return self

    def _unprotected(self) -> str | None:
        """The problem of a port that is open to other machines without protection, or None."""
        if self.allow_plaintext or is_loopback(host_of(self.listen)):
            return None
        if self.tls is None:
            why, remedy = "without encryption", "give tls a certificate"
        elif self.sasl is None and self.tls.client_ca_file is None:
            why, remedy = "without authentication", "give sasl and users_file, or tls.client_ca_file"
        else:
            return None
        return (
            f"{self.listen} is open to other machines {why}; {remedy}, listen on 127.0.0.1, or set "
            "allow_plaintext: true if the network is trusted"
        )

    @property
    def authenticates(self) -> bool:
        """Whether every client must prove who it is."""
        return self.sasl is not None or (self.tls is not None and self.tls.client_ca_file is not None)

    @property
    def offsets_refresh(self) -> float:
        """Age in seconds at which an offset that is committed again without a change is stored again."""
        return min(3600.0, self.offsets_retention / 10)

    def address_for_clients(self, bound_port: int) -> tuple[str, int]:
        """Host and port that clients are given; `bound_port` is the port that was opened."""
        text = self.advertised or self.listen
        # An IPv6 address has no brackets in Kafka's protocol.
        return host_of(text), int(text.rpartition(":")[2]) or bound_port


def share_a_port(first: str, second: str) -> bool:
    """Whether two listeners, each `host:port`, cannot be open at the same time."""
    port = first.rpartition(":")[2]
    # The system chooses a free one for port 0.
    if int(port) == 0 or int(port) != int(second.rpartition(":")[2]):
        return False
    hosts = {host_of(first).lower(), host_of(second).lower()}
    return (
        len(hosts) == 1
        or _is_wildcard(first)
        or _is_wildcard(second)
        # This name stands for the addresses of IPv4 and IPv6.
        or ("localhost" in hosts and all(map(is_loopback, hosts)))
    )


def _is_wildcard(address: str) -> bool:
    """Whether `host:port` stands for all addresses of the machine."""
    host = host_of(address)
    # The system's resolver accepts short forms of 0.0.0.0 such as `0`.
    if re.fullmatch(r"[0.]+|\*", host):
        return True
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
