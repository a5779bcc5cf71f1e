"""The settings of a Kafka source, and the parsing of brokers and client properties for all Kafka clients.

Plain values only. The docstring under a key is its entry in docs/configuration.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo, WithJsonSchema, model_validator

from archiver.config.types import (
    SECRET_SCHEMA,
    Duration,
    Group,
    Located,
    Size,
    host_of,
    is_loopback,
    is_reference,
    reveal,
)
from archiver.runtime.rfc3339 import parse_time

OWNED = frozenset(
    {
        *(
            # Positions are in the intake log, so the client must not commit or reset any.
            "bootstrap.servers",
            "metadata.broker.list",
            "group.id",
            "enable.auto.commit",
            "enable.auto.offset.store",
            "auto.offset.reset",
        ),
        *(
            # Aborted records must not be read, and a damaged batch must be an error.
            "isolation.level",
            "enable.partition.eof",
            "check.crcs",
            "queued.min.messages",
            "queued.max.messages.kbytes",
            "socket.timeout.ms",
        ),
        # Derived from `queue_bytes_max`, which bounds the memory.
        *("fetch.max.bytes", "max.partition.fetch.bytes", "fetch.message.max.bytes"),
        # Reading must not create a topic. There is no consumer group, so no group can move partitions.
        *("allow.auto.create.topics", "group.protocol", "group.instance.id"),
    }
)
"""Client properties that exactness or memory bounds depend on. The source sets them itself, and the
configuration must not."""
_SECRET = re.compile(
    r"password|passphrase|secret|token(?!\.endpoint\.)|\.pem$|sasl\.oauthbearer\.config", re.IGNORECASE
)
# Topic names have no colon, so the last part is always the partition.
_LOST = re.compile(r"[A-Za-z0-9._-]{1,249}:\d{1,6}", re.ASCII)
_OFFSET_MAX = 2**62
_VERIFIED = {"enable.ssl.certificate.verification": "true", "ssl.endpoint.identification.algorithm": "https"}
"""librdkafka's own defaults, with which the client verifies the identity of the cluster."""
_PROTOCOLS = frozenset({"plaintext", "ssl", "sasl_plaintext", "sasl_ssl"})
_SENT_IN_PLAIN_TEXT = frozenset({"plain", "oauthbearer"})
"""SASL mechanisms that send the secret itself."""


