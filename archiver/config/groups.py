"""The settings groups for catalogs, Spark, logs, intake, cleanup and tests.

Plain values only. A component receives its own group, never all settings. The docstring under a key is its
entry in docs/configuration.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import (
    ConfigDict,
    Field,
    SecretStr,
    StrictBool,
    StrictInt,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from archiver.config.types import (
    SECRET_SCHEMA,
    Duration,
    Group,
    Located,
    Size,
    host_of,
    is_loopback,
    is_reference,
    resolve_path,
    reveal,
    surroundings,
)

_SECRET_NAME = re.compile(
    r"password|passwd|secret|token|credential|access[._-]?key|private[._-]?key|^header\..*(?:authorization|cookie|api[._-]?key)",
    re.IGNORECASE,
)
# A user name or a password before the host: the whole value counts as a secret then.
_USER_IN_URL = re.compile(r"://[^/@]+@")
_SQL_SERVER = re.compile(
    r"(?P<dialect>\w+)(?:\+\w+)?://(?:[^:/]*(?::[^@]*)?@)?(?P<host>\[[^/?]+\]|[^/:?]*)[^/?]*(?:/[^?]*)?(?:\?(?P<query>.*))?"
)
"""The server address of an SQLAlchemy URL, split as SQLAlchemy splits it."""
_HOST_ELSEWHERE = frozenset(
    (
        "service",
        "servicefile",
        "dsn",
        "conninfo",
        "odbc_connect",
        "read_default_file",
        "read_default_group",
        "option_files",
        "server",
    )
)
"""Query parameters that make a driver connect to another host than the one in the URL. They name a file, or
hold a connection string in the driver's own form."""
_ENDPOINT = re.compile(r".\.(?:endpoint|service\.host|signer\.uri)$")
"""Catalog properties that are addresses of further servers."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


# --- Catalogs.
Property = Annotated[
    Any,  # a SecretStr if it is a secret or resembles one; else a str
    WithJsonSchema({"anyOf": [{"type": ["string", "number", "boolean"]}, SECRET_SCHEMA]}),
]


# Keys of this group. All others go to pyiceberg as text.
_OWN_KEYS = (
    "name",
    "type",
    "request_timeout",
    "location",
    "locations",
    "metadata_bytes_max",
    "allow_http",
    "allow_insecure",
)
# Paths that may be relative to the configuration file; pyiceberg would resolve them by the working folder.
_TLS_FILES = frozenset({"ssl.cabundle", "ssl.client.cert", "ssl.client.key"})


class CatalogSettings(Group):
    """One Iceberg catalog. Every further key is a property of pyiceberg's catalog of that type, for example
    `uri` or `warehouse`.

    A property may be `{env: NAME}` or `{file: PATH}`. Those properties, and properties that resemble a
    secret, are never shown.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Property]

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """The name by which topics refer to the catalog; 1 to 64 of A-Z a-z 0-9 . _ -."""
    type: Annotated[str, Field(min_length=1)]
    """pyiceberg's catalog type: `sql` (embedded), `rest`, `glue`, `hive`."""
    request_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 30.0
    """Longest time for one connection to a REST catalog or its token server, and then for its answer. A
    request without an answer has an unknown outcome; the archiver then reloads the table. Default 30 s:
    leaves time for that reload within `archive.commit_timeout`. Raise it, with `archive.commit_timeout`, for
    a slow catalog."""
    location: Literal["data", "catalog"] = "data"
    """Where new tables are created. `data`: in the data folder, next to their archives. `catalog`: where the
    catalog puts them; only archives are in the data folder
    ([limits](operations/catalogs.md#tables-where-the-catalog-puts-them)). Default `data`. Choose `catalog` if
    the catalog must assign table locations."""
    locations: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=2048)], ...], Field(max_length=100)
    ] = ()
    """Further places where table metadata may be: folders (`file:` URIs or absolute paths) and bucket
    prefixes (`s3://bucket/prefix`). Default: none. Metadata files, manifest lists and manifests are read and
    written only in the data folder and in these places. With `location: catalog`, every bucket is allowed
    too, and the catalog's `warehouse` if it is a path. Set it if another program writes a table's metadata
    elsewhere, or if such a catalog puts tables into a local folder."""
    metadata_bytes_max: Annotated[Size, Field(ge=2**20, le=2**30)] = 64 * 2**20
    """Largest answer of a REST catalog, and largest metadata file, manifest list or manifest, in uncompressed
    bytes. Default 64 MiB. Anything larger is not read, and its table halts. The same holds for more than one
    JSON value per 16 bytes of this limit, or one manifest entry per 64. Raise it for a table whose metadata
    has many thousands of snapshots or files. Reading one takes up to about ten times its bytes of memory, and
    up to 60 times if it is crafted for that."""
    allow_http: StrictBool = False
    """Whether a secret may be sent to another machine over `http://`, where others can read it on the way. It
    also allows an `http://` address in `s3.endpoint`, `glue.endpoint`, `dynamodb.endpoint` and the like,
    whose traffic others can then read and change. Default `false`. Set it only on a trusted network;
    addresses of this machine (127.0.0.1, ::1, localhost) are always allowed."""
    allow_insecure: StrictBool = False
    """Whether a catalog of type `sql` or `hive` on another machine may be used without authentication of the
    server, or without encryption. A third party on the way could then forge the rows of a table. Default
    `false`. Set it only on a trusted network; PostgreSQL with `sslmode=verify-full` in the `uri`, and servers
    on this machine, are always allowed."""

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, data: Any, info: ValidationInfo) -> Any:
        # Before pydantic's own validation: extra keys are stored unchanged, so secrets must be wrapped
        # first.
        if not isinstance(data, Mapping):
            return data
        # pyiceberg ignores the case of the type, so the checks below must too.
        if isinstance(data.get("type"), str):
            data = {**data, "type": data["type"].lower()}
        around = surroundings(info)
        prepared: dict[str, Any] = {}
        problems: list[tuple[tuple[str | int, ...], str]] = []
        for key, value in data.items():
            if key in _OWN_KEYS:
                prepared[key] = value
                continue
            try:
                prepared[key] = _property(key, value, info)
            except ValueError as error:
                # Collected, because a file reports all of its problems at once.
                problems.append(((key,), str(error)))
        if problems:
            raise Located(problems)
        for key in _TLS_FILES & prepared.keys():
            prepared[key] = str(resolve_path(prepared[key], info))
        uri = prepared.get("uri")
        if data.get("type") == "sql" and around is not None and isinstance(uri, str):
            # `sqlite:///` with a relative path; `sqlite:////` is absolute and `sqlite://` is in memory.
            prepared["uri"] = re.sub(
                r"^sqlite:///(?=[^/:])", lambda found: f"{found[0]}{around.folder}/", uri
            )
        return prepared

    @model_validator(mode="after")
    def _protected(self) -> Self:
        extra = self.__pydantic_extra__ or {}
        # Headers are sent with every request, so a secret header needs the same protection as a token.
        secret = any(
            name.startswith("header.") and isinstance(value, SecretStr) for name, value in extra.items()
        )
        properties = self.properties()
        problems = _rest_problems(properties, secret, self.allow_http) if self.type == "rest" else []
        if not self.allow_http:
            problems += _unencrypted_endpoints(properties)
        uri = properties.get("uri", "")
        # Before the next check: parsers disagree on such characters, and the check could see another host
        # than the driver.
        if _CONTROL.search(uri):
            problems.append(
                (
                    ("uri",),
                    "contains a line break or an invisible character; write the address without it",
                )
            )
        elif not self.allow_insecure and (why := _unauthenticated(self.type, uri)) is not None:
            problems.append((("uri",), why))
        # A catalog of type sql has no server that could choose a place.
        if self.type == "sql" and self.location == "catalog" and "warehouse" not in extra:
            problems.append(
                (
                    ("warehouse",),
                    "is missing: the folder or bucket in which a catalog of type sql puts its tables",
                )
            )
        if problems:
            raise Located(problems)
        return self

    def properties(self) -> dict[str, str]:
        """The properties for pyiceberg's `load_catalog`, with secrets revealed: never print them."""
        found = {"type": self.type}
        for key, value in (self.__pydantic_extra__ or {}).items():
            found[key] = _plain(value)
        return found


