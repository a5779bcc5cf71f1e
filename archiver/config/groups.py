"""The groups of settings, except topics and archives: what each key means, its unit, its bound and why its
default is what it is.

Plain values only. A component receives its own group, never the whole. The text under a key is its entry in
docs/configuration.md.
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
_USER_IN_URL = re.compile(r"://[^/@]+@")
_SQL_SERVER = re.compile(
    r"(?P<dialect>\w+)(?:\+\w+)?://(?:[^:/]*(?::[^@]*)?@)?(?P<host>\[[^/?]+\]|[^/:?]*)[^/?]*(?:/[^?]*)?(?:\?(?P<query>.*))?"
)
"""As SQLAlchemy reads an address."""
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
"""What an address may ask of a driver by which another host than its own is taken: a file names it, or a text
of the driver's own form."""
_ENDPOINT = re.compile(r".\.(?:endpoint|service\.host|signer\.uri)$")
"""Properties of a catalog that are addresses of further servers."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


Property = Annotated[
    Any,  # a SecretStr if it is, or looks like, a secret; else a str
    WithJsonSchema({"anyOf": [{"type": ["string", "number", "boolean"]}, SECRET_SCHEMA]}),
]


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
_TLS_FILES = frozenset({"ssl.cabundle", "ssl.client.cert", "ssl.client.key"})


class CatalogSettings(Group):
    """One Iceberg catalog. Every further key is a property of pyiceberg's catalog of that type, for example
    `uri` or `warehouse`.

    A property may be `{env: NAME}` or `{file: PATH}`. Those, and properties that look like a secret, are
    never shown.
    """

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Property]

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
    """The name by which topics refer to it; 1 to 64 of A-Z a-z 0-9 . _ -."""
    type: Annotated[str, Field(min_length=1)]
    """pyiceberg's catalog type: `sql` (embedded), `rest`, `glue`, `hive`."""
    request_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 30.0
    """How long a REST catalog may take to accept a connection, and then to answer; its token server likewise.
    A request without an answer has an unknown outcome, and the table is looked at; the default leaves time
    for that within `archive.commit_timeout`."""
    location: Literal["data", "catalog"] = "data"
    """Where new tables lie: `data`: in the data folder, beside their archives; `catalog`: where the catalog
    puts them, with only the archives in the data folder ([what cannot be had
    then](operations/catalogs.md#tables-where-the-catalog-puts-them))."""
    locations: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=2048)], ...], Field(max_length=100)
    ] = ()
    """Further places where table metadata may lie: folders (`file:` URIs or absolute paths) and prefixes of
    buckets (`s3://bucket/prefix`). Default: none. Metadata files, manifest lists and manifests are read and
    written in the data folder and in these places only. With `location: catalog` every bucket is allowed too,
    and the catalog's `warehouse` if it is a path. Set it when another program writes the metadata of a table
    elsewhere, or when such a catalog puts tables into a local folder."""
    metadata_bytes_max: Annotated[Size, Field(ge=2**20, le=2**30)] = 64 * 2**20
    """Largest answer of a REST catalog, and largest metadata file, manifest list or manifest, in bytes
    without compression; 1 MiB to 1 GiB. What is larger is not read, and its table halts. So does more than
    one JSON value for each 16 bytes of it, or one manifest entry for each 64. Raise it for a table whose
    metadata has many thousands of snapshots or files. Reading one takes up to about ten times its bytes of
    memory, and up to 60 times if it is made for that."""
    allow_http: StrictBool = False
    """Whether a secret may be sent to another machine over `http://`, where everybody on the way can read it;
    and whether an `s3.endpoint`, `glue.endpoint`, `dynamodb.endpoint` or the like may be such an address:
    what is asked there could then be read and changed. On this machine (127.0.0.1, ::1, localhost) it needs
    no leave."""
    allow_insecure: StrictBool = False
    """Whether a server of type `sql` or `hive` on another machine may be asked without proof of who it is, or
    in the clear: who is in between could then say which rows a table has. PostgreSQL with
    `sslmode=verify-full` in the `uri`, and what is on this machine, need no leave."""

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, Mapping):
            return data
        if isinstance(data.get("type"), str):
            data = {
                **data,
                "type": data["type"].lower(),
            }  # pyiceberg takes it however it is written, and so do the rules
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
                problems.append(((key,), str(error)))
        if problems:
            raise Located(problems)
        for key in _TLS_FILES & prepared.keys():
            prepared[key] = str(resolve_path(prepared[key], info))
        uri = prepared.get("uri")
        if data.get("type") == "sql" and around is not None and isinstance(uri, str):
            prepared["uri"] = re.sub(
                r"^sqlite:///(?=[^/:])", lambda found: f"{found[0]}{around.folder}/", uri
            )
        return prepared

    @model_validator(mode="after")
    def _protected(self) -> Self:
        extra = self.__pydantic_extra__ or {}
        secret = any(
            name.startswith("header.") and isinstance(value, SecretStr) for name, value in extra.items()
        )
        properties = self.properties()
        problems = _rest_problems(properties, secret, self.allow_http) if self.type == "rest" else []
        if not self.allow_http:
            problems += _in_the_clear(properties)
        uri = properties.get("uri", "")
        if _CONTROL.search(uri):
            problems.append(
                (
                    ("uri",),
                    "has a line break or another character that cannot be seen; write the address without it",
                )
            )
        elif not self.allow_insecure and (why := _unproven(self.type, uri)) is not None:
            problems.append((("uri",), why))
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
        """What pyiceberg's `load_catalog` is given, secrets revealed: never print it."""
        found = {"type": self.type}
        for key, value in (self.__pydantic_extra__ or {}).items():
            found[key] = _plain(value)
        return found


