"""The settings groups that only the daemon uses: its port, schedules and sources.

Plain values only. A component receives its own group, never all settings. The docstring under a key is its
entry in docs/configuration.md.
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
"""Minimum length of a token, in characters. Guesses at the port are not limited."""


def _hard_to_guess(token: SecretStr) -> SecretStr:
    """Refuse a token that is easy to guess; raises `ValueError`."""
    # Without surrounding white space, which a header would lose.
    if len(token.get_secret_value().strip()) < TOKEN_MIN:
        raise ValueError(
            f"has fewer than {TOKEN_MIN} characters, so others could guess it; make one with: openssl "
            "rand -hex 32"
        )
    return token


# After the reference is resolved: the length of the token itself counts.
Token = Annotated[Secret, AfterValidator(_hard_to_guess)]
"""A secret with which clients authenticate."""


class HttpTlsSettings(Group):
    """Certificates of the port. The files are read again when they change, so a renewed certificate needs no
    restart.
    """

    cert_file: FilePath
    """PEM file of the port's certificate, followed by the intermediate certificates. Commands on the daemon's
    machine trust this certificate only."""
    key_file: FilePath
    """PEM file of the certificate's key, without a passphrase. Only the archiver's user should be able to
    read it."""
    client_ca_file: FilePath | None = None
    """PEM file of the authorities for client certificates. Default: none. If it is set, every client needs a
    certificate signed by them, also for health and metrics. Commands on the daemon's machine present the
    port's own certificate; it must then be signed by the same authority and be valid for clients."""

    @model_validator(mode="after")
    def _there(self) -> Self:
        paths = {name: getattr(self, name) for name in ("cert_file", "key_file", "client_ca_file")}
        # Checked before the start. The port would otherwise open without its certificate only to fail.
        missing = [(name, path) for name, path in paths.items() if path is not None and not path.is_file()]
        if missing:
            raise Located([((name,), f"there is no file {path}") for name, path in missing])
        return self


class HttpSettings(Group):
    """The daemon's port: health, metrics, status page, records and administration."""

    listen: Listen = "127.0.0.1:8787"
    """Address and port; port 0 selects a free one. Default `127.0.0.1:8787`: any process of this machine can
    read the console and send records. Any other address needs `tls` or `allow_http`. A port that
    is in use is logged and tried again; the daemon continues."""
    tls: HttpTlsSettings | None = None
    """Certificates. Default: none. With them the port accepts only HTTPS."""
    allow_http: StrictBool = False
    """Whether the port may be open to other machines without encryption, where others can read records and
    the admin token on the way. Default `false`. Set it if something else protects the port: a proxy with TLS,
    or a container's own network. It has no effect with `tls`."""
    allowed_hosts: tuple[Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,253}$")], ...] = ()
    """Host names of the port, without a port number: of a service, or of a proxy that passes the name on. A
    request with another `Host` is refused, because a web page could point its own name at this machine.
    Addresses, `localhost` and the host in `listen` are always allowed. Default: none."""
    admin_token: Token | None = None
    """The token for `/v1/admin/`, as `{env: NAME}` or `{file: PATH}`, at least 16 characters (`openssl rand
    -hex 32` makes one). Default: the daemon makes one at its first start and stores it next to the metadata
    store (its path with the suffix `.admin-token`). Only the daemon's user can read that file, and this
    user's commands find it there."""
    produce_token: Token | None = None
    """The token for sending records (`Authorization: Bearer TOKEN`), as `{env: NAME}` or `{file: PATH}`, at
    least 16 characters. Default: none, and any client of the port can send."""
    read_token: Token | None = None
    """The token for reading topics, messages and tables in the console and under `/v1`, as `{env: NAME}` or
    `{file: PATH}`, at least 16 characters. It shows everything. In a browser it is the password, with any
    name. Default: none. Without it, every process of this machine can read on a loopback address. On any
    other address, and behind a proxy, reading needs this token, the admin token, or a user of the Kafka
    listener, who sees what `kafka.acls` allow."""
    body_bytes_max: Annotated[Size, Field(ge=2**10, le=2**30)] = 8 * 10**6
    """Largest request body, in bytes. Default 8 MB. A larger one is refused before it is parsed."""
    requests_max: Annotated[StrictInt, Field(ge=1, le=10_000)] = 64
    """Most complete requests with records that are processed at the same time; further ones are refused with
    429. Default 64. `requests_max` times `body_bytes_max` also limits the memory of all bodies, including
    those still arriving. Raise it for many concurrent senders, if there is memory for their bodies."""
    records_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 10_000
    """Most records in one request. Default 10,000: empty records take few bytes of a body but more memory."""
    request_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 60.0
    """Longest time for a request's body to arrive, and then for its records to be acknowledged; after that
    their outcome is unknown. Default 60 s. A body with less than 4 KiB in ten seconds is refused earlier."""
    retry_after: Annotated[Duration, Field(ge=1, le=3600)] = 1.0
    """The wait that a sender is asked for (`Retry-After`, in whole seconds) when the queue is full. Default 1
    s."""
    query_time_max: Annotated[Duration, Field(ge=1, le=3600)] = 30.0
    """Longest time of a query of the console or of `/v1/query`. Default 30 s. Raise it for large tables; a
    query uses up to two cores, at low priority."""
    query_memory_max: Annotated[Size, Field(ge=64 * 2**20, le=2**40)] = 512 * 2**20
    """Most memory of such a query, in bytes, in a process of its own. Default 512 MiB. Two queries run at the
    same time, so the machine needs twice as much. A query that needs more fails; raise it for joins and
    groups of many values."""

    @model_validator(mode="after")
    def _not_open_unasked(self) -> Self:
        # Any process of this machine may connect without encryption, other machines may not.
        if self.tls is None and not self.allow_http and not is_loopback(host_of(self.listen)):
            why = (
                f"{self.listen} is open to other machines without encryption; give tls a certificate, "
                "listen on 127.0.0.1, or set allow_http: true if a proxy or a container's own network "
                "protects the port"
            )
            raise Located([(("listen",), why)])
        return self