SIGNED_TRUE = frozenset({"true", "1", "t", "yes", "y", "on"})
"""Values of `rest.sigv4-enabled` that turn signatures on."""


def _rest_problems(
    properties: Mapping[str, str], secret: bool, allow_http: bool
) -> list[tuple[tuple[str | int, ...], str]]:
    """Problems with the authentication to a REST catalog. `secret`: whether one of its headers is a
    secret.
    """
    problems: list[tuple[tuple[str | int, ...], str]] = []
    # The spellings that pyiceberg accepts as true, in any case.
    signed = properties.get("rest.sigv4-enabled", "").lower() in SIGNED_TRUE
    ways = [name for name in ("token", "credential") if properties.get(name)] + [
        "rest.sigv4-enabled"
    ] * signed
    if len(ways) > 1:
        problems.append(
            ((ways[-1],), f"conflicts with {ways[0]}; only one way of authentication is allowed: keep one")
        )
    # The secret is sent to the catalog and to the token server.
    for name in ("uri", "oauth2-server-uri") if (ways or secret) and not allow_http else ():
        parts = urlsplit(properties.get(name, ""))
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            problems.append(
                (
                    (name,),
                    (
                        f"would send a secret unprotected to {parts.hostname}; use https://, or set "
                        "allow_http: true"
                    ),
                )
            )
    return problems