def _rest_problems(
    properties: Mapping[str, str], secret: bool, allow_http: bool
) -> list[tuple[tuple[str | int, ...], str]]:
    """What is wrong with the way in which a REST catalog is told who we are; `secret`: one of its headers
    is.
    """
    problems: list[tuple[tuple[str | int, ...], str]] = []
    signed = properties.get("rest.sigv4-enabled", "").lower() == "true"
    ways = [name for name in ("token", "credential") if properties.get(name)] + [
        "rest.sigv4-enabled"
    ] * signed
    if len(ways) > 1:
        problems.append(
            ((ways[-1],), f"is given beside {ways[0]}; there is one way to say who we are: write one of them")
        )
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


def _in_the_clear(properties: Mapping[str, str]) -> list[tuple[tuple[str | int, ...], str]]:
    """The addresses of a catalog's further servers, a store among them, that are asked over `http://` on
    another machine.
    """
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


def _unproven(kind: str, uri: str) -> str | None:
    """What is wrong with the address of a server that is not asked over HTTP; it is not repeated, for it may
    hold a password.
    """
    told = _SQL_SERVER.fullmatch(uri) if kind == "sql" else None
    cure = ""
    if told is not None:
        query = parse_qs(told["query"] or "")
        if _asked_here(told["dialect"], told["host"], query):
            return None
        if told["dialect"] == "postgresql":
            if query.get("sslmode") == ["verify-full"]:
                return None
            cure = "add sslmode=verify-full, and sslrootcert=FILE for an authority of your own, or "
    elif (
        kind != "hive"
        or not uri
        or all(is_loopback(host_of(urlsplit(one.strip()).netloc)) for one in uri.split(","))
    ):
        return None
    return (
        f"another machine would be asked without proof of who it is, or in the clear; {cure}set "
        "allow_insecure: true where its driver, or "
        "a network of its own, keeps others away"
    )


def _asked_here(dialect: str, host: str, query: Mapping[str, list[str]]) -> bool:
    """Whether an address of SQLAlchemy's is on this machine for certain. Without a host only SQLite's and
    PostgreSQL's are: other drivers take it from elsewhere, or have a default of their own.
    """
    if dialect == "sqlite":
        return not host
    if not _HOST_ELSEWHERE.isdisjoint(map(str.lower, query)):
        return False
    hosts = [
        one for one in ",".join([host, *query.get("host", []), *query.get("hostaddr", [])]).split(",") if one
    ]
    if dialect == "postgresql":
        return all(one.startswith("/") or is_loopback(host_of(one)) for one in hosts)  # a path is a socket
    return bool(hosts) and all(is_loopback(host_of(one)) for one in hosts)