class MetricsSettings(Group):
    """Limits of `/metrics`."""

    partitions_max: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 1000
    """Most topic partitions with their own series, in the order of their names; the others have one sum per
    topic. It limits the number of series. Default 1000."""
    topics_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 1000
    """Most topics with their own series. The others are summed under the topic `_other`, and so is a topic
    with that name. Default 1000."""
    group_partitions_max: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = 1000
    """Most partitions of consumer groups whose lag is computed, for the metrics, the status page and
    `archiver status`. Groups count in the order of their ids while all of their partitions fit. The others
    are only counted. It limits the number of series and the work of each poll. Default 1000."""


class DaemonSettings(Group):
    """Schedules and time limits of `archiver serve`."""

    watch_interval: Annotated[Duration, Field(ge=0.1, le=3600)] = 5.0
    """Time between two polls of the dependencies, the sources and the lag of every topic partition. It limits
    the age of `/readyz`, the metrics and the status page. Default 5 s."""
    audit_interval: Annotated[Duration, Field(ge=1, le=30 * 86400)] = 3600.0
    """Time between two audits. Default 1 h. One audit reads the manifests of every table."""
    deep_audit_interval: Annotated[Duration, Field(ge=0, le=90 * 86400)] = 0.0
    """Time between two deep audits, which read every row of every table on Spark; 0: none on schedule.
    Default 0, because the cost depends on the amount of data and on the object store. Once a week is a good
    start. A daemon without the role `archive` starts a Spark session for it. A change needs a restart."""
    shutdown_grace: Annotated[Duration, Field(gt=0, le=3600)] = 60.0
    """Longest time for a stop after SIGTERM. The daemon refuses new records, writes and acknowledges those it
    has, and ends the current round. Default 60 s. A longer round is left to the next leader, without loss."""
    retry_max: Annotated[Duration, Field(ge=0.1, le=3600)] = 15.0
    """Longest wait between two attempts to reach an unavailable dependency at the start. The wait begins at
    0.1 s and doubles. Default 15 s."""
    turn_timeout: Annotated[Duration, Field(gt=0, le=7 * 86400)] = 3600.0
    """How long work that needs the lease waits for other such work of this daemon, for example a cleanup for
    an archiving round. It then skips this run. Default 1 h."""
    confirm_max: Annotated[Duration, Field(gt=0, le=86400)] = 60.0
    """How long the daemon keeps the lease without a successful read of the control log, by its own clock. The
    read may fail, hang, or wait for other readers. The daemon then releases the lease, so that another one
    can lead. A daemon that lost the leadership while it held the lease waits as long before it tries again.
    Default 60 s."""
    silence_max: Annotated[Duration, Field(gt=0, le=7 * 86400)] = 900.0
    """How long an archiving round may make no progress before the check `tick` fails and the daemon is not
    ready. Default 15 min."""
    history: Annotated[Duration, Field(ge=60, le=7 * 86400)] = 6 * 3600.0
    """Time span of the charts on the status page. Default 6 h. They are kept in memory: 480 samples for each
    of at most `metrics.topics_max` topics. Once a minute and at a stop the daemon writes those of at most
    2000 topics next to the metadata store (its path with the suffix `.charts`), so a restart keeps them."""
    cycles_kept: Annotated[StrictInt, Field(ge=1, le=10_000)] = 200
    """Runs of the scheduled jobs that the status page can show. Default 200."""


class FileSourceSettings(Group):
    """Files that the daemon ingests, each exactly once."""

    glob: GlobPath
    """Pattern of the files, for example `inbox/*.jsonl` or `inbox/**/*.parquet`, relative to the
    configuration file. A file is identified by its path. It must be complete when its name matches: write it
    elsewhere in the same file system, then rename it."""
    topic: TopicName
    """The topic for the records; one of `topics`."""
    format: Literal["jsonl", "delimited", "parquet"]
    """The file format, as in `archiver produce --format`: record JSON lines, values prefixed with their
    length as a varint, or Parquet with the same names as columns."""
    text: StrictBool = False
    """Whether keys, values and header values in record JSON lines are UTF-8 text instead of base64. Default
    `false`."""
    settle: Annotated[Duration, Field(ge=0, le=86400)] = 1.0
    """How long a file must be unchanged before it is ingested; 0: at once. Default 1 s. Raise it for writers
    that write slowly and cannot rename."""

    @model_validator(mode="after")
    def _text_of_lines(self) -> Self:
        # The other formats store bytes, so there is nothing to interpret.
        if self.text and self.format != "jsonl":
            raise Located(
                [
                    (
                        ("text",),
                        (
                            f"is for format: jsonl; the values of {self.format} are bytes already, so "
                            "remove it"
                        ),
                    )
                ]
            )
        return self


class SourceSettings(Group):
    """A source of records. Exactly one of the keys."""

    files: FileSourceSettings | None = None
    """Files in a folder."""
    kafka: KafkaSourceSettings | None = None
    """Topics of a Kafka cluster."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        # One position per entry: messages name a source by its place in the list.
        if self.kafka is not None and self.files is not None:
            raise Located([(("kafka",), "conflicts with files; each source needs its own entry")])
        if self.files is None and self.kafka is None:
            raise Located(
                [((), "names no source; add files: {glob: inbox/*.jsonl, topic: orders, format: jsonl}")]
            )
        return self