def _unencrypted_endpoints(properties: Mapping[str, str]) -> list[tuple[tuple[str | int, ...], str]]:
    """Addresses of a catalog's further servers, including a store, that are `http://` on another machine."""
    problems: list[tuple[tuple[str | int, ...], str]] = []
    for name in filter(_ENDPOINT.search, properties):
        parts = urlsplit(properties[name])
        if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            problems.append(
                (
                    (name,),
                    (
                        "http:// to another machine can be read and changed on the way; use https://, or "
                        "set allow_http: true"
                    ),
                )
            )
    return problems


def _unauthenticated(kind: str, uri: str) -> str | None:
    """The problem with an address that is not HTTP, or None. The message omits the address: it may hold a
    password.
    """
    address = _SQL_SERVER.fullmatch(uri) if kind == "sql" else None
    remedy = ""
    if address is not None:
        # Parameters of the query override the host of the address in most drivers.
        query = parse_qs(address["query"] or "")
        if _is_on_this_machine(address["dialect"], address["host"], query):
            return None
        if address["dialect"] == "postgresql":
            # Only this mode verifies the certificate and the host name. A repeated parameter is ambiguous,
            # so the list must have one value.
            if query.get("sslmode") == ["verify-full"]:
                return None
            remedy = "add sslmode=verify-full, and sslrootcert=FILE for an authority of your own, or "
    # The Thrift connection to Hive authenticates no server. A `uri` may name several servers.
    elif (
        kind != "hive"
        or not uri
        or all(is_loopback(host_of(urlsplit(one.strip()).netloc)) for one in uri.split(","))
    ):
        return None
    return (
        "the server on another machine would not be authenticated, or the connection not encrypted; "
        f"{remedy}set allow_insecure: true if its driver or an isolated network protects the connection"
    )


def _is_on_this_machine(dialect: str, host: str, query: Mapping[str, list[str]]) -> bool:
    """Whether an SQLAlchemy address certainly refers to this machine.

    Without a host, only SQLite and PostgreSQL addresses do: other drivers read the host from elsewhere, or
    have their own default.
    """
    # SQLite has no server; a host would be a mistake or another driver's form.
    if dialect == "sqlite":
        return not host
    if not _HOST_ELSEWHERE.isdisjoint(map(str.lower, query)):
        return False
    hosts = [
        one for one in ",".join([host, *query.get("host", []), *query.get("hostaddr", [])]).split(",") if one
    ]
    if dialect == "postgresql":
        # A path is a Unix socket. Without any host the driver uses the local socket.
        return all(one.startswith("/") or is_loopback(host_of(one)) for one in hosts)
    return bool(hosts) and all(is_loopback(host_of(one)) for one in hosts)


