"""Messages as JSON for people, in Protobuf's own JSON mapping.

Promises never to fail on a record: what cannot be decoded is said instead. For looking only; nothing is rebuilt from this form.
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message, message_factory

from archiver.schema.descriptors import load_source
from archiver.settings import SchemaSettings, TopicSettings


class Decoder:
    """Decodes the keys and values of one topic by the schemas of its configuration."""

    def __init__(self, settings: TopicSettings | None) -> None:
        """Load the schemas; raises `ConfigInvalid`. Without settings nothing is decoded."""
        self._key = _message_class(None if settings is None else settings.key)
        self._value = _message_class(None if settings is None else settings.value)

    def decode(self, key: bytes | None, value: bytes | None) -> dict[str, object]:
        """`{"key": …, "value": …}`: the message's JSON; null without a schema or a message, `{"error": …}` if it does not decode."""
        return {"key": _decoded(self._key, key), "value": _decoded(self._value, value)}


def _message_class(settings: SchemaSettings | None) -> type[message.Message] | None:
    if settings is None:
        return None
    source = load_source(settings.descriptor_set, settings.message)
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(source.descriptor_set).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(source.message))


def _decoded(kind: type[message.Message] | None, data: bytes | None) -> object:
    if kind is None or data is None:
        return None
    try:
        return json_format.MessageToDict(kind.FromString(data), preserving_proto_field_name=True)
    except (message.DecodeError, json_format.Error, ValueError) as error:
        return {"error": str(error)}
