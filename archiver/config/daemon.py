"""The groups of settings that only the daemon uses: its port, its schedules, its sources.

Plain values only. A component receives its own group, never the whole. The text under a key is its entry in
docs/configuration.md.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, StrictBool, StrictInt, model_validator

from archiver.config.kafka import KafkaSourceSettings
from archiver.config.types import (
    Duration,
    FilePath,
    GlobPath,
    Group,
    Listen,
    Located,
    Secret,
    Size,
    TopicName,
    host_of,
    is_loopback,
)

TOKEN_MIN = 16
"""Characters of a token that we ask for. Whoever reaches the port can try words against it as often as he
likes."""


def _hard_to_guess(token: SecretStr) -> SecretStr:
    """Refuses a word; raises `ValueError`."""
    if len(token.get_secret_value().strip()) < TOKEN_MIN:
        raise ValueError(
            f"has fewer than {TOKEN_MIN} characters, so others could guess it; make one with: openssl "
            "rand -hex 32"
        )
    return token


Token = Annotated[Secret, AfterValidator(_hard_to_guess)]
"""A secret by which we know others."""


class HttpTlsSettings(Group):
    """How the port is known to those who call it. The files are read again when they change, so a renewed
    certificate needs no restart.
    """

    cert_file: FilePath
    """PEM file of the port's certificate, followed by those between it and the authority. Commands beside the
    daemon believe this one certificate and no other."""
    key_file: FilePath
    """PEM file of its key, without a passphrase, which nobody else should be able to read."""
    client_ca_file: FilePath | None = None
    """PEM file of the authorities of clients: then only clients with a certificate of theirs are let in, also
    to health and metrics. Commands beside the daemon show the port's own certificate, which must therefore be
    of that authority too, and good for clients."""

    @model_validator(mode="after")
    def _there(self) -> Self:
        paths = {name: getattr(self, name) for name in ("cert_file", "key_file", "client_ca_file")}
        missing = [(name, path) for name, path in paths.items() if path is not None and not path.is_file()]
        if missing:
            raise Located([((name,), f"there is no file {path}") for name, path in missing])
        return self


class HttpSettings(Group):
    """The daemon's port: health, metrics, the status page, records, administration."""

    listen: Listen = "127.0.0.1:8787"
    """Address and port; port 0 takes a free one. Loopback, so that nothing is open to others unasked: whoever
    reaches the port can read the status page and send records. Any other address needs `tls` or `allow_http`.
    A port that is taken is logged and tried again; it never stops the daemon."""
    tls: HttpTlsSettings | None = None
    """A certificate: the port speaks HTTPS, and nothing else."""
    allow_http: StrictBool = False
    """Whether the port may be open to other machines in the clear, where everybody on the way can read
    records and the token of administration. For where something else keeps them away: a proxy with TLS, a
    container's own network. Without effect where `tls` is given."""
    allowed_hosts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,253}$")], ...] = ()
    """Names under which the port is called, without a port: of a service, of a proxy that passes the name on.
    A request whose `Host` is none of them is refused, because a web page could point a name of its own at
    this machine; addresses, `localhost` and the host in `listen` are always allowed."""
    admin_token: Token | None = None
    """`{env: NAME}` or `{file: PATH}`: the token that `/v1/admin/` asks for, at least 16 characters (`openssl
    rand -hex 32` makes one). Left out, the daemon makes one at its first start and keeps it beside the
    metadata store (its path with `.admin-token` behind it), readable by its own user only; commands of the
    same user find it there."""
    produce_token: Token | None = None
    """`{env: NAME}` or `{file: PATH}`: the token that records ask for (`Authorization: Bearer TOKEN`), at
    least 16 characters. Left out, whoever reaches the port can send."""
    body_bytes_max: Annotated[Size, Field(ge=2**10, le=2**30)] = 8 * 10**6
    """Largest request body, in bytes; a larger one is refused before any of it is parsed."""
    requests_max: Annotated[StrictInt, Field(ge=1, le=10_000)] = 64
    """Requests with records that are worked on at the same time, from when their body is complete; further
    ones are refused with 429. Times `body_bytes_max` it is also the most that is held of all bodies, those
    that still arrive among them. Raise it for many senders at a time, if there is memory for their bodies."""
    records_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 10_000
    """Records in one request at most; empty ones take few bytes of a body and more memory than those."""
    request_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 60.0
    """How long a request's body may take to arrive, and its records to be acknowledged; after that they are
    of unknown outcome. A body that brings less than 4 KiB in ten seconds is refused before that."""
    retry_after: Annotated[Duration, Field(ge=1, le=3600)] = 1.0
    """What a sender is told to wait (`Retry-After`, in whole seconds) when there is no room for its
    records."""

    @model_validator(mode="after")
    def _not_open_unasked(self) -> Self:
        if self.tls is None and not self.allow_http and not is_loopback(host_of(self.listen)):
            why = (
                f"{self.listen} is open to other machines in the clear; give tls a certificate, listen "
                "on 127.0.0.1, or set "
                "allow_http: true if something else keeps others away, such as a proxy or a "
                "container's own network"
            )
            raise Located([(("listen",), why)])
        return self