def _property(key: str, value: object, info: ValidationInfo) -> object:
    """A property as it is kept: wrapped if it is a reference to a secret or looks like one."""
    if is_reference(value):
        return reveal(value, info)
    if isinstance(value, SecretStr):
        return value
    if key == "auth":
        raise ValueError(
            "is not taken: write credential, oauth2-server-uri and scope, or token, or "
            "rest.sigv4-enabled beside uri"
        )
    if value is None or isinstance(value, dict | list | tuple):
        raise ValueError(
            "must be a text, a number or true/false, or refer to a secret by {env: NAME} or {file: PATH}"
        )
    text = _plain(value)
    return SecretStr(text) if _SECRET_NAME.search(key) or _USER_IN_URL.search(text) else text


def _plain(value: object) -> str:
    """A property as pyiceberg reads it."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


class SparkSettings(Group):
    """The Spark session that refines intake into archives."""

    master: Annotated[str, Field(min_length=1)] = "local[*]"
    """Spark's master; the default uses every core of this machine."""
    remote: str | None = None
    """Address of a Spark Connect server, for example `sc://host:443/;use_ssl=true`; it takes the place of
    `master`."""
    allow_insecure: StrictBool = False
    """Whether Spark may be on other machines unprotected: `remote` without `use_ssl=true`, where everybody on
    the way can read and change what is sent, and `master` without `spark.authenticate: true` in `conf`, where
    whoever reaches Spark's ports can run code. For where a network of its own keeps others away. On this
    machine (127.0.0.1, ::1, localhost) neither is asked for."""
    conf: dict[str, Property] = Field(default_factory=dict)
    """Further Spark properties; they win over ours. One may be `{env: NAME}` or `{file: PATH}`; those, and
    what looks like a secret, are never shown by us (Spark itself hands them to its processes)."""
    pass_environment: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = Field(
        default_factory=list, max_length=100
    )
    """Names of environment variables that the JVM we start, and its Python workers, get in addition to the
    usual ones. By default they get no variable that is not on a fixed list, so that no secret reaches them.
    Add a name that a script, agent or library of yours needs."""
    driver_memory: Annotated[str, Field(pattern=r"^[1-9][0-9]*[kmgtKMGT]$")] = "2g"
    """Heap of the JVM that we start, as Java writes it. The rows pass through Python, so the JVM needs
    little."""
    task_bytes: Annotated[Size, Field(ge=2**20, le=2**34)] = 256 * 2**20
    """Raw bytes that one task should have; archives are bundled up to it, as long as every core has work.
    Each task reads all intake files that its archives have records in, so larger tasks read less for
    thousands of partitions."""
    job_timeout: Annotated[Duration, Field(gt=0, le=7 * 86400)] = 3600.0
    """How long the job of one round may take before it is cancelled, and repeated by a later round. Far
    beyond any job that makes progress."""
    answer_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 60.0
    """A JVM that we started and that leaves a trivial question unanswered for so long, while something waits
    for it, is taken for dead: it is killed, and the next round starts a new one. A request to a Spark Connect
    server waits for its answer so long, its first plan included, which takes a cold server some seconds."""
    start_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 300.0
    """How long a JVM may take to start before it is killed, and started again by the next round."""

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
        if self.remote is not None:
            why = _bad_remote(self.remote, self.allow_insecure)
            if why is not None:
                raise Located([(("remote",), why)])
            return self
        if (
            not self.allow_insecure
            and not self.is_here
            and self.properties().get("spark.authenticate", "").lower() != "true"
        ):
            raise Located([(("master",), _OPEN_MASTER)])
        return self

    @property
    def is_local(self) -> bool:
        """Whether Spark's tasks run in processes of its driver's."""
        return _LOCAL_MASTER.match(self._master_used) is not None

    @property
    def is_here(self) -> bool:
        """Whether no process of Spark's that the master gives work to is on another machine."""
        kind, _, hosts = self._master_used.partition("://")
        return self.is_local or (
            kind == "spark" and all(is_loopback(host_of(one)) for one in hosts.split(","))
        )

    @property
    def _master_used(self) -> str:
        return self.properties().get("spark.master", self.master)

    def properties(self) -> dict[str, str]:
        """The further properties, secrets revealed: never print them."""
        return {key: _plain(value) for key, value in self.conf.items()}

    def is_secret(self, name: str) -> bool:
        """Whether that property is one which nobody may see."""
        return isinstance(self.conf.get(name), SecretStr)


