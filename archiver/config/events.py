"""The settings of control events: their format, and the Kafka topic to which they are published.

Plain values only. The docstring under a key is its entry in docs/configuration.md.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    BeforeValidator,
    Field,
    SecretStr,
    StrictBool,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from archiver.config.kafka import PROPERTIES_SCHEMA, check_brokers, check_properties, misfit, revealed
from archiver.config.types import Duration, Group, Located, Size, TopicName

OWNED = frozenset(
    {
        *(
            # `brokers` names the cluster. Idempotence drops the repetitions of the client itself.
            "bootstrap.servers",
            "metadata.broker.list",
            "enable.idempotence",
            "enable.gapless.guarantee",
            "transactional.id",
        ),
        *(
            # An event counts as published only when all replicas have it. Its retries are bounded by
            # `delivery_timeout`.
            "acks",
            "request.required.acks",
            "retries",
            "message.send.max.retries",
            "message.timeout.ms",
            "delivery.timeout.ms",
        ),
        *(
            # Idempotence keeps the order only up to a number of requests in flight.
            "max.in.flight",
            "max.in.flight.requests.per.connection",
            "request.timeout.ms",
            "socket.timeout.ms",
        ),
        *(
            # Memory, and the time that an event waits in the client.
            "queue.buffering.max.messages",
            "queue.buffering.max.kbytes",
            "queue.buffering.max.ms",
            "linger.ms",
        ),
        # The publisher bounds its records itself. The events of one table need one partition.
        *("message.max.bytes", "partitioner", "allow.auto.create.topics"),
    }
)
"""Client properties that order, acknowledgement or bounds depend on. The publisher sets them itself, and the
configuration must not."""


def _check_own_properties(value: object, info: ValidationInfo) -> object:
    return check_properties(value, info, OWNED, "the publisher")


class ControlTopicSettings(Group):
    """The Kafka topic to which control events are published after the fact
    (docs/operations/control-topic.md).
    """

    brokers: Annotated[str, BeforeValidator(check_brokers)]
    """Bootstrap brokers: HOST:PORT, several separated by commas."""
    topic: TopicName
    """The topic. It must exist: the archiver never creates it. Several clusters may share it; the events of
    one table are in one partition."""
    beginning: Literal["earliest", "latest"] = Field(default="earliest", alias="from")
    """Where the first publication starts. `earliest`: at the first event of the ledger. `latest`: at the next
    event. A new topic (another name, or recreated) starts in the same way; there, `latest` means where
    publication had stopped. Default `earliest`, which omits nothing. Set `latest` for an old ledger if its
    history is not needed."""
    properties: Annotated[
        dict[str, str | SecretStr], BeforeValidator(_check_own_properties), WithJsonSchema(PROPERTIES_SCHEMA)
    ] = Field(default_factory=dict)
    """Further librdkafka properties, for example `security.protocol`, `sasl.mechanisms`, `sasl.username`,
    `ssl.ca.location`. Passwords and keys are `{env: NAME}` or `{file: PATH}`. Properties that order or
    acknowledgement depends on are refused. Default: none."""
    interval: Annotated[Duration, Field(ge=0.05, le=3600)] = 1.0
    """Time between two checks for new events, and between two attempts after an error. Default 1 s."""
    request_timeout: Annotated[Duration, Field(ge=1, le=300)] = 30.0
    """Longest time for one request to the cluster. Default 30 s."""
    delivery_timeout: Annotated[Duration, Field(ge=1, le=300)] = 30.0
    """Longest wait of an event for its acknowledgement. Its outcome is then unknown, and it is published
    again. Default 30 s."""

    @model_validator(mode="after")
    def _is_private(self) -> Self:
        if (why := misfit(self.brokers, self.properties)) is not None:
            raise Located([(("properties",), why)])
        return self

    def client(self) -> dict[str, str]:
        """The client properties, with secrets revealed: never print them."""
        return revealed(self.properties)


class EventSettings(Group):
    """The format of control events in the ledger, for other programs."""

    table_uuid: StrictBool = True
    """Whether an event that names a table contains its UUID, as Iceberg's Java classes do since release 1.11.
    Default `true`. Set `false` for readers with release 1.10, which refuse such an event. Every archiver
    reads both forms, and commits by the UUID that the ledger stores separately."""
    bytes_max: Annotated[Size, Field(ge=2**17, le=2**30)] = 10**6
    """Largest event, in bytes, including its schema text; larger ones are split. Default 1 MB: a Kafka broker
    accepts 1 MiB by default, including the overhead of the record."""
    kafka: ControlTopicSettings | None = None
    """The Kafka topic to which events are published. Default: none, and they stay in the ledger."""
