"""The group of settings of a Kafka source: which cluster, which topics, from where on, and what its client is
told besides; and how brokers and the properties of any Kafka client are written.

Plain values only. The text under a key is its entry in docs/configuration.md.
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
            "bootstrap.servers",
            "metadata.broker.list",
            "group.id",
            "enable.auto.commit",
            "enable.auto.offset.store",
            "auto.offset.reset",
        ),
        *(
            "isolation.level",
            "enable.partition.eof",
            "check.crcs",
            "queued.min.messages",
            "queued.max.messages.kbytes",
            "socket.timeout.ms",
        ),
        *("fetch.max.bytes", "max.partition.fetch.bytes", "fetch.message.max.bytes"),
        *("allow.auto.create.topics", "group.protocol", "group.instance.id"),
    }
)
"""Properties of the client that decide about exactness or bounds: they are the source's, and nobody else sets
them."""
_SECRET = re.compile(
    r"password|passphrase|secret|token(?!\.endpoint\.)|\.pem$|sasl\.oauthbearer\.config", re.IGNORECASE
)
_LOST = re.compile(r"[A-Za-z0-9._-]{1,249}:\d{1,6}", re.ASCII)
_OFFSET_MAX = 2**62
_VERIFIED = {"enable.ssl.certificate.verification": "true", "ssl.endpoint.identification.algorithm": "https"}
"""The client's own defaults, by which it believes nobody but the cluster."""
_PROTOCOLS = frozenset({"plaintext", "ssl", "sasl_plaintext", "sasl_ssl"})
_SENT_AS_IT_IS = frozenset({"plain", "oauthbearer"})
"""Mechanisms that send the secret itself."""


def check_brokers(value: object) -> object:
    """Where a client begins; raises `ValueError`."""
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("must name brokers as HOST:PORT,HOST:PORT")
    if "@" in value or "://" in value:  # not repeated: it may hold a password
        raise ValueError(
            "must be HOST:PORT,HOST:PORT alone; credentials and the protocol belong into properties"
        )
    return value


def _check_pattern(value: object) -> object:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a pattern of topic names such as orders or shop[.].*")
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"{value[:80]!r} is no regular expression: {error}") from None
    return value


def _check_beginning(value: object) -> object:
    if isinstance(value, datetime):  # YAML makes one of a time that is not in quotes
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
        raise ValueError("must be a mapping from TOPIC:PARTITION to an offset")  # noqa: TRY004 - pydantic wants ValueError
    for key, offset in value.items():
        if not isinstance(key, str) or not _LOST.fullmatch(key):
            raise ValueError(f"{str(key)[:80]!r} is not TOPIC:PARTITION")
        if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= _OFFSET_MAX:
            raise ValueError(f"{key}: {str(offset)[:40]} is not an offset")
    return value


def _property(key: str, value: object, info: ValidationInfo) -> str | SecretStr:
    """A property of a client; raises `ValueError` without repeating a secret."""
    if is_reference(value) or isinstance(value, SecretStr):
        revealed = reveal(value, info)
        assert isinstance(revealed, SecretStr)
        return revealed
    if value is None or isinstance(value, dict | list | tuple):
        raise ValueError(
            "must be a text, a number or true/false, or refer to a secret by {env: NAME} or {file: PATH}"
        )
    if _SECRET.search(key) and not key.endswith(".location"):
        raise ValueError("is a secret: write {env: NAME} or {file: PATH}, never the secret itself")
    return str(value).lower() if isinstance(value, bool) else str(value)


def check_properties(value: object, info: ValidationInfo, owned: frozenset[str], owner: str) -> object:
    """Properties of a client, of which those that are `owned` are `owner`'s; raises `ValueError`."""
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping of the client's properties")  # noqa: TRY004 - pydantic wants ValueError
    found: dict[str, str | SecretStr] = {}
    for key, given in value.items():
        if key in owned:
            raise ValueError(
                f"{key}: is {owner}'s own, because exactness or memory depends on it; take it out"
            )
        try:
            found[str(key)] = _property(str(key), given, info)
        except ValueError as error:
            raise ValueError(f"{key}: {error}") from None
    return found


def _check_own_properties(value: object, info: ValidationInfo) -> object:
    return check_properties(value, info, OWNED, "the source")


def misfit(brokers: str, properties: Mapping[str, str | SecretStr]) -> str | None:
    """What is wrong with properties that say who we are, and whom we believe; None if nothing is."""
    told = revealed(properties)
    protocol = told.get("security.protocol", "plaintext").lower()
    if protocol not in _PROTOCOLS:
        return f"security.protocol is none of {', '.join(sorted(_PROTOCOLS)).upper()}"
    for part, wanted in (("sasl", "SASL_SSL"), ("ssl", "SSL, or SASL_SSL with a password")):
        given = [key for key in told if key.startswith((f"{part}.", f"enable.{part}."))]
        if given and part not in protocol.split("_"):
            return f"{given[0]} is given, but security.protocol is {protocol}; set it to {wanted}"
    for key, wanted in _VERIFIED.items():
        if told.get(key, wanted).lower() != wanted:
            return (
                f"{key} would let anybody be the cluster; take it out, and name who signs its certificates "
                "by ssl.ca.location"
            )
    asked = urlsplit(told.get("sasl.oauthbearer.token.endpoint.url", ""))
    if asked.scheme.lower() == "http" and not is_loopback(asked.hostname or ""):
        return (
            f"sasl.oauthbearer.token.endpoint.url would send a secret unprotected to {asked.hostname}; use "
            "https"
        )
    sent = protocol == "sasl_plaintext" and any(
        told.get(key, "").lower() in _SENT_AS_IT_IS for key in ("sasl.mechanisms", "sasl.mechanism")
    )
    elsewhere = [
        host for host in (host_of(one.strip()) for one in brokers.split(",")) if not is_loopback(host)
    ]
    if sent and elsewhere:
        return f"would send a secret unprotected to {elsewhere[0]}; set security.protocol to SASL_SSL"
    return None