def _property(key: str, value: object, info: ValidationInfo) -> object:
    """The stored form of a property: wrapped if it refers to a secret or resembles one."""
    if is_reference(value):
        return reveal(value, info)
    if isinstance(value, SecretStr):
        return value
    # pyiceberg's `auth` is a nested structure, which the checks of secrets do not cover.
    if key == "auth":
        raise ValueError(
            "is not supported; next to uri, set credential, oauth2-server-uri and scope, or token, or "
            "rest.sigv4-enabled"
        )
    if value is None or isinstance(value, dict | list | tuple):
        raise ValueError(
            "must be text, a number or true/false, or refer to a secret by {env: NAME} or {file: PATH}"
        )
    text = _plain(value)
    # A secret by its name or its form is hidden, even if the file states it as plain text.
    return SecretStr(text) if _SECRET_NAME.search(key) or _USER_IN_URL.search(text) else text


def _plain(value: object) -> str:
    """A property in pyiceberg's text form."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


# --- Spark.
class SparkSettings(Group):
    """The Spark session that refines intake into archives."""

    master: Annotated[str, Field(min_length=1)] = "local[*]"
    """Spark's master. Default: every core of this machine."""
    remote: str | None = None
    """Address of a Spark Connect server, for example `sc://host:443/;use_ssl=true`. Default: none; it
    replaces `master`."""
    allow_insecure: StrictBool = False
    """Whether Spark may use other machines without protection. This allows a `remote` without `use_ssl=true`,
    where others can read and change what is sent. It also allows a `master` without `spark.authenticate:
    true` in `conf`, where anyone who can connect to Spark's ports can run code. Default `false`. Set it only
    on an isolated network; on this machine (127.0.0.1, ::1, localhost) neither is required."""
    conf: dict[str, Property] = Field(default_factory=dict)
    """Further Spark properties; they override the archiver's own. A value may be `{env: NAME}` or `{file:
    PATH}`. Those values, and values that resemble a secret, are never shown by the archiver (Spark itself
    passes them to its processes). Default: none."""
    pass_environment: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = Field(
        default_factory=list, max_length=100
    )
    """Names of environment variables that the JVM and its Python workers get in addition to a fixed list.
    Default: none, so that no secret reaches them. Add a name that your script, agent or library needs."""
    driver_memory: Annotated[str, Field(pattern=r"^[1-9][0-9]*[kmgtKMGT]$")] = "2g"
    """Heap of the JVM that the archiver starts, in Java's notation. Default `2g`: the rows pass through
    Python, so the JVM needs little."""
    task_bytes: Annotated[Size, Field(ge=2**20, le=2**34)] = 256 * 2**20
    """Target size of a Spark task, in raw bytes; archives are bundled up to it while every core has work.
    Default 256 MiB. Each task reads all intake files that contain records of its archives. Raise it for
    thousands of partitions: larger tasks read fewer files in total."""
    job_timeout: Annotated[Duration, Field(gt=0, le=7 * 86400)] = 3600.0
    """Longest time for the Spark job of one round; then it is cancelled, and a later round repeats it.
    Default 1 h: far more than any job that makes progress needs."""
    answer_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 60.0
    """Longest time that Spark may leave a trivial request unanswered while work waits for it. A JVM that the
    archiver started is then killed, and the next round starts a new one. For a Spark Connect server it is the
    longest wait for any answer, including that to the first plan. Default 60 s: a cold server needs some
    seconds for its first plan."""
    start_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 300.0
    """Longest time for the start of a JVM; then it is killed, and the next round starts it again. Default 5
    min. Raise it on a slow machine."""

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, Mapping) or not isinstance(data.get("conf"), Mapping):
            return data
        prepared: dict[str, Any] = {}
        problems: list[tuple[tuple[str | int, ...], str]] = []
        for key, value in data["conf"].items():
            try:
                prepared[key] = _property(key, value, info)
            except ValueError as error:
                problems.append((("conf", key), str(error)))
        if problems:
            raise Located(problems)
        return {**data, "conf": prepared}

    @model_validator(mode="after")
    def _protected(self) -> Self:
        # With a Connect server the master is not used.
        if self.remote is not None:
            why = _bad_remote(self.remote, self.allow_insecure)
            if why is not None:
                raise Located([(("remote",), why)])
            return self
        if (
            not self.allow_insecure
            # The driver's ports accept code from workers and send it to them, so they must not be open.
            and not self.is_here
            and self.properties().get("spark.authenticate", "").lower() != "true"
        ):
            raise Located([(("master",), _OPEN_MASTER)])
        return self

    @property
    def is_local(self) -> bool:
        """Whether Spark runs its tasks in processes of its driver."""
        return _LOCAL_MASTER.match(self._master_used) is not None

    @property
    def is_here(self) -> bool:
        """Whether every Spark process that gets work from the master is on this machine."""
        kind, _, hosts = self._master_used.partition("://")
        # Only workers of this machine can reach a standalone master at a loopback address.
        return self.is_local or (
            kind == "spark" and all(is_loopback(host_of(one)) for one in hosts.split(","))
        )

    @property
    def _master_used(self) -> str:
        # A `spark.master` in `conf` overrides the key, so it is the one to check.
        return self.properties().get("spark.master", self.master)

    def properties(self) -> dict[str, str]:
        """The further Spark properties, with secrets revealed: never print them."""
        return {key: _plain(value) for key, value in self.conf.items()}

    def is_secret(self, name: str) -> bool:
        """Whether that property must never be shown."""
        return isinstance(self.conf.get(name), SecretStr)