_LOCAL_MASTER = re.compile(r"local(?:-cluster)?(?:\[|$)")
_OPEN_MASTER = (
    "Spark's ports would be open to other machines, and whoever reaches them can run code; set "
    "spark.authenticate: true in conf (a "
    "standalone cluster also wants spark.authenticate.secret), or allow_insecure: true where a network "
    "of its own keeps others away"
)


def _bad_remote(remote: str, allow_insecure: bool) -> str | None:
    """What is wrong with the address of a Spark Connect server, which is not repeated: it may hold a token.
    None if nothing is.
    """
    try:
        parts = urlsplit(remote)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = None
    if not host or parts.scheme != "sc":
        return "is not an address such as sc://host:443/;use_ssl=true"
    given = dict(part.partition("=")[::2] for part in parts.path.split(";"))
    if not allow_insecure and not is_loopback(host) and given.get("use_ssl", "").lower() != "true":
        return (
            "another machine would be spoken to in the clear, where everybody on the way can read and "
            "change what is sent; put TLS before "
            "the server and /;use_ssl=true behind its address, or set allow_insecure: true where a "
            "network of its own keeps others away"
        )
    return None


class LogSettings(Group):
    """The logs."""

    entry_bytes_max: Annotated[Size, Field(ge=16 * 2**10, le=2**20)] = 512 * 2**10
    """Largest entry, in bytes; a flush that needs more is split. etcd refuses 1.5 MiB, and a log must be able
    to move there."""
    append_attempts_max: Annotated[StrictInt, Field(ge=1, le=1000)] = 10
    """How often the same entry is sent before its outcome is reported as unknown, and how often another
    writer may take the place."""
    append_backoff: Annotated[Duration, Field(gt=0, le=60)] = 0.05
    """Wait before the second attempt; it doubles with each further one."""
    checkpoint_entries: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 10_000
    """Entries of a log (intake or control) after which its state is moved to object storage. The log keeps
    the entries since the older of the last two checkpoints, and a process that starts reads those since the
    newest: some seconds' worth at most."""
    checkpoint_bytes: Annotated[Size, Field(ge=2**10, le=2**30)] = 16 * 2**20
    """Bytes of entries after which the same happens earlier. It bounds the metadata store: to four times as
    much."""


