"""The group of settings of control events: how they are written, and the Kafka topic that they are published
to.

Plain values only. The text under a key is its entry in docs/configuration.md.
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
            "bootstrap.servers",
            "metadata.broker.list",
            "enable.idempotence",
            "enable.gapless.guarantee",
            "transactional.id",
        ),
        *(
            "acks",
            "request.required.acks",
            "retries",
            "message.send.max.retries",
            "message.timeout.ms",
            "delivery.timeout.ms",
        ),
        *(
            "max.in.flight",
            "max.in.flight.requests.per.connection",
            "request.timeout.ms",
            "socket.timeout.ms",
        ),
        *(
            "queue.buffering.max.messages",
            "queue.buffering.max.kbytes",
            "queue.buffering.max.ms",
            "linger.ms",
        ),
        *("message.max.bytes", "partitioner", "allow.auto.create.topics"),
    }
)
"""Properties of the client that decide about order, acknowledgement or bounds: nobody else sets them."""


def _check_own_properties(value: object, info: ValidationInfo) -> object:
    return check_properties(value, info, OWNED, "the publisher")


class ControlTopicSettings(Group):
    """The Kafka topic that control events are published to, after what they tell has happened
    (docs/operations/control-topic.md).
    """

    brokers: Annotated[str, BeforeValidator(check_brokers)]
    """Where the client begins: HOST:PORT, several separated by commas."""
    topic: TopicName
    """The topic. It has to be there: it is never created. Several clusters may share one; events of one table
    are in one partition."""
    beginning: Literal["earliest", "latest"] = Field(default="earliest", alias="from")
    """Where publication begins the first time: `earliest`, with the first event of the ledger, or `latest`,
    with the next one. A topic that is new (another name, or made anew) begins so as well, but for `latest`
    then means where publication stood. The default leaves nothing out; who comes to an old ledger and wants
    no history chooses the other."""
    properties: Annotated[
        dict[str, str | SecretStr], BeforeValidator(_check_own_properties), WithJsonSchema(PROPERTIES_SCHEMA)
    ] = Field(default_factory=dict)
    """What librdkafka is told besides, for example `security.protocol`, `sasl.mechanisms`, `sasl.username`,
    `ssl.ca.location`. Passwords and keys are `{env: NAME}` or `{file: PATH}`. What order or acknowledgement
    depends on cannot be set."""
    interval: Annotated[Duration, Field(ge=0.05, le=3600)] = 1.0
    """Time between two looks for events that are to be published, and between two tries after an error."""
    request_timeout: Annotated[Duration, Field(ge=1, le=300)] = 30.0
    """How long a question to the cluster may take."""
    delivery_timeout: Annotated[Duration, Field(ge=1, le=300)] = 30.0
    """How long an event may wait for its acknowledgement. After that its outcome is unknown, and it is
    published again."""

    @model_validator(mode="after")
    def _is_private(self) -> Self:
        if (why := misfit(self.brokers, self.properties)) is not None:
            raise Located([(("properties",), why)])
        return self

    def client(self) -> dict[str, str]:
        """The properties, secrets revealed: never print it."""
        return revealed(self.properties)


class EventSettings(Group):
    """The control events in the ledger, as other programs are to read them."""

    table_uuid: StrictBool = True
    """Whether an event that names a table states its UUID, as Iceberg's Java classes do since release 1.11.
    Those of release 1.10 refuse an event that has it: false is for them. Either way every archiver reads
    both, and commits by the UUID that the ledger has beside."""
    bytes_max: Annotated[Size, Field(ge=2**17, le=2**30)] = 10**6
    """Largest event, in bytes, with the text of its schema; what needs more is split. A Kafka broker takes 1
    MiB unless it is told otherwise, what stands around the event included."""
    kafka: ControlTopicSettings | None = None
    """The topic that events are published to. Without it they stay in the ledger."""