# `local-cluster` starts its workers as processes of this machine.
_LOCAL_MASTER = re.compile(r"local(?:-cluster)?(?:\[|$)")
_OPEN_MASTER = (
    "Spark's ports would be open to other machines, and anyone who can connect to them can run code; set "
    "spark.authenticate: true in conf (a standalone cluster also needs spark.authenticate.secret), or "
    "allow_insecure: true on an isolated network"
)


def _bad_remote(remote: str, allow_insecure: bool) -> str | None:
    """The problem with the address of a Spark Connect server, or None. The message omits the address: it may
    hold a token.
    """
    try:
        # The port is read as well, because only then `urlsplit` validates it.
        parts = urlsplit(remote)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    # PySpark accepts only this scheme.
    if not host or parts.scheme != "sc":
        return "is not an address such as sc://host:443/;use_ssl=true"
    # Parameters of Spark Connect are in the path: `/;name=value;name=value`.
    given = dict(part.partition("=")[::2] for part in parts.path.split(";"))
    if not allow_insecure and not is_loopback(host) and given.get("use_ssl", "").lower() != "true":
        return (
            "the connection to another machine would not be encrypted, and others could read and change the "
            "data on the way; put TLS before the server and append /;use_ssl=true to its address, or set "
            "allow_insecure: true on an isolated network"
        )
    return None


# --- Logs, intake, cleanup and tests.
class LogSettings(Group):
    """The intake log and the control log."""

    entry_bytes_max: Annotated[Size, Field(ge=16 * 2**10, le=2**20)] = 512 * 2**10
    """Largest log entry, in bytes; a flush that needs more is split. Default 512 KiB: etcd refuses entries
    above 1.5 MiB, and a log must be movable to etcd."""
    append_attempts_max: Annotated[StrictInt, Field(ge=1, le=1000)] = 10
    """Attempts to send one entry before its outcome is reported as unknown; also the number of times that
    another writer may take its index. Default 10."""
    append_backoff: Annotated[Duration, Field(gt=0, le=60)] = 0.05
    """Wait before the second attempt; it doubles with each further attempt. Default 50 ms."""
    checkpoint_entries: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 10_000
    """Entries of a log (intake or control) between two checkpoints of its state in object storage. The log
    keeps the entries since the older of the last two checkpoints. A starting process reads the entries since
    the newest one. Default 10,000: a start then reads at most some seconds' worth of entries."""
    checkpoint_bytes: Annotated[Size, Field(ge=2**10, le=2**30)] = 16 * 2**20
    """Bytes of entries after which a checkpoint is written earlier. It limits the metadata store to four
    times this size. Default 16 MiB. Lower it for a small metadata store."""