class IntakeSettings(Group):
    """The intake writer."""

    delay_max: Annotated[Duration, Field(ge=0, le=3600)] = 0.2
    """How long a record may wait for company before its intake file is closed. It bounds the time to an
    acknowledgement."""
    delay_max_bytes: Annotated[Size, Field(ge=1, le=2**30)] = 15 * 10**6
    """Raw bytes at which an intake file is closed early."""
    queue_bytes_max: Annotated[Size, Field(ge=1, le=2**36)] = 64 * 10**6
    """Raw bytes that wait or are on their way; a producer that would exceed it waits. It bounds the writer's
    memory."""
    record_bytes_max: Annotated[Size, Field(ge=1, le=2**29)] = 16 * 2**20
    """Largest record: key, value, header names and values together, in bytes, and 16 for each header."""
    elements_max: Annotated[StrictInt, Field(ge=1000, le=2**31)] = 1_000_000
    """Most Protobuf fields and list elements of one key or value of a topic with `validate`: checking a
    record takes time in proportion to them, about a second for a million. A record with more counts as one
    that does not decode (cause `too_many_values`). Raise it for records with very long lists of messages;
    lower it where other topics must never wait that long."""
    clock_skew_max: Annotated[Duration, Field(gt=0, le=86400)] = 10.0
    """How far this machine's clock may be ahead of its reference before the writer refuses to append: a time
    once in the log holds back every later one."""
    clock_settle: Annotated[Duration, Field(gt=0, le=86400)] = 60.0
    """How long the clock must have run evenly before it is the reference again: after a step, also one that
    set it right, and after this machine slept. Longer gives people more time to notice a clock that was set
    wrong; shorter ends the refusals sooner, and a clock that is wrong but steady is believed sooner."""
    close_timeout: Annotated[Duration, Field(gt=0, le=3600)] = 30.0
    """How long closing waits for what was sent (what is left after it is reported as failed or unknown), and
    how long a producer waits before a full queue."""
    producer_idle_max: Annotated[Duration, Field(ge=60, le=3650 * 86400)] = 7 * 86400.0
    """An idempotent producer that was not heard of for so long is forgotten, unless it has an open
    transaction: what it sends then is refused. It bounds what is kept of producers; Kafka's default is a
    day."""
    transaction_timeout_max: Annotated[Duration, Field(gt=0, le=7 * 86400)] = 900.0
    """The longest time that a transaction may ask to stay open. While one is open, nothing behind its first
    record is archived; after its time a running writer, or the next `archiver archive` or `archiver clean`,
    aborts it and fences its producer; opening its transactional id again aborts it at once."""
    row_group_bytes: Annotated[Size, Field(ge=4 * 2**10, le=2**30)] = 2**20
    """Raw bytes at which a row group of an intake file ends, at the next segment boundary. A row group is
    what a reader holds in memory."""

    @model_validator(mode="after")
    def _fits_the_queue(self) -> Self:
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
    """Reconciling and cleaning. `archiver clean` deletes intake files that nobody needs any more, checkpoints
    and shelves of the logs that newer ones replaced, archives that are older than their topic's `retention`
    or that neither a table nor a stream needs, and what expired snapshots of a table leave behind.
    docs/protocols/vacuum.md says why nobody misses them.
    """

    interval: Annotated[Duration, Field(ge=60, le=30 * 86400)] = 6 * 3600.0
    """Time between two runs of the daemon. 1 h is advised where much is written."""
    reconcile_after: Annotated[Duration, Field(ge=1, le=86400)] = 30.0
    """How soon the daemon reconciles after a commit that failed, or whose outcome is unknown. Doubled with
    every further failure, up to `interval`. Only what the next round would do anyway is repaired unasked; the
    rest is told."""
    grace: Annotated[Duration, Field(ge=60, le=30 * 86400)] = 3600.0
    """How old an intake file must be before it can be condemned, and how long it stays after that. Nothing is
    lost if it is short: a writer that takes longer between storing a file and naming it in the log is told
    that it failed, and a reader that takes longer to get to a file it has seen in the log reports it as
    missing. On a healthy store neither takes a minute, hence the floor."""
    orphan_age: Annotated[Duration, Field(ge=86400, le=3650 * 86400)] = 3 * 86400.0
    """How old a file in a table's folder must be before it can be condemned because nothing names it. Another
    engine names its files only when it commits, and does not ask the archiver: its longest job (a compaction,
    say) must end in less. Not below a day."""
    deletes_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 10_000
    """Objects that one run condemns at most, and deletes at most, so that a run ends. The daemon goes on at
    once with another run."""
    compact_bytes: Annotated[Size, Field(ge=0, le=2**32)] = 0
    """Archives of less than half of this size are merged with their neighbours into archives of up to about
    this size, in tables, once their day, hour or month has been over for `grace`; 0: never. 128 MiB is
    advised. A merged archive has its records in the same order and byte for byte; the old ones are deleted
    once no retained snapshot names them. Versions that do not know this setting cannot read the control log
    any more once archives were merged."""
    compact_run_bytes_max: Annotated[Size, Field(ge=1, le=2**50)] = 2 * 2**30
    """Bytes of archives that one run merges at most, so that a run ends. The daemon goes on at once with
    another run."""


class TestingSettings(Group):
    """For tests only."""

    __test__ = False  # a test runner must not take it for a test

    failpoints: StrictBool = False
    """Whether the variable `ARCHIVER_FAILPOINTS` may stop the process at chosen steps. One without the other
    is refused, so that neither a forgotten variable nor a forgotten key can do harm."""