class MetricsSettings(Group):
    """What `/metrics` shows."""

    partitions_max: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 1000
    """Topic partitions that have series of their own, in the order of their names; of the others there is one
    sum per topic. It bounds the number of series."""
    topics_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 1000
    """Topics that have series of their own; the others are summed under the topic `_other`, and so is one of
    that name."""


class DaemonSettings(Group):
    """`archiver serve`: its schedules and its patience."""

    watch_interval: Annotated[Duration, Field(ge=0.1, le=3600)] = 5.0
    """Time between two looks at the dependencies, the sources and the lag of every topic partition. It bounds
    how old `/readyz`, the metrics and the status page are."""
    audit_interval: Annotated[Duration, Field(ge=1, le=30 * 86400)] = 3600.0
    """Time between two audits. One reads the manifests of every table."""
    deep_audit_interval: Annotated[Duration, Field(ge=0, le=90 * 86400)] = 0.0
    """Time between two deep audits, which read every row of every table on Spark; 0: none by itself. Off by
    default: how much reading that is, and what it costs at an object store, only you can know. Once a week is
    a good beginning. A daemon without the role `archive` starts a Spark session for it. A change needs a
    restart."""
    shutdown_grace: Annotated[Duration, Field(gt=0, le=3600)] = 60.0
    """How long the daemon may take to stop after SIGTERM: it takes no more records, writes out and
    acknowledges what it has, and ends the round that is under way. A round that takes longer is left to the
    next leader, which loses nothing."""
    retry_max: Annotated[Duration, Field(ge=0.1, le=3600)] = 15.0
    """Longest wait between two tries to reach what is missing at the start. It begins with a tenth of a
    second and doubles."""
    turn_timeout: Annotated[Duration, Field(gt=0, le=7 * 86400)] = 3600.0
    """How long work that needs the lease waits for other such work of this daemon, for example a cleaning for
    a round of archiving, before it gives up until its next time."""
    confirm_max: Annotated[Duration, Field(gt=0, le=86400)] = 60.0
    """How long the daemon goes on holding the lease when it cannot read the control log, or its look at the
    logs hangs or has to wait for others who read, by its own clock; then it stands down, so that another one
    can lead. One that was deposed although it held the lease leaves the newer leader alone for as long."""
    silence_max: Annotated[Duration, Field(gt=0, le=7 * 86400)] = 900.0
    """A round of archiving that makes no progress for so long is told as the check `tick`, and the daemon is
    not ready."""
    history: Annotated[Duration, Field(ge=60, le=7 * 86400)] = 6 * 3600.0
    """How far back the status page shows the lag. Kept in memory: 480 samples for each of at most
    `metrics.topics_max` topics."""
    cycles_kept: Annotated[StrictInt, Field(ge=1, le=10_000)] = 200
    """Cycles of the scheduled jobs that the status page can show."""


class FileSourceSettings(Group):
    """Files that are taken in by themselves, each exactly once."""

    glob: GlobPath
    """Which files, for example `inbox/*.jsonl` or `inbox/**/*.parquet`; relative to the configuration file. A
    file is known by its path and must be complete when it gets a name that matches: write it elsewhere in the
    same file system, then rename it."""
    topic: TopicName
    """The topic that the records go to; one of `topics`."""
    format: Literal["jsonl", "delimited", "parquet"]
    """As `archiver produce --format`: record JSON lines, values behind their length as a varint, or Parquet
    with the same names as columns."""
    text: StrictBool = False
    """Whether keys, values and header values in record JSON lines are UTF-8 text instead of base64."""
    settle: Annotated[Duration, Field(ge=0, le=86400)] = 1.0
    """How long a file must not have changed before it is taken in, for writers that cannot rename. 0: at
    once."""

    @model_validator(mode="after")
    def _text_of_lines(self) -> Self:
        if self.text and self.format != "jsonl":
            raise Located(
                [
                    (
                        ("text",),
                        (
                            f"is for format: jsonl; the values of {self.format} are bytes already, so take "
                            "it out"
                        ),
                    )
                ]
            )
        return self


class SourceSettings(Group):
    """Where records come from by themselves. Exactly one of the keys."""

    files: FileSourceSettings | None = None
    """Files in a folder."""
    kafka: KafkaSourceSettings | None = None
    """Topics of a Kafka cluster."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.kafka is not None and self.files is not None:
            raise Located([(("kafka",), "is given beside files; each source is an entry of its own")])
        if self.files is None and self.kafka is None:
            raise Located(
                [((), "names no source; add files: {glob: inbox/*.jsonl, topic: orders, format: jsonl}")]
            )
        return self