class IntakeSettings(Group):
    """The intake writer: batching, queue, clock and producer limits."""

    delay_max: Annotated[Duration, Field(ge=0, le=3600)] = 0.2
    """Longest time that a record waits for others before its intake file is closed. It limits the time to an
    acknowledgement. Default 200 ms. Lower it for faster acknowledgements, raise it for fewer and larger
    intake files."""
    delay_max_bytes: Annotated[Size, Field(ge=1, le=2**30)] = 15 * 10**6
    """Raw bytes (keys, values, headers) at which an intake file is closed before `delay_max`. Default 15 MB.
    Raise it for higher throughput with larger files."""
    queue_bytes_max: Annotated[Size, Field(ge=1, le=2**36)] = 64 * 10**6
    """Bytes of records that may be queued or in flight, before compression and with what each takes in
    memory; a producer that would exceed this waits. It limits the writer's memory. Default 64 MB. Raise it if
    many producers send at the same time."""
    record_bytes_max: Annotated[Size, Field(ge=1, le=2**29)] = 16 * 2**20
    """Largest record, in bytes: key, value, header names and header values, plus 16 for each header. Default
    16 MiB."""
    elements_max: Annotated[StrictInt, Field(ge=1000, le=2**31)] = 1_000_000
    """Most Protobuf fields and list elements in one key or value of a topic with `validate`. A record with
    more counts as one that does not decode (cause `too_many_values`). Default 1,000,000: validation takes
    about one second for a million. Raise it for records with very long lists of messages. Lower it where
    other topics must never wait that long."""
    clock_skew_max: Annotated[Duration, Field(gt=0, le=86400)] = 10.0
    """How far this machine's clock may be ahead of its reference before the writer refuses to append. A time
    that is once in the log holds back every later one. Default 10 s."""
    clock_settle: Annotated[Duration, Field(gt=0, le=86400)] = 60.0
    """How long the clock must run evenly before it becomes the reference again. It applies after every step,
    including a correction, and after the machine was suspended. Default 60 s. Raise it to get more time to
    notice a wrong clock. Lower it to end refusals sooner; a clock that is wrong but steady is then trusted
    sooner too."""
    close_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 30.0
    """Longest time that closing waits for records in flight, and that a producer waits for a full queue.
    Records left after closing are reported as failed or unknown. Default 30 s."""
    producer_idle_max: Annotated[Duration, Field(ge=60, le=3650 * 86400)] = 7 * 86400.0
    """How long an inactive idempotent producer is remembered, unless it has an open transaction. Records that
    it sends later are refused. Clients of Kafka then raise their epoch and send them again. It limits the
    state kept for producers. Default 7 d; Kafka's default is one day. Raise it for producers that pause
    longer."""
    producer_idle_min: Annotated[Duration, Field(ge=60, le=30 * 86400)] = 1800.0
    """How long an inactive idempotent producer is remembered in any case, also beyond `producers_max`. A
    quarter of it is the longest time for which a Kafka client may repeat a batch (`delivery.timeout.ms`,
    `message.timeout.ms`): a later repetition could be stored twice. Default 30 min: 7.5 min for repetitions.
    At most `producer_idle_max`. Raise it for clients with longer timeouts, lower it for less memory."""
    producers_max: Annotated[StrictInt, Field(ge=100, le=10**8)] = 100_000
    """Most idempotent producers that are remembered. The least recently used ones above that number are
    forgotten before `producer_idle_max`, except those with an open transaction, and those that were used
    within `producer_idle_min`. At twice that number, the first batch of another Kafka producer gets a
    retriable error. Archiving rounds forget producers, so those that came since the last round are kept as
    well. It limits the memory of every process and the size of checkpoints. A producer of one partition takes
    about 1.7 kB of memory and 70 bytes of a checkpoint. Each further partition takes about 1.4 kB and 50
    bytes. Default 100,000: 170 MB if each producer writes to one partition. Raise it for more producers,
    lower it for less memory."""
    transaction_timeout_max: Annotated[Duration, Field(gt=0, le=7 * 86400)] = 900.0
    """Longest timeout that a transaction may request. While a transaction is open, no record after its first
    one is archived. When it times out, a running writer, `archiver archive` or `archiver clean` aborts it and
    fences its producer. Opening its transactional id again aborts it at once. Default 15 min. Raise it for
    producers with longer transactions."""
    workers: Annotated[StrictInt, Field(ge=1, le=64)] = 1
    """Processes that receive and store records of clients. Default 1: the daemon itself. From 2 on the daemon
    starts so many further processes. They serve the connections of Kafka clients, and the records of HTTP
    requests. The daemon still accepts connections, and coordinates groups and transactions. Each process has
    a writer, so limits of memory (`queue_bytes_max`, `kafka.requests_bytes_max`, `kafka.fetch_cache_bytes`)
    apply to each, and each writes intake files of its own. Set it to the number of cores that clients may
    use, if one core does not suffice for them."""
    row_group_bytes: Annotated[Size, Field(ge=4 * 2**10, le=2**30)] = 2**20
    """Raw bytes at which a row group or a chunk of record batches in an intake file ends, at the next segment
    boundary. A reader holds one of them in memory. Default 1 MiB."""

    @model_validator(mode="after")
    def _fits_the_queue(self) -> Self:
        # A larger batch or record would wait for room that never comes.
        problems = [
            (
                (name,),
                (
                    f"{getattr(self, name)} bytes are more than intake.queue_bytes_max "
                    f"({self.queue_bytes_max}); raise that or lower this"
                ),
            )
            for name in ("delay_max_bytes", "record_bytes_max")
            if getattr(self, name) > self.queue_bytes_max
        ]
        if problems:
            raise Located([((name[0],), message) for name, message in problems])
        return self