def revealed(properties: Mapping[str, str | SecretStr]) -> dict[str, str]:
    """The properties as the client needs them: never print it."""
    return {
        key: value.get_secret_value() if isinstance(value, SecretStr) else value
        for key, value in properties.items()
    }


PROPERTIES_SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": ["string", "number", "boolean"]}, SECRET_SCHEMA]},
}


class KafkaSourceSettings(Group):
    """Topics of a Kafka cluster that are mirrored: each record once, with the partition, offset, headers and
    time it has there.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,64}$")] = "kafka"
    """By this name the source is told apart from other Kafka sources, in the status, in metrics, and in the
    log, which remembers by it that `from` was followed once. 1 to 64 of A-Z a-z 0-9 . _ -."""
    brokers: Annotated[str, BeforeValidator(check_brokers)]
    """Where the client begins: HOST:PORT, several separated by commas."""
    topics: Annotated[str, BeforeValidator(_check_pattern)]
    """A regular expression that a whole topic name must match, for example `orders` or `shop[.].*`. Kafka's
    internal topics and names that begin with two underscores are never mirrored. A topic has the same name
    here; in `topics` its entry has `partitions: 0`."""
    beginning: Annotated[
        str,
        BeforeValidator(_check_beginning),
        WithJsonSchema({"type": "string", "examples": ["earliest", "latest", "2026-01-02T03:04:05Z"]}),
    ] = Field(default="earliest", alias="from")
    """Where the topics begin that are there when the source first looks: `earliest`, `latest`, or a time (RFC
    3339), which means the first record that is not older. Topics and partitions that come later begin at
    their first record."""
    isolation: Literal["read_committed"] = "read_committed"
    """Records of open transactions wait until these have ended; those of aborted ones are gaps. Nothing else
    can be chosen."""
    properties: Annotated[
        dict[str, str | SecretStr], BeforeValidator(_check_own_properties), WithJsonSchema(PROPERTIES_SCHEMA)
    ] = Field(default_factory=dict)
    """What librdkafka is told besides, for example `security.protocol`, `sasl.mechanisms`, `sasl.username`,
    `ssl.ca.location`. Passwords and keys are `{env: NAME}` or `{file: PATH}`. What exactness or memory
    depends on cannot be set."""
    discover_interval: Annotated[Duration, Field(ge=0.05, le=3600)] = 30.0
    """Time between two looks at which topics and partitions there are, and between two tries after an error.
    While a partition has no leader the looks after the first are sooner: after 1, 2, 4, … seconds, until it
    is this."""
    request_timeout: Annotated[Duration, Field(ge=1, le=300)] = 30.0
    """How long a question to the cluster may take."""
    queue_bytes_max: Annotated[Size, Field(ge=2**20, le=2**31)] = 32 * 2**20
    """What the client may have fetched ahead, in bytes, and as far as it goes the most that it asks a broker
    for at a time; a piece of `intake.delay_max_bytes` comes on top."""
    partitions_max: Annotated[int, Field(ge=1, le=100_000)] = 10_000
    """Partitions that are mirrored at most; with more, nothing of the topics that are beyond is begun. Topics
    that were begun come first."""
    lost: Annotated[
        dict[str, int],
        BeforeValidator(_check_lost),
        WithJsonSchema({"type": "object", "additionalProperties": {"type": "integer"}}),
    ] = Field(default_factory=dict)
    """Records that the cluster has lost and that you give up: from TOPIC:PARTITION to the offset below which
    they are. The mirror goes on at the first record that the cluster still has, if that is not beyond this
    offset, and if the cluster has got as far as it; else it does nothing."""

    @model_validator(mode="after")
    def _is_private(self) -> Self:
        if (why := misfit(self.brokers, self.properties)) is not None:
            raise Located([(("properties",), why)])
        return self

    @property
    def since_ms(self) -> int | None:
        """The time in `from`, in milliseconds since 1970; None if it is none."""
        if self.beginning in ("earliest", "latest"):
            return None
        return parse_time(self.beginning) // 1000

    def client(self) -> dict[str, str]:
        """The properties, secrets revealed: never print it."""
        return revealed(self.properties)

    def matches(self, topic: str) -> bool:
        """Whether a topic of that name is mirrored."""
        return not topic.startswith("__") and re.fullmatch(self.topics, topic) is not None