def check_brokers(value: object) -> object:
    """The bootstrap brokers of a client; raises `ValueError`."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("must name brokers as HOST:PORT,HOST:PORT")
    if "@" in value or "://" in value:  # the value is not repeated: it may hold a password
        raise ValueError(
            "must be HOST:PORT,HOST:PORT alone; credentials and the protocol belong in properties"
        )
    return value


def _check_pattern(value: object) -> object:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a pattern of topic names such as orders or shop[.].*")
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value[:80]!r} is not a regular expression: {error}") from None
    return value


def _check_beginning(value: object) -> object:
    # A document built by another YAML parser may have an unquoted time as a datetime.
    if isinstance(value, datetime):
        value = (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    if value in ("earliest", "latest") or (isinstance(value, str) and _is_time(value)):
        return value
    raise ValueError(
        f"{str(value)[:80]!r} is neither earliest nor latest nor a time such as 2026-01-02T03:04:05Z"
    )


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except ValueError:
        return False
    return True


def _check_lost(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping from TOPIC:PARTITION to an offset")  # noqa: TRY004 - pydantic needs ValueError
    for key, offset in value.items():
        if not isinstance(key, str) or not _LOST.fullmatch(key):
            raise ValueError(f"{str(key)[:80]!r} is not TOPIC:PARTITION")
        # `true` is an int in Python.
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _OFFSET_MAX:
            raise ValueError(f"{key}: {str(offset)[:40]} is not an offset")
    return value


def _property(key: str, value: object, info: ValidationInfo) -> str | SecretStr:
    """One client property; raises `ValueError` without repeating a secret."""
    if is_reference(value) or isinstance(value, SecretStr):
        revealed = reveal(value, info)
        assert isinstance(revealed, SecretStr)
        return revealed
    if value is None or isinstance(value, dict | list | tuple):
        raise ValueError(
            "must be text, a number or true/false, or refer to a secret by {env: NAME} or {file: PATH}"
        )
    # A `.location` is the path of a key file and not the key.
    if _SECRET.search(key) and not key.endswith(".location"):
        raise ValueError("is a secret: write {env: NAME} or {file: PATH}, never the secret itself")
    # librdkafka writes `true` and `false` in lower case.
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_properties(value: object, info: ValidationInfo, owned: frozenset[str], owner: str) -> object:
    """Validated client properties. `owner` sets the `owned` ones itself, so they are refused; raises
    `ValueError`.
    """
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of the client's properties")  # noqa: TRY004 - pydantic needs ValueError
    found: dict[str, str | SecretStr] = {}
    for key, given in value.items():
        if key in owned:
            raise ValueError(
                f"{key}: is set by {owner}, because exactness or memory bounds depend on it; remove it"
            )
        try:
            found[str(key)] = _property(str(key), given, info)
        # Not chained, because the cause may contain the value.
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return found


def _check_own_properties(value: object, info: ValidationInfo) -> object:
    return check_properties(value, info, OWNED, "the source")


def misfit(brokers: str, properties: Mapping[str, str | SecretStr]) -> str | None:
    """The problem with properties for authentication and server verification, or None."""
    values = revealed(properties)
    protocol = values.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        return f"security.protocol is none of {', '.join(sorted(_PROTOCOLS)).upper()}"
    for part, required in (("sasl", "SASL_SSL"), ("ssl", "SSL, or SASL_SSL with a password")):
        # librdkafka ignores them silently with another protocol, and would connect without protection.
        given = [key for key in values if key.startswith((f"{part}.", f"enable.{part}."))]
        if given and part not in protocol.split("_"):
            return f"{given[0]} is given, but security.protocol is {protocol}; set it to {required}"
    # Absent means the default, which verifies.
    for key, required in _VERIFIED.items():
        if values.get(key, required).lower() != required:
            return (
                f"{key} would turn off verification of the cluster; remove it, and name the authority of "
                "its certificates in ssl.ca.location"
            )
    # The client secret is sent to this server.
    token_server = urlsplit(values.get("sasl.oauthbearer.token.endpoint.url", ""))
    if token_server.scheme.lower() == "http" and not is_loopback(token_server.hostname or ""):
        return (
            "sasl.oauthbearer.token.endpoint.url would send a secret unprotected to "
            f"{token_server.hostname}; use https"
        )
    # SCRAM proves the password without sending it, so it is not in the set.
    sends_secret = protocol == "sasl_plaintext" and any(
        # librdkafka has two names for this property.
        values.get(key, "").lower() in _SENT_IN_PLAIN_TEXT
        for key in ("sasl.mechanisms", "sasl.mechanism")
    )
    # An address that cannot be parsed counts as another machine.
    remote = [host for host in (host_of(one.strip()) for one in brokers.split(",")) if not is_loopback(host)]
    if sends_secret and remote:
        return f"would send a secret unprotected to {remote[0]}; set security.protocol to SASL_SSL"
    return None


def revealed(properties: Mapping[str, str | SecretStr]) -> dict[str, str]:
    """The properties for the client, with secrets revealed: never print them."""
    return {
        key: value.get_secret_value() if isinstance(value, SecretStr) else value
        for key, value in properties.items()
    }


PROPERTIES_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": ["string", "number", "boolean"]}, SECRET_SCHEMA]},
}


class KafkaSourceSettings(Group):
    """Mirrored topics of a Kafka cluster. Each record arrives once, with its partition, offset, headers and
    time from Kafka.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "kafka"
    """Name of the source in the status, in metrics and in the log, which records under it that `from` was
    applied once. 1 to 64 of A-Z a-z 0-9 . _ -. Default `kafka`. Set it if there is more than one Kafka
    source."""
    brokers: Annotated[str, BeforeValidator(check_brokers)]
    """Bootstrap brokers: HOST:PORT, several separated by commas."""
    topics: Annotated[str, BeforeValidator(_check_pattern)]
    """A regular expression that must match a whole topic name, for example `orders` or `shop[.].*`. Kafka's
    internal topics and names that begin with two underscores are never mirrored. A topic keeps its name here;
    its entry in `topics` has `partitions: 0`."""
    beginning: Annotated[
        str,
        BeforeValidator(_check_beginning),
        WithJsonSchema({"type": "string", "examples": ["earliest", "latest", "2026-01-02T03:04:05Z"]}),
    ] = Field(default="earliest", alias="from")
    """Where mirroring starts for topics that exist when the source first lists them: `earliest`, `latest`, or
    a time (RFC 3339). A time means the first record that is not older. Default `earliest`. Topics and
    partitions created later start at their first record."""
    isolation: Literal["read_committed"] = "read_committed"
    """Records of open transactions wait until their transaction ends; records of aborted ones become gaps. No
    other value is possible."""
    properties: Annotated[
        dict[str, str | SecretStr], BeforeValidator(_check_own_properties), WithJsonSchema(PROPERTIES_SCHEMA)
    ] = Field(default_factory=dict)
    """Further librdkafka properties, for example `security.protocol`, `sasl.mechanisms`, `sasl.username`,
    `ssl.ca.location`. Passwords and keys are `{env: NAME}` or `{file: PATH}`. Properties that exactness or
    memory bounds depend on are refused. Default: none."""
    discover_interval: Annotated[Duration, Field(ge=0.05, le=3600)] = 30.0
    """Time between two listings of topics and partitions, and between two attempts after an error. While a
    partition has no leader, retries come sooner: after 1, 2, 4, … seconds, up to this time. Default 30 s.
    Lower it to find new topics sooner."""
    request_timeout: Annotated[Duration, Field(ge=1, le=300)] = 30.0
    """Longest time for one request to the cluster. A response with records may take longer while at least
    16 KiB of it come each second. Default 30 s."""
    queue_bytes_max: Annotated[Size, Field(ge=2**20, le=2**31)] = 32 * 2**20
    """Bytes that the client may prefetch; where possible it is also the most that one fetch requests from a
    broker. One batch of `intake.delay_max_bytes` comes on top. A batch with more than twice this size after
    decompression is not read. Default 32 MiB."""
    partitions_max: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Most partitions that are mirrored. Topics beyond the limit are not started; topics already started come
    first. Default 10,000."""
    lost: Annotated[
        dict[str, int],
        BeforeValidator(_check_lost),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "integer"}}),
    ] = Field(default_factory=dict)
    """Accepted losses: records that the cluster has lost, as TOPIC:PARTITION and the offset below which they
    are. Mirroring continues at the first record that the cluster still has, if that is not above this offset
    and the cluster has reached it. Otherwise the entry has no effect. Default: none. Set it when a source
    reports lost records."""

    @model_validator(mode="after")
    def _is_private(self) -> Self:
        if (why := misfit(self.brokers, self.properties)) is not None:
            raise Located([(("properties",), why)])
        return self

    @property
    def since_ms(self) -> int | None:
        """The time in `from`, in milliseconds since 1970; None if `from` is not a time."""
        if self.beginning in ("earliest", "latest"):
            return None
        # Kafka's times are milliseconds.
        return parse_time(self.beginning) // 1000

    def client(self) -> dict[str, str]:
        """The client properties, with secrets revealed: never print them."""
        return revealed(self.properties)

    def matches(self, topic: str) -> bool:
        """Whether a topic of that name is mirrored."""
        # Kafka's own topics begin with two underscores, for example `__consumer_offsets`.
        return not topic.startswith("__") and re.fullmatch(self.topics, topic) is not None