class CleanupSettings(Group):
    """Reconciling and cleaning.

    `archiver clean` deletes intake files that are no longer needed, and replaced checkpoints and history
    files of the logs. It deletes archives that are older than their topic's `retention`, or that neither a
    table nor a stream needs. It also deletes what expired snapshots of a table leave behind.
    docs/protocols/vacuum.md says why that is safe.
    """

    interval: Annotated[Duration, Field(ge=60, le=30 * 86400)] = 6 * 3600.0
    """Time between two cleanup runs of the daemon. Default 6 h. Set 1 h where much is written."""
    reconcile_after: Annotated[Duration, Field(ge=1, le=86400)] = 30.0
    """Delay until the daemon reconciles after a commit that failed or whose outcome is unknown. It doubles
    with every further failure, up to `interval`. Default 30 s. The daemon repairs only what the next round
    would repair anyway; it reports the rest."""
    grace: Annotated[Duration, Field(ge=60, le=30 * 86400)] = 3600.0
    """The deletion delay: the age at which an intake file may be marked for deletion, and the time from the
    mark to the deletion. Default 1 h. A short delay loses no data. A writer that takes longer between storing
    and logging a file fails. A reader that takes longer to open a file reports it as missing. On a healthy
    store neither takes a minute; hence the minimum. Raise it for very slow readers."""
    orphan_age: Annotated[Duration, Field(ge=86400, le=3650 * 86400)] = 3 * 86400.0
    """Age at which a file in a table's folder may be marked for deletion because nothing references it.
    Default 3 d, at least one day. Other engines reference their files only at commit. Raise it above the
    duration of their longest job, for example a compaction."""
    deletes_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 10_000
    """Most objects that one run marks for deletion, and most that it deletes. Default 10,000, so that a run
    ends. The daemon starts the next run at once."""
    compact_bytes: Annotated[Size, Field(ge=0, le=2**32)] = 0
    """Size up to which small archives of a table are merged, in bytes; 0: never. Default 0. Archives below
    half of this size are merged with their neighbours, once their day, hour or month has been over for
    `grace`. A merged archive has the same records in the same order, byte for byte. The old archives are
    deleted once no retained snapshot references them. Set 128 MiB to get fewer, larger files. Versions that
    do not know this setting cannot read the control log once archives were merged."""
    compact_run_bytes_max: Annotated[Size, Field(ge=1, le=2**50)] = 2 * 2**30
    """Most bytes of archives that one run merges. Default 2 GiB, so that a run ends. The daemon starts the
    next run at once."""


class TestingSettings(Group):
    """For tests only."""

    __test__ = False  # pytest must not collect this class

    failpoints: StrictBool = False
    """Whether the variable `ARCHIVER_FAILPOINTS` may stop the process at chosen steps. Default `false`. If
    only one of the two is set, the process refuses to start: a forgotten variable or key then does no
    harm."""
